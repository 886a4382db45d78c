//! What applying a command answers, alike on every replica.
//!
//! A rejection is a value here and nothing is written for it; a [`crate::Fault`] is something else, it stops the
//! node.

use tidemark_storage::{EventId, Position};

use crate::boundary::{Boundary, BoundaryState};

/// The answer to one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// One answer per request of the batch, in its order.
    AppendBatch(Vec<AppendOutcome>),
    /// The command's ids are not above the last assigned one, so nothing of it was written. Its leader proposes
    /// it again with ids from `last_id + 1`.
    StaleBatch {
        /// The last assigned id.
        last_id: EventId,
    },
    /// The clock was moved, unless it was already further on.
    Ticked {
        /// The replicated clock, milliseconds since 1970.
        clock_ms: u64,
    },
    /// The answer to the creation of a boundary.
    CreateBoundary(CreateBoundaryOutcome),
    /// The state at this entry is to be digested and reported under this id. The chunk ends with this entry.
    Digest {
        /// Chosen by the proposer.
        digest_id: u64,
    },
}

impl Outcome {
    /// Whether the chunk must be committed before another entry is applied.
    pub fn ends_chunk(&self) -> bool {
        match self {
            Self::Digest { .. } => true,
            Self::AppendBatch(_)
            | Self::StaleBatch { .. }
            | Self::Ticked { .. }
            | Self::CreateBoundary(_) => false,
        }
    }
}

/// The answer to one save.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppendOutcome {
    /// All events were written.
    Written(WrittenEvents),
    /// An earlier save under the same idempotency key wrote them.
    AlreadyApplied(WrittenEvents),
    /// Nothing was written.
    Rejected(AppendRejection),
}

/// Where the events of a save are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenEvents {
    /// Position of the first event of the save; with the boundary, the write id.
    pub first: Position,
    /// Position of the last event of the save: its log position. A scheduled event may lie anywhere else.
    pub last: Position,
}

/// Why a save was not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppendRejection {
    /// The save holds no event.
    NoEvents,
    /// No boundary has this hash.
    BoundaryUnknown,
    /// The boundary takes no events in its present state.
    BoundaryNotActive {
        /// The state.
        state: BoundaryState,
    },
    /// The boundary was deleted and created again since the request was checked.
    BoundaryRecreated {
        /// The incarnation that exists now.
        incarnation: EventId,
    },
    /// The idempotency key was used for a different request.
    IdempotencyKeyReused,
    /// An event is scheduled further ahead than [`DELAY_MS_MAX`].
    DueTooFarAhead {
        /// Index of the event within the save.
        event_index: u32,
    },
}

/// The furthest that an event can be scheduled ahead of the replicated clock, in milliseconds: 100 years of
/// 365.25 days.
pub const DELAY_MS_MAX: u64 = 3_155_760_000_000;

/// The answer to the creation of a boundary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateBoundaryOutcome {
    /// The boundary was created.
    Created(Boundary),
    /// A boundary of this name and definition was there already.
    AlreadyExists(Boundary),
    /// Nothing was created.
    Rejected(CreateBoundaryRejection),
}

/// Why a boundary was not created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateBoundaryRejection {
    /// The name does not match `^[A-Za-z_][A-Za-z0-9_]{0,62}$`.
    InvalidName,
    /// The description is longer than [`crate::boundary::DESCRIPTION_BYTES_MAX`].
    DescriptionTooLong,
    /// The bucket is wider than [`crate::boundary::TIME_BUCKET_MS_MAX`].
    TimeBucketTooWide,
    /// The idempotency keys would be kept longer than [`crate::boundary::IDEMPOTENCY_RETENTION_MS_MAX`].
    IdempotencyRetentionTooLong,
    /// A boundary of this name exists with another definition.
    BoundaryExists(Boundary),
    /// The name has the same hash as the name of an existing boundary; choose another name.
    HashCollision {
        /// The existing boundary's name.
        existing: String,
    },
}
