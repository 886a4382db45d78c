//! A client of the workload: appends with and without idempotency keys, and reads, through any node.
//!
//! It draws its conclusions from errors exactly as their type says: what is retryable without a key was not
//! written, and only [`Retry::WithIdempotencyKey`] and silence leave an outcome open.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tidemark_proto::{ApiError, Retry, v1};
use tidemark_storage::Position;
use tokio::time::Instant;

use super::{
    cluster::{Cluster, NODES, NoAnswer},
    trace::What,
};
use crate::history::{self, Append, History, Level, Outcome, Read};

/// How long a client tries.
const PATIENCE: Duration = Duration::from_secs(12);

/// The deadline of one attempt …
const ATTEMPT: Duration = Duration::from_secs(3);

/// … and how much longer the client listens: a node may answer late.
const LISTENS: Duration = Duration::from_millis(500);

/// An append as it is repeated.
#[derive(Clone, Debug)]
struct Save {
    request: v1::SaveEventsRequest,
    event_ids: Vec<String>,
}

/// One client.
pub struct Client {
    id: u64,
    cluster: Cluster,
    boundary: String,
    history: Arc<Mutex<History>>,
    random: SmallRng,
    events: u64,
    /// Saves under keys that were acknowledged.
    keyed: Vec<Save>,
    last_acknowledged: Option<Position>,
}

impl Client {
    /// A client that writes what it sees into `history`.
    pub fn new(id: u64, seed: u64, cluster: Cluster, boundary: &str, history: Arc<Mutex<History>>) -> Self {
        Self {
            id,
            cluster,
            boundary: boundary.to_owned(),
            history,
            random: SmallRng::seed_from_u64(seed),
            events: 0,
            keyed: Vec::new(),
            last_acknowledged: None,
        }
    }

    /// Works until `until`, with pauses of up to `pause_max`.
    pub async fn run(mut self, until: Instant, pause_max: Duration) {
        while Instant::now() < until {
            tokio::time::sleep(self.random.random_range(Duration::ZERO..=pause_max)).await;
            match self.random.random_range(0..100) {
                0..70 => self.append().await,
                70..74 => self.repeat().await,
                74..77 => self.reuse_key().await,
                _ => self.read().await,
            }
        }
    }

    async fn append(&mut self) {
        let save = self.new_save();
        self.settle(save).await;
    }

    /// The same save under the same key: it is to be at the same position.
    async fn repeat(&mut self) {
        if !self.keyed.is_empty() {
            let save = self.keyed[self.random.random_range(0..self.keyed.len())].clone();
            self.settle(save).await;
        }
    }

    /// Another save under a used key: it is to be refused.
    async fn reuse_key(&mut self) {
        if !self.keyed.is_empty() {
            let used = self.random.random_range(0..self.keyed.len());
            let mut save = self.new_save();
            save.request.idempotency_key = self.keyed[used].request.idempotency_key.clone();
            self.settle(save).await;
        }
    }

    fn new_save(&mut self) -> Save {
        let count = self.random.random_range(1..=3);
        let events = (0..count).map(|_| self.new_event()).collect::<Vec<_>>();
        let event_ids = events.iter().map(|event| event.event_id.clone()).collect();
        let keyed = self.random.random_bool(0.6);
        let idempotency_key = if keyed { format!("key-{}-{}", self.id, self.events) } else { String::new() };
        let boundary = self.boundary.clone();
        Save {
            request: v1::SaveEventsRequest { boundary, events, idempotency_key, consistency: vec![] },
            event_ids,
        }
    }

    fn new_event(&mut self) -> v1::EventToSave {
        self.events += 1;
        let padding = "x".repeat(self.random.random_range(0..300));
        v1::EventToSave {
            event_id: format!("event-{}-{}", self.id, self.events),
            event_type: "Happened".to_owned(),
            data: format!("{{\"number\":{},\"padding\":\"{padding}\"}}", self.events).into_bytes().into(),
            ..v1::EventToSave::default()
        }
    }

