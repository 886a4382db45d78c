//! A check for engines on disk: flipped bits may make reads fail, but never change what they return.

use std::{
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use bytes::Bytes;

use crate::{
    contract::{Batch, Direction, Durability, Engine, KeyRange},
    error::Result,
};

/// How many bits are flipped, each in a fresh copy.
const FLIPS: usize = 160;

/// Flips bits spread over the files that `damaged` picks by name. Each time, opening or verifying fails, or
/// everything reads as it was written (the bit was in unused space).
pub(crate) fn no_flipped_bit_changes_what_is_read(engine: &dyn Engine, damaged: impl Fn(&str) -> bool) {
    let dir = tempfile::tempdir().expect("a directory");
    let original = dir.path().join("original");
    let db = engine.create(&original).expect("created");
    let mut batch = Batch::new();
    let mut noise = 1_u64;
    for row in 0..600_u32 {
        // Incompressible, so that every engine stores it as it is.
        let value: Vec<u8> = (0..100).map(|_| next(&mut noise) as u8).collect();
        batch.put(row.to_be_bytes().to_vec(), value);
    }
    db.commit(batch, Durability::Flushed).expect("committed");
    drop(db);
    let written = read_all(engine, &original).expect("healthy");
    // Listed after that, because opening replaces some files.
    let files: Vec<PathBuf> = files(&original).into_iter().filter(|file| damaged(&name(file))).collect();
    assert!(!files.is_empty(), "there are files to damage");
    let mut noticed = 0;
    for flip in 0..FLIPS {
        let copy = dir.path().join(format!("copy-{flip}"));
        copy_files(&original, &copy);
        let file = &files[flip % files.len()];
        flip_bit(&copy.join(name(file)), next(&mut noise));
        match read_all(engine, &copy) {
            Err(_) => noticed += 1,
            Ok(found) => assert!(found == written, "flip {flip} in {} changed what is read", name(file)),
        }
    }
    assert!(noticed > FLIPS / 2, "only {noticed} of {FLIPS} flips were noticed");
}

/// Everything in the database, if it verifies.
fn read_all(engine: &dyn Engine, dir: &Path) -> Result<Vec<(Bytes, Bytes)>> {
    let db = engine.open(dir)?;
    db.verify()?;
    let mut rows = Vec::new();
    db.snapshot()?.scan(&KeyRange::ALL, Direction::Ascending, &mut |key, value| {
        rows.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
        ControlFlow::Continue(())
    })?;
    Ok(rows)
}

fn flip_bit(file: &Path, place: u64) {
    let mut content = fs::read(file).expect("readable");
    let bit = place as usize % (content.len() * 8);
    content[bit / 8] ^= 1 << (bit % 8);
    fs::write(file, content).expect("written");
}

fn copy_files(from: &Path, to: &Path) {
    fs::create_dir(to).expect("created");
    for file in files(from) {
        fs::copy(&file, to.join(name(&file))).expect("copied");
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("readable");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort_unstable();
    files
}

fn name(file: &Path) -> String {
    file.file_name().expect("a name").to_string_lossy().into_owned()
}

/// Marsaglia's xorshift64: enough to spread the flips, and alike in every run.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}
