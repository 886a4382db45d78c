//! The operating system's files.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::{FallocateFlags, FlockOperation};

use super::{Access, Vfs, VfsFile, VfsLock, parent_of};

/// The file system of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealVfs;

impl Vfs for RealVfs {
    fn create_directory(&self, directory: &Path) -> io::Result<()> {
        let missing: Vec<PathBuf> =
            directory.ancestors().take_while(|path| !path.exists()).map(Path::to_path_buf).collect();
        std::fs::create_dir_all(directory)?;
        // Outermost first: a directory is reachable only once its parent's entry is durable.
        for created in missing.iter().rev().filter(|path| !path.as_os_str().is_empty()) {
            self.sync_directory(&parent_of(created))?;
        }
        Ok(())
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn VfsFile>> {
        let write = access == Access::ReadWrite;
        Ok(Arc::new(RealFile(OpenOptions::new().read(true).write(write).open(path)?)))
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>> {
        Ok(Arc::new(RealFile(OpenOptions::new().read(true).write(true).create_new(true).open(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(directory)? {
            // Our own names are ASCII; others are not ours and need only be told apart.
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        File::open(directory)?.sync_all()
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn VfsLock>> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Box::new(RealLock { _file: file }))
    }
}

/// The lock goes with the descriptor.
#[derive(Debug)]
struct RealLock {
    _file: File,
}

impl VfsLock for RealLock {}

#[derive(Debug)]
struct RealFile(File);

impl VfsFile for RealFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.0.read_at(&mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn preallocate(&self, length: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.0, FallocateFlags::empty(), 0, length) {
            // Not every file system can reserve space; writes then find out by themselves.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
                if self.0.metadata()?.len() < length {
                    self.0.set_len(length)?;
                }
                Ok(())
            }
            result => Ok(result?),
        }
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.0.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::read_whole;

    #[test]
    fn a_file_reads_back_what_was_written_at_an_offset() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b/file");
        RealVfs.create_directory(path.parent().unwrap()).unwrap();
        let file = RealVfs.create(&path).unwrap();
        file.preallocate(4096).unwrap();
        file.write_at(512, b"tide").unwrap();
        file.sync_data().unwrap();
        RealVfs.sync_directory(path.parent().unwrap()).unwrap();

        let file = RealVfs.open(&path, Access::Read).unwrap();
        let mut content = Vec::new();
        read_whole(&*file, &mut content).unwrap();
        assert_eq!(content.len(), 4096);
        assert_eq!(&content[512..516], b"tide");
        assert_eq!(RealVfs.list(path.parent().unwrap()).unwrap(), ["file"]);
        assert_eq!(RealVfs.create(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn a_lock_excludes_a_second_one_until_it_is_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("LOCK");
        let held = RealVfs.lock(&path).unwrap();
        assert_eq!(RealVfs.lock(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(held);
        RealVfs.lock(&path).unwrap();
    }
}
