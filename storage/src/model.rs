//! The model: a map in memory with a simulated disk, which crashes on demand.
//!
//! It is the oracle of the property tests and the engine of the simulator, and is not offered to users. A
//! [`ModelDisk`] outlives the databases on it. A crash leaves what was flushed and as many of the commits after
//! that as the caller chooses: always a prefix, as the contract says.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    ops::{Bound, ControlFlow},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use rpds::RedBlackTreeMapSync;

use crate::{
    contract::{Batch, Db, Direction, Durability, Engine, KeyRange, Rows, Snapshot, Visit, Write},
    error::{Result, Usage},
    load::{self, Checked},
    tables,
};

/// The engine's name.
pub const NAME: &str = "model";

/// A clone costs one reference count; writes copy only the path to the row, and only while a clone lives.
type Map = RedBlackTreeMapSync<Bytes, Bytes>;

/// What the simulated disk holds of one database.
#[derive(Default)]
struct Directory {
    /// Everything committed.
    current: Map,
    /// Everything flushed.
    durable: Map,
    /// The commits since the last flush, oldest first.
    unflushed: VecDeque<Batch>,
    /// Counts opens and crashes, so that a database that was lost in a crash cannot touch its successor's data.
    generation: u64,
    open: bool,
}

impl Directory {
    fn flush(&mut self) {
        self.durable = self.current.clone();
        self.unflushed.clear();
    }

    fn crash(&mut self, surviving: usize) {
        for batch in self.unflushed.iter().take(surviving) {
            apply(&mut self.durable, batch);
        }
        self.unflushed.clear();
        self.current = self.durable.clone();
        self.generation += 1;
        self.open = false;
    }
}

fn apply(map: &mut Map, batch: &Batch) {
    for write in batch.writes() {
        match write {
            Write::Put { key, value } => map.insert_mut(key.clone(), value.clone()),
            Write::Delete { key } => {
                map.remove_mut(key);
            }
        }
    }
}

/// A simulated disk with any number of database directories. Clones are the same disk.
#[derive(Clone, Default)]
pub struct ModelDisk {
    directories: Arc<Mutex<BTreeMap<PathBuf, Arc<RwLock<Directory>>>>>,
}

impl ModelDisk {
    /// An empty disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of commits to the database in `dir` that were not flushed; 0 if there is none.
    pub fn unflushed(&self, dir: &Path) -> usize {
        self.directory(dir).map_or(0, |directory| directory.read().unflushed.len())
    }

    /// Cuts the power: each database keeps what was flushed and the oldest `surviving(dir, unflushed)` of its
    /// unflushed commits, and every open database and its later operations fail with [`Usage::Crashed`].
    /// Snapshots that were taken before stay readable.
    pub fn crash(&self, mut surviving: impl FnMut(&Path, usize) -> usize) {
        for (dir, directory) in self.directories.lock().iter() {
            let mut directory = directory.write();
            let unflushed = directory.unflushed.len();
            directory.crash(surviving(dir, unflushed).min(unflushed));
        }
    }

    fn directory(&self, dir: &Path) -> Option<Arc<RwLock<Directory>>> {
        self.directories.lock().get(dir).cloned()
    }
}

impl fmt::Debug for ModelDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.directories.lock().keys()).finish()
    }
}

/// Opens model databases on one simulated disk.
#[derive(Clone, Debug, Default)]
pub struct ModelEngine {
    disk: ModelDisk,
}

impl ModelEngine {
    /// An engine for the databases on `disk`.
    pub fn new(disk: ModelDisk) -> Self {
        Self { disk }
    }

    /// The disk.
    pub fn disk(&self) -> &ModelDisk {
        &self.disk
    }

    fn attach(dir: &Path, directory: Arc<RwLock<Directory>>) -> Result<Arc<dyn Db>> {
        let generation = {
            let mut held = directory.write();
            if held.open {
                return Err(Usage::InUse(dir.to_path_buf()).into());
            }
            tables::check_format(dir, held.current.get(&tables::format_key()).map(Bytes::as_ref))?;
            held.open = true;
            held.generation += 1;
            held.generation
        };
        Ok(Arc::new(ModelDb { dir: dir.to_path_buf(), directory, generation }))
    }
}

impl Engine for ModelEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn create(&self, dir: &Path) -> Result<Arc<dyn Db>> {
        let directory = {
            let mut directories = self.disk.directories.lock();
            if directories.contains_key(dir) {
                return Err(Usage::NotEmpty(dir.to_path_buf()).into());
            }
            let mut directory = Directory::default();
            directory.current.insert_mut(tables::format_key(), tables::format_row());
            directory.flush();
            directories.entry(dir.to_path_buf()).or_insert(Arc::new(RwLock::new(directory))).clone()
        };
        Self::attach(dir, directory)
    }

    fn open(&self, dir: &Path) -> Result<Arc<dyn Db>> {
        let directory = self.disk.directory(dir);
        let missing = || Usage::NoDatabase { path: dir.to_path_buf(), engine: NAME };
        Self::attach(dir, directory.ok_or_else(missing)?)
    }

    fn exists(&self, dir: &Path) -> Result<bool> {
        Ok(self.disk.directories.lock().contains_key(dir))
    }

    fn destroy(&self, dir: &Path) -> Result<()> {
        let mut directories = self.disk.directories.lock();
        if directories.get(dir).is_some_and(|directory| directory.read().open) {
            return Err(Usage::InUse(dir.to_path_buf()).into());
        }
        directories.remove(dir);
        Ok(())
    }
}

