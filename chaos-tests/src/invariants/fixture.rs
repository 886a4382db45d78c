//! A small history in which everything holds, for tests to break in one place.

use std::time::Duration;

use tidemark_storage::Position;

use crate::history::{
    Append, AppliedEntry, Election, FinalState, History, Level, LogView, LoggedEntry, Outcome, Read,
    SeenEvent,
};

pub(super) fn at(prepare: i64) -> Position {
    Position { commit_position: 100 + prepare / 3, prepare_position: prepare }
}

pub(super) fn event(id: &str, prepare: i64) -> SeenEvent {
    SeenEvent { position: at(prepare), event_id: id.to_owned() }
}

pub(super) fn append(ids: &[&str], from_ms: u64, to_ms: u64, outcome: Outcome) -> Append {
    Append {
        client: 1,
        idempotency_key: None,
        event_ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        began: Duration::from_millis(from_ms),
        ended: Duration::from_millis(to_ms),
        outcome,
    }
}

pub(super) fn acknowledged(prepare: i64) -> Outcome {
    Outcome::Acknowledged { position: at(prepare) }
}

pub(super) fn read(level: Level, from_ms: u64, to_ms: u64, events: &[SeenEvent]) -> Read {
    Read {
        client: 2,
        node: 1,
        level,
        began: Duration::from_millis(from_ms),
        ended: Duration::from_millis(to_ms),
        events: events.to_vec(),
    }
}

pub(super) fn logged(index: u64, term: u64, payload: u8) -> LoggedEntry {
    LoggedEntry { index, term, payload: [payload; 32] }
}

/// Four appends, one of them refused and one unknown that was written, and three reads.
pub(super) fn good() -> History {
    let events = vec![event("a", 1), event("b1", 2), event("b2", 3), event("c", 5), event("d", 6)];
    let log = |node| LogView { node, entries: vec![logged(1, 1, 1), logged(2, 1, 2), logged(3, 2, 3)] };
    let entry = |node, index, term| AppliedEntry { node, index, term };
    let state = |node| FinalState { node, events: events.clone(), digest: vec![7; 32] };
    let mut keyed = append(&["c"], 30, 50, acknowledged(5));
    keyed.idempotency_key = Some("k".to_owned());
    let mut repeated = keyed.clone();
    (repeated.began, repeated.ended) = (Duration::from_millis(60), Duration::from_millis(70));
    History {
        appends: vec![
            append(&["a"], 0, 10, acknowledged(1)),
            append(&["b1", "b2"], 12, 20, acknowledged(3)),
            append(&["x"], 20, 25, Outcome::Rejected { why: "no quorum".to_owned() }),
            keyed,
            repeated,
            append(&["d"], 55, 90, Outcome::Unknown),
        ],
        reads: vec![
            read(Level::Linearizable, 21, 24, &events[..3]),
            read(Level::AtLeast(at(3)), 25, 26, &events[..3]),
            read(Level::Local, 95, 99, &events[..1]),
        ],
        elections: vec![Election { term: 1, node: 1 }, Election { term: 2, node: 3 }],
        applied: vec![entry(1, 1, 1), entry(2, 1, 1), entry(1, 2, 1), entry(2, 3, 2)],
        logs: vec![vec![log(1), log(2)]],
        finals: vec![state(1), state(2)],
    }
}
