//! Bulk loading: sorted pairs become table files, which the database takes over in one step.

use std::path::PathBuf;

use bytes::Bytes;
use rocksdb::{IngestExternalFileOptions, SstFileWriter};

use crate::{
    contract::Snapshot,
    error::Result,
    load::{self, Checked, Pairs},
};

use super::{database::Shared, fault};

/// Bytes of pairs in one table file: as large as a flushed memtable is by default.
const FILE_BYTES: usize = 64 << 20;

pub(super) fn bulk_load(shared: &Shared, now: &dyn Snapshot, pairs: &mut Pairs<'_>) -> Result<()> {
    load::require_empty(shared.dir(), now)?;
    let mut pairs = Checked::new(shared.dir(), pairs).peekable();
    let mut files = Vec::new();
    while pairs.peek().is_some() {
        let file = shared.dir().join(format!("load-{:06}.sst", files.len()));
        write_file(shared, &file, &mut pairs)?;
        files.push(file);
    }
    if !files.is_empty() {
        let mut options = IngestExternalFileOptions::default();
        options.set_move_files(true);
        let taken = shared.db().ingest_external_file_opts(&options, files);
        taken.map_err(|error| fault("load table files into", shared.dir(), error))?;
    }
    shared.flush()
}

/// Writes and syncs one file; there is at least one pair.
fn write_file(
    shared: &Shared,
    file: &PathBuf,
    pairs: &mut impl Iterator<Item = Result<(Bytes, Bytes)>>,
) -> Result<()> {
    let failed = |error| fault("write", file, error);
    let mut writer = SstFileWriter::create(shared.options());
    writer.open(file).map_err(failed)?;
    let mut bytes = 0;
    while bytes < FILE_BYTES {
        let Some(pair) = pairs.next() else { break };
        let (key, value) = pair?;
        bytes += key.len() + value.len();
        writer.put(&key, &value).map_err(failed)?;
    }
    writer.finish().map_err(failed)
}
