//! The log in operation: reading, batching, faults of the disk, purging, closing.

// A test fails by panicking, in its helpers too.
#![allow(clippy::unwrap_used)]

mod log_fixture;

use std::{io, path::Path, sync::Arc, time::Duration};

use futures::TryStreamExt;
use openraft::{
    storage::{IOFlushed, RaftLogReader, RaftLogStorage},
    type_config::TypeConfigExt,
};
use tidemark_raft::{
    log::{Driver, Error, Kind, Options, SegmentLog, inspect},
    types::{Entry, Types},
    vfs::{Operation, RealVfs, SimulatedDisk, Vfs},
};

use self::log_fixture::{
    Config, Content, DIRECTORY, IDENTITY, append, entry, log_id, purge, read, save_committed, save_vote,
    segment_files, simulate, simulated_options, submit, truncate_after, vote,
};

fn entries(term: u64, range: std::ops::Range<u64>, bytes: usize) -> Vec<Entry> {
    range.map(|index| entry(term, index, bytes)).collect()
}

fn on_disk(directory: &Path) -> Options {
    Options { segment_bytes: 1 << 16, ..Options::new(Arc::new(RealVfs), directory.join("log"), IDENTITY) }
}

async fn limited(log: &SegmentLog, start: u64, end: u64) -> Vec<Entry> {
    RaftLogReader::<Config>::limited_get_log_entries(&mut log.reader(), start, end).await.unwrap()
}

#[test]
fn entries_are_readable_before_they_are_durable() {
    simulate(async {
        let disk = SimulatedDisk::new(1);
        let mut log = SegmentLog::open(simulated_options(&disk, 4096)).unwrap();
        let done = submit(&mut log, entries(1, 0..3, 10)).await.unwrap();
        assert_eq!(log.handle().durable_index(), None);
        assert_eq!(read(&log, 0..3).await.unwrap(), entries(1, 0..3, 10));
        done.await.unwrap();
        assert_eq!(log.handle().durable_index(), Some(2));
    });
}

#[test]
fn what_gathers_during_a_sync_is_written_and_synced_together() {
    simulate(async {
        let disk = SimulatedDisk::new(1);
        let mut log = SegmentLog::open(simulated_options(&disk, 1 << 20)).unwrap();
        append(&mut log, entries(1, 0..1, 10)).await.unwrap();
        let before = disk.counts();
        let first = submit(&mut log, entries(1, 1..2, 10)).await.unwrap();
        // The writer takes the first and is in its sync when the others come.
        tokio::time::sleep(Duration::from_micros(50)).await;
        let mut rest = Vec::new();
        for index in 2..50 {
            rest.push(submit(&mut log, entries(1, index..index + 1, 10)).await.unwrap());
        }
        first.await.unwrap();
        assert_eq!(log.handle().durable_index(), Some(1));
        futures::future::try_join_all(rest).await.unwrap();
        let after = disk.counts();
        assert_eq!((after.writes - before.writes, after.syncs - before.syncs), (2, 2));
    });
}

#[test]
fn waiting_for_durability_ends_with_the_sync_and_counts_only_what_was_not_truncated() {
    simulate(async {
        let disk = SimulatedDisk::new(1);
        let mut log = SegmentLog::open(simulated_options(&disk, 4096)).unwrap();
        let handle = log.handle();
        drop(submit(&mut log, entries(1, 0..10, 10)).await.unwrap());
        truncate_after(&mut log, Some(log_id(1, 4))).await.unwrap();
        handle.wait_durable(4).await.unwrap();
        let replaced = submit(&mut log, entries(2, 5..7, 10)).await.unwrap();
        assert_eq!(handle.durable_index(), Some(4), "the first version of entry 5 does not count");
        handle.wait_durable(6).await.unwrap();
        replaced.await.unwrap();
        assert_eq!(handle.durable_index(), Some(6));
        truncate_after(&mut log, None).await.unwrap();
        assert_eq!(handle.durable_index(), None);
    });
}

#[test]
fn truncations_and_commits_cost_no_sync() {
    simulate(async {
        let disk = SimulatedDisk::new(1);
        let mut log = SegmentLog::open(simulated_options(&disk, 4096)).unwrap();
        append(&mut log, entries(1, 0..5, 10)).await.unwrap();
        let before = disk.counts();
        save_committed(&mut log, log_id(1, 2)).await.unwrap();
        truncate_after(&mut log, Some(log_id(1, 3))).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let after = disk.counts();
        assert!(after.writes > before.writes);
        assert_eq!(after.syncs, before.syncs);
    });
}

