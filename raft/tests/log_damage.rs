//! Damage to what had been durable is refused with its place; damage to anything else changes nothing.

// A test fails by panicking, in its helpers too.
#![allow(clippy::unwrap_used)]

mod log_fixture;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use tidemark_raft::{
    log::{Damage, Error, Kind, LogIdentity, Options, SegmentLog, inspect},
    vfs::SimulatedDisk,
};

use self::log_fixture::{
    Content, DIRECTORY, IDENTITY, Recorder, Step, disk_with, segment_files, simulate, simulated_options,
};

const SEGMENT_BYTES: u32 = 1024;

/// How the last record is followed by something that vouches for it.
#[derive(Clone, Copy, Debug)]
enum End {
    Closed,
    Marked,
}

/// A log over three segments, numbers 3 to 5, all of it durable.
fn small_log(end: End) -> (BTreeMap<PathBuf, Vec<u8>>, Content) {
    let disk = SimulatedDisk::new(1);
    let content = simulate(async {
        let mut recorder = Recorder::open(simulated_options(&disk, SEGMENT_BYTES)).unwrap();
        let steps = [
            Step::Append { term: 1, entries: 3, bytes: 150 },
            Step::Vote { term: 2, committed: true },
            Step::Truncate { entries: 1 },
            Step::Append { term: 2, entries: 3, bytes: 201 },
            Step::Commit { behind: 1 },
            Step::Purge { behind: 3 },
            Step::Append { term: 2, entries: 5, bytes: 170 },
            Step::Append { term: 2, entries: 1, bytes: 33 },
        ];
        for step in &steps {
            recorder.step(step).await.unwrap();
        }
        match end {
            End::Closed => recorder.handle.close().await.unwrap(),
            End::Marked => recorder.step(&Step::Quiet).await.unwrap(),
        }
        recorder.history.content_after(recorder.history.changes.len())
    });
    (segment_files(&disk), content)
}

/// What was durable: for each file the start, the end and the next index of each piece.
fn durable_pieces(files: &BTreeMap<PathBuf, Vec<u8>>) -> BTreeMap<PathBuf, Vec<(u64, u64, u64)>> {
    let disk = disk_with(files);
    let mut pieces: BTreeMap<PathBuf, Vec<(u64, u64, u64)>> = BTreeMap::new();
    let oldest = files.first_key_value().unwrap().1;
    let mut next = u64::from_le_bytes(oldest[56..64].try_into().unwrap());
    inspect(&disk.vfs(), Path::new(DIRECTORY), Some(IDENTITY), |record| {
        let path = Path::new(DIRECTORY).join(format!("{:016x}.log", record.segment));
        let file = pieces.entry(path).or_default();
        if file.is_empty() {
            file.push((0, 256, 0));
        }
        if !matches!(record.kind, Kind::Mark | Kind::Closing) {
            let end = record.offset + (44 + record.payload.len() as u64).next_multiple_of(8);
            file.push((record.offset, end, next));
        }
        match record.kind {
            Kind::Blank | Kind::Command | Kind::Membership | Kind::Truncate => next = record.index + 1,
            _ => {}
        }
    })
    .unwrap();
    pieces
}

fn open_and_read(disk: &SimulatedDisk) -> Result<Content, Error> {
    simulate(async {
        let mut log = SegmentLog::open(simulated_options(disk, SEGMENT_BYTES))?;
        Ok(Content::of(&mut log).await)
    })
}

fn check_every_bit(end: End) {
    let (files, content) = small_log(end);
    assert_eq!(files.len(), 3, "the log spans segments");
    let pieces = durable_pieces(&files);
    let intact = disk_with(&files);
    for (path, bytes) in &files {
        for byte in 0..bytes.len() as u64 {
            let piece = pieces[path].iter().find(|(start, end, _)| (*start..*end).contains(&byte));
            for bit in 0..8 {
                let disk = intact.fork(1);
                disk.flip_bit(path, byte, bit);
                let story = format!("{end:?}: {} byte {byte} bit {bit}", path.display());
                match (open_and_read(&disk), piece) {
                    (Ok(found), None) => assert_eq!(found, content, "{story}"),
                    (Err(Error::Corrupt { file, offset, index, .. }), Some((start, _, next))) => {
                        assert_eq!((&file, offset), (path, *start), "{story}");
                        assert!(byte < 256 || index == *next, "{story}: index {index}, not {next}");
                    }
                    (found, piece) => panic!("{story}: {piece:?} gave {found:?}"),
                }
            }
        }
    }
}

#[test]
fn every_flipped_bit_of_a_closed_log_is_refused_with_its_place_or_harmless() {
    check_every_bit(End::Closed);
}

