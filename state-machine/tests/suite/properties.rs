//! Properties over random histories.

use std::collections::{BTreeMap, BTreeSet};

use proptest::{collection::vec, prelude::*, sample::Index};
use prost::Message;
use tidemark_proto::record::StoredEvent;
use tidemark_state_machine::{
    Boundary, Event, RecordedSave,
    read::{self, Page, PageRequest},
};
use tidemark_storage::{
    BoundaryHash, Direction, Position, Snapshot,
    tables::{self, Expiring, IdempotencyKey},
};

use crate::{
    fixture::Replica,
    history::{History, steps},
    reference::{RefEvent, Reference},
};

fn config() -> ProptestConfig {
    // A failure found here becomes a test of its own, so no file of seeds is kept.
    ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() }
}

const EVERYTHING: PageRequest = PageRequest {
    from: None,
    direction: Direction::Ascending,
    count_max: usize::MAX,
    bytes_max: usize::MAX,
    scan_rows_max: usize::MAX,
};

#[track_caller]
fn page(snapshot: &dyn Snapshot, boundary: &Boundary, request: &PageRequest) -> Page {
    read::read_events(snapshot, boundary, request).expect("readable")
}

fn positions(page: &Page) -> Vec<Position> {
    page.events.iter().map(|(key, _)| key.position()).collect()
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn outcomes_and_state_equal_the_naive_reference(steps in steps()) {
        let history = History::of(&steps);
        let mut replica = Replica::new();
        for (outcome, state) in history.outcomes.iter().zip(&history.states) {
            let answers = replica.apply_chunk(&history.entries, 1);
            prop_assert_eq!(&answers[..], std::slice::from_ref(outcome));
            let snapshot = replica.snapshot();
            prop_assert_eq!(read::clock_ms(&*snapshot).expect("readable"), state.clock_ms);
            prop_assert_eq!(read::last_event_id(&*snapshot).expect("readable").get(), state.last_id);
        }
        if let Some(state) = history.states.last() {
            assert_same_contents(&replica, state);
        }
    }

    #[test]
    fn replicas_fed_in_other_chunks_and_after_crashes_are_equal(
        steps in steps(),
        plan in vec((1usize..9, 0usize..4, any::<Index>()), 0..30),
    ) {
        let history = History::of(&steps);
        let mut steady = Replica::new();
        while steady.applied_index() < history.entries.len() {
            let from = steady.applied_index();
            let answers = steady.apply_chunk(&history.entries, 1);
            prop_assert_eq!(&answers[..], &history.outcomes[from..from + answers.len()]);
        }
        let mut shaken = Replica::new();
        for (count, action, surviving) in plan {
            let from = shaken.applied_index();
            if from < history.entries.len() {
                let answers = shaken.apply_chunk(&history.entries, count);
                // An entry that is applied again, after a crash, is answered as before.
                prop_assert_eq!(&answers[..], &history.outcomes[from..from + answers.len()]);
            }
            match action {
                0 => shaken.db.flush().expect("the disk has room"),
                1 => shaken.crash(surviving.index(8)),
                _ => {}
            }
        }
        while shaken.applied_index() < history.entries.len() {
            shaken.apply_chunk(&history.entries, 7);
        }
        prop_assert_eq!(shaken.rows(), steady.rows());
        prop_assert_eq!(shaken.digest(), steady.digest());
    }

    #[test]
    fn what_becomes_visible_later_sorts_after_everything_visible_before(steps in steps()) {
        let history = History::of(&steps);
        let mut replica = Replica::new();
        let mut seen: BTreeMap<BoundaryHash, BTreeSet<Position>> = BTreeMap::new();
        let mut frontiers: BTreeMap<BoundaryHash, Position> = BTreeMap::new();
        for state in &history.states {
            replica.apply_chunk(&history.entries, 1);
            for boundary in &state.boundaries {
                let page = page(&*replica.snapshot(), boundary, &EVERYTHING);
                let seen = seen.entry(boundary.hash()).or_default();
                let newest_before = seen.last().copied().unwrap_or(Position::START);
                let frontier_before = frontiers.insert(boundary.hash(), page.frontier).unwrap_or(Position::START);
                prop_assert!(page.frontier >= frontier_before);
                for position in positions(&page) {
                    prop_assert!(position <= page.frontier);
                    if seen.insert(position) {
                        prop_assert!(position > newest_before, "{} came after {}", position, newest_before);
                        prop_assert!(position > frontier_before, "{} is not behind {}", position, frontier_before);
                    }
                }
            }
        }
    }

    #[test]
    fn pages_in_both_directions_equal_the_naive_reference(
        steps in steps(),
        ascending in any::<bool>(),
        start in start(),
        (count_max, bytes_max, scan_rows_max) in (1usize..6, 1usize..400, 0usize..6),
    ) {
        let history = History::of(&steps);
        let mut replica = Replica::new();
        while replica.applied_index() < history.entries.len() {
            replica.apply_chunk(&history.entries, 64);
        }
        let state = history.states.last().expect("a history has steps");
        let direction = if ascending { Direction::Ascending } else { Direction::Descending };
        for boundary in &state.boundaries {
            let from = start.position(state, boundary);
            let mut expected = state.visible(boundary);
            expected.retain(|position| from.is_none_or(|from| match direction {
                Direction::Ascending => *position >= from,
                Direction::Descending => *position <= from,
            }));
            if direction == Direction::Descending {
                expected.reverse();
            }
            let request = PageRequest { from, direction, count_max, bytes_max, scan_rows_max };
            prop_assert_eq!(all_pages(&replica, state, boundary, request)?, expected);
        }
    }
}

