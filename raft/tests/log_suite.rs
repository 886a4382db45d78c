//! openraft's own suite of storage tests over the segment log.

// A test fails by panicking, in its helpers too; the large error is what the suite asks for.
#![allow(clippy::unwrap_used, clippy::result_large_err)]

mod log_fixture;

use std::{io, sync::Arc};

use futures::{Stream, StreamExt};
use openraft::{
    OptionalSend, RaftSnapshotBuilder, SnapshotMeta, StorageError,
    storage::{EntryResponder, RaftStateMachine},
    testing::log::{StoreBuilder, Suite},
};
use parking_lot::Mutex;
use tempfile::TempDir;
use tidemark_raft::{
    log::{Options, SegmentLog},
    types::{Applied, CommittedLeaderId, LogId, Member, NodeId, Payload, StoredMembership},
    vfs::{RealVfs, SimulatedDisk},
};

use self::log_fixture::{Config, IDENTITY, simulate, simulated_options};

type Meta = SnapshotMeta<CommittedLeaderId, NodeId, Member>;
type Snapshot = openraft::Snapshot<CommittedLeaderId, NodeId, Member, ()>;

/// Remembers what was applied, which is all that the suite looks at.
#[derive(Clone, Default)]
struct Machine(Arc<Mutex<Remembered>>);

#[derive(Default)]
struct Remembered {
    applied: Option<LogId>,
    membership: StoredMembership,
    snapshot: Option<Meta>,
}

impl RaftSnapshotBuilder<Config> for Machine {
    type SnapshotData = ();

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        let mut remembered = self.0.lock();
        let meta = Meta { last_log_id: remembered.applied, last_membership: remembered.membership.clone() };
        remembered.snapshot = Some(meta.clone());
        Ok(Snapshot { meta, snapshot: () })
    }
}

impl RaftStateMachine<Config> for Machine {
    type SnapshotData = ();
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let remembered = self.0.lock();
        Ok((remembered.applied, remembered.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> io::Result<()>
    where
        Strm: Stream<Item = Result<EntryResponder<Config>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some(item) = entries.next().await {
            let (entry, responder) = item?;
            let mut remembered = self.0.lock();
            remembered.applied = Some(entry.log_id);
            if let Payload::Membership(membership) = entry.payload {
                remembered.membership = StoredMembership::new(Some(entry.log_id), membership);
            }
            if let Some(responder) = responder {
                responder.send(Applied(None));
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &Meta, _: ()) -> io::Result<()> {
        let mut remembered = self.0.lock();
        remembered.applied = meta.last_log_id;
        remembered.membership = meta.last_membership.clone();
        remembered.snapshot = Some(meta.clone());
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        let meta = self.0.lock().snapshot.clone();
        Ok(meta.map(|meta| Snapshot { meta, snapshot: () }))
    }
}

fn open(options: Options) -> Result<SegmentLog, StorageError<Config>> {
    let log = SegmentLog::open(options).map_err(|error| StorageError::read(openraft_error(error)))?;
    // The suite's machine keeps everything in memory, so it never limits a purge.
    log.handle().set_purge_limit(u64::MAX);
    Ok(log)
}

fn openraft_error(error: impl std::error::Error + 'static) -> anyerror::AnyError {
    anyerror::AnyError::new(&error)
}

/// Logs in fresh directories of the real file system.
struct OnDisk {
    segment_bytes: u32,
    cache_bytes: u64,
}

impl StoreBuilder<Config, SegmentLog, Machine, TempDir> for OnDisk {
    async fn build(&self) -> Result<(TempDir, SegmentLog, Machine), StorageError<Config>> {
        let directory = tempfile::tempdir().expect("a temporary directory can be created");
        let Self { segment_bytes, cache_bytes } = *self;
        let options = Options::new(Arc::new(RealVfs), directory.path().join("log"), IDENTITY);
        let log = open(Options { segment_bytes, cache_bytes, ..options })?;
        Ok((directory, log, Machine::default()))
    }
}

/// Logs on fresh simulated disks.
struct Simulated {
    cache_bytes: u64,
}

impl StoreBuilder<Config, SegmentLog, Machine> for Simulated {
    async fn build(&self) -> Result<((), SegmentLog, Machine), StorageError<Config>> {
        let options = simulated_options(&SimulatedDisk::new(1), 1024);
        let log = open(Options { cache_bytes: self.cache_bytes, ..options })?;
        Ok(((), log, Machine::default()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_passes_on_the_real_file_system() {
    Suite::test_all(OnDisk { segment_bytes: 1 << 20, cache_bytes: 1 << 20 }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_passes_on_tiny_segments_that_are_always_read_from_disk() {
    Suite::test_all(OnDisk { segment_bytes: 1024, cache_bytes: 0 }).await.unwrap();
}

#[test]
fn the_suite_passes_on_a_simulated_disk_and_paused_time() {
    for cache_bytes in [0, 1 << 20] {
        simulate(Suite::test_all(Simulated { cache_bytes })).unwrap();
    }
}
