//! SQLite passes the suite in both modes, and notices damage.

use std::{fs, os::unix::fs::FileExt};

use bytes::Bytes;

use super::*;
use crate::{
    contract::{Batch, Direction, Durability, KeyRange},
    damage,
    error::ErrorKind,
};

fn engine(mode: Mode) -> SqliteEngine {
    SqliteEngine::new(&EngineOptions { mode, ..EngineOptions::default() }).expect("an engine")
}

#[test]
fn sqlite_on_disk_passes_the_contract_suite() {
    let dir = tempfile::tempdir().expect("a directory");
    crate::suite::run_all(Arc::new(engine(Mode::Disk)), dir.path());
}

#[test]
fn sqlite_in_memory_passes_the_contract_suite_and_touches_no_directory() {
    let dir = tempfile::tempdir().expect("a directory");
    crate::suite::run_all(Arc::new(engine(Mode::Memory)), dir.path());
    assert!(!directory::exists(dir.path()).expect("readable"));
}

#[test]
fn private_directories_go_with_their_engine_and_database() {
    let engine = engine(Mode::Memory);
    let db = engine.create(Path::new("kv")).expect("created");
    let private = engine.memory.as_ref().expect("in memory").lock()[Path::new("kv")].path().to_path_buf();
    assert!(private.exists());
    let other = self::engine(Mode::Memory);
    assert!(private.exists(), "a sweep leaves what is in use");
    drop((engine, other));
    assert!(private.exists(), "the database still uses it");
    drop(db);
    assert!(!private.exists());
}

#[test]
fn a_flipped_bit_in_a_value_is_noticed() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = engine(Mode::Disk);
    let marker = *b"a value that occurs once";
    let path = dir.path().join("kv");
    let db = engine.create(&path).expect("created");
    let mut batch = Batch::new();
    (0..500_u32).for_each(|row| batch.put(row.to_be_bytes().to_vec(), vec![row as u8; 100]));
    batch.put("marked", marker.to_vec());
    db.commit(batch, Durability::Flushed).expect("committed");
    drop(db);
    let file = path.join(FILE);
    let content = fs::read(&file).expect("readable");
    let at = content.windows(marker.len()).position(|window| window == marker).expect("stored as it is");
    let damaged = fs::File::options().write(true).open(&file).expect("writable");
    damaged.write_all_at(&[content[at] ^ 1], at as u64).expect("written");
    let db = engine.open(&path).expect("the damage is in no row that is read on opening");
    assert_eq!(db.verify().expect_err("damaged").kind(), ErrorKind::Corruption);
    assert_eq!(db.get(b"marked").expect_err("damaged").kind(), ErrorKind::Corruption);
    let snapshot = db.snapshot().expect("a snapshot");
    let scanned =
        snapshot.scan(&KeyRange::ALL, Direction::Ascending, &mut |_, _| std::ops::ControlFlow::Continue(()));
    assert_eq!(scanned.expect_err("damaged").kind(), ErrorKind::Corruption);
    let healthy = db.get(&7_u32.to_be_bytes()).expect("other rows are readable");
    assert_eq!(healthy.as_deref(), Some(&[7; 100][..]));
}

#[test]
fn no_flipped_bit_changes_what_is_read() {
    damage::no_flipped_bit_changes_what_is_read(&engine(Mode::Disk), |name| name.ends_with("sqlite3"));
}

#[test]
fn the_wal_stays_bounded_while_a_snapshot_comes_and_goes() {
    let dir = tempfile::tempdir().expect("a directory");
    let db = engine(Mode::Disk).create(&dir.path().join("kv")).expect("created");
    let wal_bytes = || db.statistics().into_iter().find(|(name, _)| name == "wal_bytes").expect("a figure").1;
    let write = |rounds: u32| {
        for round in 0..rounds {
            let mut batch = Batch::new();
            (0..4_u32).for_each(|row| batch.put(row.to_be_bytes().to_vec(), vec![round as u8; 1 << 20]));
            db.commit(batch, Durability::Buffered).expect("committed");
        }
    };
    let limit = 80 << 20;
    write(60);
    assert!(wal_bytes() < limit, "{}", wal_bytes());
    let snapshot = db.snapshot().expect("a snapshot");
    write(30);
    assert!(wal_bytes() > limit, "a snapshot pins the WAL");
    assert_eq!(snapshot.get(&0_u32.to_be_bytes()).expect("readable").map(|value| value[0]), Some(59));
    drop(snapshot);
    let pinned = wal_bytes();
    write(60);
    assert!(wal_bytes() <= pinned + (8 << 20), "the WAL is used again from its start");
}

#[test]
fn unflushed_commits_are_not_durable_yet() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("kv");
    let applied = |db: &dyn Db, value: &'static str| {
        let mut batch = Batch::new();
        batch.put(crate::tables::raft_applied_key(), value);
        db.commit(batch, Durability::Buffered).expect("committed");
    };
    let db = engine(Mode::Disk).create(&path).expect("created");
    applied(db.as_ref(), "1");
    assert_eq!(db.durable_applied().expect("readable"), None);
    db.flush().expect("flushed");
    applied(db.as_ref(), "2");
    assert_eq!(db.durable_applied().expect("readable").as_deref(), Some(&b"1"[..]));
    drop(db);
    let db = engine(Mode::Disk).open(&path).expect("opened");
    assert_eq!(db.durable_applied().expect("readable").as_deref(), Some(&b"2"[..]), "opening flushes");
}

#[test]
fn every_flush_changes_a_row_outside_the_keyspace() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("kv");
    let db = engine(Mode::Disk).create(&path).expect("created");
    let other = connection::reader(&path.join(FILE), 0).expect("a connection of its own");
    let count =
        || other.query_row("SELECT count FROM flush", [], |row| row.get::<_, i64>(0)).expect("one row");
    let rows =
        || other.query_row("SELECT count(*) FROM kv", [], |row| row.get::<_, i64>(0)).expect("a number");
    let (flushes, keyspace) = (count(), rows());
    for _ in 0..3 {
        db.flush().expect("flushed");
    }
    db.commit(Batch::new(), Durability::Flushed).expect("flushed");
    // A transaction that changes nothing would sync nothing.
    assert_eq!((count(), rows()), (flushes + 4, keyspace));
}

#[test]
fn a_full_disk_and_damage_are_told_from_other_faults() {
    use rusqlite::ffi;
    for (code, kind) in [
        (ffi::SQLITE_FULL, ErrorKind::NoSpace),
        (ffi::SQLITE_CORRUPT, ErrorKind::Corruption),
        (ffi::SQLITE_NOTADB, ErrorKind::Corruption),
        (ffi::SQLITE_IOERR_FSYNC, ErrorKind::Io),
    ] {
        let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
        assert_eq!(fault("write", Path::new("kv"), error).kind(), kind, "SQLite's code {code}");
    }
}

#[test]
fn a_directory_without_a_database_file_is_no_database() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("notes.txt"), "mine").expect("written");
    let engine = engine(Mode::Disk);
    assert!(matches!(engine.open(dir.path()), Err(Error::Usage(Usage::NoDatabase { .. }))));
    assert!(matches!(engine.create(dir.path()), Err(Error::Usage(Usage::NotEmpty(_)))));
}

#[test]
fn a_file_that_is_no_database_is_corrupt() {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join(FILE), Bytes::from(vec![7; 8192])).expect("written");
    let opened = engine(Mode::Disk).open(dir.path());
    assert_eq!(opened.map(|_| ()).expect_err("not a database").kind(), ErrorKind::Corruption);
}
