//! `ApiError`: every error that a client can get, typed.
//!
//! The node makes one of these out of outcomes and faults, the mapping in `status.rs` carries it over the wire, and
//! the client gets the same value back.

use tonic::Code;

pub use crate::v1::LeaderHint;
use crate::v1::{Position, Reason};

/// An error of the public API.
///
/// The texts in `why`, `failure`, `what` and `message` are cut to 1 KiB on the wire.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ApiError {
    /// The request is malformed; nothing was written.
    #[error("invalid {field}: {why}")]
    InvalidRequest {
        /// Path of the field, for example `events[3].data`.
        field: String,
        /// What is wrong with it.
        why: String,
    },
    /// The idempotency key was used with another request within its retention; nothing was written.
    #[error("the idempotency key was used with another request: choose a new key for a new request")]
    IdempotencyKeyReused,
    /// A fact that the save was based on has changed; nothing was written. Read again and decide again.
    #[error(
        "observation {observation_index} no longer holds: the latest match is at {}, expected {}",
        Shown(.actual),
        Shown(.expected)
    )]
    ContextConflict {
        /// Index of the observation in the request.
        observation_index: u32,
        /// The position that the request named.
        expected: Position,
        /// Position of the latest visible event that matches; `(-1,-1)` if nothing does.
        actual: Position,
    },
    /// No boundary has this name.
    #[error("boundary {boundary:?} does not exist: create it first")]
    BoundaryUnknown {
        /// The name.
        boundary: String,
    },
    /// The boundary is being prepared and will soon take events.
    #[error("boundary {boundary:?} is being provisioned")]
    BoundaryProvisioning {
        /// The name.
        boundary: String,
    },
    /// The boundary could not be prepared.
    #[error("boundary {boundary:?} could not be provisioned: {failure}")]
    BoundaryFailed {
        /// The name.
        boundary: String,
        /// What failed.
        failure: String,
    },
    /// The boundary exists, and this node has not opened it yet.
    #[error("boundary {boundary:?} is not installed on this node yet")]
    BoundaryNotInstalled {
        /// The name.
        boundary: String,
    },
    /// The name is taken by a boundary with another definition.
    #[error("boundary {boundary:?} exists with another definition")]
    BoundaryExists {
        /// The name.
        boundary: String,
    },
    /// Another boundary's name has the same hash.
    #[error("the names {boundary:?} and {other:?} have the same hash: choose another name")]
    BoundaryHashCollision {
        /// The name asked for.
        boundary: String,
        /// The boundary that exists.
        other: String,
    },
    /// This node does not lead and could not pass the request on; nothing was written.
    #[error("this node does not lead{}", HintShown(.leader))]
    NotLeader {
        /// The leader as far as this node knows.
        leader: Option<LeaderHint>,
    },
    /// No majority of the voters can be reached; nothing was written.
    #[error("no quorum can be reached")]
    NoQuorum,
    /// The node is stopping and takes no requests; nothing was written.
    #[error("the node is stopping")]
    Stopping,
    /// The node has started and is not ready yet; nothing was written.
    #[error("the node is recovering")]
    Recovering,
    /// The save may or may not have been written. Repeating it with the same idempotency key tells.
    #[error("the outcome is unknown ({cause}): repeat with the same idempotency key to find out")]
    OutcomeUnknown {
        /// What kept the node from learning the outcome.
        cause: UnknownCause,
    },
    /// A limit was exceeded; nothing was written.
    #[error("{limit} is {maximum}, exceeded by {actual}")]
    LimitExceeded {
        /// Name of the limit as in the configuration, for example `max_event_bytes`.
        limit: String,
        /// Its value.
        maximum: u64,
        /// The value found.
        actual: u64,
        /// Whether the same request can ever pass.
        kind: LimitKind,
    },
    /// The node did not apply the position asked for before the deadline.
    #[error("the node has applied event id {applied_event_id}, the read wants {wanted_event_id}")]
    NotCaughtUp {
        /// What it has.
        applied_event_id: u64,
        /// What was asked for.
        wanted_event_id: u64,
    },
    /// The deadline passed before anything was done; nothing was written.
    #[error("the deadline passed before anything was done")]
    DeadlineExceeded,
    /// This release does not offer it.
    #[error("{what} is not supported by this release")]
    NotSupported {
        /// What was asked for.
        what: String,
    },
    /// A fault of the node; its log says more.
    #[error("internal fault: {what}")]
    Internal {
        /// What the node was doing.
        what: String,
    },
    /// What was asked for is not there.
    #[error("{what} not found")]
    NotFound {
        /// What was asked for.
        what: String,
    },
    /// A failure without a typed detail: of the connection, of something between client and node, or of a node of
    /// another release. A save that got as far as being sent may have been written.
    #[error("{message} ({code:?})")]
    Transport {
        /// The gRPC code.
        code: Code,
        /// The message that came with it.
        message: String,
    },
}

