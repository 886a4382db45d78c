//! The checks that every engine's `bulk_load` makes.

use std::path::Path;

use bytes::Bytes;

use crate::{
    contract::{Direction, KeyRange, Snapshot},
    error::{Result, Usage},
    tables,
};

/// The pairs of a bulk load.
pub(crate) type Pairs<'a> = dyn Iterator<Item = Result<(Bytes, Bytes)>> + 'a;

/// Fails unless the database in `dir` holds nothing but its format row.
pub(crate) fn require_empty(dir: &Path, snapshot: &dyn Snapshot) -> Result<()> {
    let format_key = tables::format_key();
    for row in snapshot.rows(&KeyRange::ALL, Direction::Ascending)?.take(2) {
        if row?.0 != format_key {
            return Err(Usage::LoadIntoRows(dir.to_path_buf()).into());
        }
    }
    Ok(())
}

/// Passes pairs on while they ascend, and refuses a format row that this build cannot open.
pub(crate) struct Checked<'a, 'p> {
    dir: &'a Path,
    pairs: &'a mut Pairs<'p>,
    last: Option<Bytes>,
    index: u64,
}

impl<'a, 'p> Checked<'a, 'p> {
    pub(crate) fn new(dir: &'a Path, pairs: &'a mut Pairs<'p>) -> Self {
        Self { dir, pairs, last: None, index: 0 }
    }

    fn check(&mut self, (key, value): (Bytes, Bytes)) -> Result<(Bytes, Bytes)> {
        if self.last.as_ref().is_some_and(|last| *last >= key) {
            return Err(Usage::LoadUnsorted { path: self.dir.to_path_buf(), index: self.index }.into());
        }
        if key == tables::format_key() {
            tables::check_format(self.dir, Some(&value))?;
        }
        self.index += 1;
        self.last = Some(key.clone());
        Ok((key, value))
    }
}

impl Iterator for Checked<'_, '_> {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        let pair = self.pairs.next()?;
        Some(pair.and_then(|pair| self.check(pair)))
    }
}
