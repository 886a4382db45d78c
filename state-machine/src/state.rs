//! The state that a chunk advances: pending writes over the applied state, and what is remembered of it.

use std::collections::{BTreeMap, btree_map};

use bytes::Bytes;
use tidemark_storage::{
    BoundaryHash, EventId, Overlay,
    event_repository::{self, ClockMs},
    tables,
};

use crate::{boundary::Boundary, fault::Fault, read};

/// At most this many boundaries are remembered; beyond it the memory starts again empty.
const REMEMBERED_BOUNDARIES_MAX: usize = 16_384;

/// What a replica remembers between chunks so that it need not read it again.
///
/// **Invariant**: all of it can be derived from the state whose applied log id is `applied`, and no outcome or
/// written byte depends on whether something is remembered.
#[derive(Debug)]
pub(crate) struct Memory {
    /// The row `raft/applied` of the state that this describes.
    pub(crate) applied: Option<Bytes>,
    pub(crate) clock: ClockMs,
    pub(crate) last_id: EventId,
    boundaries: BTreeMap<BoundaryHash, Boundary>,
    /// The expiry table has no row below this time.
    pub(crate) nothing_expires_before_ms: u64,
}

impl Memory {
    fn load(overlay: &Overlay<'_>, applied: Option<Bytes>) -> Result<Self, Fault> {
        Ok(Self {
            applied,
            clock: event_repository::read_clock(overlay)?,
            last_id: event_repository::read_last_id(overlay)?,
            boundaries: BTreeMap::new(),
            nothing_expires_before_ms: 0,
        })
    }
}

/// Pending writes over the applied state. Reads see the writes of the commands before.
pub(crate) struct State<'a> {
    pub(crate) overlay: Overlay<'a>,
    pub(crate) memory: Memory,
    /// Clock and last id as the rows hold them.
    stored: (ClockMs, EventId),
}

impl<'a> State<'a> {
    /// The state that `overlay` lies on. `memory` is used if it describes exactly that state.
    pub(crate) fn open(overlay: Overlay<'a>, memory: Option<Memory>) -> Result<Self, Fault> {
        let applied = overlay.get(&tables::raft_applied_key())?;
        let memory = match memory {
            // A state without an applied entry has no name to be recognised by.
            Some(memory) if applied.is_some() && memory.applied == applied => memory,
            Some(_) | None => Memory::load(&overlay, applied)?,
        };
        let stored = (memory.clock, memory.last_id);
        Ok(Self { overlay, memory, stored })
    }

    /// Applies an entry's stamp and gives the time that everything in the entry goes by.
    pub(crate) fn advance_clock(&mut self, entry_time_ms: u64) -> u64 {
        self.memory.clock = self.memory.clock.observe(entry_time_ms);
        self.memory.clock.0
    }

    /// Notes that all ids up to `last_id` are taken.
    pub(crate) fn observe_id(&mut self, last_id: EventId) {
        assert!(last_id > self.memory.last_id, "event ids never go back: readers page by them");
        self.memory.last_id = last_id;
    }

    /// The boundary with this hash.
    pub(crate) fn boundary(&mut self, hash: BoundaryHash) -> Result<Option<&Boundary>, Fault> {
        let memory = &mut self.memory;
        if memory.boundaries.len() >= REMEMBERED_BOUNDARIES_MAX && !memory.boundaries.contains_key(&hash) {
            memory.boundaries.clear();
        }
        match memory.boundaries.entry(hash) {
            btree_map::Entry::Occupied(known) => Ok(Some(known.into_mut())),
            btree_map::Entry::Vacant(unknown) => {
                let stored = read::boundary(&self.overlay, hash)?;
                Ok(stored.map(|boundary| &*unknown.insert(boundary)))
            }
        }
    }

    /// Stores a boundary under `hash`.
    pub(crate) fn put_boundary(&mut self, hash: BoundaryHash, boundary: Boundary) {
        self.overlay.put(tables::boundary_key(hash), boundary.encode());
        self.memory.boundaries.insert(hash, boundary);
    }

    /// Writes the rows of clock and last id, if they changed.
    pub(crate) fn store_clock_and_last_id(&mut self) {
        let (clock, last_id) = self.stored;
        assert!(self.memory.clock >= clock, "the replicated clock never goes back");
        assert!(self.memory.last_id >= last_id, "event ids never go back");
        if self.memory.clock != clock {
            self.overlay.put(tables::clock_key(), event_repository::encode_clock(self.memory.clock));
        }
        if self.memory.last_id != last_id {
            self.overlay.put(tables::last_id_key(), event_repository::encode_last_id(self.memory.last_id));
        }
        self.stored = (self.memory.clock, self.memory.last_id);
    }
}
