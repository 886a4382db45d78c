//! Read-only connections, and the snapshots that each hold one in a read transaction.

use std::{
    collections::VecDeque,
    ops::{ControlFlow, Deref},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::{Mutex, ReentrantMutex};
use rusqlite::Connection;

use crate::{
    contract::{Direction, KeyRange, Rows, Snapshot, Visit},
    error::Result,
};

use super::{connection, database::Shared};

/// Idle connections that are kept: each has a page cache of its own.
const IDLE_MAX: usize = 8;
/// A page of an iterator ends behind this many rows or bytes, whichever comes first.
const PAGE_ROWS: usize = 256;
const PAGE_BYTES: usize = 1 << 20;

/// Read-only connections to one file.
pub(super) struct Readers {
    file: PathBuf,
    cache_bytes: usize,
    idle: Mutex<Vec<Connection>>,
}

impl Readers {
    pub(super) fn new(file: &Path, cache_bytes: usize) -> Self {
        Self { file: file.to_path_buf(), cache_bytes, idle: Mutex::default() }
    }

    /// A connection outside any transaction, kept again when dropped.
    pub(super) fn lend(&self) -> Result<Lent<'_>> {
        Ok(Lent { readers: self, connection: Some(self.take()?) })
    }

    fn take(&self) -> Result<Connection> {
        let idle = self.idle.lock().pop();
        idle.map_or_else(|| connection::reader(&self.file, self.cache_bytes), Ok)
    }

    fn give_back(&self, connection: Connection) {
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
    }
}

pub(super) struct Lent<'a> {
    readers: &'a Readers,
    connection: Option<Connection>,
}

impl Deref for Lent<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection.as_ref().expect("the connection is there until the drop")
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.readers.give_back(connection);
        }
    }
}

/// One read transaction.
///
/// The lock is reentrant because a visitor may read the same snapshot.
pub(super) struct SqliteSnapshot {
    connection: Option<ReentrantMutex<Connection>>,
    shared: Arc<Shared>,
}

impl SqliteSnapshot {
    pub(super) fn new(shared: Arc<Shared>) -> Result<Self> {
        let reader = shared.readers().take()?;
        connection::pin(&reader, shared.file())?;
        Ok(Self { connection: Some(ReentrantMutex::new(reader)), shared })
    }

    fn connection(&self) -> &ReentrantMutex<Connection> {
        self.connection.as_ref().expect("the connection is there until the drop")
    }
}

impl Drop for SqliteSnapshot {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            let connection = connection.into_inner();
            // A connection that cannot end its transaction is closed, which ends it too.
            if connection::unpin(&connection).is_ok() {
                self.shared.readers().give_back(connection);
            }
        }
    }
}

impl Snapshot for SqliteSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        connection::get(&self.connection().lock(), self.shared.file(), key)
    }

    fn scan(&self, range: &KeyRange, direction: Direction, visit: Visit<'_>) -> Result<()> {
        connection::scan(&self.connection().lock(), self.shared.file(), range, direction, visit)
    }

    fn rows<'a>(&'a self, range: &KeyRange, direction: Direction) -> Result<Rows<'a>> {
        let mut pages = Pages { snapshot: self, rest: Some(range.clone()), direction, page: VecDeque::new() };
        pages.turn()?;
        Ok(Box::new(pages))
    }
}

/// Iterates page by page, so that it holds the connection only while it fills a page.
struct Pages<'a> {
    snapshot: &'a SqliteSnapshot,
    /// What lies behind the page; `None` if nothing does.
    rest: Option<KeyRange>,
    direction: Direction,
    page: VecDeque<(Bytes, Bytes)>,
}

impl Pages<'_> {
    fn turn(&mut self) -> Result<()> {
        let Some(mut rest) = self.rest.take() else { return Ok(()) };
        let (page, mut bytes) = (&mut self.page, 0);
        let mut full = ControlFlow::Continue(());
        self.snapshot.scan(&rest, self.direction, &mut |key, value| {
            page.push_back((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
            bytes += key.len() + value.len();
            if page.len() >= PAGE_ROWS || bytes >= PAGE_BYTES {
                full = ControlFlow::Break(());
            }
            full
        })?;
        if let (ControlFlow::Break(()), Some((last, _))) = (full, page.back()) {
            match self.direction {
                Direction::Ascending => rest.lower = Some(successor(last)),
                Direction::Descending => rest.upper = Some(last.clone()),
            }
            self.rest = Some(rest);
        }
        Ok(())
    }
}

/// The smallest key above `key`.
fn successor(key: &[u8]) -> Bytes {
    let mut next = BytesMut::with_capacity(key.len() + 1);
    next.put_slice(key);
    next.put_u8(0);
    next.freeze()
}

impl Iterator for Pages<'_> {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.page.is_empty()
            && let Err(error) = self.turn()
        {
            self.page.clear();
            return Some(Err(error));
        }
        self.page.pop_front().map(Ok)
    }
}
