//! Promises about creating, opening, closing, flushing and checking databases.

use std::path::Path;

use bytes::Bytes;

use crate::{
    contract::{Batch, Durability, Engine},
    error::{Error, Usage},
    tables,
};

use super::{contents, put};

pub(super) fn a_new_database_holds_only_its_format(engine: &dyn Engine, dir: &Path) {
    let db = engine.create(dir).expect("created");
    assert_eq!(db.engine(), engine.name());
    assert_eq!(contents(db.as_ref()), [(tables::format_key(), tables::format_row())]);
    assert_eq!(db.durable_applied().expect("readable"), None);
    drop(db);
    let db = engine.open(dir).expect("a new database is durable");
    assert_eq!(contents(db.as_ref()), [(tables::format_key(), tables::format_row())]);
}

pub(super) fn a_database_is_created_once_and_opened_once(engine: &dyn Engine, dir: &Path) {
    assert!(!engine.exists(dir).expect("readable"));
    assert!(matches!(engine.open(dir), Err(Error::Usage(Usage::NoDatabase { .. }))));
    let db = engine.create(dir).expect("created");
    assert!(engine.exists(dir).expect("readable"));
    assert!(matches!(engine.create(dir), Err(Error::Usage(Usage::NotEmpty(_)))));
    assert!(matches!(engine.open(dir), Err(Error::Usage(Usage::InUse(_)))));
    put(db.as_ref(), b"k", b"the refused calls changed nothing");
    drop(db);
    assert!(matches!(engine.create(dir), Err(Error::Usage(Usage::NotEmpty(_)))));
    let db = engine.open(dir).expect("closed, so it can be opened");
    assert!(matches!(engine.open(dir), Err(Error::Usage(Usage::InUse(_)))));
    drop(db);
}

pub(super) fn a_destroyed_database_is_gone(engine: &dyn Engine, dir: &Path) {
    engine.destroy(dir).expect("nothing to destroy is no error");
    let db = engine.create(dir).expect("created");
    put(db.as_ref(), b"k", b"v");
    assert!(matches!(engine.destroy(dir), Err(Error::Usage(Usage::InUse(_)))));
    drop(db);
    engine.destroy(dir).expect("closed, so it can be destroyed");
    assert!(!engine.exists(dir).expect("readable"));
    let db = engine.create(dir).expect("the directory can be used again");
    assert_eq!(db.get(b"k").expect("readable"), None);
}

pub(super) fn flushed_commits_survive_a_reopen(engine: &dyn Engine, dir: &Path) {
    let db = engine.create(dir).expect("created");
    for round in 0..5_u32 {
        put(db.as_ref(), &round.to_be_bytes(), b"buffered");
    }
    db.flush().expect("flushed");
    let mut batch = Batch::new();
    batch.delete(Bytes::copy_from_slice(&0_u32.to_be_bytes()));
    batch.put("flushed", "at once");
    db.commit(batch, Durability::Flushed).expect("committed");
    let before = contents(db.as_ref());
    drop(db);
    let db = engine.open(dir).expect("opened");
    assert_eq!(contents(db.as_ref()), before);
    assert_eq!(db.get(&0_u32.to_be_bytes()).expect("readable"), None);
}

pub(super) fn an_unsupported_format_is_refused(engine: &dyn Engine, dir: &Path) {
    let db = engine.create(dir).expect("created");
    let mut row = 99_u32.to_be_bytes().to_vec();
    row.extend_from_slice(b"9.9.0");
    let mut batch = Batch::new();
    batch.put(tables::format_key(), row);
    db.commit(batch, Durability::Flushed).expect("committed");
    drop(db);
    match engine.open(dir) {
        Err(Error::Unsupported { found: 99, newest, release, .. }) => {
            assert_eq!((newest, release.as_str()), (tables::FORMAT_VERSION, "9.9.0"));
        }
        Err(other) => panic!("refused for another reason: {other}"),
        Ok(_) => panic!("format 99 was opened"),
    }
}

pub(super) fn the_durable_applied_row_is_a_lower_bound(engine: &dyn Engine, dir: &Path) {
    let applied = |value: &'static str| {
        let mut batch = Batch::new();
        batch.put(tables::raft_applied_key(), value);
        batch
    };
    let durable = |value: &'static str| Some(Bytes::from_static(value.as_bytes()));
    let db = engine.create(dir).expect("created");
    db.commit(applied("1"), Durability::Buffered).expect("committed");
    let early = db.durable_applied().expect("readable");
    assert!(early.is_none() || early == durable("1"), "{early:?}");
    db.flush().expect("flushed");
    assert_eq!(db.durable_applied().expect("readable"), durable("1"));
    db.commit(applied("2"), Durability::Buffered).expect("committed");
    let unflushed = db.durable_applied().expect("readable");
    assert!(unflushed == durable("1") || unflushed == durable("2"), "{unflushed:?}");
    db.commit(applied("3"), Durability::Flushed).expect("committed");
    assert_eq!(db.durable_applied().expect("readable"), durable("3"));
    drop(db);
    let db = engine.open(dir).expect("opened");
    assert_eq!(db.durable_applied().expect("readable"), durable("3"));
    let mut batch = Batch::new();
    batch.delete(tables::raft_applied_key());
    db.commit(batch, Durability::Flushed).expect("committed");
    assert_eq!(db.durable_applied().expect("readable"), None);
}

pub(super) fn a_healthy_database_verifies_and_reports_figures(engine: &dyn Engine, dir: &Path) {
    let db = engine.create(dir).expect("created");
    for row in 0..1_000_u32 {
        put(db.as_ref(), &row.to_be_bytes(), &[row as u8; 100]);
    }
    db.verify().expect("unflushed rows are no damage");
    db.flush().expect("flushed");
    db.verify().expect("healthy");
    db.verify().expect("verification leaves no trace");
    assert!(db.disk_bytes().expect("measured") > 1_000);
    let statistics = db.statistics();
    assert!(!statistics.is_empty());
    let mut names: Vec<_> = statistics.iter().map(|(name, _)| name).collect();
    names.dedup();
    assert_eq!(names.len(), statistics.len(), "every figure has its own name");
}

pub(super) fn a_snapshot_outlives_its_database(engine: &dyn Engine, dir: &Path) {
    let db = engine.create(dir).expect("created");
    put(db.as_ref(), b"k", b"v");
    let snapshot = db.snapshot().expect("a snapshot");
    drop(db);
    assert_eq!(snapshot.get(b"k").expect("readable").as_deref(), Some(&b"v"[..]));
    drop(snapshot);
    engine.open(dir).expect("closed with its last snapshot");
}
