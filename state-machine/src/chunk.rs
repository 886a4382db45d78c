//! A chunk of committed entries, applied together and written as one batch.

use bytes::Bytes;
use tidemark_storage::{Batch, EventId, Overlay, overlay::Base, tables};

use crate::{
    apply,
    command::Command,
    fault::Fault,
    outcome::Outcome,
    state::{Memory, State},
};

/// Applies chunks of the log, one after another.
///
/// It holds nothing but a memory of the applied state, which it recognises by the row `raft/applied`: after a
/// snapshot was installed, or a batch could not be committed, it reads the state again by itself.
#[derive(Debug, Default)]
pub struct StateMachine {
    memory: Option<Memory>,
}

impl StateMachine {
    /// A state machine that remembers nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens a chunk over `base`, the newest applied state. The batch of the chunk before must be committed.
    pub fn begin<'a>(&'a mut self, base: impl Into<Base<'a>>) -> Result<ChunkBuilder<'a>, Fault> {
        let state = State::open(Overlay::new(base), self.memory.take())?;
        Ok(ChunkBuilder { remembered: &mut self.memory, state, closed: false })
    }
}

/// A chunk that is being applied. Dropping it leaves the state as it was.
pub struct ChunkBuilder<'a> {
    remembered: &'a mut Option<Memory>,
    state: State<'a>,
    closed: bool,
}

impl ChunkBuilder<'_> {
    /// Applies the next command of the log. It sees everything that the commands before it wrote.
    ///
    /// A rejection is part of the outcome. An error is a fault: the chunk must be dropped and the node stopped.
    ///
    /// # Panics
    ///
    /// After an outcome whose [`Outcome::ends_chunk`] is true.
    pub fn apply(&mut self, command: &Command) -> Result<Outcome, Fault> {
        assert!(!self.closed, "a digest covers the state at its own entry, so its chunk ends there");
        let outcome = apply::apply(&mut self.state, command)?;
        self.closed = outcome.ends_chunk();
        Ok(outcome)
    }

    /// Stores the membership of a membership entry.
    pub fn set_membership(&mut self, membership: Bytes) {
        self.state.overlay.put(tables::raft_membership_key(), membership);
    }

    /// The replicated clock after the commands so far, milliseconds since 1970.
    pub fn clock_ms(&self) -> u64 {
        self.state.memory.clock.0
    }

    /// The last assigned event id after the commands so far.
    pub fn last_event_id(&self) -> EventId {
        self.state.memory.last_id
    }

    /// Closes the chunk. `applied` is the encoded log id of its last entry.
    pub fn finish(self, applied: Bytes) -> Chunk {
        let Self { remembered, mut state, .. } = self;
        state.store_clock_and_last_id();
        state.overlay.put(tables::raft_applied_key(), applied.clone());
        state.memory.applied = Some(applied);
        let State { overlay, memory, .. } = state;
        let (clock_ms, last_event_id) = (memory.clock.0, memory.last_id);
        *remembered = Some(memory);
        Chunk { batch: overlay.into_batch(), clock_ms, last_event_id }
    }
}

/// What a chunk of entries comes to.
#[derive(Debug)]
pub struct Chunk {
    /// Everything that the entries wrote, with the applied log id; to be committed as it is.
    pub batch: Batch,
    /// The replicated clock once `batch` is committed, milliseconds since 1970.
    pub clock_ms: u64,
    /// The last assigned event id once `batch` is committed.
    pub last_event_id: EventId,
}
