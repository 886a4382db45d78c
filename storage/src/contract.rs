//! The ordered key-value contract: one flat, ordered byte keyspace per replica.
//!
//! Every engine promises the same, and the contract suite (`suite`) proves it. The traits are object safe,
//! so that a snapshot install can swap one database for another behind an `Arc<dyn Db>`.

use std::{fmt, ops::ControlFlow, path::Path, sync::Arc};

use bytes::Bytes;

use crate::error::Error;

/// What a commit promises when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Visible to every later read; survives a crash only after the next [`Db::flush`]. What survives
    /// without one is a prefix of the commits.
    Buffered,
    /// As `Buffered`, and on stable storage.
    Flushed,
}

/// The order in which a scan visits keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Smallest key first.
    Ascending,
    /// Largest key first.
    Descending,
}

/// A key range: lower bound inclusive, upper bound exclusive, `None` for an unbounded end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRange {
    /// Smallest key in the range.
    pub lower: Option<Bytes>,
    /// First key behind the range.
    pub upper: Option<Bytes>,
}

impl KeyRange {
    /// The whole keyspace.
    pub const ALL: Self = Self { lower: None, upper: None };

    /// The range `[lower, upper)`.
    pub fn new(lower: impl Into<Bytes>, upper: impl Into<Bytes>) -> Self {
        Self { lower: Some(lower.into()), upper: Some(upper.into()) }
    }

    /// Whether no key can lie in the range.
    pub fn is_empty(&self) -> bool {
        match (&self.lower, &self.upper) {
            (Some(lower), Some(upper)) => lower >= upper,
            (None, Some(upper)) => upper.is_empty(),
            (_, None) => false,
        }
    }

    /// Whether `key` lies in the range.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.lower.as_ref().is_none_or(|lower| key >= lower.as_ref())
            && self.upper.as_ref().is_none_or(|upper| key < upper.as_ref())
    }
}

/// One write of a [`Batch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Stores `value` under `key`.
    Put {
        /// The key.
        key: Bytes,
        /// Its new value.
        value: Bytes,
    },
    /// Removes `key`; removing an absent key is no error.
    Delete {
        /// The key.
        key: Bytes,
    },
}

impl Write {
    /// The key that the write is about.
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }
}

/// Puts and deletes that are applied atomically and in order: a later write to a key wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    writes: Vec<Write>,
    bytes: usize,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a put.
    pub fn put(&mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        let (key, value) = (key.into(), value.into());
        self.bytes += key.len() + value.len();
        self.writes.push(Write::Put { key, value });
    }

    /// Adds a delete.
    pub fn delete(&mut self, key: impl Into<Bytes>) {
        let key = key.into();
        self.bytes += key.len();
        self.writes.push(Write::Delete { key });
    }

    /// The writes in order.
    pub fn writes(&self) -> &[Write] {
        &self.writes
    }

    /// The number of writes.
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Bytes of all keys and values.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Called for each row of a scan; the slices are valid only inside the call.
pub type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>;

/// One immutable view of a database, for any number of reads from any thread.
///
/// Reads never block writes. A snapshot pins old data (SQLite's WAL, RocksDB's files), so it lives at most
/// 60 seconds; long ascending reads reopen at their cursor. It also keeps its database open: until the last one
/// is dropped, the directory can be neither opened again nor destroyed.
pub trait Snapshot: Send + Sync {
    /// The value under `key`; absence is `None`, not an error.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error>;

    /// Visits the rows of `range` in `direction` until the visitor breaks.
    fn scan(&self, range: &KeyRange, direction: Direction, visit: Visit<'_>) -> Result<(), Error>;

    /// Iterates over the rows of `range` in `direction`; several iterators may be advanced in turn.
    fn rows<'a>(&'a self, range: &KeyRange, direction: Direction) -> Result<Rows<'a>, Error>;
}

/// Owned rows of a scan. An `Err` item ends the iteration.
pub type Rows<'a> = Box<dyn Iterator<Item = Result<(Bytes, Bytes), Error>> + 'a>;

/// One open database.
///
/// There is a single writer; readers are as many as they like.
pub trait Db: Send + Sync + 'static {
    /// The name of the engine: `rocksdb`, `sqlite` or `model`.
    fn engine(&self) -> &'static str;

    /// The newest committed value under `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error>;

    /// Applies `batch` atomically.
    fn commit(&self, batch: Batch, durability: Durability) -> Result<(), Error>;

    /// One immutable view of everything committed before the call.
    fn snapshot(&self) -> Result<Arc<dyn Snapshot>, Error>;

    /// Afterwards everything committed before the call is on stable storage.
    fn flush(&self) -> Result<(), Error>;

    /// A lower bound of the value that a reopen after a power cut now would find under
    /// [`crate::tables::raft_applied_key`]; `None` if it might find nothing.
    fn durable_applied(&self) -> Result<Option<Bytes>, Error>;

    /// Loads strictly ascending pairs into a database that is still empty, its format row aside, faster than
    /// commits would. Durable when it returns. An error leaves the database unusable: create another one.
    ///
    /// The pairs may bring a format row of their own, which must be supported.
    fn bulk_load(&self, pairs: &mut dyn Iterator<Item = Result<(Bytes, Bytes), Error>>) -> Result<(), Error>;

    /// Reads everything and checks every checksum and structure that the engine keeps.
    fn verify(&self) -> Result<(), Error>;

    /// Bytes that the database occupies on disk (in memory for a database that lives there).
    fn disk_bytes(&self) -> Result<u64, Error>;

    /// Named figures for people and metrics, for example cache use or compactions.
    fn statistics(&self) -> Vec<(String, u64)>;
}

/// Opens databases of one engine with one set of options.
pub trait Engine: Send + Sync + fmt::Debug + 'static {
    /// As [`Db::engine`].
    fn name(&self) -> &'static str;

    /// Creates a database in `dir`, which must be absent or empty. Durable when it returns.
    ///
    /// It holds nothing but the row [`crate::tables::format_key`].
    fn create(&self, dir: &Path) -> Result<Arc<dyn Db>, Error>;

    /// Opens the database in `dir`, recovering from a crash if there was one.
    fn open(&self, dir: &Path) -> Result<Arc<dyn Db>, Error>;

    /// Whether there is something in `dir`, so that `open` is the right call and `create` would be refused.
    fn exists(&self, dir: &Path) -> Result<bool, Error>;

    /// Removes the closed database in `dir` and `dir` itself, whatever state a crash left them in; no error if
    /// there is nothing.
    fn destroy(&self, dir: &Path) -> Result<(), Error>;
}
