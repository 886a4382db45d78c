//! An in-memory disk that outlives the process it serves and forgets what was not synced.
//!
//! Of the unsynced writes any subset of 512-byte blocks survives a power cut, and of the unsynced names any
//! subset of operations; a seeded generator chooses. Directories themselves are durable at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use rand::{SeedableRng, rngs::SmallRng};

use self::disk::{Disk, Inode, NameChange};
use super::{Access, Vfs, VfsFile, VfsLock, parent_of};

mod disk;

/// Kinds of operation that can be counted, failed and cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// `write_at`.
    Write,
    /// `sync_data`, `sync_all` and `sync_directory`.
    Sync,
    /// `preallocate` and `truncate`.
    Resize,
    /// `create`, `rename` and `unlink`.
    Name,
    /// `read_at`.
    Read,
}

/// How many operations of each kind were started since the disk was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationCounts {
    /// Writes.
    pub writes: u64,
    /// Syncs of files and directories.
    pub syncs: u64,
    /// Changes of a file's length.
    pub resizes: u64,
    /// Changes of a name.
    pub names: u64,
    /// Reads.
    pub reads: u64,
}

impl OperationCounts {
    fn slot(&mut self, operation: Operation) -> &mut u64 {
        match operation {
            Operation::Write => &mut self.writes,
            Operation::Sync => &mut self.syncs,
            Operation::Resize => &mut self.resizes,
            Operation::Name => &mut self.names,
            Operation::Read => &mut self.reads,
        }
    }
}

/// The disk. It stays when the process is "killed"; [`SimulatedDisk::vfs`] gives the file system of the process
/// that runs now.
#[derive(Clone, Debug)]
pub struct SimulatedDisk(Arc<Mutex<Disk>>);

/// The file system of one incarnation of a process: after [`SimulatedDisk::restart`] its handles fail for good.
#[derive(Clone, Debug)]
pub struct SimulatedVfs {
    disk: Arc<Mutex<Disk>>,
    incarnation: u64,
}

impl SimulatedDisk {
    /// An empty disk; `seed` decides what survives each power cut.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Disk {
            random: SmallRng::seed_from_u64(seed),
            inodes: BTreeMap::new(),
            next_inode: 0,
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            pending_names: Vec::new(),
            directories: BTreeSet::new(),
            locks: BTreeSet::new(),
            incarnation: 0,
            powered: true,
            counts: OperationCounts::default(),
            cuts: BTreeMap::new(),
            failures: Vec::new(),
            capacity_bytes: u64::MAX,
        })))
    }

    /// The file system for the process that runs now.
    pub fn vfs(&self) -> SimulatedVfs {
        let incarnation = self.0.lock().incarnation;
        SimulatedVfs { disk: self.0.clone(), incarnation }
    }

    /// Cuts the power when the `nth` operation of this kind from now (1 is the next) is in flight: it may or may
    /// not reach the disk, and it and everything after it fails until [`SimulatedDisk::restart`].
    pub fn cut_power_at(&self, operation: Operation, nth: u64) {
        let mut disk = self.0.lock();
        let at = *disk.counts.slot(operation) + nth;
        disk.cuts.insert(operation, at);
    }

    /// Cuts the power now.
    pub fn cut_power(&self) {
        self.0.lock().powered = false;
    }

    /// Whether the power is on.
    pub fn is_powered(&self) -> bool {
        self.0.lock().powered
    }

    /// Cuts the power if it is on, chooses what of the unsynced state survived, and turns it on again.
    pub fn restart(&self) {
        self.0.lock().restart();
    }

    /// Ends the process but not the machine, also in place of a power cut: old handles fail and locks are released,
    /// nothing is lost.
    pub fn restart_process(&self) {
        let mut disk = self.0.lock();
        disk.incarnation += 1;
        disk.powered = true;
        disk.cuts.clear();
        disk.locks.clear();
    }

    /// Makes the `nth` operation of this kind from now fail, once, with an error of this kind, without effect.
    pub fn fail_at(&self, operation: Operation, nth: u64, error: io::ErrorKind) {
        let mut disk = self.0.lock();
        let at = *disk.counts.slot(operation) + nth;
        disk.failures.push((operation, at, error));
    }

    /// Limits the sum of all file lengths; growing beyond it fails with `StorageFull`.
    pub fn set_capacity(&self, bytes: u64) {
        self.0.lock().capacity_bytes = bytes;
    }

    /// Flips one bit of a file, in what is durable and in what is read.
    ///
    /// # Panics
    /// When there is no such file or it is shorter.
    pub fn flip_bit(&self, path: &Path, byte: u64, bit: u8) {
        let mut disk = self.0.lock();
        let inode = *disk.names.get(path).expect("the file exists");
        let inode = disk.inodes.get_mut(&inode).expect("a name has an inode");
        let at = usize::try_from(byte).expect("files fit in memory");
        for content in [&mut inode.current, &mut inode.durable] {
            assert!(byte < content.length, "the bit is within the file");
            if content.bytes.len() <= at {
                content.bytes.resize(at + 1, 0);
            }
            content.bytes[at] ^= 1 << bit;
        }
    }

    /// Operations started so far.
    pub fn counts(&self) -> OperationCounts {
        self.0.lock().counts
    }

    /// A copy that evolves by itself, so that a prepared state can be damaged in many ways.
    pub fn fork(&self, seed: u64) -> Self {
        let mut disk = self.0.lock().clone();
        disk.random = SmallRng::seed_from_u64(seed);
        disk.incarnation += 1;
        disk.locks.clear();
        Self(Arc::new(Mutex::new(disk)))
    }
}

