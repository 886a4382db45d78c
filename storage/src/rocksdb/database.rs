//! One open RocksDB database.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use rocksdb::{
    BlockBasedOptions, DB, FlushOptions, Options, ReadOptions, ReadTier, WriteBatch, WriteOptions,
    checkpoint::Checkpoint,
};

use crate::{
    contract::{Batch, Db, Direction, Durability, KeyRange, Snapshot, Write},
    directory::{self, DirectoryLock},
    error::{Error, Result},
    tables,
};

use super::{NAME, fault, load, snapshot::RocksDbSnapshot};

/// Where `verify` puts its hard links, below the database's directory.
const VERIFY_DIR: &str = "verify";

/// An open database; snapshots keep it open too.
pub(super) struct RocksDb {
    shared: Arc<Shared>,
}

/// The parts of an open database. They close in this order.
pub(super) struct Shared {
    db: DB,
    dir: PathBuf,
    options: Options,
    /// None in memory mode.
    lock: Option<DirectoryLock>,
}

impl Shared {
    pub(super) fn db(&self) -> &DB {
        &self.db
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    pub(super) fn flush(&self) -> Result<()> {
        let mut options = FlushOptions::default();
        options.set_wait(true);
        self.db.flush_opt(&options).map_err(|error| fault("flush", &self.dir, error))
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let value = self.db.get_pinned(key).map_err(|error| fault("read", &self.dir, error))?;
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }
}

impl RocksDb {
    pub(super) fn create(dir: &Path, options: &Options, lock: Option<DirectoryLock>) -> Result<Self> {
        let db = Self::start(dir, options, lock)?;
        let mut batch = Batch::new();
        batch.put(tables::format_key(), tables::format_row());
        db.commit(batch, Durability::Flushed)?;
        Ok(db)
    }

    pub(super) fn open(dir: &Path, options: &Options, lock: Option<DirectoryLock>) -> Result<Self> {
        let db = Self::start(dir, options, lock)?;
        let format = db.get(&tables::format_key())?;
        tables::check_format(dir, format.as_deref())?;
        if db.shared.lock.is_some() {
            remove_links(dir)?;
        }
        Ok(db)
    }

    fn start(dir: &Path, options: &Options, lock: Option<DirectoryLock>) -> Result<Self> {
        let db = DB::open(options, dir).map_err(|error| fault("open", dir, error))?;
        let shared = Shared { db, dir: dir.to_path_buf(), options: options.clone(), lock };
        Ok(Self { shared: Arc::new(shared) })
    }

    pub(super) fn downgrade(&self) -> std::sync::Weak<Shared> {
        Arc::downgrade(&self.shared)
    }

    /// Reads hard links of all files with a cache of their own: blocks in the shared cache would hide damage on
    /// the disk. Opening reads every index block, scanning every data block.
    fn verify_files(&self) -> Result<()> {
        let dir = &self.shared.dir;
        remove_links(dir)?;
        let links = dir.join(VERIFY_DIR);
        let linked = Checkpoint::new(&self.shared.db).and_then(|copy| copy.create_checkpoint(&links));
        linked.map_err(|error| fault("link the files for a check of", dir, error))?;
        let mut table = BlockBasedOptions::default();
        table.disable_cache();
        let mut options = Options::default();
        options.set_block_based_table_factory(&table);
        let checked = DB::open_for_read_only(&options, &links, false).and_then(|db| {
            let mut reads = ReadOptions::default();
            reads.set_verify_checksums(true);
            let mut rows = db.raw_iterator_opt(reads);
            rows.seek_to_first();
            while rows.valid() {
                rows.next();
            }
            rows.status()
        });
        remove_links(dir)?;
        checked.map_err(|error| fault("check", dir, error))
    }

    fn property(&self, name: &str) -> Option<u64> {
        self.shared.db.property_int_value(name).ok().flatten()
    }
}

fn remove_links(dir: &Path) -> Result<()> {
    let links = dir.join(VERIFY_DIR);
    match fs::remove_dir_all(&links) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", &links, error)),
        _ => Ok(()),
    }
}

impl Db for RocksDb {
    fn engine(&self) -> &'static str {
        NAME
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.shared.get(key)
    }

    fn commit(&self, batch: Batch, durability: Durability) -> Result<()> {
        let mut writes = WriteBatch::with_capacity_bytes(batch.bytes() + 16 * batch.len());
        for write in batch.writes() {
            match write {
                Write::Put { key, value } => writes.put(key, value),
                Write::Delete { key } => writes.delete(key),
            }
        }
        let mut options = WriteOptions::default();
        options.disable_wal(true);
        let written = self.shared.db.write_opt(writes, &options);
        written.map_err(|error| fault("write", &self.shared.dir, error))?;
        match durability {
            Durability::Buffered => Ok(()),
            Durability::Flushed => self.shared.flush(),
        }
    }

    fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        Ok(Arc::new(RocksDbSnapshot::new(self.shared.clone())))
    }

    fn flush(&self) -> Result<()> {
        self.shared.flush()
    }

    fn durable_applied(&self) -> Result<Option<Bytes>> {
        let mut options = ReadOptions::default();
        // With the WAL off this skips the memtables, so it answers from SST files only.
        options.set_read_tier(ReadTier::Persisted);
        let value = self.shared.db.get_pinned_opt(tables::raft_applied_key(), &options);
        let value = value.map_err(|error| fault("read", &self.shared.dir, error))?;
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    fn bulk_load(&self, pairs: &mut dyn Iterator<Item = Result<(Bytes, Bytes)>>) -> Result<()> {
        load::bulk_load(&self.shared, self.snapshot()?.as_ref(), pairs)
    }

    fn verify(&self) -> Result<()> {
        match self.shared.lock {
            Some(_) => self.verify_files()?,
            // In memory there is no disk to check; reading everything checks the blocks' checksums.
            None => self.snapshot()?.scan(&KeyRange::ALL, Direction::Ascending, &mut |_, _| {
                std::ops::ControlFlow::Continue(())
            })?,
        }
        let format = self.get(&tables::format_key())?;
        tables::check_format(&self.shared.dir, format.as_deref())
    }

    fn disk_bytes(&self) -> Result<u64> {
        match self.shared.lock {
            Some(_) => directory::bytes(&self.shared.dir),
            None => Ok(["rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables"]
                .into_iter()
                .filter_map(|name| self.property(name))
                .sum()),
        }
    }

    fn statistics(&self) -> Vec<(String, u64)> {
        [
            ("estimated_rows", "rocksdb.estimate-num-keys"),
            ("memtable_bytes", "rocksdb.cur-size-all-mem-tables"),
            ("block_cache_bytes", "rocksdb.block-cache-usage"),
            ("table_file_bytes", "rocksdb.total-sst-files-size"),
            ("compaction_pending_bytes", "rocksdb.estimate-pending-compaction-bytes"),
            ("compactions_running", "rocksdb.num-running-compactions"),
            ("flushes_running", "rocksdb.num-running-flushes"),
            ("snapshots", "rocksdb.num-snapshots"),
            ("background_errors", "rocksdb.background-errors"),
        ]
        .into_iter()
        .filter_map(|(name, property)| Some((name.to_owned(), self.property(property)?)))
        .collect()
    }
}