/// Where a read begins, relative to what there is.
#[derive(Clone, Debug)]
enum Start {
    Open,
    AtEvent(Index),
    BesideEvent(Index, i64),
    At(Position),
}

fn start() -> impl Strategy<Value = Start> {
    let extreme = prop_oneof![Just(-1i64), Just(0), Just(i64::MAX)];
    prop_oneof![
        Just(Start::Open),
        any::<Index>().prop_map(Start::AtEvent),
        (any::<Index>(), prop_oneof![Just(-1i64), Just(1)]).prop_map(|(at, by)| Start::BesideEvent(at, by)),
        (extreme.clone(), extreme).prop_map(|(commit_position, prepare_position)| Start::At(Position {
            commit_position,
            prepare_position
        })),
    ]
}

impl Start {
    fn position(&self, state: &Reference, boundary: &Boundary) -> Option<Position> {
        // Also events that are not visible are places to begin at.
        let events: Vec<&RefEvent> =
            state.events.iter().filter(|event| event.boundary == boundary.hash()).collect();
        match self {
            Self::Open => None,
            Self::At(position) => Some(*position),
            Self::AtEvent(_) | Self::BesideEvent(..) if events.is_empty() => None,
            Self::AtEvent(at) => Some(at.get(&events).position()),
            Self::BesideEvent(at, by) => {
                let position = at.get(&events).position();
                Some(Position { prepare_position: position.prepare_position + by, ..position })
            }
        }
    }
}

/// Reads page by page, and checks each page's limits.
fn all_pages(
    replica: &Replica,
    state: &Reference,
    boundary: &Boundary,
    mut request: PageRequest,
) -> Result<Vec<Position>, TestCaseError> {
    let snapshot = replica.snapshot();
    let mut all = Vec::new();
    // Each page looks at one row at least, so there cannot be more of them than rows.
    for _ in 0..=state.events.len() {
        let page = page(&*snapshot, boundary, &request);
        let bytes: usize = page.events.iter().map(|(_, value)| value.len()).sum();
        prop_assert!(page.events.len() <= request.count_max.min(request.scan_rows_max.max(1)));
        prop_assert!(bytes <= request.bytes_max || page.events.len() == 1);
        let bucket = state.clock_ms / boundary.definition.time_bucket_ms;
        prop_assert_eq!(page.frontier.commit_position as u64, bucket);
        prop_assert_eq!(page.frontier.prepare_position as u64, state.last_id);
        all.extend(positions(&page));
        match page.next {
            Some(next) => request.from = Some(next),
            None => return Ok(all),
        }
    }
    Err(TestCaseError::fail("the pages never end"))
}

#[track_caller]
fn assert_same_contents(replica: &Replica, state: &Reference) {
    let snapshot = replica.snapshot();
    let mut events: Vec<&RefEvent> = state.events.iter().collect();
    events.sort_by_key(|event| (event.boundary, event.position()));
    let mut rows = Vec::new();
    let (mut saves, mut twins) = (BTreeSet::new(), BTreeSet::new());
    for (key, value) in replica.rows() {
        match key[0] {
            tables::EVENTS => {
                let key = tables::parse_event_key(&key).expect("well formed");
                rows.push(Event::decode(key, value).expect("well formed"));
            }
            tables::IDEMPOTENCY => {
                saves.insert(tables::parse_idempotency_key(&key).expect("well formed"));
            }
            tables::EXPIRY => match tables::parse_expiry_key(&key).expect("well formed") {
                (_, Expiring::Idempotency(key)) => assert!(twins.insert(key), "a row has one twin"),
                (_, Expiring::Event(key)) => panic!("nothing writes the expiry of {key:?} yet"),
            },
            _ => {}
        }
    }
    assert_eq!(rows.len(), events.len());
    for (row, event) in rows.iter().zip(events) {
        assert_same_event(row, event);
    }
    assert_eq!(saves, twins, "a row and its twin come and go together");
    for save in &state.saves {
        let key = IdempotencyKey { boundary: save.boundary, key_hash: save.key_hash };
        let recorded = read::recorded_save(&*snapshot, save.boundary, save.key_hash).expect("readable");
        let expected = (save.expires_at_ms > state.clock_ms).then_some(RecordedSave {
            request_digest: save.request_digest,
            written: save.written,
            expires_at_ms: save.expires_at_ms,
        });
        assert_eq!(recorded, expected);
        saves.remove(&key);
    }
    assert!(saves.is_empty(), "no row without an accepted save: {saves:?}");
}

#[track_caller]
fn assert_same_event(row: &Event, event: &RefEvent) {
    assert_eq!(row.key.boundary, event.boundary);
    assert_eq!(row.position(), event.position());
    let expected = StoredEvent {
        appended_at_ms: event.appended_at_ms,
        happened_at_ms: event.happened_at_ms,
        expires_at_ms: event.expires_at_ms,
        write_commit_position: event.first_of_save.commit_position as u64,
        ..StoredEvent::decode(event.stored.clone()).expect("encoded by a test")
    };
    assert_eq!(row.stored, expected);
    assert_eq!(row.write_id().expect("well formed").first(), event.first_of_save);
}