impl SimulatedVfs {
    fn file(&self, inode: u64) -> Arc<dyn VfsFile> {
        Arc::new(SimulatedFile { vfs: self.clone(), inode })
    }
}

impl Vfs for SimulatedVfs {
    fn create_directory(&self, directory: &Path) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.check(self.incarnation)?;
        for ancestor in directory.ancestors().filter(|path| !path.as_os_str().is_empty()) {
            disk.directories.insert(ancestor.to_path_buf());
        }
        Ok(())
    }

    fn open(&self, path: &Path, _access: Access) -> io::Result<Arc<dyn VfsFile>> {
        let disk = self.disk.lock();
        disk.check(self.incarnation)?;
        disk.names.get(path).map(|inode| self.file(*inode)).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn VfsFile>> {
        let mut disk = self.disk.lock();
        let in_flight = disk.start(self.incarnation, Operation::Name)?;
        if !disk.directories.contains(&parent_of(path)) {
            return Err(io::ErrorKind::NotFound.into());
        }
        if disk.names.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let inode = disk.next_inode;
        disk.next_inode += 1;
        disk.inodes.insert(inode, Inode::default());
        disk.change_name(NameChange::Create(path.to_path_buf(), inode));
        in_flight.end()?;
        Ok(self.file(inode))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = self.disk.lock();
        let in_flight = disk.start(self.incarnation, Operation::Name)?;
        if !disk.names.contains_key(from) {
            return Err(io::ErrorKind::NotFound.into());
        }
        disk.change_name(NameChange::Rename(from.to_path_buf(), to.to_path_buf()));
        in_flight.end()
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk.lock();
        let in_flight = disk.start(self.incarnation, Operation::Name)?;
        if !disk.names.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        disk.change_name(NameChange::Unlink(path.to_path_buf()));
        in_flight.end()
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let disk = self.disk.lock();
        disk.check(self.incarnation)?;
        if !disk.directories.contains(directory) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let names = disk.names.keys().filter(|path| parent_of(path) == directory);
        Ok(names
            .filter_map(|path| path.file_name())
            .map(|name| name.to_string_lossy().into_owned())
            .collect())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let disk = self.disk.lock();
        disk.check(self.incarnation)?;
        Ok(disk.names.contains_key(path) || disk.directories.contains(path))
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.start(self.incarnation, Operation::Sync)?.end()?;
        let (synced, pending) =
            std::mem::take(&mut disk.pending_names).into_iter().partition(|change| change.is_in(directory));
        disk.pending_names = pending;
        let synced: Vec<NameChange> = synced;
        for change in synced {
            change.apply(&mut disk.durable_names);
        }
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn VfsLock>> {
        let mut disk = self.disk.lock();
        disk.check(self.incarnation)?;
        if !disk.locks.insert(path.to_path_buf()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(SimulatedLock { vfs: self.clone(), path: path.to_path_buf() }))
    }
}

#[derive(Debug)]
struct SimulatedLock {
    vfs: SimulatedVfs,
    path: PathBuf,
}

impl VfsLock for SimulatedLock {}

impl Drop for SimulatedLock {
    fn drop(&mut self) {
        let mut disk = self.vfs.disk.lock();
        // A lock of an earlier incarnation went with its process.
        if disk.incarnation == self.vfs.incarnation {
            disk.locks.remove(&self.path);
        }
    }
}

#[derive(Debug)]
struct SimulatedFile {
    vfs: SimulatedVfs,
    inode: u64,
}

impl SimulatedFile {
    fn change(&self, operation: Operation, length: u64, change: impl FnOnce(&mut Inode)) -> io::Result<()> {
        let mut disk = self.vfs.disk.lock();
        let in_flight = disk.start(self.vfs.incarnation, operation)?;
        disk.check_space(self.inode, length)?;
        change(disk.inodes.get_mut(&self.inode).expect("an open file has an inode until restart"));
        in_flight.end()
    }
}

impl VfsFile for SimulatedFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut disk = self.vfs.disk.lock();
        disk.start(self.vfs.incarnation, Operation::Read)?.end()?;
        let content = &disk.inodes[&self.inode].current;
        let available = content.length.saturating_sub(offset);
        let wanted = buffer.len().min(usize::try_from(available).unwrap_or(usize::MAX));
        let start = usize::try_from(offset).map_or(content.bytes.len(), |at| at.min(content.bytes.len()));
        let stored = wanted.min(content.bytes.len() - start);
        buffer[..stored].copy_from_slice(&content.bytes[start..start + stored]);
        buffer[stored..wanted].fill(0);
        Ok(wanted)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.change(Operation::Write, offset + bytes.len() as u64, |inode| inode.write(offset, bytes))
    }

    fn preallocate(&self, length: u64) -> io::Result<()> {
        self.change(Operation::Resize, length, |inode| {
            if inode.current.length < length {
                inode.set_length(length);
            }
        })
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.change(Operation::Resize, length, |inode| inode.set_length(length))
    }

    fn length(&self) -> io::Result<u64> {
        let disk = self.vfs.disk.lock();
        disk.check(self.vfs.incarnation)?;
        Ok(disk.inodes[&self.inode].current.length)
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.vfs.disk.lock();
        disk.start(self.vfs.incarnation, Operation::Sync)?.end()?;
        disk.inodes.get_mut(&self.inode).expect("an open file has an inode until restart").sync();
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync_data()
    }
}

#[cfg(test)]
mod tests;
