//! Logs written by earlier versions stay readable, and this version writes what it says it does.

// A test fails by panicking, in its helpers too.
#![allow(clippy::unwrap_used)]

mod log_fixture;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use tidemark_raft::{
    log::{Options, SegmentLog},
    types::{Entry, Member, Membership, Payload},
    vfs::{RealVfs, SimulatedDisk},
};

use self::log_fixture::{
    Content, IDENTITY, append, entry, files_in, log_id, purge, save_committed, save_vote, segment_files,
    simulate, simulated_options, truncate_after, vote,
};

const SEGMENT_BYTES: u32 = 1024;

fn fixture(version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/log-v{version}"))
}

fn membership(index: u64) -> Entry {
    let member = |node_id: u64| Member {
        address: format!("node-{node_id}:7000"),
        store_id: if node_id == 3 { Bytes::from_static(b"store-of-member3") } else { Bytes::new() },
    };
    let members: BTreeMap<u64, Member> = (1..=4).map(|node_id| (node_id, member(node_id))).collect();
    let membership = Membership::new(vec![[1, 2].into(), [1, 2, 3].into()], members).unwrap();
    Entry { log_id: log_id(2, index), payload: Payload::Membership(membership) }
}

/// Every kind of record, over several segments.
async fn write_log(log: &mut SegmentLog) {
    log.handle().set_purge_limit(u64::MAX);
    append(log, (0..6).map(|index| entry(1, index, 100)).collect()).await.unwrap();
    save_vote(log, vote(2, 3, false)).await.unwrap();
    save_vote(log, vote(2, 3, true)).await.unwrap();
    truncate_after(log, Some(log_id(1, 4))).await.unwrap();
    append(log, vec![entry(2, 5, 0), membership(6), entry(2, 7, 333)]).await.unwrap();
    save_committed(log, log_id(2, 6)).await.unwrap();
    purge(log, log_id(1, 1)).await.unwrap();
    append(log, (8..12).map(|index| entry(2, index, 64)).collect()).await.unwrap();
    log.handle().close().await.unwrap();
}

fn expected() -> Content {
    let entries = (2..5)
        .map(|index| entry(1, index, 100))
        .chain([entry(2, 5, 0), membership(6), entry(2, 7, 333)])
        .chain((8..12).map(|index| entry(2, index, 64)));
    Content {
        entries: entries.map(|entry| (entry.log_id.index, entry)).collect(),
        next: 12,
        vote: Some(vote(2, 3, true)),
        purged: Some(log_id(1, 1)),
        committed: Some(log_id(2, 6)),
    }
}

fn named(files: BTreeMap<PathBuf, Vec<u8>>) -> BTreeMap<String, Vec<u8>> {
    files
        .into_iter()
        .map(|(path, bytes)| (path.file_name().unwrap().to_str().unwrap().to_owned(), bytes))
        .collect()
}

/// The fixture was written once by the version that introduced the format, with `write_log`. It is never rewritten:
/// a change of the format gets a new version and another fixture.
#[tokio::test]
async fn a_log_of_format_version_1_opens_and_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    for (name, bytes) in named(files_in(&RealVfs, &fixture(1))) {
        std::fs::write(directory.path().join(name), bytes).unwrap();
    }
    let options = Options {
        segment_bytes: SEGMENT_BYTES,
        ..Options::new(Arc::new(RealVfs), directory.path(), IDENTITY)
    };
    let mut log = SegmentLog::open(options.clone()).unwrap();
    assert_eq!(Content::of(&mut log).await, expected());
    append(&mut log, vec![entry(3, 12, 10)]).await.unwrap();
    log.handle().close().await.unwrap();
    let mut log = SegmentLog::open(options).unwrap();
    assert_eq!(Content::of(&mut log).await.next, 13);
}

#[test]
fn the_writer_still_writes_format_version_1() {
    let disk = SimulatedDisk::new(1);
    simulate(async {
        write_log(&mut SegmentLog::open(simulated_options(&disk, SEGMENT_BYTES)).unwrap()).await;
    });
    let (written, fixture) = (named(segment_files(&disk)), named(files_in(&RealVfs, &fixture(1))));
    assert_eq!(written.keys().collect::<Vec<_>>(), fixture.keys().collect::<Vec<_>>());
    for (name, bytes) in &written {
        let differs = bytes.iter().zip(&fixture[name]).position(|(written, fixture)| written != fixture);
        assert_eq!(differs, None, "{name} differs from there on");
        assert_eq!(bytes.len(), fixture[name].len(), "{name}");
    }
}
