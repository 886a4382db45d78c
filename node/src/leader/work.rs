//! What is submitted to a leader, and what comes back.

use tidemark_proto::{ApiError, UnknownCause};
use tidemark_raft::types::LogId;
use tidemark_state_machine::{
    AppendOutcome, CreateBoundaryOutcome,
    command::{AppendRequest, BoundaryDefinition},
};

/// Work for the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// A validated save.
    Append(AppendRequest),
    /// The creation of a boundary.
    CreateBoundary(BoundaryDefinition),
    /// A digest of every replica, under this id.
    Digest(u64),
}

/// What became of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Of a save.
    Append(AppendOutcome),
    /// Of a creation.
    CreateBoundary(CreateBoundaryOutcome),
    /// Of a digest: the entry at which every replica digests its state.
    Digest(LogId),
    /// The leader answered a forwarded request with an error.
    Refused(ApiError),
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// This node, or the node that it asked, does not lead. Nothing was written.
    #[error("the node asked does not lead")]
    NotLeader,
    /// A bound of the queue was reached and stayed so until the deadline. Nothing was written.
    #[error("{limit} is {maximum}, exceeded by {actual}")]
    QueueFull {
        /// The limit's name.
        limit: &'static str,
        /// Its value.
        maximum: u64,
        /// What it would have been.
        actual: u64,
    },
    /// The work does not fit into an entry of the log. Nothing was written.
    #[error("{limit} is {maximum}, exceeded by {actual}")]
    TooLarge {
        /// The limit's name.
        limit: &'static str,
        /// Its value.
        maximum: u64,
        /// The size found.
        actual: u64,
    },
    /// The deadline passed while the work was queued. Nothing was written.
    #[error("the deadline passed in the queue")]
    Expired,
    /// The work entered the log, or may have.
    #[error("the outcome is unknown: {0}")]
    Unknown(UnknownCause),
    /// The node is stopping. Nothing was written.
    #[error("the node is stopping")]
    Stopping,
}