    async fn settle(&mut self, save: Save) {
        let began = self.cluster.trace.now();
        let outcome = self.attempts(&save).await;
        let ended = self.cluster.trace.now();
        let event_id = save.event_ids.last().cloned().unwrap_or_default();
        let key = Some(&save.request.idempotency_key).filter(|key| !key.is_empty()).cloned();
        match &outcome {
            Outcome::Acknowledged { position } => {
                self.cluster.trace.note(What::Acknowledged { event_id, position: *position });
                self.last_acknowledged = Some(*position);
                if key.is_some() {
                    self.keyed.push(save.clone());
                }
            }
            Outcome::Rejected { why } => {
                self.cluster.trace.note(What::NotAcknowledged { event_id, why: why.clone() });
            }
            Outcome::Unknown => {
                self.cluster.trace.note(What::NotAcknowledged { event_id, why: "unknown".to_owned() });
            }
        }
        let append = Append {
            client: self.id,
            idempotency_key: key,
            event_ids: save.event_ids,
            began,
            ended,
            outcome,
        };
        self.history.lock().appends.push(append);
    }

    async fn attempts(&mut self, save: &Save) -> Outcome {
        let give_up = Instant::now() + PATIENCE;
        let repeatable = !save.request.idempotency_key.is_empty();
        let (mut may_be_written, mut why) = (false, "no node answered".to_owned());
        loop {
            let node = self.random.random_range(1..=NODES);
            let retry = match self.attempt(node, save).await {
                Ok(Ok(result)) => {
                    let position = result.log_position.expect("a written save has a position");
                    return Outcome::Acknowledged { position: history::position(position) };
                }
                Ok(Err(error)) => {
                    assert!(!matches!(error, ApiError::Internal { .. }), "node {node} is at fault: {error}");
                    why = error.to_string();
                    error.retryable()
                }
                Err(NoAnswer::NotSent) => Retry::AtOnce,
                Err(NoAnswer::Lost) => Retry::WithIdempotencyKey,
            };
            match retry {
                Retry::Never if may_be_written => return Outcome::Unknown,
                Retry::Never => return Outcome::Rejected { why },
                Retry::WithIdempotencyKey if !repeatable => return Outcome::Unknown,
                Retry::WithIdempotencyKey => may_be_written = true,
                Retry::AtOnce | Retry::AfterBackoff => {}
            }
            if Instant::now() >= give_up {
                return if may_be_written { Outcome::Unknown } else { Outcome::Rejected { why } };
            }
            tokio::time::sleep(
                self.random.random_range(Duration::from_millis(5)..Duration::from_millis(200)),
            )
            .await;
        }
    }

    async fn attempt(
        &mut self,
        node: u64,
        save: &Save,
    ) -> Result<Result<v1::WriteResult, ApiError>, NoAnswer> {
        let request = save.request.clone();
        let deadline = Instant::now() + ATTEMPT;
        self.travel().await;
        let answer = self
            .cluster
            .ask(node, deadline + LISTENS, move |api| async move { api.save_events(request, deadline).await })
            .await?;
        self.travel().await;
        Ok(answer)
    }

    async fn travel(&mut self) {
        let way = self.random.random_range(Duration::from_micros(50)..Duration::from_millis(3));
        tokio::time::sleep(way).await;
    }

    async fn read(&mut self) {
        let node = self.random.random_range(1..=NODES);
        let (level, wire) = match (self.random.random_range(0..10), self.last_acknowledged) {
            (0..5, _) => {
                (Level::Linearizable, v1::read_consistency::Level::Linearizable(v1::Linearizable {}))
            }
            (5..8, Some(position)) => {
                let wire = v1::Position {
                    commit_position: position.commit_position,
                    prepare_position: position.prepare_position,
                };
                (Level::AtLeast(position), v1::read_consistency::Level::AtLeast(wire))
            }
            _ => (Level::Local, v1::read_consistency::Level::Local(v1::Local {})),
        };
        let began = self.cluster.trace.now();
        self.travel().await;
        let deadline = Instant::now() + ATTEMPT;
        let Some(events) = self.cluster.read(node, &self.boundary, wire, deadline).await else { return };
        self.travel().await;
        let ended = self.cluster.trace.now();
        self.cluster.trace.note(What::Read { node, events: events.len() });
        self.history.lock().reads.push(Read { client: self.id, node, level, began, ended, events });
    }
}
