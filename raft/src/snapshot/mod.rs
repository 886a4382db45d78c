//! Snapshots: a sorted, engine-neutral stream of rows in checksummed, compressed blocks.
//!
//! Nothing is stored: a snapshot is a view of the database that is encoded while it is sent. Rows that a replica
//! derives for itself (index rows, `local/`) stay out. The receiver builds a fresh database beside its own and
//! switches to it only when every row is there and the digest agrees.

mod block;
mod receive;
mod send;

use std::sync::Arc;

use tidemark_storage::contract::Snapshot;

pub(crate) use receive::{Received, Receiver, Reception};
pub(crate) use send::send;

use crate::types::{LogId, StoredMembership, Vote};

/// Version of the stream's format.
pub(crate) const FORMAT_VERSION: u32 = 1;

/// How snapshots are sent.
#[derive(Clone, Debug)]
pub struct Options {
    /// A block is closed when its rows reach this many bytes; a larger row has a block of its own.
    pub block_bytes: usize,
    /// The stream is slowed down to this rate, so that it leaves room for appends.
    pub bytes_per_second: u64,
}

/// What openraft hands around as a snapshot.
pub enum SnapshotData {
    /// A view to send.
    Source(Source),
    /// A database to switch to.
    Received(Box<Received>),
}

/// A view of the state at one applied log id.
pub struct Source {
    pub(crate) snapshot: Arc<dyn Snapshot>,
}

/// What a stream begins with.
pub(crate) struct Header {
    pub(crate) cluster_id: [u8; 16],
    pub(crate) group_id: u32,
    pub(crate) vote: Vote,
    pub(crate) meta_log_id: Option<LogId>,
    pub(crate) membership: StoredMembership,
}
