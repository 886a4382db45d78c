//! One open SQLite database: the writer and what it knows to be durable.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::Mutex;
use rusqlite::{Connection, OpenFlags};

use crate::{
    contract::{Batch, Db, Direction, Durability, KeyRange, Snapshot, Write},
    directory::{self, DirectoryLock, PrivateDirectory},
    error::{Error, Result},
    load::{self, Checked},
    tables,
};

use super::{
    FILE, NAME, connection, fault, row,
    snapshot::{Readers, SqliteSnapshot},
};

/// Bytes of one transaction of a bulk load: enough to spread its cost, little enough for the page cache.
const LOAD_BATCH_BYTES: usize = 4 << 20;

/// An open database; snapshots keep it open too.
pub(super) struct SqliteDb {
    shared: Arc<Shared>,
}

/// The parts of an open database. They close in this order.
pub(super) struct Shared {
    readers: Readers,
    writer: Mutex<Writer>,
    /// `raft/applied` as the last flush made it durable.
    durable_applied: Mutex<Option<Bytes>>,
    dir: PathBuf,
    file: PathBuf,
    _lock: DirectoryLock,
    _private: Option<Arc<PrivateDirectory>>,
}

struct Writer {
    connection: Connection,
    /// Reused for each stored value.
    stored: Vec<u8>,
    /// Set when a sync failed. What the page cache then holds is unknown, so nothing more is written.
    failed: bool,
}

impl Shared {
    pub(super) fn readers(&self) -> &Readers {
        &self.readers
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }
}

impl SqliteDb {
    pub(super) fn create(
        dir: &Path,
        cache_bytes: usize,
        lock: DirectoryLock,
        private: Option<Arc<PrivateDirectory>>,
    ) -> Result<Self> {
        let file = dir.join(FILE);
        let writer = connection::writer(&file, OpenFlags::SQLITE_OPEN_CREATE, cache_bytes)?;
        connection::create_schema(&writer, &file)?;
        let db = Self::new(dir, writer, cache_bytes, lock, private);
        let mut batch = Batch::new();
        batch.put(tables::format_key(), tables::format_row());
        db.commit(batch, Durability::Flushed)?;
        directory::sync(dir)?;
        Ok(db)
    }

    pub(super) fn open(
        dir: &Path,
        cache_bytes: usize,
        lock: DirectoryLock,
        private: Option<Arc<PrivateDirectory>>,
    ) -> Result<Self> {
        let file = dir.join(FILE);
        let writer = connection::writer(&file, OpenFlags::empty(), cache_bytes)?;
        let format = connection::get(&writer, &file, &tables::format_key())?;
        tables::check_format(dir, format.as_deref())?;
        let db = Self::new(dir, writer, cache_bytes, lock, private);
        // The recovered WAL may be in the operating system's cache only.
        db.flush()?;
        Ok(db)
    }

    fn new(
        dir: &Path,
        connection: Connection,
        cache_bytes: usize,
        lock: DirectoryLock,
        private: Option<Arc<PrivateDirectory>>,
    ) -> Self {
        let file = dir.join(FILE);
        let shared = Shared {
            readers: Readers::new(&file, cache_bytes),
            writer: Mutex::new(Writer { connection, stored: Vec::new(), failed: false }),
            durable_applied: Mutex::default(),
            dir: dir.to_path_buf(),
            file,
            _lock: lock,
            _private: private,
        };
        Self { shared: Arc::new(shared) }
    }

    fn commit_flushed(&self, batch: &Batch) -> Result<()> {
        let file = &self.shared.file;
        let mut writer = self.shared.writer.lock();
        writer.require_working(file)?;
        // Cleared again only on the way out with everything durable.
        writer.failed = true;
        writer.set_synchronous("FULL").map_err(|error| fault("flush", file, error))?;
        writer.transaction(batch, &[connection::COUNT_FLUSH]).map_err(|error| fault("flush", file, error))?;
        writer.set_synchronous("NORMAL").map_err(|error| fault("flush", file, error))?;
        let applied = connection::get(&writer.connection, file, &tables::raft_applied_key())?;
        *self.shared.durable_applied.lock() = applied;
        writer.failed = false;
        Ok(())
    }

    fn pragma(&self, pragma: &str) -> Option<u64> {
        let reader = self.shared.readers.lend().ok()?;
        let value: i64 = reader.pragma_query_value(None, pragma, |row| row.get(0)).ok()?;
        u64::try_from(value).ok()
    }
}