/// Whether the same request can pass later or elsewhere ([`ApiError::LimitExceeded`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LimitKind {
    /// The request itself is too large: it never passes.
    Size,
    /// A queue or quota is full at the moment.
    Queue,
}

/// What kept a node from learning an outcome ([`ApiError::OutcomeUnknown`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum UnknownCause {
    /// The leader that took the request lost its leadership or could not be reached any more.
    #[error("leadership lost")]
    LeadershipLost,
    /// The deadline passed while the entry was on its way.
    #[error("deadline passed")]
    Deadline,
    /// The node stopped while the entry was on its way.
    #[error("node stopping")]
    Stopping,
}

/// What a caller may do with the same request after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Retry {
    /// Repeating the request unchanged does not help.
    Never,
    /// At once, on another node if there is one: nothing was written.
    AtOnce,
    /// After a pause: nothing was written.
    AfterBackoff,
    /// A save only with the same idempotency key, because it may have been written; a read always.
    WithIdempotencyKey,
}

impl ApiError {
    /// What a caller may do with the same request.
    pub fn retryable(&self) -> Retry {
        match self {
            Self::InvalidRequest { .. }
            | Self::IdempotencyKeyReused
            | Self::ContextConflict { .. }
            | Self::BoundaryUnknown { .. }
            | Self::BoundaryFailed { .. }
            | Self::BoundaryExists { .. }
            | Self::BoundaryHashCollision { .. }
            | Self::NotSupported { .. }
            | Self::Internal { .. }
            | Self::NotFound { .. } => Retry::Never,
            Self::NotLeader { .. } | Self::Stopping => Retry::AtOnce,
            Self::BoundaryProvisioning { .. }
            | Self::BoundaryNotInstalled { .. }
            | Self::NoQuorum
            | Self::Recovering
            | Self::NotCaughtUp { .. }
            | Self::DeadlineExceeded => Retry::AfterBackoff,
            Self::LimitExceeded { kind, .. } => match kind {
                LimitKind::Size => Retry::Never,
                LimitKind::Queue => Retry::AfterBackoff,
            },
            Self::OutcomeUnknown { .. } => Retry::WithIdempotencyKey,
            Self::Transport { code, .. } => retry_of_code(*code),
        }
    }

    /// The reason as it stands on the wire; [`Reason::Unspecified`] for [`ApiError::Transport`].
    pub fn reason(&self) -> Reason {
        match self {
            Self::InvalidRequest { .. } => Reason::InvalidRequest,
            Self::IdempotencyKeyReused => Reason::IdempotencyKeyReused,
            Self::ContextConflict { .. } => Reason::ContextConflict,
            Self::BoundaryUnknown { .. } => Reason::BoundaryUnknown,
            Self::BoundaryProvisioning { .. } => Reason::BoundaryProvisioning,
            Self::BoundaryFailed { .. } => Reason::BoundaryFailed,
            Self::BoundaryNotInstalled { .. } => Reason::BoundaryNotInstalled,
            Self::BoundaryExists { .. } => Reason::BoundaryExists,
            Self::BoundaryHashCollision { .. } => Reason::BoundaryHashCollision,
            Self::NotLeader { .. } => Reason::NotLeader,
            Self::NoQuorum => Reason::NoQuorum,
            Self::Stopping => Reason::Stopping,
            Self::Recovering => Reason::Recovering,
            Self::OutcomeUnknown { .. } => Reason::OutcomeUnknown,
            Self::LimitExceeded { .. } => Reason::LimitExceeded,
            Self::NotCaughtUp { .. } => Reason::NotCaughtUp,
            Self::DeadlineExceeded => Reason::DeadlineExceeded,
            Self::NotSupported { .. } => Reason::NotSupported,
            Self::Internal { .. } => Reason::Internal,
            Self::NotFound { .. } => Reason::NotFound,
            Self::Transport { .. } => Reason::Unspecified,
        }
    }

    /// An [`ApiError::InvalidRequest`].
    pub fn invalid(field: impl Into<String>, why: impl Into<String>) -> Self {
        Self::InvalidRequest { field: field.into(), why: why.into() }
    }
}

/// Codes that libraries and proxies also use for broken connections are read as "may have been written".
fn retry_of_code(code: Code) -> Retry {
    match code {
        Code::Ok
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::DataLoss
        | Code::Unauthenticated => Retry::Never,
        Code::ResourceExhausted => Retry::AfterBackoff,
        Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::Internal
        | Code::Unavailable => Retry::WithIdempotencyKey,
    }
}

struct Shown<'a>(&'a Position);

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "({},{})", self.0.commit_position, self.0.prepare_position)
    }
}

struct HintShown<'a>(&'a Option<LeaderHint>);

impl std::fmt::Display for HintShown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(leader) if leader.address.is_empty() => write!(f, ", node {} does", leader.node_id),
            Some(leader) => write!(f, ", node {} at {} does", leader.node_id, leader.address),
            None => write!(f, " and knows no leader"),
        }
    }
}
