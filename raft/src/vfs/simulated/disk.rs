//! The state of a simulated disk: what is durable, what is pending, what fails when.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
};

use rand::{RngExt, rngs::SmallRng};

use super::{Operation, OperationCounts};
use crate::vfs::parent_of;

/// What survives or is lost as a whole.
pub(super) const BLOCK_BYTES: usize = 512;

#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub(super) random: SmallRng,
    pub(super) inodes: BTreeMap<u64, Inode>,
    pub(super) next_inode: u64,
    pub(super) names: BTreeMap<PathBuf, u64>,
    pub(super) durable_names: BTreeMap<PathBuf, u64>,
    pub(super) pending_names: Vec<NameChange>,
    pub(super) directories: BTreeSet<PathBuf>,
    pub(super) locks: BTreeSet<PathBuf>,
    pub(super) incarnation: u64,
    pub(super) powered: bool,
    pub(super) counts: OperationCounts,
    pub(super) cuts: BTreeMap<Operation, u64>,
    pub(super) failures: Vec<(Operation, u64, io::ErrorKind)>,
    pub(super) capacity_bytes: u64,
}

/// A file's content; bytes from `bytes.len()` to `length` are zero, so that reserved space costs nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    pub(super) bytes: Vec<u8>,
    pub(super) length: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    pub(super) current: Content,
    pub(super) durable: Content,
    pub(super) pending: Vec<Pending>,
}

/// A change that is not synced.
#[derive(Clone, Debug)]
pub(super) enum Pending {
    Block { number: usize, bytes: Box<[u8; BLOCK_BYTES]> },
    Length(u64),
}

#[derive(Clone, Debug)]
pub(super) enum NameChange {
    Create(PathBuf, u64),
    Rename(PathBuf, PathBuf),
    Unlink(PathBuf),
}

impl NameChange {
    pub(super) fn is_in(&self, directory: &Path) -> bool {
        match self {
            Self::Create(path, _) | Self::Unlink(path) | Self::Rename(_, path) => {
                parent_of(path) == directory
            }
        }
    }

    pub(super) fn apply(&self, names: &mut BTreeMap<PathBuf, u64>) {
        match self {
            Self::Create(path, inode) => {
                names.insert(path.clone(), *inode);
            }
            Self::Rename(from, to) => {
                if let Some(inode) = names.remove(from) {
                    names.insert(to.clone(), inode);
                }
            }
            Self::Unlink(path) => {
                names.remove(path);
            }
        }
    }
}

impl Content {
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[offset..end].copy_from_slice(bytes);
        self.length = self.length.max(end as u64);
    }

    pub(super) fn set_length(&mut self, length: u64) {
        self.length = length;
        self.bytes.truncate(usize::try_from(length).unwrap_or(usize::MAX));
    }

    pub(super) fn block(&self, number: usize) -> Box<[u8; BLOCK_BYTES]> {
        let mut block = Box::new([0; BLOCK_BYTES]);
        let start = (number * BLOCK_BYTES).min(self.bytes.len());
        let end = (start + BLOCK_BYTES).min(self.bytes.len());
        block[..end - start].copy_from_slice(&self.bytes[start..end]);
        block
    }

    pub(super) fn apply(&mut self, change: &Pending) {
        match change {
            Pending::Length(length) => self.set_length(*length),
            Pending::Block { number, bytes } => {
                // Data beyond a length that did not survive cannot be reached.
                let offset = number * BLOCK_BYTES;
                let reachable = self.length.saturating_sub(offset as u64).min(BLOCK_BYTES as u64);
                if reachable > 0 {
                    self.write(offset, &bytes[..usize::try_from(reachable).expect("at most a block")]);
                }
            }
        }
    }
}