#[test]
fn every_flipped_bit_of_a_log_that_was_killed_while_quiet_is_refused_with_its_place_or_harmless() {
    check_every_bit(End::Marked);
}

#[test]
fn a_corruption_says_what_to_do() {
    let (files, _) = small_log(End::Closed);
    let disk = disk_with(&files);
    let path = files.keys().next_back().unwrap();
    disk.flip_bit(path, 300, 0);
    let message = open_and_read(&disk).unwrap_err().to_string();
    for part in [path.to_str().unwrap(), "offset 256", "index", "replace this member"] {
        assert!(message.contains(part), "{part} is not in: {message}");
    }
}

#[test]
fn a_missing_segment_is_refused() {
    let (files, _) = small_log(End::Closed);
    let paths: Vec<_> = files.keys().cloned().collect();
    let without = |path: &PathBuf| {
        let mut files = files.clone();
        files.remove(path);
        open_and_read(&disk_with(&files)).unwrap_err()
    };
    let first = without(&paths[0]);
    assert!(matches!(first, Error::Corrupt { damage: Damage::MissingEntries { .. }, .. }), "{first:?}");
    let middle = without(&paths[1]);
    assert!(matches!(middle, Error::Corrupt { damage: Damage::MissingSegment(4), .. }), "{middle:?}");
}

#[test]
fn a_segment_in_the_place_of_another_is_refused() {
    let (mut files, _) = small_log(End::Closed);
    let paths: Vec<_> = files.keys().cloned().collect();
    let moved = files[&paths[1]].clone();
    files.insert(paths[2].clone(), moved);
    let error = open_and_read(&disk_with(&files)).unwrap_err();
    assert!(matches!(error, Error::Corrupt { damage: Damage::MisplacedSegment(4), .. }), "{error:?}");
}

#[test]
fn a_log_of_another_identity_is_refused_and_both_are_named() {
    let (files, content) = small_log(End::Closed);
    let disk = disk_with(&files);
    let others = [
        LogIdentity { cluster_id: [9; 16], ..IDENTITY },
        LogIdentity { node_id: 8, ..IDENTITY },
        LogIdentity { group_id: 1, ..IDENTITY },
    ];
    for identity in others {
        let options = Options { identity, ..simulated_options(&disk, SEGMENT_BYTES) };
        let error = simulate(async { SegmentLog::open(options).unwrap_err() });
        let message = error.to_string();
        assert!(matches!(error, Error::WrongIdentity { .. }), "{message}");
        assert!(
            message.contains(&identity.to_string()) && message.contains(&IDENTITY.to_string()),
            "{message}"
        );
    }
    assert_eq!(open_and_read(&disk).unwrap(), content);
}

#[test]
fn a_later_format_is_refused_as_such() {
    let (mut files, _) = small_log(End::Closed);
    let bytes = files.first_entry().unwrap().into_mut();
    bytes[8] = 2;
    let crc = crc32c::crc32c(&bytes[..252]);
    bytes[252..256].copy_from_slice(&crc.to_le_bytes());
    let error = open_and_read(&disk_with(&files)).unwrap_err();
    assert!(matches!(error, Error::UnsupportedFormat { found: 2, supported: 1, .. }), "{error:?}");
}

#[test]
fn a_last_segment_whose_creation_was_interrupted_is_removed() {
    let (files, content) = small_log(End::Closed);
    let unfinished = Path::new(DIRECTORY).join(format!("{:016x}.log", 6));
    for bytes in [Vec::new(), vec![0; SEGMENT_BYTES as usize], vec![7; 100]] {
        let mut files = files.clone();
        files.insert(unfinished.clone(), bytes);
        let disk = disk_with(&files);
        assert_eq!(open_and_read(&disk).unwrap(), content);
        assert!(!segment_files(&disk).contains_key(&unfinished));
    }
}

/// Only cold reads meet damage that came after the log was opened.
#[test]
fn damage_that_appears_while_the_log_is_open_ends_it_when_it_is_read() {
    let (files, content) = small_log(End::Closed);
    let disk = disk_with(&files);
    simulate(async {
        let log = SegmentLog::open(simulated_options(&disk, SEGMENT_BYTES)).unwrap();
        let last = content.next - 1;
        let path = files.keys().next_back().unwrap();
        let pieces = durable_pieces(&files);
        let (start, _, _) = *pieces[path].last().unwrap();
        disk.flip_bit(path, start + 50, 3);
        let error = log_fixture::read(&log, last..last + 1).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{error}");
        let fault = log.handle().fault().await;
        assert!(matches!(&*fault, Error::Corrupt { index, .. } if *index == last), "{fault}");
        log.handle().flush().await.unwrap_err();
    });
}
