//! RocksDB passes the suite in both modes, and notices damage.

use std::{fs, os::unix::fs::FileExt};

use super::*;
use crate::{
    contract::{Batch, Durability},
    damage,
    error::ErrorKind,
};

fn engine(mode: Mode) -> RocksDbEngine {
    RocksDbEngine::new(&EngineOptions { mode, ..EngineOptions::default() }).expect("an engine")
}

#[test]
fn rocksdb_on_disk_passes_the_contract_suite() {
    let dir = tempfile::tempdir().expect("a directory");
    crate::suite::run_all(Arc::new(engine(Mode::Disk)), dir.path());
}

#[test]
fn rocksdb_in_memory_passes_the_contract_suite_and_writes_no_file() {
    let dir = tempfile::tempdir().expect("a directory");
    crate::suite::run_all(Arc::new(engine(Mode::Memory)), dir.path());
    assert_eq!(directory::bytes(dir.path()).expect("readable"), 0);
    for database in fs::read_dir(dir.path()).expect("readable") {
        assert!(!directory::exists(&database.expect("an entry").path()).expect("readable"));
    }
}

#[test]
fn a_flipped_bit_in_a_table_file_is_noticed_by_an_open_database_with_a_warm_cache() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("kv");
    let db = engine(Mode::Disk).create(&path).expect("created");
    let marker = *b"0a value 1that occ2urs once";
    let mut batch = Batch::new();
    batch.put("marked", marker.to_vec());
    db.commit(batch, Durability::Flushed).expect("committed");
    assert_eq!(db.get(b"marked").expect("readable").as_deref(), Some(&marker[..]));
    db.verify().expect("healthy");
    let tables = fs::read_dir(&path).expect("readable").map(|entry| entry.expect("an entry").path());
    let (file, at) = tables
        .filter(|file| file.extension().is_some_and(|extension| extension == "sst"))
        .find_map(|file| {
            let content = fs::read(&file).expect("readable");
            let at = content.windows(marker.len()).position(|window| window == marker)?;
            Some((file, at))
        })
        .expect("too little to compress, so stored as it is");
    let damaged = fs::File::options().write(true).open(&file).expect("writable");
    damaged.write_all_at(&[marker[0] ^ 1], at as u64).expect("written");
    assert_eq!(db.verify().expect_err("damaged").kind(), ErrorKind::Corruption);
    drop(db);
    let db = engine(Mode::Disk).open(&path).expect("the block is not read on opening");
    assert_eq!(db.get(b"marked").expect_err("damaged").kind(), ErrorKind::Corruption);
}

#[test]
fn no_flipped_bit_changes_what_is_read() {
    damage::no_flipped_bit_changes_what_is_read(&engine(Mode::Disk), |name| {
        name.ends_with(".sst") || name.starts_with("MANIFEST")
    });
}

#[test]
fn unflushed_commits_are_not_durable_yet() {
    let dir = tempfile::tempdir().expect("a directory");
    let db = engine(Mode::Disk).create(&dir.path().join("kv")).expect("created");
    let mut batch = Batch::new();
    batch.put(crate::tables::raft_applied_key(), "1");
    db.commit(batch, Durability::Buffered).expect("committed");
    assert_eq!(db.durable_applied().expect("readable"), None);
    db.flush().expect("flushed");
    let mut batch = Batch::new();
    batch.delete(crate::tables::raft_applied_key());
    db.commit(batch, Durability::Buffered).expect("committed");
    assert_eq!(db.durable_applied().expect("readable").as_deref(), Some(&b"1"[..]));
}

#[test]
fn files_left_by_a_killed_verification_are_removed() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("kv");
    drop(engine(Mode::Disk).create(&path).expect("created"));
    fs::create_dir(path.join("verify")).expect("created");
    fs::write(path.join("verify/000001.sst"), "left").expect("written");
    engine(Mode::Disk).open(&path).expect("opened").verify().expect("healthy");
    assert!(!path.join("verify").exists());
}