#[test]
fn old_entries_leave_memory_and_are_read_from_their_segments() {
    simulate(async {
        let disk = SimulatedDisk::new(1);
        let options = Options { cache_bytes: 1000, ..simulated_options(&disk, 2048) };
        let mut log = SegmentLog::open(options).unwrap();
        for start in (0..60).step_by(3) {
            append(&mut log, entries(1, start..start + 3, 80)).await.unwrap();
        }
        truncate_after(&mut log, Some(log_id(1, 20))).await.unwrap();
        append(&mut log, entries(2, 21..40, 90)).await.unwrap();
        let stats = log.handle().stats();
        assert!(stats.cached_bytes <= 1000 && stats.segments > 3, "{stats:?}");
        let expected: Vec<_> = entries(1, 0..21, 80).into_iter().chain(entries(2, 21..40, 90)).collect();
        assert_eq!(read(&log, 0..u64::MAX).await.unwrap(), expected);
        assert_eq!(read(&log, 19..23).await.unwrap(), expected[19..23]);
        let streamed: Vec<_> = RaftLogReader::<Config>::entries_stream(&mut log.reader(), 0..u64::MAX)
            .await
            .try_collect()
            .await
            .unwrap();
        assert_eq!(streamed, expected);
    });
}

#[test]
fn a_body_for_a_peer_is_limited_but_never_empty() {
    for cache_bytes in [0, 1 << 20] {
        simulate(async {
            let disk = SimulatedDisk::new(1);
            let options =
                Options { cache_bytes, append_body_bytes: 1000, ..simulated_options(&disk, 1 << 16) };
            let mut log = SegmentLog::open(options).unwrap();
            log.handle().set_purge_limit(u64::MAX);
            append(&mut log, entries(1, 0..10, 300)).await.unwrap();
            append(&mut log, entries(1, 10..12, 5000)).await.unwrap();
            assert_eq!(limited(&log, 0, 12).await, entries(1, 0..2, 300));
            assert_eq!(limited(&log, 8, 12).await, entries(1, 8..10, 300));
            assert_eq!(limited(&log, 10, 12).await, entries(1, 10..11, 5000));
            assert_eq!(limited(&log, 5, 5).await, []);
            purge(&mut log, log_id(1, 3)).await.unwrap();
            // A body that began later than asked for would leave a gap on the follower.
            assert_eq!(limited(&log, 2, 12).await, []);
        });
    }
}

#[test]
fn a_purge_beyond_the_limit_is_clamped_and_counted() {
    simulate(async {
        let disk = SimulatedDisk::new(1);
        let mut log = SegmentLog::open(simulated_options(&disk, 4096)).unwrap();
        let handle = log.handle();
        append(&mut log, entries(1, 0..10, 10)).await.unwrap();
        purge(&mut log, log_id(1, 3)).await.unwrap();
        assert_eq!((handle.stats().purged_index, handle.stats().clamped_purges), (None, 1));
        handle.set_purge_limit(5);
        purge(&mut log, log_id(1, 3)).await.unwrap();
        assert_eq!((handle.stats().purged_index, handle.stats().clamped_purges), (Some(3), 1));
        purge(&mut log, log_id(1, 8)).await.unwrap();
        assert_eq!((handle.stats().purged_index, handle.stats().clamped_purges), (Some(5), 2));
        handle.set_purge_limit(2);
        purge(&mut log, log_id(1, 9)).await.unwrap();
        assert_eq!((handle.stats().purged_index, handle.stats().first_index), (Some(5), Some(6)));
    });
}

#[test]
fn purged_segments_are_removed_and_their_vote_is_kept() {
    simulate(async {
        let disk = SimulatedDisk::new(1);
        let mut log = SegmentLog::open(simulated_options(&disk, 1024)).unwrap();
        let handle = log.handle();
        handle.set_purge_limit(u64::MAX);
        save_vote(&mut log, vote(1, 2, true)).await.unwrap();
        for index in 0..40 {
            append(&mut log, entries(1, index..index + 1, 100)).await.unwrap();
        }
        let before = segment_files(&disk).len();
        assert!(before > 5, "the log spans segments");
        purge(&mut log, log_id(1, 35)).await.unwrap();
        handle.flush().await.unwrap();
        let left = segment_files(&disk).len();
        assert!(left <= 2, "{left} of {before} segments are left");
        assert_eq!(handle.stats().segments, left as u64);
        disk.restart();
        let mut log = SegmentLog::open(simulated_options(&disk, 1024)).unwrap();
        let content = Content::of(&mut log).await;
        assert_eq!((content.vote, content.purged), (Some(vote(1, 2, true)), Some(log_id(1, 35))));
        assert_eq!(content.entries.into_values().collect::<Vec<_>>(), entries(1, 36..40, 100));
    });
}

