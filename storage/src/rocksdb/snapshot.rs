//! Snapshots that keep their database open, and scans over them.

use std::{ops::ControlFlow, sync::Arc};

use bytes::Bytes;
use rocksdb::{DB, DBRawIteratorWithThreadMode, ReadOptions, SnapshotWithThreadMode};
use self_cell::self_cell;

use crate::{
    contract::{Direction, KeyRange, Rows, Snapshot, Visit},
    error::Result,
};

use super::{database::Shared, fault};

type View<'a> = SnapshotWithThreadMode<'a, DB>;

self_cell!(
    struct Pinned {
        owner: Arc<Shared>,
        #[covariant]
        dependent: View,
    }
);

/// One view; the database closes after the last of them.
pub(super) struct RocksDbSnapshot(Pinned);

impl RocksDbSnapshot {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self(Pinned::new(shared, |shared| shared.db().snapshot()))
    }

    fn shared(&self) -> &Shared {
        self.0.borrow_owner()
    }

    fn cursor(&self, range: &KeyRange, direction: Direction) -> Cursor<'_> {
        let mut options = ReadOptions::default();
        if let Some(lower) = &range.lower {
            options.set_iterate_lower_bound(lower.as_ref());
        }
        if let Some(upper) = &range.upper {
            options.set_iterate_upper_bound(upper.as_ref());
        }
        let mut raw = self.0.borrow_dependent().raw_iterator_opt(options);
        match direction {
            Direction::Ascending => raw.seek_to_first(),
            Direction::Descending => raw.seek_to_last(),
        }
        Cursor { raw, direction, shared: self.shared() }
    }
}

/// A position in a range; RocksDB keeps to the bounds.
struct Cursor<'a> {
    raw: DBRawIteratorWithThreadMode<'a, DB>,
    direction: Direction,
    shared: &'a Shared,
}

impl Cursor<'_> {
    /// The current row; `None` at the end of the range or at an error.
    fn row(&self) -> Option<(&[u8], &[u8])> {
        self.raw.item()
    }

    fn advance(&mut self) {
        match self.direction {
            Direction::Ascending => self.raw.next(),
            Direction::Descending => self.raw.prev(),
        }
    }

    fn check(&self) -> Result<()> {
        self.raw.status().map_err(|error| fault("read", self.shared.dir(), error))
    }
}

impl Snapshot for RocksDbSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let value = self.0.borrow_dependent().get_pinned(key);
        let value = value.map_err(|error| fault("read", self.shared().dir(), error))?;
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    fn scan(&self, range: &KeyRange, direction: Direction, visit: Visit<'_>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let mut cursor = self.cursor(range, direction);
        while let Some((key, value)) = cursor.row() {
            if let ControlFlow::Break(()) = visit(key, value) {
                return Ok(());
            }
            cursor.advance();
        }
        cursor.check()
    }

    fn rows<'a>(&'a self, range: &KeyRange, direction: Direction) -> Result<Rows<'a>> {
        if range.is_empty() {
            return Ok(Box::new(std::iter::empty()));
        }
        let cursor = self.cursor(range, direction);
        cursor.check()?;
        Ok(Box::new(OwnedRows { cursor: Some(cursor) }))
    }
}

/// Copies row by row.
struct OwnedRows<'a> {
    /// `None` behind the end.
    cursor: Option<Cursor<'a>>,
}

impl Iterator for OwnedRows<'_> {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        let cursor = self.cursor.as_mut()?;
        if let Some((key, value)) = cursor.row() {
            let row = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
            cursor.advance();
            return Some(Ok(row));
        }
        let end = cursor.check();
        self.cursor = None;
        end.err().map(Err)
    }
}
