//! Imports against a cluster that forgets, fails and refuses on demand.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tidemark_proto::v1::{
    Boundary, BoundaryDefinition, CompareReplicasResponse, EventToSave, GetClusterInfoResponse,
    GetEventsRequest, GetEventsResponse,
};

use super::*;

/// What happens to one call of `save`.
#[derive(Clone)]
enum Fate {
    /// Written and answered.
    Answered,
    /// Written, but the answer is lost.
    AnswerLost,
    /// Nothing was written.
    Failed(Error),
}

fn unavailable() -> Fate {
    Fate::Failed(Error::Unavailable { last: Some(ApiError::NoQuorum) })
}

#[derive(Default)]
struct State {
    fates: VecDeque<Fate>,
    written: Vec<String>,
    by_key: HashMap<String, WriteResult>,
    in_flight: usize,
    most_in_flight: usize,
}

#[derive(Clone, Default)]
struct FakeCluster(Arc<Mutex<State>>);

impl FakeCluster {
    fn failing(fates: impl IntoIterator<Item = Fate>) -> Self {
        let cluster = Self::default();
        cluster.0.lock().fates.extend(fates);
        cluster
    }

    fn written(&self) -> Vec<String> {
        self.0.lock().written.clone()
    }
}

#[async_trait]
impl Api for FakeCluster {
    async fn save(&self, _: &str, events: &[EventToSave], key: &str) -> Result<WriteResult, Error> {
        {
            let mut state = self.0.lock();
            state.in_flight += 1;
            state.most_in_flight = state.most_in_flight.max(state.in_flight);
        }
        tokio::task::yield_now().await;
        let mut state = self.0.lock();
        state.in_flight -= 1;
        let fate = state.fates.pop_front().unwrap_or(Fate::Answered);
        if let Fate::Failed(error) = fate {
            return Err(error);
        }
        let written = match state.by_key.get(key) {
            Some(earlier) => WriteResult { already_applied: true, ..earlier.clone() },
            None => {
                state.written.extend(events.iter().map(|event| event.event_id.clone()));
                let first = WriteResult::default();
                state.by_key.insert(key.to_owned(), first.clone());
                first
            }
        };
        match fate {
            Fate::AnswerLost => Err(Error::OutcomeUnknown { idempotency_key: key.to_owned() }),
            Fate::Answered | Fate::Failed(_) => Ok(written),
        }
    }

    async fn read(&self, _: GetEventsRequest) -> Result<GetEventsResponse, Error> {
        unreachable!("imports do not read")
    }

    async fn create_boundary(&self, _: BoundaryDefinition) -> Result<Boundary, Error> {
        unreachable!("imports do not create boundaries")
    }

    async fn list_boundaries(&self) -> Result<Vec<Boundary>, Error> {
        unreachable!("imports do not list boundaries")
    }

    async fn cluster_info(&self) -> Result<GetClusterInfoResponse, Error> {
        unreachable!("imports do not ask for members")
    }

    async fn compare_replicas(&self, _: Duration) -> Result<CompareReplicasResponse, Error> {
        unreachable!("imports do not compare replicas")
    }
}

#[derive(Default)]
struct Acknowledged(Vec<u64>);

impl Observer for Acknowledged {
    fn acknowledged(&mut self, batch: &Batch, _: &WriteResult, _: &Tally) -> Result<(), CliError> {
        self.0.extend(&batch.lines);
        Ok(())
    }
}

fn batch(lines: std::ops::RangeInclusive<u64>) -> Batch {
    let events =
        lines.clone().map(|line| EventToSave { event_id: format!("e{line}"), ..EventToSave::default() });
    let digest = blake3::hash(format!("{lines:?}").as_bytes());
    Batch {
        events: events.collect(),
        end_line: *lines.end(),
        lines: lines.collect(),
        digest,
        prefix_digest: digest,
        invalid: 0,
    }
}

fn sent(
    batches: impl IntoIterator<Item = Result<Batch, CliError>>,
) -> mpsc::Receiver<Result<Batch, CliError>> {
    let (sender, receiver) = mpsc::channel(100);
    for batch in batches {
        sender.try_send(batch).expect("fits into the channel");
    }
    receiver
}

fn pairs(count: u64) -> mpsc::Receiver<Result<Batch, CliError>> {
    sent((0..count).map(|index| Ok(batch(2 * index + 1..=2 * index + 2))))
}

fn ids(lines: std::ops::RangeInclusive<u64>) -> Vec<String> {
    lines.map(|line| format!("e{line}")).collect()
}

fn options(order: Order) -> ImportOptions {
    ImportOptions {
        boundary: "b".to_owned(),
        source: "s".to_owned(),
        label: "f".to_owned(),
        order,
        rate: None,
        patience: Duration::from_secs(60),
    }
}