#[test]
fn opening_again_and_again_changes_nothing() {
    simulate(async {
        let disk = SimulatedDisk::new(1);
        let mut log = SegmentLog::open(simulated_options(&disk, 1024)).unwrap();
        append(&mut log, entries(1, 0..20, 100)).await.unwrap();
        log.handle().close().await.unwrap();
        let files = segment_files(&disk);
        for _ in 0..3 {
            let mut log = SegmentLog::open(simulated_options(&disk, 1024)).unwrap();
            assert_eq!(Content::of(&mut log).await.next, 20);
            log.handle().close().await.unwrap();
            log.handle().close().await.unwrap();
            assert_eq!(segment_files(&disk), files);
        }
    });
}

#[test]
fn after_a_close_nothing_is_written() {
    simulate(async {
        let disk = SimulatedDisk::new(1);
        let mut log = SegmentLog::open(simulated_options(&disk, 1024)).unwrap();
        let done = submit(&mut log, entries(1, 0..2, 100)).await.unwrap();
        log.handle().close().await.unwrap();
        done.await.unwrap();
        let error = append(&mut log, entries(1, 2..3, 100)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        assert!(log.handle().current_fault().is_none(), "a close is no fault");
        let mut kinds = Vec::new();
        inspect(&disk.vfs(), Path::new(DIRECTORY), None, |record| kinds.push(record.kind)).unwrap();
        assert_eq!(kinds, [Kind::Command, Kind::Command, Kind::Closing]);
    });
}

#[test]
fn a_failed_sync_is_final() {
    simulate(async {
        let disk = SimulatedDisk::new(1);
        let mut log = SegmentLog::open(simulated_options(&disk, 4096)).unwrap();
        let handle = log.handle();
        append(&mut log, entries(1, 0..2, 10)).await.unwrap();
        disk.fail_at(Operation::Sync, 1, io::ErrorKind::Other);
        let failed = submit(&mut log, entries(1, 2..3, 10)).await.unwrap();
        let waiting = {
            let handle = handle.clone();
            tokio::spawn(async move { handle.wait_durable(2).await })
        };
        failed.await.unwrap_err();
        waiting.await.unwrap().unwrap_err();
        let fault = handle.fault().await;
        assert!(fault.to_string().starts_with("could not sync"), "{fault}");
        let writes = disk.counts();
        append(&mut log, entries(1, 3..4, 10)).await.unwrap_err();
        save_vote(&mut log, vote(2, 1, false)).await.unwrap_err();
        handle.close().await.unwrap_err();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(disk.counts(), writes, "nothing is written or synced after the fault");
        assert_eq!(handle.durable_index(), Some(1));
    });
}

#[test]
fn everything_queued_behind_a_fault_is_told() {
    simulate(async {
        let disk = SimulatedDisk::new(1);
        let mut log = SegmentLog::open(simulated_options(&disk, 4096)).unwrap();
        disk.fail_at(Operation::Write, 1, io::ErrorKind::Other);
        let mut done = vec![submit(&mut log, entries(1, 0..1, 10)).await.unwrap()];
        tokio::task::yield_now().await;
        for index in 1..5 {
            match submit(&mut log, entries(1, index..index + 1, 10)).await {
                Ok(receiver) => done.push(receiver),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::Other),
            }
        }
        for receiver in done {
            receiver.await.unwrap_err();
        }
    });
}

#[test]
fn a_full_disk_is_reported_as_such() {
    simulate(async {
        let disk = SimulatedDisk::new(1);
        let mut log = SegmentLog::open(simulated_options(&disk, 1024)).unwrap();
        disk.set_capacity(1500);
        let mut index = 0;
        let error = loop {
            if let Err(error) = append(&mut log, entries(1, index..index + 1, 100)).await {
                break error;
            }
            index += 1;
        };
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(log.handle().fault().await.is_storage_full());
        // With space again the log goes on where it was.
        disk.set_capacity(u64::MAX);
        disk.restart_process();
        let mut log = SegmentLog::open(simulated_options(&disk, 1024)).unwrap();
        assert_eq!(Content::of(&mut log).await.next, index);
        append(&mut log, entries(1, index..index + 1, 100)).await.unwrap();
    });
}