impl Inode {
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let before = self.current.length;
        let offset = usize::try_from(offset).expect("simulated files fit in memory");
        self.current.write(offset, bytes);
        if self.current.length != before {
            self.pending.push(Pending::Length(self.current.length));
        }
        for number in offset / BLOCK_BYTES..(offset + bytes.len()).div_ceil(BLOCK_BYTES) {
            self.pending.push(Pending::Block { number, bytes: self.current.block(number) });
        }
    }

    pub(super) fn set_length(&mut self, length: u64) {
        self.current.set_length(length);
        self.pending.push(Pending::Length(length));
    }

    /// Keeps what survives a power cut.
    fn lose_power(&mut self, random: &mut SmallRng) {
        let changes = std::mem::take(&mut self.pending);
        let survivors = Survivors::choose(random, changes.len());
        // A length that is lost takes the data behind it with it, so in half of the cuts all lengths survive.
        let keeps_lengths = random.random_bool(0.5);
        for (position, change) in changes.iter().enumerate() {
            let keeps = keeps_lengths && matches!(change, Pending::Length(_));
            if survivors.include(random, position) || keeps {
                self.durable.apply(change);
            }
        }
        self.current = self.durable.clone();
    }

    pub(super) fn sync(&mut self) {
        for change in self.pending.drain(..) {
            self.durable.apply(&change);
        }
    }
}

/// Which of the pending changes survive a power cut. Besides a coin per change there are the patterns that disks
/// produce and that break wrong orderings of writes: one lost, only the later ones kept, only the earlier ones kept.
enum Survivors {
    Each(f64),
    AllBut(usize),
    From(usize),
    Before(usize),
}

impl Survivors {
    fn choose(random: &mut SmallRng, changes: usize) -> Self {
        let at = random.random_range(0..=changes);
        match random.random_range(0..8) {
            0 => Self::Each(0.0),
            1 => Self::Each(0.1),
            2 => Self::Each(0.5),
            3 => Self::Each(0.9),
            4 => Self::Each(1.0),
            5 => Self::AllBut(at),
            6 => Self::From(at),
            _ => Self::Before(at),
        }
    }

    fn include(&self, random: &mut SmallRng, position: usize) -> bool {
        match self {
            Self::Each(probability) => random.random_bool(*probability),
            Self::AllBut(lost) => position != *lost,
            Self::From(first) => position >= *first,
            Self::Before(end) => position < *end,
        }
    }
}

impl Disk {
    pub(super) fn check(&self, incarnation: u64) -> io::Result<()> {
        if incarnation == self.incarnation && self.powered {
            Ok(())
        } else {
            Err(io::Error::other("the power is off"))
        }
    }

    /// Counts the operation; `Ok(InFlight::Cut)` when the power goes while it is in flight.
    pub(super) fn start(&mut self, incarnation: u64, operation: Operation) -> io::Result<InFlight> {
        self.check(incarnation)?;
        let slot = self.counts.slot(operation);
        *slot += 1;
        let number = *slot;
        if let Some(at) = self.failures.iter().position(|(kind, nth, _)| *kind == operation && *nth == number)
        {
            let (_, _, error) = self.failures.swap_remove(at);
            return Err(error.into());
        }
        if self.cuts.get(&operation) == Some(&number) {
            self.cuts.remove(&operation);
            self.powered = false;
            return Ok(InFlight::Cut);
        }
        Ok(InFlight::Completes)
    }

    pub(super) fn restart(&mut self) {
        let changes = std::mem::take(&mut self.pending_names);
        let survivors = Survivors::choose(&mut self.random, changes.len());
        for (position, change) in changes.iter().enumerate() {
            if survivors.include(&mut self.random, position) {
                change.apply(&mut self.durable_names);
            }
        }
        self.names = self.durable_names.clone();
        let named: BTreeSet<u64> = self.names.values().copied().collect();
        self.inodes.retain(|number, _| named.contains(number));
        for inode in self.inodes.values_mut() {
            inode.lose_power(&mut self.random);
        }
        self.cuts.clear();
        self.locks.clear();
        self.incarnation += 1;
        self.powered = true;
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.names.values().filter_map(|inode| self.inodes.get(inode)).map(|inode| inode.current.length).sum()
    }

    pub(super) fn check_space(&self, inode: u64, length: u64) -> io::Result<()> {
        let grown = length.saturating_sub(self.inodes[&inode].current.length);
        if grown > 0 && self.used_bytes().saturating_add(grown) > self.capacity_bytes {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    pub(super) fn change_name(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.pending_names.push(change);
    }
}

/// Whether an operation completes or the power goes meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum InFlight {
    Completes,
    Cut,
}

impl InFlight {
    pub(super) fn end(self) -> io::Result<()> {
        match self {
            Self::Completes => Ok(()),
            Self::Cut => Err(io::Error::other("the power went off")),
        }
    }
}
