//! The ordered key-value contract of Tidemark, its engines, and the layout of everything stored.
//!
//! One flat, ordered byte keyspace per replica, behind [`Db`]. RocksDB (feature `rocksdb`) and SQLite
//! (feature `sqlite`) serve users; the model is the oracle of the property tests and the engine of the
//! simulator. This crate sees bytes only: it owns the event key, the table tags and the encodings of the
//! event repository, and knows nothing of Raft, of the network or of the stored events' contents.
//!
//! **Invariant**: the Raft log is the only write-ahead log. No engine has one of its own that a user could
//! switch on; what a commit without a flush loses in a crash, the Raft log replays.

pub mod contract;
pub mod engines;
pub mod error;
pub mod event_repository;
pub mod key;
pub mod model;
pub mod overlay;
pub mod tables;

#[cfg(all(test, any(feature = "sqlite", feature = "rocksdb")))]
mod damage;
#[cfg(any(feature = "sqlite", feature = "rocksdb"))]
mod directory;
mod load;
#[cfg(feature = "rocksdb")]
pub mod rocksdb;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(test, feature = "suite"))]
pub mod suite;

pub use contract::{Batch, Db, Direction, Durability, Engine, KeyRange, Rows, Snapshot, Visit, Write};
pub use engines::{EngineOptions, Mode, available, by_name, default_engine};
pub use error::{Error, ErrorKind, Result};
pub use key::{BoundaryHash, Bucket, EventId, EventKey, Position};
pub use overlay::{Overlay, Read};
