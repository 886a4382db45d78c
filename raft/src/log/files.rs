//! Creating and removing segment files, durably, and the one that is written to.

use std::{path::PathBuf, sync::Arc};

use super::{Action, Error, LogIdentity, record::Salt, segment};
use crate::vfs::{Vfs, VfsFile};

/// The segment that records are appended to.
#[derive(Debug)]
pub(super) struct Active {
    pub sequence: u64,
    pub file: Arc<dyn VfsFile>,
    pub salt: Salt,
    /// Where the next record goes; multiples of 8.
    pub end: u64,
    /// Up to here it is durable.
    pub synced: u64,
    /// Where the last record ends that is not a marker.
    pub content_end: u64,
    /// As much of `content_end` as is durable.
    pub content_synced: u64,
    /// The largest synced offset that a record carries: damage before it can be told from a torn write.
    pub noted: u64,
    /// Whether the last record is a closing one.
    pub ends_with_closing: bool,
}

/// What the writer writes with.
pub(super) struct Files {
    pub vfs: Arc<dyn Vfs>,
    pub directory: PathBuf,
    pub identity: LogIdentity,
    pub segment_bytes: u64,
}

impl Files {
    /// Creates a segment; when this returns, its file, header and name are durable.
    pub(super) fn create(&self, header: &segment::Header) -> Result<Active, Error> {
        let sequence = header.sequence;
        let path = segment::path(&self.directory, sequence);
        let file = self.vfs.create(&path).map_err(Error::io(Action::Create, &path))?;
        file.preallocate(self.segment_bytes).map_err(Error::io(Action::Preallocate, &path))?;
        file.write_at(0, &header.encode()).map_err(Error::io(Action::Write, &path))?;
        file.sync_all().map_err(Error::io(Action::Sync, &path))?;
        self.vfs.sync_directory(&self.directory).map_err(Error::io(Action::Sync, &self.directory))?;
        let end = segment::HEADER_BYTES;
        Ok(Active {
            sequence,
            file,
            salt: segment::salt(&self.identity, sequence),
            end,
            synced: end,
            content_end: end,
            content_synced: end,
            noted: 0,
            ends_with_closing: false,
        })
    }

    /// Removes a segment; when this returns, that is durable. One at a time, so that no crash leaves a gap.
    pub(super) fn remove(&self, sequence: u64) -> Result<(), Error> {
        let path = segment::path(&self.directory, sequence);
        self.vfs.unlink(&path).map_err(Error::io(Action::Remove, &path))?;
        self.vfs.sync_directory(&self.directory).map_err(Error::io(Action::Sync, &self.directory))
    }

    /// Path of the segment that records are appended to.
    pub(super) fn path_of(&self, active: &Active) -> PathBuf {
        segment::path(&self.directory, active.sequence)
    }
}
