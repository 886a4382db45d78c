//! Reading a stopped log without changing it, for tools.

use std::path::Path;

use super::{LogIdentity, error::Error, record::Kind, recovery};
use crate::{
    types::{LogId, Vote},
    vfs::{Access, Vfs},
};

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InspectedRecord<'a> {
    /// Number of its segment.
    pub segment: u64,
    /// Where it starts in it, in bytes.
    pub offset: u64,
    /// What it is.
    pub kind: Kind,
    /// Term of an entry, vote, purge or commit; else 0.
    pub term: u64,
    /// The node voted for, or the leader in whose term an entry was appended, as far as it was known; else 0.
    pub leader: u64,
    /// Index of an entry, purge, commit or truncation; else 0.
    pub index: u64,
    /// Up to where its segment was known to be durable when it was written.
    pub synced: u64,
    /// An entry's payload.
    pub payload: &'a [u8],
}

/// A log as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// Last vote.
    pub vote: Option<Vote>,
    /// Where it was purged.
    pub purged: Option<LogId>,
    /// What was known to be committed.
    pub committed: Option<LogId>,
    /// Index after the last entry.
    pub next_index: u64,
    /// Bytes of an interrupted write, which opening the log will cut off.
    pub torn_bytes: u64,
}

/// Reads every record of the log in `directory` in order, and changes nothing. Without an identity the first
/// segment says whose log it is.
///
/// # Errors
/// As opening the log.
pub fn inspect(
    vfs: &dyn Vfs,
    directory: &Path,
    identity: Option<LogIdentity>,
    mut visit: impl FnMut(InspectedRecord<'_>),
) -> Result<Inspection, Error> {
    let recovered = recovery::read(vfs, directory, identity, Access::Read, &mut |visited| {
        let header = visited.found.header;
        visit(InspectedRecord {
            segment: visited.sequence,
            offset: visited.offset,
            kind: Kind::from_number(header.kind).expect("recovery refuses unknown kinds"),
            term: header.term,
            leader: header.leader,
            index: header.index,
            synced: header.synced,
            payload: visited.payload,
        });
    })?;
    Ok(Inspection {
        vote: recovered.sticky.vote,
        purged: recovered.sticky.purged,
        committed: recovered.sticky.committed,
        next_index: recovered.next,
        torn_bytes: recovered.leftovers.torn_bytes,
    })
}
