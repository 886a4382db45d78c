//! SQLite: the embedded default, one file that every tool can open.
//!
//! One writer connection, and a pool of read-only connections for snapshots. The WAL is SQLite's page log, not a
//! second write-ahead log: commits are not synced (`synchronous=NORMAL`), so a crash leaves a consistent prefix.
//! `flush` commits one changed row with `synchronous=FULL`; a transaction that changes nothing would write and
//! sync nothing.
//!
//! SQLite keeps no checksums of its pages, so every value carries one of its row, in front of it.

mod connection;
mod database;
mod row;
mod snapshot;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;

use crate::{
    contract::{Db, Engine},
    directory::{self, DirectoryLock, PrivateDirectory},
    engines::{EngineOptions, Mode},
    error::{Error, Result, Usage},
};

use database::SqliteDb;

/// The engine's name.
pub const NAME: &str = "sqlite";

/// The database file in its directory; its WAL stands beside it.
const FILE: &str = "kv.sqlite3";

/// Opens SQLite databases.
#[derive(Debug)]
pub struct SqliteEngine {
    block_cache_bytes: usize,
    memory: Option<Mutex<BTreeMap<PathBuf, Arc<PrivateDirectory>>>>,
}

impl SqliteEngine {
    /// An engine with `options`; `memtable_bytes` has no meaning here.
    ///
    /// In memory mode a database lives in a private directory in shared memory until the engine and the database
    /// are dropped. Directories that a killed process left there are removed now.
    pub fn new(options: &EngineOptions) -> Result<Self> {
        let memory = match options.mode {
            Mode::Disk => None,
            Mode::Memory => {
                PrivateDirectory::sweep()?;
                Some(Mutex::default())
            }
        };
        Ok(Self { block_cache_bytes: options.block_cache_bytes, memory })
    }
}

impl Engine for SqliteEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn create(&self, dir: &Path) -> Result<Arc<dyn Db>> {
        let Some(memory) = &self.memory else {
            let lock = DirectoryLock::create(dir)?;
            return Ok(Arc::new(SqliteDb::create(dir, self.block_cache_bytes, lock, None)?));
        };
        let mut memory = memory.lock();
        if memory.contains_key(dir) {
            return Err(Usage::NotEmpty(dir.to_path_buf()).into());
        }
        let private = Arc::new(PrivateDirectory::create()?);
        let data = private.path().join("data");
        let lock = DirectoryLock::create(&data)?;
        let db = SqliteDb::create(&data, self.block_cache_bytes, lock, Some(private.clone()))?;
        memory.insert(dir.to_path_buf(), private);
        Ok(Arc::new(db))
    }

    fn open(&self, dir: &Path) -> Result<Arc<dyn Db>> {
        let Some(memory) = &self.memory else {
            let lock = DirectoryLock::open(dir, FILE, NAME)?;
            return Ok(Arc::new(SqliteDb::open(dir, self.block_cache_bytes, lock, None)?));
        };
        let private = memory.lock().get(dir).cloned();
        let private = private.ok_or_else(|| Usage::NoDatabase { path: dir.to_path_buf(), engine: NAME })?;
        let data = private.path().join("data");
        let lock = DirectoryLock::open(&data, FILE, NAME)?;
        Ok(Arc::new(SqliteDb::open(&data, self.block_cache_bytes, lock, Some(private))?))
    }

    fn exists(&self, dir: &Path) -> Result<bool> {
        match &self.memory {
            Some(memory) => Ok(memory.lock().contains_key(dir)),
            None => directory::exists(dir),
        }
    }

    fn destroy(&self, dir: &Path) -> Result<()> {
        let Some(memory) = &self.memory else { return directory::destroy(dir) };
        let mut memory = memory.lock();
        if let Some(private) = memory.get(dir) {
            directory::destroy(&private.path().join("data"))?;
            memory.remove(dir);
        }
        Ok(())
    }
}

/// Sorts SQLite's errors into ours.
fn fault(action: &'static str, path: &Path, error: rusqlite::Error) -> Error {
    use rusqlite::ErrorCode;
    let path = path.to_path_buf();
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => Error::NoSpace { action, path, source: error.into() },
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Error::Corruption {
            damage: crate::error::Damage::Structure("SQLite"),
            path,
            source: Some(error.into()),
        },
        _ => Error::Io { action, path, source: error.into() },
    }
}

#[cfg(test)]
mod tests;
