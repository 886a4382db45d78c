//! Writes collected over a base, and reads that see them: how one batch is built from many small steps.
//!
//! The state machine applies a chunk of entries to an overlay, so that an entry sees what the entries before it
//! wrote, and commits everything as one batch.

use std::{
    collections::{BTreeMap, btree_map},
    iter::Peekable,
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use bytes::Bytes;

use crate::{
    contract::{Batch, Db, Direction, KeyRange, Snapshot, Visit},
    error::Result,
};

/// Something that answers point and range reads: a database, a snapshot or an [`Overlay`].
pub trait Read: Send + Sync {
    /// The value under `key`; absence is `None`, not an error.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>>;

    /// Visits the rows of `range` in `direction` until the visitor breaks.
    fn scan(&self, range: &KeyRange, direction: Direction, visit: Visit<'_>) -> Result<()>;
}

/// Reads the newest committed state; each scan opens one snapshot for itself.
impl Read for dyn Db + '_ {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Db::get(self, key)
    }

    fn scan(&self, range: &KeyRange, direction: Direction, visit: Visit<'_>) -> Result<()> {
        self.snapshot()?.scan(range, direction, visit)
    }
}

impl Read for dyn Snapshot + '_ {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Snapshot::get(self, key)
    }

    fn scan(&self, range: &KeyRange, direction: Direction, visit: Visit<'_>) -> Result<()> {
        Snapshot::scan(self, range, direction, visit)
    }
}

impl<R: Read + ?Sized> Read for Arc<R> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        R::get(self, key)
    }

    fn scan(&self, range: &KeyRange, direction: Direction, visit: Visit<'_>) -> Result<()> {
        R::scan(self, range, direction, visit)
    }
}

impl<R: Read + ?Sized> Read for &R {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        R::get(self, key)
    }

    fn scan(&self, range: &KeyRange, direction: Direction, visit: Visit<'_>) -> Result<()> {
        R::scan(self, range, direction, visit)
    }
}

/// Holds nothing.
struct Nothing;

impl Read for Nothing {
    fn get(&self, _key: &[u8]) -> Result<Option<Bytes>> {
        Ok(None)
    }

    fn scan(&self, _range: &KeyRange, _direction: Direction, _visit: Visit<'_>) -> Result<()> {
        Ok(())
    }
}

/// What an [`Overlay`] lies on.
#[derive(Clone, Copy)]
pub enum Base<'a> {
    /// The newest committed state. Nobody else may commit while the overlay lives.
    Db(&'a dyn Db),
    /// One view.
    Snapshot(&'a dyn Snapshot),
    /// Anything else, for example another overlay.
    Read(&'a dyn Read),
}

impl Base<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        match self {
            Self::Db(db) => db.get(key),
            Self::Snapshot(snapshot) => snapshot.get(key),
            Self::Read(read) => read.get(key),
        }
    }

    fn scan(&self, range: &KeyRange, direction: Direction, visit: Visit<'_>) -> Result<()> {
        match self {
            Self::Db(db) => db.snapshot()?.scan(range, direction, visit),
            Self::Snapshot(snapshot) => snapshot.scan(range, direction, visit),
            Self::Read(read) => read.scan(range, direction, visit),
        }
    }
}

impl<'a> From<&'a dyn Db> for Base<'a> {
    fn from(db: &'a dyn Db) -> Self {
        Self::Db(db)
    }
}

impl<'a> From<&'a Arc<dyn Db>> for Base<'a> {
    fn from(db: &'a Arc<dyn Db>) -> Self {
        Self::Db(db.as_ref())
    }
}

impl<'a> From<&'a dyn Snapshot> for Base<'a> {
    fn from(snapshot: &'a dyn Snapshot) -> Self {
        Self::Snapshot(snapshot)
    }
}

impl<'a> From<&'a Arc<dyn Snapshot>> for Base<'a> {
    fn from(snapshot: &'a Arc<dyn Snapshot>) -> Self {
        Self::Snapshot(snapshot.as_ref())
    }
}

impl<'a> From<&'a dyn Read> for Base<'a> {
    fn from(read: &'a dyn Read) -> Self {
        Self::Read(read)
    }
}

