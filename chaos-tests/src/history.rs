//! What clients did and saw: the material of every invariant.
//!
//! Times are since the start of the run, on one clock that all clients share.

use std::time::Duration;

use tidemark_proto::v1;
use tidemark_storage::Position;

/// One event as a client reads it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeenEvent {
    /// Its place.
    pub position: Position,
    /// The label that its writer gave it; unique in a run.
    pub event_id: String,
}

/// What a client may conclude about an append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was acknowledged.
    Acknowledged {
        /// Position of its last event.
        position: Position,
    },
    /// It was refused: nothing of it was written.
    Rejected {
        /// Why.
        why: String,
    },
    /// The client does not know.
    Unknown,
}

/// One append with all its attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    /// Who appended.
    pub client: u64,
    /// Present if attempts were repeated under it.
    pub idempotency_key: Option<String>,
    /// Its events in order.
    pub event_ids: Vec<String>,
    /// When the first attempt began.
    pub began: Duration,
    /// When the outcome was there.
    pub ended: Duration,
    /// The outcome.
    pub outcome: Outcome,
}

/// How fresh a read had to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// It sees everything acknowledged before it began.
    Linearizable,
    /// It sees this position and everything before it.
    AtLeast(Position),
    /// It sees what its node has.
    Local,
}

/// One answered read of all events from the oldest on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// Who read.
    pub client: u64,
    /// From which node.
    pub node: u64,
    /// How fresh.
    pub level: Level,
    /// When it began.
    pub began: Duration,
    /// When the answer was there.
    pub ended: Duration,
    /// What it saw.
    pub events: Vec<SeenEvent>,
}

/// All events of one node at the end, when nothing is under way any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinalState {
    /// The node.
    pub node: u64,
    /// Its events, ascending.
    pub events: Vec<SeenEvent>,
    /// Its digest, if it was asked for.
    pub digest: Vec<u8>,
}

/// A leadership that somebody observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Election {
    /// The term.
    pub term: u64,
    /// Who leads in it.
    pub node: u64,
}

/// An entry that a node applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppliedEntry {
    /// The node.
    pub node: u64,
    /// Index of the entry.
    pub index: u64,
    /// Its term.
    pub term: u64,
}

/// An entry in the log of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedEntry {
    /// Its index.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// A hash of its payload.
    pub payload: [u8; 32],
}

/// The log of a node at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogView {
    /// The node.
    pub node: u64,
    /// Its entries, ascending and without gaps; the first ones may be purged.
    pub entries: Vec<LoggedEntry>,
}

/// Everything there is to check about one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// In the order in which they ended.
    pub appends: Vec<Append>,
    /// In the order in which they ended.
    pub reads: Vec<Read>,
    /// In the order in which they were observed.
    pub elections: Vec<Election>,
    /// In the order in which they were applied.
    pub applied: Vec<AppliedEntry>,
    /// The logs of all nodes, taken now and then at one moment.
    pub logs: Vec<Vec<LogView>>,
    /// One for each node.
    pub finals: Vec<FinalState>,
}

impl History {
    /// The final log; all replicas are to have the same.
    pub fn final_events(&self) -> &[SeenEvent] {
        self.finals.first().map_or(&[], |state| &state.events)
    }
}

/// A position from the wire.
pub fn position(position: v1::Position) -> Position {
    Position { commit_position: position.commit_position, prepare_position: position.prepare_position }
}

/// The events of a page.
pub fn seen(events: Vec<v1::Event>) -> Vec<SeenEvent> {
    let seen = |event: v1::Event| SeenEvent {
        position: position(event.position.unwrap_or_default()),
        event_id: event.event_id,
    };
    events.into_iter().map(seen).collect()
}