#[test]
fn an_entry_that_no_segment_could_hold_is_refused_and_the_largest_is_not() {
    simulate(async {
        let disk = SimulatedDisk::new(1);
        let mut log = SegmentLog::open(simulated_options(&disk, 1024)).unwrap();
        let largest = usize::try_from(log.handle().entry_bytes_max()).unwrap();
        append(&mut log, entries(1, 0..3, largest)).await.unwrap();
        let error = append(&mut log, entries(1, 3..4, largest + 1)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert_eq!(
            append(&mut log, entries(1, 4..5, 1)).await.unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        append(&mut log, entries(1, 3..4, 1)).await.unwrap();
        assert_eq!(read(&log, 0..3).await.unwrap(), entries(1, 0..3, largest));
    });
}

#[test]
fn a_log_in_use_is_not_opened_twice() {
    simulate(async {
        let disk = SimulatedDisk::new(1);
        let log = SegmentLog::open(simulated_options(&disk, 1024)).unwrap();
        let error = SegmentLog::open(simulated_options(&disk, 1024)).unwrap_err();
        assert!(matches!(error, Error::InUse { .. }), "{error:?}");
        log.handle().close().await.unwrap();
        SegmentLog::open(simulated_options(&disk, 1024)).unwrap();
    });
}

#[test]
fn a_runtime_that_goes_away_answers_those_who_wait() {
    let disk = SimulatedDisk::new(1);
    let handle = simulate(async { SegmentLog::open(simulated_options(&disk, 1024)).unwrap().handle() });
    let error = simulate(async { handle.wait_durable(5).await.unwrap_err() });
    assert!(matches!(*error, Error::WriterEnded), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_writes_a_real_directory() {
    let directory = tempfile::tempdir().unwrap();
    let mut log = SegmentLog::open(Options { cache_bytes: 10_000, ..on_disk(directory.path()) }).unwrap();
    let handle = log.handle();
    save_vote(&mut log, vote(1, 7, true)).await.unwrap();
    let mut done = Vec::new();
    for start in (0..3000).step_by(10) {
        done.push(submit(&mut log, entries(1, start..start + 10, 100)).await.unwrap());
    }
    handle.wait_durable(2999).await.unwrap();
    futures::future::try_join_all(done).await.unwrap();
    assert_eq!(read(&log, 0..3000).await.unwrap(), entries(1, 0..3000, 100));
    handle.close().await.unwrap();

    let mut log = SegmentLog::open(on_disk(directory.path())).unwrap();
    let content = Content::of(&mut log).await;
    assert_eq!((content.next, content.vote), (3000, Some(vote(1, 7, true))));
    assert_eq!(content.entries.into_values().collect::<Vec<_>>(), entries(1, 0..3000, 100));
    log.handle().close().await.unwrap();
    let mut records = 0;
    inspect(&RealVfs, &directory.path().join("log"), Some(IDENTITY), |_| records += 1).unwrap();
    assert!(records > 3000);
}

/// Many small appends cost few writes and syncs: they share those that are in flight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_appends_share_writes_and_syncs() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options::new(Arc::new(RealVfs), directory.path().join("log"), IDENTITY);
    let mut log = SegmentLog::open(options).unwrap();
    let mut done = Vec::new();
    for start in (0..100_000).step_by(50) {
        done.push(submit(&mut log, entries(1, start..start + 50, 64)).await.unwrap());
    }
    futures::future::try_join_all(done).await.unwrap();
    let stats = log.handle().stats();
    assert_eq!((stats.appended_entries, stats.durable_index), (100_000, Some(99_999)));
    assert!(stats.writes <= 2000 && stats.syncs <= 2000, "never more than one per append: {stats:?}");
    assert_eq!(stats.written_bytes, 100_000 * 112, "44 bytes of header and padding to 8 each");
    log.handle().close().await.unwrap();
}

/// The log's callbacks work on the runtime of simulations too, and a seed gives the same run twice.
#[test]
fn the_same_seed_gives_the_same_run_on_the_simulated_runtime() {
    type Simulated = Types<tidemark_raft::SimulatedRuntime>;
    let run = || {
        let disk = SimulatedDisk::new(3);
        simulate(tidemark_raft::SimulatedRuntime::scope(42, async {
            let options = Options {
                driver: Driver::tokio_task(Duration::from_millis(2)),
                ..simulated_options(&disk, 1024)
            };
            let mut log = SegmentLog::open(options).unwrap();
            for index in 0..30 {
                let (sender, receiver) = Simulated::oneshot();
                let callback = IOFlushed::<Simulated>::signal(sender);
                RaftLogStorage::<Simulated>::append(&mut log, entries(1, index..index + 1, 50), callback)
                    .await
                    .unwrap();
                if index % 3 == 0 {
                    receiver.await.unwrap().unwrap();
                }
            }
            log.handle().close().await.unwrap();
        }));
        (segment_files(&disk), disk.counts())
    };
    assert_eq!(run(), run());
}

#[test]
fn a_directory_that_is_not_a_log_yet_becomes_one() {
    simulate(async {
        let disk = SimulatedDisk::new(1);
        let vfs = disk.vfs();
        let mut log = SegmentLog::open(simulated_options(&disk, 1024)).unwrap();
        assert_eq!(Content::of(&mut log).await, Content::default());
        assert!(vfs.exists(Path::new(DIRECTORY)).unwrap());
    });
}
