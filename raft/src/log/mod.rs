//! The segment log: the only write-ahead log there is, and openraft's log storage.
//!
//! Entries are readable as soon as they are appended and leave memory only when they are durable and old. One
//! writer owns the files: it takes what is queued, writes it with one call, syncs once, and completes in order. A
//! fault is final: the kernel may drop what it could not write, so nothing is retried. The format is described in
//! `docs/on-disk-format.md`.
//!
//! **Invariant**: what was reported durable is there after a crash, or opening the log fails and says what is
//! damaged.

use std::{
    fmt,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::vfs::{Access, Vfs};

mod cache;
mod cut;
mod driver;
mod error;
mod files;
mod handle;
mod index;
mod inspect;
mod queue;
mod reader;
mod record;
mod recovery;
mod segment;
mod state;
mod storage;
mod writer;

use self::{
    cache::Cache,
    files::Files,
    segment::Header,
    state::{Counters, Lifeline, Shared, State},
    writer::LogWriter,
};
pub use self::{
    driver::{Driver, SpawnTask},
    error::{Action, Damage, Error},
    handle::{LogHandle, Stats},
    inspect::{InspectedRecord, Inspection, inspect},
    reader::LogReader,
    record::Kind,
    storage::SegmentLog,
};

/// Default size of a segment file.
pub const SEGMENT_BYTES: u32 = 64 << 20;

/// Smaller segments are made this large.
pub const SEGMENT_BYTES_MIN: u32 = 1024;

/// Default size of the entries that are kept in memory.
pub const CACHE_BYTES: u64 = 64 << 20;

/// Default size of the entries in one message to a peer; a single larger entry is sent alone.
pub const APPEND_BODY_BYTES: u64 = 2 << 20;

/// Requests that wait for the writer; appends wait when there are more.
const QUEUE_BYTES_MAX: u64 = 64 << 20;

/// What the writer takes at once.
const DRAIN_BYTES_MAX: u64 = 8 << 20;

/// After this long without requests a mark is written.
const MARK_AFTER_QUIET: Duration = Duration::from_millis(100);

const LOCK_NAME: &str = "LOCK";

/// Monotonic time since some fixed moment.
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// Runs a job that may block on disk where it does not stall tasks.
pub type BlockingWork = Arc<dyn Fn(Box<dyn FnOnce() + Send>) + Send + Sync>;

/// Whose log it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogIdentity {
    /// The cluster.
    pub cluster_id: [u8; 16],
    /// The member.
    pub node_id: u64,
    /// The Raft group.
    pub group_id: u32,
}

impl fmt::Display for LogIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster_id, node_id, group_id } = self;
        let cluster_id = u128::from_be_bytes(*cluster_id);
        write!(f, "node {node_id} of cluster {cluster_id:032x}, group {group_id}")
    }
}

/// How to open a log.
#[derive(Clone)]
pub struct Options {
    /// Files.
    pub vfs: Arc<dyn Vfs>,
    /// The log's own directory; created when missing.
    pub directory: PathBuf,
    /// Whose log it is.
    pub identity: LogIdentity,
    /// Size of new segments; the largest entry is a little smaller.
    pub segment_bytes: u32,
    /// Durable entries stay in memory up to this size.
    pub cache_bytes: u64,
    /// Size of the entries in one message to a peer.
    pub append_body_bytes: u64,
    /// Where the writer runs.
    pub driver: Driver,
    /// Where large reads from files run.
    pub blocking: BlockingWork,
    /// Measures how long syncs take.
    pub clock: Clock,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("directory", &self.directory)
            .field("identity", &self.identity)
            .field("segment_bytes", &self.segment_bytes)
            .field("cache_bytes", &self.cache_bytes)
            .field("append_body_bytes", &self.append_body_bytes)
            .field("driver", &self.driver)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// Production's choices: a thread that writes, tokio's blocking pool for large reads, default sizes.
    pub fn new(vfs: Arc<dyn Vfs>, directory: impl Into<PathBuf>, identity: LogIdentity) -> Self {
        let started = Instant::now();
        Self {
            vfs,
            directory: directory.into(),
            identity,
            segment_bytes: SEGMENT_BYTES,
            cache_bytes: CACHE_BYTES,
            append_body_bytes: APPEND_BODY_BYTES,
            driver: Driver::Thread,
            blocking: Arc::new(|job| drop(tokio::task::spawn_blocking(job))),
            clock: Arc::new(move || started.elapsed()),
        }
    }
}

impl SegmentLog {
    /// Opens the log in a directory, or begins one there: takes the directory's lock, reads the segments, cuts off
    /// a write that a crash interrupted, and starts the writer. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::InUse`], [`Error::WrongIdentity`], [`Error::UnsupportedFormat`], [`Error::Corrupt`] when something
    /// that had been durable is damaged, and [`Error::Io`].
    pub fn open(options: Options) -> Result<Self, Error> {
        let Options { vfs, directory, identity, .. } = &options;
        vfs.create_directory(directory).map_err(Error::io(Action::CreateDirectory, directory))?;
        let lock_path = directory.join(LOCK_NAME);
        let lock = vfs.lock(&lock_path).map_err(|source| match source.kind() {
            std::io::ErrorKind::WouldBlock => Error::InUse { directory: directory.clone() },
            _ => Error::io(Action::Lock, lock_path)(source),
        })?;
        let files = Files {
            vfs: vfs.clone(),
            directory: directory.clone(),
            identity: *identity,
            segment_bytes: u64::from(options.segment_bytes.max(SEGMENT_BYTES_MIN)),
        };
        let mut recovered =
            recovery::read(&**vfs, directory, Some(*identity), Access::ReadWrite, &mut |_| {})?;
        recovery::clean_up(&files, &mut recovered)?;
        let recovery::Recovered { mut index, terms, sticky, origin, next, active, next_sequence, .. } =
            recovered;
        let active = match active {
            Some(active) => active,
            None => {
                let header = Header {
                    identity: *identity,
                    sequence: next_sequence,
                    first_index: next,
                    previous_end: 0,
                    sticky,
                };
                let active = files.create(&header)?;
                let file = active.file.clone();
                index.push_segment(index::IndexedSegment::new(
                    active.sequence,
                    file,
                    active.salt,
                    files.segment_bytes,
                ));
                active
            }
        };
        let state = State {
            sticky,
            cache: Cache::new(next, options.cache_bytes),
            terms,
            index,
            origin,
            durable_next: next,
            pending_truncations: Default::default(),
            purge_limit: None,
            counters: Counters::default(),
        };
        let shared = Arc::new(Shared::new(
            state,
            directory.clone(),
            options.append_body_bytes,
            writer::payload_bytes_max(files.segment_bytes),
            options.blocking.clone(),
        ));
        let writer = LogWriter::new(shared.clone(), files, active, sticky, next, options.clock.clone(), lock);
        options.driver.start(writer)?;
        Ok(Self::new(Arc::new(Lifeline(shared))))
    }
}
