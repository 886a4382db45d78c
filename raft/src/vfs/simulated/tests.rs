//! The disk forgets exactly what it may forget.

use super::{disk::BLOCK_BYTES, *};
use crate::vfs::read_whole;

const BLOCKS: usize = 16;

fn disk_with_file(seed: u64) -> (SimulatedDisk, Arc<dyn VfsFile>) {
    let disk = SimulatedDisk::new(seed);
    let vfs = disk.vfs();
    vfs.create_directory(Path::new("/d")).unwrap();
    let file = vfs.create(Path::new("/d/f")).unwrap();
    file.preallocate((BLOCKS * BLOCK_BYTES) as u64).unwrap();
    file.sync_all().unwrap();
    vfs.sync_directory(Path::new("/d")).unwrap();
    (disk, file)
}

fn content(disk: &SimulatedDisk) -> Vec<u8> {
    let file = disk.vfs().open(Path::new("/d/f"), Access::Read).unwrap();
    let mut content = Vec::new();
    read_whole(&*file, &mut content).unwrap();
    content
}

#[test]
fn synced_writes_survive_a_power_cut() {
    for seed in 0..20 {
        let (disk, file) = disk_with_file(seed);
        file.write_at(100, &[7; 3000]).unwrap();
        file.sync_data().unwrap();
        disk.restart();
        assert_eq!(content(&disk)[100..3100], [7; 3000]);
    }
}

#[test]
fn unsynced_writes_lose_any_subset_of_their_blocks() {
    let mut survivors = BTreeSet::new();
    for seed in 0..200 {
        let (disk, file) = disk_with_file(seed);
        file.write_at(0, &[1; 3 * BLOCK_BYTES]).unwrap();
        disk.restart();
        let content = content(&disk);
        survivors.insert([content[0], content[BLOCK_BYTES], content[2 * BLOCK_BYTES]]);
    }
    assert_eq!(survivors.len(), 8, "every subset was seen: {survivors:?}");
}

#[test]
fn names_are_durable_only_after_a_sync_of_their_directory() {
    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let (disk, _) = disk_with_file(seed);
        let vfs = disk.vfs();
        vfs.create(Path::new("/d/kept")).unwrap();
        vfs.sync_directory(Path::new("/d")).unwrap();
        vfs.create(Path::new("/d/new")).unwrap();
        vfs.unlink(Path::new("/d/f")).unwrap();
        disk.restart();
        let names = disk.vfs().list(Path::new("/d")).unwrap();
        assert!(names.contains(&"kept".to_owned()));
        seen.insert(names);
    }
    assert_eq!(seen.len(), 4, "create and unlink are lost independently: {seen:?}");
}

#[test]
fn after_a_cut_everything_fails_until_restart_and_old_handles_for_good() {
    let (disk, file) = disk_with_file(1);
    disk.cut_power_at(Operation::Sync, 2);
    file.sync_data().unwrap();
    file.sync_data().unwrap_err();
    file.write_at(0, b"x").unwrap_err();
    disk.vfs().list(Path::new("/d")).unwrap_err();
    disk.restart();
    file.write_at(0, b"x").unwrap_err();
    assert_eq!(content(&disk).len(), BLOCKS * BLOCK_BYTES);
}

#[test]
fn injected_errors_hit_once_and_capacity_is_enforced() {
    let (disk, file) = disk_with_file(1);
    disk.fail_at(Operation::Write, 1, io::ErrorKind::Other);
    file.write_at(0, b"x").unwrap_err();
    file.write_at(0, b"x").unwrap();
    disk.set_capacity((BLOCKS * BLOCK_BYTES) as u64);
    file.write_at(8, b"within").unwrap();
    let error = file.preallocate((BLOCKS * BLOCK_BYTES + 1) as u64).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
}

#[test]
fn a_lock_ends_with_its_process() {
    let disk = SimulatedDisk::new(1);
    let held = disk.vfs().lock(Path::new("/LOCK")).unwrap();
    disk.vfs().lock(Path::new("/LOCK")).unwrap_err();
    disk.restart();
    let again = disk.vfs().lock(Path::new("/LOCK")).unwrap();
    drop(held);
    disk.vfs().lock(Path::new("/LOCK")).unwrap_err();
    drop(again);
}
