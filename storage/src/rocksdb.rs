//! RocksDB: the production default.
//!
//! Its own WAL is always off, because the Raft log is the WAL. There is **one column family**: with the WAL off,
//! several of them without atomic flush lose data silently in a crash. So what survives one is what was flushed
//! into SST files: a prefix of the commits, each batch whole or not at all.

mod database;
mod load;
mod snapshot;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use rocksdb::{BlockBasedOptions, Cache, DB, DBCompressionType, Env, Options};

use crate::{
    contract::{Db, Engine},
    directory::{self, DirectoryLock},
    engines::{EngineOptions, Mode},
    error::{Damage, Error, Result, Usage},
};

use database::{RocksDb, Shared};

/// The engine's name.
pub const NAME: &str = "rocksdb";

/// RocksDB writes this file last when it creates a database.
const MARKER: &str = "CURRENT";

/// Sizes of RocksDB's own text log: it is for people, and must not fill the disk.
const TEXT_LOG_BYTES_MAX: usize = 4 << 20;
const TEXT_LOGS_MAX: usize = 4;

/// Opens RocksDB databases, which share one block cache.
pub struct RocksDbEngine {
    options: Options,
    memory: Option<Memory>,
}

/// Databases in memory, which live as long as the engine.
struct Memory {
    /// Never dropped before the databases: each one holds it through its options.
    _env: Env,
    databases: Mutex<BTreeMap<PathBuf, Weak<Shared>>>,
}

impl RocksDbEngine {
    /// An engine with `options`. In memory mode a database lives until the engine and the database are dropped.
    pub fn new(options: &EngineOptions) -> Result<Self> {
        let mut rocksdb = base_options(options);
        let memory = match options.mode {
            Mode::Disk => None,
            Mode::Memory => {
                let path = Path::new("memory");
                let env = Env::mem_env().map_err(|error| fault("create an environment in", path, error))?;
                rocksdb.set_env(&env);
                Some(Memory { _env: env, databases: Mutex::default() })
            }
        };
        Ok(Self { options: rocksdb, memory })
    }

    fn create_options(&self) -> Options {
        let mut options = self.options.clone();
        options.create_if_missing(true);
        options.set_error_if_exists(true);
        options
    }
}

impl std::fmt::Debug for RocksDbEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RocksDbEngine").field("memory", &self.memory.is_some()).finish_non_exhaustive()
    }
}

/// Level 0 first.
const COMPRESSION_BY_LEVEL: [DBCompressionType; 7] = [
    DBCompressionType::None,
    DBCompressionType::None,
    DBCompressionType::Lz4,
    DBCompressionType::Lz4,
    DBCompressionType::Lz4,
    DBCompressionType::Lz4,
    DBCompressionType::Lz4,
];

/// One wrong answer in a hundred.
const FILTER_BITS_PER_KEY: f64 = 10.0;

/// Part of the memtable that its filter takes: about 20 bits for each row of 300 bytes.
const MEMTABLE_FILTER_RATIO: f64 = 0.01;

fn base_options(chosen: &EngineOptions) -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_lru_cache(chosen.block_cache_bytes));
    // Every save looks for its idempotency key, which is hardly ever there: filters answer without a search, in the
    // files and in the memtable.
    table.set_bloom_filter(FILTER_BITS_PER_KEY, false);
    let mut options = Options::default();
    options.set_block_based_table_factory(&table);
    options.set_memtable_whole_key_filtering(true);
    options.set_memtable_prefix_bloom_ratio(MEMTABLE_FILTER_RATIO);
    options.set_write_buffer_size(chosen.memtable_bytes);
    // What was just flushed is soon rewritten by a compaction: compressing it first costs more than it saves.
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_compression_per_level(&COMPRESSION_BY_LEVEL);
    // Writers are throttled by flushes and compactions on two threads; more would starve a small machine.
    options.set_max_background_jobs(2);
    options.set_max_log_file_size(TEXT_LOG_BYTES_MAX);
    options.set_keep_log_file_num(TEXT_LOGS_MAX);
    options
}

impl Engine for RocksDbEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn create(&self, dir: &Path) -> Result<Arc<dyn Db>> {
        let Some(memory) = &self.memory else {
            let lock = DirectoryLock::create(dir)?;
            let db = RocksDb::create(dir, &self.create_options(), Some(lock))?;
            directory::sync(dir)?;
            return Ok(Arc::new(db));
        };
        let mut databases = memory.databases.lock();
        if databases.contains_key(dir) {
            return Err(Usage::NotEmpty(dir.to_path_buf()).into());
        }
        let db = RocksDb::create(dir, &self.create_options(), None)?;
        databases.insert(dir.to_path_buf(), db.downgrade());
        Ok(Arc::new(db))
    }

    fn open(&self, dir: &Path) -> Result<Arc<dyn Db>> {
        let Some(memory) = &self.memory else {
            let lock = DirectoryLock::open(dir, MARKER, NAME)?;
            return Ok(Arc::new(RocksDb::open(dir, &self.options, Some(lock))?));
        };
        let mut databases = memory.databases.lock();
        match databases.get(dir).map(Weak::strong_count) {
            None => Err(Usage::NoDatabase { path: dir.to_path_buf(), engine: NAME }.into()),
            Some(0) => {
                let db = RocksDb::open(dir, &self.options, None)?;
                databases.insert(dir.to_path_buf(), db.downgrade());
                Ok(Arc::new(db))
            }
            Some(_) => Err(Usage::InUse(dir.to_path_buf()).into()),
        }
    }

    fn exists(&self, dir: &Path) -> Result<bool> {
        match &self.memory {
            Some(memory) => Ok(memory.databases.lock().contains_key(dir)),
            None => directory::exists(dir),
        }
    }

    fn destroy(&self, dir: &Path) -> Result<()> {
        let Some(memory) = &self.memory else { return directory::destroy(dir) };
        let mut databases = memory.databases.lock();
        match databases.get(dir).map(Weak::strong_count) {
            None => Ok(()),
            Some(0) => {
                DB::destroy(&self.options, dir).map_err(|error| fault("remove", dir, error))?;
                databases.remove(dir);
                // The binding creates the directory also where nothing is stored in it.
                directory::destroy(dir)
            }
            Some(_) => Err(Usage::InUse(dir.to_path_buf()).into()),
        }
    }
}

/// Sorts RocksDB's errors into ours.
fn fault(action: &'static str, path: &Path, error: rocksdb::Error) -> Error {
    use rocksdb::ErrorKind;
    let path = path.to_path_buf();
    match error.kind() {
        ErrorKind::Corruption => {
            Error::Corruption { damage: Damage::Structure("RocksDB"), path, source: Some(error.into()) }
        }
        // The binding passes the text of a status only, not its sub-code.
        ErrorKind::IOError if error.as_ref().contains("No space left") => {
            Error::NoSpace { action, path, source: error.into() }
        }
        _ => Error::Io { action, path, source: error.into() },
    }
}

#[cfg(test)]
mod tests;