impl<'a> From<&'a Overlay<'_>> for Base<'a> {
    fn from(overlay: &'a Overlay<'_>) -> Self {
        Self::Read(overlay)
    }
}

/// Pending writes over a base.
pub struct Overlay<'a> {
    base: Base<'a>,
    /// `None` hides the base's row.
    pending: BTreeMap<Bytes, Option<Bytes>>,
}

impl Overlay<'static> {
    /// An overlay over nothing.
    pub fn empty() -> Self {
        Self::new(&Nothing as &dyn Read)
    }
}

impl<'a> Overlay<'a> {
    /// An overlay without writes over `base`.
    pub fn new(base: impl Into<Base<'a>>) -> Self {
        Self { base: base.into(), pending: BTreeMap::new() }
    }

    /// Stores `value` under `key`.
    pub fn put(&mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.pending.insert(key.into(), Some(value.into()));
    }

    /// Removes `key`; removing an absent key is no error.
    pub fn delete(&mut self, key: impl Into<Bytes>) {
        self.pending.insert(key.into(), None);
    }

    /// The value under `key`, this overlay's own writes included.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        match self.pending.get(key) {
            Some(written) => Ok(written.clone()),
            None => self.base.get(key),
        }
    }

    /// Visits the rows of `range` in `direction`, this overlay's own writes included, until the visitor breaks.
    pub fn scan(&self, range: &KeyRange, direction: Direction, visit: Visit<'_>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let mut written = self.written(range, direction).peekable();
        let mut outcome = ControlFlow::Continue(());
        self.base.scan(range, direction, &mut |key, value| {
            outcome = merge_row(&mut written, direction, (key, value), visit);
            outcome
        })?;
        if outcome.is_continue() {
            let _ = written
                .filter_map(|(key, value)| Some((key, value.as_ref()?)))
                .try_for_each(|(key, value)| visit(key, value));
        }
        Ok(())
    }

    /// The number of keys that were written.
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The writes in key order; `None` is a delete.
    pub fn writes(&self) -> impl Iterator<Item = (&Bytes, Option<&Bytes>)> {
        self.pending.iter().map(|(key, value)| (key, value.as_ref()))
    }

    /// The last write of each key, in key order.
    pub fn into_batch(self) -> Batch {
        let mut batch = Batch::new();
        for (key, value) in self.pending {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
        }
        batch
    }

    fn written(&self, range: &KeyRange, direction: Direction) -> Written<'_> {
        let lower = range.lower.as_deref().map_or(Bound::Unbounded, Bound::Included);
        let upper = range.upper.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        Written { rows: self.pending.range::<[u8], _>((lower, upper)), direction }
    }
}

impl Read for Overlay<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Overlay::get(self, key)
    }

    fn scan(&self, range: &KeyRange, direction: Direction, visit: Visit<'_>) -> Result<()> {
        Overlay::scan(self, range, direction, visit)
    }
}

/// The writes of a range in the direction of a scan.
struct Written<'a> {
    rows: btree_map::Range<'a, Bytes, Option<Bytes>>,
    direction: Direction,
}

impl<'a> Iterator for Written<'a> {
    type Item = (&'a Bytes, &'a Option<Bytes>);

    fn next(&mut self) -> Option<Self::Item> {
        match self.direction {
            Direction::Ascending => self.rows.next(),
            Direction::Descending => self.rows.next_back(),
        }
    }
}

/// Visits the writes that come before a row of the base, then the row, unless a write replaced it.
fn merge_row(
    written: &mut Peekable<Written<'_>>,
    direction: Direction,
    (key, value): (&[u8], &[u8]),
    visit: Visit<'_>,
) -> ControlFlow<()> {
    while let Some((written_key, written_value)) = written.next_if(|(written, _)| match direction {
        Direction::Ascending => written.as_ref() <= key,
        Direction::Descending => written.as_ref() >= key,
    }) {
        if let Some(written_value) = written_value {
            visit(written_key, written_value)?;
        }
        if written_key.as_ref() == key {
            return ControlFlow::Continue(());
        }
    }
    visit(key, value)
}

#[cfg(test)]
mod tests;