struct ModelDb {
    dir: PathBuf,
    directory: Arc<RwLock<Directory>>,
    generation: u64,
}

impl ModelDb {
    fn read<T>(&self, read: impl FnOnce(&Directory) -> T) -> Result<T> {
        let directory = self.directory.read();
        self.require_alive(&directory)?;
        Ok(read(&directory))
    }

    fn write<T>(&self, write: impl FnOnce(&mut Directory) -> T) -> Result<T> {
        let mut directory = self.directory.write();
        self.require_alive(&directory)?;
        Ok(write(&mut directory))
    }

    fn require_alive(&self, directory: &Directory) -> Result<()> {
        if directory.generation == self.generation {
            return Ok(());
        }
        Err(Usage::Crashed(self.dir.clone()).into())
    }
}

impl Drop for ModelDb {
    /// Closing flushes nothing: a power cut after it may still lose what was not flushed.
    fn drop(&mut self) {
        let mut directory = self.directory.write();
        if directory.generation == self.generation {
            directory.open = false;
        }
    }
}

impl Db for ModelDb {
    fn engine(&self) -> &'static str {
        NAME
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.read(|directory| directory.current.get(key).cloned())
    }

    fn commit(&self, batch: Batch, durability: Durability) -> Result<()> {
        self.write(|directory| {
            apply(&mut directory.current, &batch);
            match durability {
                Durability::Buffered => directory.unflushed.push_back(batch),
                Durability::Flushed => directory.flush(),
            }
        })
    }

    fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        self.read(|directory| Arc::new(ModelSnapshot(directory.current.clone())) as Arc<dyn Snapshot>)
    }

    fn flush(&self) -> Result<()> {
        self.write(Directory::flush)
    }

    fn durable_applied(&self) -> Result<Option<Bytes>> {
        self.read(|directory| directory.durable.get(&tables::raft_applied_key()).cloned())
    }

    fn bulk_load(&self, pairs: &mut dyn Iterator<Item = Result<(Bytes, Bytes)>>) -> Result<()> {
        load::require_empty(&self.dir, self.snapshot()?.as_ref())?;
        let mut rows = self.read(|directory| directory.current.clone())?;
        for pair in Checked::new(&self.dir, pairs) {
            let (key, value) = pair?;
            rows.insert_mut(key, value);
        }
        self.write(|directory| {
            directory.current = rows;
            directory.flush();
        })
    }

    fn verify(&self) -> Result<()> {
        let row = self.get(&tables::format_key())?;
        tables::check_format(&self.dir, row.as_deref())
    }

    fn disk_bytes(&self) -> Result<u64> {
        self.read(|directory| {
            directory.current.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum()
        })
    }

    fn statistics(&self) -> Vec<(String, u64)> {
        self.read(|directory| {
            vec![
                ("rows".to_owned(), directory.current.size() as u64),
                ("unflushed_commits".to_owned(), directory.unflushed.len() as u64),
            ]
        })
        .unwrap_or_default()
    }
}

struct ModelSnapshot(Map);

impl ModelSnapshot {
    fn range<'a>(
        &'a self,
        range: &KeyRange,
        direction: Direction,
    ) -> impl Iterator<Item = (&'a Bytes, &'a Bytes)> + use<'a> {
        let bounds = (
            range.lower.clone().map_or(Bound::Unbounded, Bound::Included),
            range.upper.clone().map_or(Bound::Unbounded, Bound::Excluded),
        );
        // The map takes an empty or inverted range for an error of its caller.
        let rows = (!range.is_empty()).then(|| self.0.range::<Bytes, _>(bounds));
        let mut rows = rows.into_iter().flatten();
        std::iter::from_fn(move || match direction {
            Direction::Ascending => rows.next(),
            Direction::Descending => rows.next_back(),
        })
    }
}

impl Snapshot for ModelSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.0.get(key).cloned())
    }

    fn scan(&self, range: &KeyRange, direction: Direction, visit: Visit<'_>) -> Result<()> {
        for (key, value) in self.range(range, direction) {
            if let ControlFlow::Break(()) = visit(key, value) {
                break;
            }
        }
        Ok(())
    }

    fn rows<'a>(&'a self, range: &KeyRange, direction: Direction) -> Result<Rows<'a>> {
        let rows = self.range(range, direction).map(|(key, value)| Ok((key.clone(), value.clone())));
        Ok(Box::new(rows))
    }
}

#[cfg(test)]
mod tests;
