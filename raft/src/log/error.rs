//! What can go wrong in the log. Every variant stops writing for good.

use std::{io, path::PathBuf};

use super::LogIdentity;
use crate::convert;

/// A fault of the log. After one, nothing more is written and the node must stop.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file system reported an error.
    #[error("could not {action} {}", path.display())]
    Io {
        /// What was being done.
        action: Action,
        /// To which file or directory.
        path: PathBuf,
        /// What the file system said.
        #[source]
        source: io::Error,
    },
    /// Another process has the log open.
    #[error("the log in {} is in use by another process; stop it first", directory.display())]
    InUse {
        /// Directory of the log.
        directory: PathBuf,
    },
    /// The log belongs to someone else.
    #[error(
        "{} belongs to {found}, but this node is {expected}; start it with the data directory of that identity",
        file.display()
    )]
    WrongIdentity {
        /// Segment that says so.
        file: PathBuf,
        /// What its header names.
        found: LogIdentity,
        /// What this node is.
        expected: LogIdentity,
    },
    /// A format of a later version.
    #[error("{} has format version {found}, this version reads up to {supported}; use a newer one", file.display())]
    UnsupportedFormat {
        /// Segment that says so.
        file: PathBuf,
        /// Its version.
        found: u32,
        /// The newest known version.
        supported: u32,
    },
    /// Something that had been durable is damaged or missing.
    #[error(
        "the log is corrupt in {} at offset {offset}, index {index}: {damage}; the entries from there on are lost \
         on this node: replace this member, do not edit the file",
        file.display()
    )]
    Corrupt {
        /// Damaged file.
        file: PathBuf,
        /// Offset in it, in bytes.
        offset: u64,
        /// Index of the entry that is or would follow there.
        index: u64,
        /// What is wrong.
        damage: Damage,
    },
    /// An entry that does not fit into a segment.
    #[error(
        "entry {index} has {bytes} bytes, the log takes at most {limit}; raise the segment size or split it"
    )]
    EntryTooLarge {
        /// Its index.
        index: u64,
        /// Size of its payload.
        bytes: u64,
        /// The largest payload.
        limit: u64,
    },
    /// Entries that do not continue the log.
    #[error("entry {found} does not continue the log, which goes on at {expected}")]
    Gap {
        /// Index of the entry.
        found: u64,
        /// Index that comes next.
        expected: u64,
    },
    /// The log was closed before.
    #[error("the log is closed")]
    Closed,
    /// The writer ended without a fault of the disk: its runtime was shut down or it panicked.
    #[error("the log's writer has ended unexpectedly")]
    WriterEnded,
}

/// What was being done to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Creating a directory.
    CreateDirectory,
    /// Taking the lock.
    Lock,
    /// Listing a directory.
    List,
    /// Opening.
    Open,
    /// Creating.
    Create,
    /// Reserving space.
    Preallocate,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Making durable.
    Sync,
    /// Removing.
    Remove,
    /// Starting the thread that writes.
    StartWriter,
}

impl std::fmt::Display for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::CreateDirectory => "create the directory",
            Self::Lock => "lock",
            Self::List => "list",
            Self::Open => "open",
            Self::Create => "create",
            Self::Preallocate => "reserve space for",
            Self::Read => "read",
            Self::Write => "write to",
            Self::Sync => "sync",
            Self::Remove => "remove",
            Self::StartWriter => "start the writer of",
        })
    }
}

/// How a part of the log that had been durable is damaged.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// The header of a segment does not match its checksum, or is not one.
    #[error("the segment's header is damaged")]
    Header,
    /// A segment's header names a different place in the sequence than its file name.
    #[error("the segment's header says that it is number {0}")]
    MisplacedSegment(u64),
    /// A record does not match its checksum although something later proves that it had been synced.
    #[error("a record that had been synced is damaged")]
    Record,
    /// An older segment ends too early or too late.
    #[error("the records end elsewhere than the next segment says, at {expected}")]
    SegmentEnd {
        /// Where they should end.
        expected: u64,
    },
    /// A segment is missing.
    #[error("the segment before it, number {0}, is missing")]
    MissingSegment(u64),
    /// The log does not reach back to where it was purged.
    #[error("the log was purged up to {}, but the entries from there on are missing", purged.map_or_else(|| "nothing".to_owned(), |index| index.to_string()))]
    MissingEntries {
        /// Where the log was purged to.
        purged: Option<u64>,
    },
    /// A record that is intact but does not continue the log.
    #[error("the record there is for index {0}")]
    Gap(u64),
    /// An intact record of a kind that this version does not know.
    #[error("unknown kind of record {0}")]
    UnknownKind(u8),
    /// An intact record whose payload cannot be decoded.
    #[error("the payload cannot be decoded")]
    Payload(#[from] convert::Error),
}

impl Error {
    /// Attaches to an I/O error what was being done.
    pub(super) fn io(action: Action, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }

    /// The kind that an `io::Error` of this fault has.
    pub fn io_kind(&self) -> io::ErrorKind {
        match self {
            Self::Io { source, .. } => source.kind(),
            Self::InUse { .. } => io::ErrorKind::WouldBlock,
            Self::WrongIdentity { .. } | Self::EntryTooLarge { .. } | Self::Gap { .. } => {
                io::ErrorKind::InvalidInput
            }
            Self::UnsupportedFormat { .. } => io::ErrorKind::Unsupported,
            Self::Corrupt { .. } => io::ErrorKind::InvalidData,
            Self::Closed | Self::WriterEnded => io::ErrorKind::BrokenPipe,
        }
    }

    /// Whether the disk is full: an operator can make space, unlike for other faults.
    pub fn is_storage_full(&self) -> bool {
        self.io_kind() == io::ErrorKind::StorageFull
    }
}
