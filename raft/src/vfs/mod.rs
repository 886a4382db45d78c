//! Files as the log and the snapshots see them: a small synchronous trait with a real and a simulated side.
//!
//! Durability is explicit: a write survives a power cut only after [`VfsFile::sync_data`], and a name (create,
//! rename, unlink) only after [`Vfs::sync_directory`] of its directory. [`SimulatedVfs`] takes both literally.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

mod real;
mod simulated;

pub use self::{
    real::RealVfs,
    simulated::{Operation, OperationCounts, SimulatedDisk, SimulatedVfs},
};

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading only: a stopped directory can be inspected on a read-only medium.
    Read,
    /// Reading and writing.
    ReadWrite,
}

/// A file system. Every call blocks until the operating system has answered.
pub trait Vfs: fmt::Debug + Send + Sync + 'static {
    /// Creates `directory` and its missing parents, and makes their names durable.
    ///
    /// # Errors
    /// What the file system reports; an existing directory is not an error.
    fn create_directory(&self, directory: &Path) -> io::Result<()>;

    /// Opens an existing file.
    ///
    /// # Errors
    /// `NotFound` when there is none, and what the file system reports.
    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn VfsFile>>;

    /// Creates a new, empty file. Its name is durable only after [`Vfs::sync_directory`].
    ///
    /// # Errors
    /// `AlreadyExists` when the name is taken, and what the file system reports.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>>;

    /// Renames atomically, replacing `to`. Durable only after [`Vfs::sync_directory`].
    ///
    /// # Errors
    /// What the file system reports.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a name; open handles keep working. Durable only after [`Vfs::sync_directory`].
    ///
    /// # Errors
    /// `NotFound` when there is none, and what the file system reports.
    fn unlink(&self, path: &Path) -> io::Result<()>;

    /// Names of the files in a directory, ascending.
    ///
    /// # Errors
    /// What the file system reports.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>>;

    /// Whether a file or directory of this name exists.
    ///
    /// # Errors
    /// What the file system reports.
    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// Makes creates, renames and unlinks in `directory` durable.
    ///
    /// # Errors
    /// What the file system reports.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;

    /// Takes the exclusive advisory lock of the file at `path`, creating it when needed. Dropping the guard
    /// releases it.
    ///
    /// # Errors
    /// `WouldBlock` when another process or handle holds it, and what the file system reports.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn VfsLock>>;
}

/// A lock on a file, held until dropped.
pub trait VfsLock: fmt::Debug + Send + Sync {}

/// An open file. Reads and writes name their offset, so that a handle can be shared.
pub trait VfsFile: fmt::Debug + Send + Sync + 'static {
    /// Reads up to `buffer.len()` bytes; fewer only at the end of the file.
    ///
    /// # Errors
    /// What the file system reports.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes all bytes, extending the file when needed. Not durable before a sync.
    ///
    /// # Errors
    /// What the file system reports; part of the bytes may have been written then.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Reserves space up to `length` bytes and extends the file with zeros.
    ///
    /// # Errors
    /// `StorageFull` when there is not enough space, and what the file system reports.
    fn preallocate(&self, length: u64) -> io::Result<()>;

    /// Sets the length, cutting the end off or extending with zeros.
    ///
    /// # Errors
    /// What the file system reports.
    fn truncate(&self, length: u64) -> io::Result<()>;

    /// Length in bytes.
    ///
    /// # Errors
    /// What the file system reports.
    fn length(&self) -> io::Result<u64>;

    /// Makes the data durable, and the metadata needed to read it (fdatasync).
    ///
    /// # Errors
    /// What the file system reports. Never retry on the same file: the kernel may have dropped the pages that it
    /// could not write, and a second call would then succeed.
    fn sync_data(&self) -> io::Result<()>;

    /// Makes data and all metadata durable (fsync).
    ///
    /// # Errors
    /// As [`VfsFile::sync_data`].
    fn sync_all(&self) -> io::Result<()>;
}

/// Reads exactly `buffer.len()` bytes.
///
/// # Errors
/// `UnexpectedEof` when the file ends before, and what the file system reports.
pub fn read_exact_at(file: &dyn VfsFile, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
    match file.read_at(offset, buffer)? {
        read if read == buffer.len() => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Reads a whole file, replacing the content of `buffer`.
///
/// # Errors
/// What the file system reports.
pub fn read_whole(file: &dyn VfsFile, buffer: &mut Vec<u8>) -> io::Result<()> {
    let length = usize::try_from(file.length()?).map_err(|_| io::ErrorKind::FileTooLarge)?;
    if buffer.len() != length {
        // Fresh zeros come from the operating system; what is there already is overwritten.
        *buffer = vec![0; length];
    }
    let read = file.read_at(0, buffer)?;
    buffer.truncate(read);
    Ok(())
}

/// The directory that holds a path's name.
fn parent_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("."),
        Some(parent) => parent.to_path_buf(),
        None => PathBuf::from("/"),
    }
}
