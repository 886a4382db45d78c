//! The replica's current database and the switch to another one.
//!
//! `kv/CURRENT` names the directory in use (`db-1`, `db-2`, …). A received snapshot is built in the next
//! directory; the switch is an atomic rename of the pointer file, so a crash leaves the old or the new state.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;
use tidemark_storage::contract::{Db, Engine};

use crate::{error::StartError, files, vfs::Vfs};

const POINTER: &str = "CURRENT";

struct Opened {
    number: u64,
    db: Arc<dyn Db>,
}

/// The databases of one replica.
pub struct Databases {
    engine: Arc<dyn Engine>,
    vfs: Arc<dyn Vfs>,
    dir: PathBuf,
    current: ArcSwap<Opened>,
}

/// A database that was built beside the current one.
pub(crate) struct Fresh {
    number: u64,
    pub(crate) db: Arc<dyn Db>,
}

impl Databases {
    /// Opens the current database in `dir`, or creates the first one.
    pub(crate) fn open(engine: Arc<dyn Engine>, vfs: Arc<dyn Vfs>, dir: &Path) -> Result<Self, StartError> {
        let database = |source| StartError::Database { dir: dir.to_owned(), source };
        files::create_directory(&*vfs, dir)?;
        let pointer = dir.join(POINTER);
        let number = match files::read(&*vfs, &pointer)? {
            Some(text) => parse_pointer(&pointer, &text)?,
            None => 1,
        };
        let opened = if files::exists(&*vfs, &pointer)? {
            engine.open(&directory(dir, number)).map_err(database)?
        } else {
            // A crash between creation and pointer leaves a database that nobody has seen.
            engine.destroy(&directory(dir, number)).map_err(database)?;
            let db = engine.create(&directory(dir, number)).map_err(database)?;
            files::replace(&*vfs, &pointer, pointer_text(number).as_bytes())?;
            db
        };
        // Left behind by a crash while a snapshot was received, or after the switch.
        for neighbour in [number.checked_sub(1), number.checked_add(1)].into_iter().flatten() {
            engine.destroy(&directory(dir, neighbour)).map_err(database)?;
        }
        let current = ArcSwap::from_pointee(Opened { number, db: opened });
        Ok(Self { engine, vfs, dir: dir.to_owned(), current })
    }

    /// The database in use. Readers take a snapshot of it and let go.
    pub fn current(&self) -> Arc<dyn Db> {
        Arc::clone(&self.current.load().db)
    }

    /// The directory that holds all of them.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether no snapshot was ever installed.
    pub(crate) fn is_first(&self) -> bool {
        self.current.load().number == 1
    }

    /// An empty database beside the current one; there is one at a time.
    pub(crate) fn create_fresh(&self) -> Result<Fresh, tidemark_storage::error::Error> {
        let number = self.current.load().number + 1;
        let dir = directory(&self.dir, number);
        self.engine.destroy(&dir)?;
        Ok(Fresh { number, db: self.engine.create(&dir)? })
    }

    /// Makes `fresh`, which must be flushed, the current database. Returns what is needed to remove the old one.
    pub(crate) fn switch(&self, fresh: Fresh) -> Result<Retired, StartError> {
        files::replace(&*self.vfs, &self.dir.join(POINTER), pointer_text(fresh.number).as_bytes())?;
        let old = self.current.swap(Arc::new(Opened { number: fresh.number, db: fresh.db }));
        Ok(Retired { engine: Arc::clone(&self.engine), dir: directory(&self.dir, old.number), opened: old })
    }
}

/// A database that is no longer current but may still have readers.
pub(crate) struct Retired {
    engine: Arc<dyn Engine>,
    dir: PathBuf,
    opened: Arc<Opened>,
}

impl Retired {
    /// Closes the database and removes its files. Call it when no snapshot of it can be alive any more.
    pub(crate) fn destroy(self) {
        drop(self.opened);
        if let Err(error) = self.engine.destroy(&self.dir) {
            tracing::warn!(dir = %self.dir.display(), %error, "could not remove a replaced database; it may be deleted by hand");
        }
    }
}

fn directory(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("db-{number}"))
}

fn pointer_text(number: u64) -> String {
    format!("db-{number}\n")
}

fn parse_pointer(path: &Path, text: &[u8]) -> Result<u64, StartError> {
    let number = std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.strip_suffix('\n'))
        .and_then(|text| text.strip_prefix("db-"))
        .and_then(|number| number.parse().ok());
    number.ok_or_else(|| StartError::Damaged {
        path: path.to_owned(),
        why: "it does not name a database".to_owned(),
    })
}