impl Writer {
    fn require_working(&self, file: &Path) -> Result<()> {
        if !self.failed {
            return Ok(());
        }
        let source = io::Error::other("an earlier flush failed");
        Err(Error::io("write", file, source))
    }

    fn set_synchronous(&self, level: &str) -> rusqlite::Result<()> {
        self.connection.pragma_update(None, "synchronous", level)
    }

    /// Applies `batch` and `statements` in one transaction, or nothing.
    fn transaction(&mut self, batch: &Batch, statements: &[&str]) -> rusqlite::Result<()> {
        self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let done = self.write(batch, statements).and_then(|()| {
            self.connection.prepare_cached("COMMIT")?.execute([])?;
            Ok(())
        });
        if done.is_err() && !self.connection.is_autocommit() {
            // The first error is the one to report; SQLite rolls back at the latest when the file is opened.
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        done
    }

    fn write(&mut self, batch: &Batch, statements: &[&str]) -> rusqlite::Result<()> {
        let mut put = self.connection.prepare_cached(connection::PUT)?;
        let mut delete = self.connection.prepare_cached(connection::DELETE)?;
        for write in batch.writes() {
            match write {
                Write::Put { key, value } => {
                    row::encode(key, value, &mut self.stored);
                    put.execute((key.as_ref(), self.stored.as_slice()))?;
                }
                Write::Delete { key } => {
                    delete.execute([key.as_ref()])?;
                }
            }
        }
        for statement in statements {
            self.connection.prepare_cached(statement)?.execute([])?;
        }
        // One huge value must not hold its memory for good.
        self.stored.shrink_to(LOAD_BATCH_BYTES);
        Ok(())
    }
}

impl Db for SqliteDb {
    fn engine(&self) -> &'static str {
        NAME
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        // Between commits the writer is free, and its page cache is warm; a reader's is void after every commit. Apply
        // looks for an idempotency key per save.
        if let Some(writer) = self.shared.writer.try_lock() {
            return connection::get(&writer.connection, &self.shared.file, key);
        }
        connection::get(&*self.shared.readers.lend()?, &self.shared.file, key)
    }

    fn commit(&self, batch: Batch, durability: Durability) -> Result<()> {
        match durability {
            Durability::Flushed => self.commit_flushed(&batch),
            Durability::Buffered => {
                let mut writer = self.shared.writer.lock();
                writer.require_working(&self.shared.file)?;
                writer.transaction(&batch, &[]).map_err(|error| fault("write", &self.shared.file, error))
            }
        }
    }

    fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        Ok(Arc::new(SqliteSnapshot::new(self.shared.clone())?))
    }

    fn flush(&self) -> Result<()> {
        self.commit_flushed(&Batch::new())
    }

    fn durable_applied(&self) -> Result<Option<Bytes>> {
        Ok(self.shared.durable_applied.lock().clone())
    }

    fn bulk_load(&self, pairs: &mut dyn Iterator<Item = Result<(Bytes, Bytes)>>) -> Result<()> {
        load::require_empty(&self.shared.dir, self.snapshot()?.as_ref())?;
        let mut batch = Batch::new();
        for pair in Checked::new(&self.shared.dir, pairs) {
            let (key, value) = pair?;
            batch.put(key, value);
            if batch.bytes() >= LOAD_BATCH_BYTES {
                self.commit(std::mem::take(&mut batch), Durability::Buffered)?;
            }
        }
        self.commit(batch, Durability::Flushed)
    }

    fn verify(&self) -> Result<()> {
        // A connection of its own: pages that others have cached would hide damage on the disk.
        let file = &self.shared.file;
        let reader = connection::reader(file, 0)?;
        connection::pin(&reader, file)?;
        connection::check_integrity(&reader, file)?;
        connection::scan(&reader, file, &KeyRange::ALL, Direction::Ascending, &mut |_, _| {
            std::ops::ControlFlow::Continue(())
        })?;
        let format = connection::get(&reader, file, &tables::format_key())?;
        tables::check_format(&self.shared.dir, format.as_deref())
    }

    fn disk_bytes(&self) -> Result<u64> {
        directory::bytes(&self.shared.dir)
    }

    fn statistics(&self) -> Vec<(String, u64)> {
        let wal = self.shared.file.with_extension("sqlite3-wal");
        let wal_bytes = std::fs::metadata(wal).ok().map(|metadata| metadata.len());
        [
            ("pages", self.pragma("page_count")),
            ("free_pages", self.pragma("freelist_count")),
            ("page_bytes", self.pragma("page_size")),
            ("wal_bytes", wal_bytes),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
    }
}