#[tokio::test(start_paused = true)]
async fn order_is_kept_when_answers_are_lost_and_leaders_change() {
    let not_leader = Error::Unavailable { last: Some(ApiError::NotLeader { leader: None }) };
    let fates = [
        Fate::Answered,
        Fate::AnswerLost,
        Fate::Failed(not_leader),
        unavailable(),
        Fate::Answered,
        Fate::AnswerLost,
    ];
    let cluster = FakeCluster::failing(fates);
    let (mut tally, mut seen) = (Tally::default(), Acknowledged::default());
    import(&cluster, pairs(4), &options(Order::Kept), &mut tally, &mut seen).await.unwrap();
    assert_eq!(cluster.written(), ids(1..=8));
    assert_eq!(seen.0, (1..=8).collect::<Vec<u64>>());
    assert_eq!(cluster.0.lock().most_in_flight, 1);
    assert_eq!((tally.events, tally.batches, tally.retries), (8, 4, 4));
    assert_eq!(tally.already_applied, 4, "the two batches whose answers were lost");
}

#[tokio::test(start_paused = true)]
async fn a_second_run_writes_nothing_and_says_so() {
    let cluster = FakeCluster::default();
    let mut tally = Tally::default();
    import(&cluster, pairs(3), &options(Order::Kept), &mut tally, &mut Acknowledged::default())
        .await
        .unwrap();
    assert_eq!((tally.events, tally.already_applied), (6, 0));
    let mut again = Tally::default();
    import(&cluster, pairs(3), &options(Order::Kept), &mut again, &mut Acknowledged::default())
        .await
        .unwrap();
    assert_eq!((again.events, again.already_applied), (6, 6));
    assert_eq!(cluster.written(), ids(1..=6));
}

#[tokio::test(start_paused = true)]
async fn unordered_saves_overlap_and_are_reported_in_order() {
    let cluster = FakeCluster::failing([unavailable()]);
    let (mut tally, mut seen) = (Tally::default(), Acknowledged::default());
    let in_flight = NonZeroUsize::new(4).unwrap();
    import(&cluster, pairs(8), &options(Order::Free { in_flight }), &mut tally, &mut seen).await.unwrap();
    assert_eq!(seen.0, (1..=16).collect::<Vec<u64>>());
    assert_eq!(cluster.0.lock().most_in_flight, 4);
    assert_eq!(cluster.written().len(), 16);
}

#[tokio::test(start_paused = true)]
async fn a_refused_event_stops_the_import_at_its_line() {
    let refusal = ApiError::invalid("events[1].data", "nested too deeply");
    let cluster = FakeCluster::failing([Fate::Answered, Fate::Failed(refusal.into())]);
    let mut tally = Tally::default();
    let result =
        import(&cluster, pairs(3), &options(Order::Kept), &mut tally, &mut Acknowledged::default()).await;
    assert_eq!(result.unwrap_err().to_string(), "f:4: invalid events[1].data: nested too deeply");
    assert_eq!((tally.events, cluster.written()), (2, ids(1..=2)));
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_stays_away_exhausts_the_patience() {
    let cluster = FakeCluster::failing(std::iter::repeat_n(unavailable(), 10_000));
    let started = Instant::now();
    let mut tally = Tally::default();
    let result =
        import(&cluster, pairs(1), &options(Order::Kept), &mut tally, &mut Acknowledged::default()).await;
    assert_eq!(result.unwrap_err().code(), 3);
    let waited = started.elapsed();
    assert!(waited > Duration::from_secs(55) && waited <= Duration::from_secs(60), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_rate_spreads_the_saves() {
    let cluster = FakeCluster::default();
    let options = ImportOptions { rate: NonZeroU32::new(10), ..options(Order::Kept) };
    let started = Instant::now();
    import(&cluster, pairs(6), &options, &mut Tally::default(), &mut Acknowledged::default()).await.unwrap();
    assert_eq!(started.elapsed().as_millis(), 1000, "five pairs at 10 per second before the last one is due");
}

#[tokio::test(start_paused = true)]
async fn a_bad_line_ends_the_import_after_the_batches_before_it() {
    let reason = super::super::line::parse(b"x").unwrap_err();
    let bad = CliError::Line { place: "f:3".to_owned(), reason };
    let cluster = FakeCluster::default();
    let receiver = sent([Ok(batch(1..=2)), Err(bad)]);
    let mut tally = Tally::default();
    let result =
        import(&cluster, receiver, &options(Order::Kept), &mut tally, &mut Acknowledged::default()).await;
    assert!(result.unwrap_err().to_string().starts_with("f:3: "));
    assert_eq!((tally.events, cluster.written()), (2, ids(1..=2)));
}

#[test]
fn keys_differ_by_boundary_source_line_and_content() {
    let first = batch(1..=2);
    let mut moved = first.clone();
    moved.lines = vec![3, 4];
    let mut changed = first.clone();
    changed.digest = blake3::hash(b"other");
    let keys = [
        idempotency_key("b", "s", &first),
        idempotency_key("c", "s", &first),
        idempotency_key("b", "t", &first),
        idempotency_key("bs", "", &first),
        idempotency_key("b", "s", &moved),
        idempotency_key("b", "s", &changed),
    ];
    let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
    assert_eq!(distinct.len(), keys.len());
    assert!(keys.iter().all(|key| key.len() <= 128));
    assert_eq!(idempotency_key("b", "s", &first.clone()), keys[0]);
}
