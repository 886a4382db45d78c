//! The engines of this build, by name, for configuration files and flags.

use std::sync::Arc;

use crate::{
    contract::Engine,
    error::{Result, Usage},
};

/// Where an engine keeps its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// In the database's directory.
    #[default]
    Disk,
    /// In memory: nothing survives the engine, and the database's directory stays empty (RocksDB's binding
    /// creates it all the same).
    Memory,
}

/// What may be configured. An engine ignores what it has no use for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// Where the data lives.
    pub mode: Mode,
    /// Bytes of the cache of uncompressed blocks (RocksDB) or pages (SQLite, for all connections together).
    pub block_cache_bytes: usize,
    /// Bytes of one memtable (RocksDB): also the bound of what must be replayed after a crash.
    pub memtable_bytes: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { mode: Mode::Disk, block_cache_bytes: 16 << 20, memtable_bytes: 64 << 20 }
    }
}

/// The engines that users may choose in this build, the preferred one first.
pub fn available() -> &'static [&'static str] {
    &[
        #[cfg(feature = "rocksdb")]
        "rocksdb",
        #[cfg(feature = "sqlite")]
        "sqlite",
    ]
}

/// The engine for who does not choose: RocksDB where it is compiled in, else SQLite.
pub fn default_engine() -> &'static str {
    if cfg!(feature = "rocksdb") { "rocksdb" } else { "sqlite" }
}

/// The engine called `name`. The model is no engine for users: construct it directly.
///
/// Errors: [`Usage::UnknownEngine`] if there is no such engine or it was not compiled in.
pub fn by_name(name: &str, options: &EngineOptions) -> Result<Arc<dyn Engine>> {
    match name {
        #[cfg(feature = "rocksdb")]
        crate::rocksdb::NAME => Ok(Arc::new(crate::rocksdb::RocksDbEngine::new(options)?)),
        #[cfg(feature = "sqlite")]
        crate::sqlite::NAME => Ok(Arc::new(crate::sqlite::SqliteEngine::new(options)?)),
        _ => {
            let _ = options;
            Err(Usage::UnknownEngine { name: name.to_owned(), available: available() }.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn every_available_engine_is_found_by_its_name() {
        for name in available() {
            let engine = by_name(name, &EngineOptions::default()).expect("compiled in");
            assert_eq!(engine.name(), *name);
        }
    }

    #[test]
    fn an_unknown_engine_is_refused_with_the_choice_there_is() {
        let Err(Error::Usage(Usage::UnknownEngine { name, available })) =
            by_name("paper", &EngineOptions::default())
        else {
            panic!("there is no such engine");
        };
        assert_eq!(name, "paper");
        assert_eq!(available, super::available());
    }

    #[cfg(any(feature = "sqlite", feature = "rocksdb"))]
    #[test]
    fn the_default_engine_is_the_preferred_available_one() {
        assert_eq!(available().first(), Some(&default_engine()));
    }
}
