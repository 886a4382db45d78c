//! Directories of databases on disk: emptiness, the lock against a second open, removal, durable creation.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    path::{Path, PathBuf},
};

use crate::error::{Error, Result, Usage};

/// The name of the file whose lock keeps a second process, or a second open, out.
const LOCK_FILE: &str = "tidemark.lock";

/// The exclusive hold of one directory, released when dropped or when the process ends in any way.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    // The operating system drops the lock with the file.
    _file: File,
}

impl DirectoryLock {
    /// Creates `dir` if needed and locks it, which must be absent or empty.
    pub(crate) fn create(dir: &Path) -> Result<Self> {
        if exists(dir)? {
            return Err(Usage::NotEmpty(dir.to_path_buf()).into());
        }
        fs::create_dir_all(dir).map_err(|error| Error::io("create the directory", dir, error))?;
        let lock = Self::acquire(dir)?;
        if let Some(parent) = dir.parent() {
            sync(parent)?;
        }
        Ok(lock)
    }

    /// Locks `dir`, which holds a database of `engine` if it holds `marker`.
    pub(crate) fn open(dir: &Path, marker: &str, engine: &'static str) -> Result<Self> {
        let marker = dir.join(marker);
        let found = marker.try_exists().map_err(|error| Error::io("look for", &marker, error))?;
        if !found {
            return Err(Usage::NoDatabase { path: dir.to_path_buf(), engine }.into());
        }
        Self::acquire(dir)
    }

    fn acquire(dir: &Path) -> Result<Self> {
        let path = dir.join(LOCK_FILE);
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|error| Error::io("open", &path, error))?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(Usage::InUse(dir.to_path_buf()).into()),
            Err(TryLockError::Error(error)) => Err(Error::io("lock", &path, error)),
        }
    }
}

/// Whether `dir` holds anything.
pub(crate) fn exists(dir: &Path) -> Result<bool> {
    match fs::read_dir(dir) {
        Ok(mut entries) => Ok(entries.next().is_some()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::io("list", dir, error)),
    }
}

/// Removes `dir` and what is in it, unless a database in it is open.
pub(crate) fn destroy(dir: &Path) -> Result<()> {
    if exists(dir)? {
        let lock = DirectoryLock::acquire(dir)?;
        fs::remove_dir_all(dir).map_err(|error| Error::io("remove", dir, error))?;
        drop(lock);
    } else if let Err(error) = fs::remove_dir(dir)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(Error::io("remove", dir, error));
    }
    Ok(())
}

/// Makes the entries of `dir` durable.
pub(crate) fn sync(dir: &Path) -> Result<()> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(|error| Error::io("sync the directory", dir, error))
}

/// Bytes of all files below `dir`.
pub(crate) fn bytes(dir: &Path) -> Result<u64> {
    let mut total = 0;
    let mut pending: Vec<PathBuf> = vec![dir.to_path_buf()];
    while let Some(next) = pending.pop() {
        let entries = fs::read_dir(&next).map_err(|error| Error::io("list", &next, error))?;
        for entry in entries {
            let entry = entry.map_err(|error| Error::io("list", &next, error))?;
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => pending.push(entry.path()),
                Ok(metadata) => total += metadata.len(),
                // The engine removes files at any time.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(Error::io("measure", &entry.path(), error)),
            }
        }
    }
    Ok(total)
}

#[cfg(feature = "sqlite")]
pub(crate) use private::PrivateDirectory;

/// Directories in shared memory that live as long as their owner.
#[cfg(feature = "sqlite")]
mod private {
    use std::{
        process,
        sync::atomic::{AtomicU64, Ordering},
    };

    use super::*;

    /// Complete private directories start with this, so that a sweep knows them.
    const PREFIX: &str = "tidemark-memory-";
    /// Private directories whose lock is not yet held.
    const PREFIX_NEW: &str = "tidemark-new-";

    /// A directory in shared memory (in the directory for temporary files where there is none), removed when
    /// dropped.
    #[derive(Debug)]
    pub(crate) struct PrivateDirectory {
        path: PathBuf,
        _lock: DirectoryLock,
    }

    impl PrivateDirectory {
        pub(crate) fn create() -> Result<Self> {
            static NEXT: AtomicU64 = AtomicU64::new(0);
            let root = root();
            loop {
                let number = NEXT.fetch_add(1, Ordering::Relaxed);
                let own = format!("{}-{number}", process::id());
                let new = root.join(format!("{PREFIX_NEW}{own}"));
                let path = root.join(format!("{PREFIX}{own}"));
                match fs::create_dir(&new) {
                    Ok(()) => {}
                    // Left by a killed process that had the same id.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                    Err(error) => return Err(Error::io("create the directory", &new, error)),
                }
                // A sweep finds only directories that are locked already.
                let lock = DirectoryLock::acquire(&new)?;
                match fs::rename(&new, &path) {
                    Ok(()) => return Ok(Self { path, _lock: lock }),
                    // Left by a killed process that had the same id, and not swept yet.
                    Err(_) if path.exists() => {
                        fs::remove_dir_all(&new).map_err(|error| Error::io("remove", &new, error))?
                    }
                    Err(error) => return Err(Error::io("rename", &new, error)),
                }
            }
        }

        pub(crate) fn path(&self) -> &Path {
            &self.path
        }

        /// Removes what killed processes left behind.
        pub(crate) fn sweep() -> Result<()> {
            let root = root();
            let entries = fs::read_dir(&root).map_err(|error| Error::io("list", &root, error))?;
            for entry in entries {
                let path = entry.map_err(|error| Error::io("list", &root, error))?.path();
                let ours = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
                // Another process may remove it meanwhile, or it belongs to another user: neither matters here.
                if ours && let Err(error) = destroy(&path) {
                    tracing::debug!(path = %path.display(), %error, "kept a private directory");
                }
            }
            Ok(())
        }
    }

    impl Drop for PrivateDirectory {
        fn drop(&mut self) {
            if let Err(error) = fs::remove_dir_all(&self.path) {
                tracing::warn!(path = %self.path.display(), %error, "cannot remove a private directory");
            }
        }
    }

    fn root() -> PathBuf {
        let shared = Path::new("/dev/shm");
        if shared.is_dir() { shared.to_path_buf() } else { std::env::temp_dir() }
    }
}
