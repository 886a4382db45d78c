//! What can go wrong with starting a group, proposing and reading.

use std::path::PathBuf;

use crate::{log, types::NodeId};

/// Why a group could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The segment log could not be opened.
    #[error("open the log in {}: {source}", dir.display())]
    Log {
        /// The log's directory.
        dir: PathBuf,
        /// What happened.
        source: log::Error,
    },
    /// The key-value database could not be opened.
    #[error("open the database in {}: {source}", dir.display())]
    Database {
        /// The databases' directory.
        dir: PathBuf,
        /// What happened.
        source: tidemark_storage::error::Error,
    },
    /// A small file of the data directory could not be read or written.
    #[error("{action} {}: {source}", path.display())]
    File {
        /// What was being done.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What happened.
        source: std::io::Error,
    },
    /// A small file of the data directory makes no sense.
    #[error("{} is damaged: {why}; restore it from a backup or replace this member", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The data directory belongs to somebody else.
    #[error(
        "{} belongs to {found}, but the configuration says {wanted}: point `data_dir` to the right directory or \
         correct `node_id`, `id_token` and `initial_members`",
        dir.display()
    )]
    ForeignDirectory {
        /// The data directory.
        dir: PathBuf,
        /// What the directory says.
        found: String,
        /// What the configuration says.
        wanted: String,
    },
    /// The state was applied further than the log reaches.
    #[error(
        "the database in {} has applied entry {applied}, but the log ends at {last}: entries that had been \
         acknowledged are missing; replace this member",
        dir.display()
    )]
    LogBehindDatabase {
        /// The data directory.
        dir: PathBuf,
        /// The applied index.
        applied: u64,
        /// The last index of the log.
        last: u64,
    },
    /// The state machine could not read its state.
    #[error("read the state of the database in {}: {source}", dir.display())]
    State {
        /// The databases' directory.
        dir: PathBuf,
        /// What happened.
        source: tidemark_state_machine::Fault,
    },
    /// A setting is out of its range.
    #[error("invalid Raft configuration: {0}")]
    Configuration(String),
    /// openraft stopped while it started.
    #[error("start consensus: {0}")]
    Consensus(String),
}

/// Why a command was not proposed, or what became of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// The command did not enter the log: this node does not lead in the term of the proposal, or cannot know
    /// that it still does. It may be proposed again.
    #[error("not proposed: this node does not lead")]
    NotProposed {
        /// Who leads, if known.
        leader: Option<NodeId>,
    },
    /// The command entered the log and nobody answered: it may be applied, now or later, or never.
    #[error(
        "the outcome is unknown: leadership changed or the node stopped while the command was in the log"
    )]
    Unknown,
}

/// Why a linearizable read could not begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BarrierError {
    /// No leader is known, or the leader changes.
    #[error("no leader is known")]
    NoLeader,
    /// The leader could not confirm with a quorum that it still leads.
    #[error("no quorum confirmed the leader in time")]
    NoQuorum,
    /// The leader could not be reached.
    #[error("cannot ask the leader for a read index: {0}")]
    LeaderUnreachable(String),
    /// The read index was not applied here before the deadline.
    #[error("entry {wanted} was not applied here in time; applied: {applied}")]
    NotApplied {
        /// The read index.
        wanted: u64,
        /// What is applied.
        applied: u64,
    },
    /// The node is stopping.
    #[error("the node is stopping")]
    Stopped,
}

impl BarrierError {
    /// Whether another round may succeed.
    pub fn retryable(&self) -> bool {
        match self {
            Self::NoLeader | Self::NoQuorum | Self::LeaderUnreachable(_) => true,
            Self::NotApplied { .. } | Self::Stopped => false,
        }
    }
}
