//! openraft's view of the state machine: chunks of committed entries become one batch each.
//!
//! The database has no write-ahead log: a batch is committed without a sync, and after a crash the Raft log
//! replays what is missing. Hence two orders that everything relies on:
//!
//! * An entry is applied only when it is durable in the *local* log. openraft allows committed > locally flushed;
//!   a database that is ahead of its log after a power cut could not be replayed.
//! * The log is purged only up to what the database has on stable storage.

mod digests;

use std::{io, marker::PhantomData, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use openraft::{
    AsyncRuntime, OptionalSend, RaftSnapshotBuilder,
    storage::{ApplyResponder, EntryResponder, RaftStateMachine},
};
use parking_lot::Mutex;
use prost::Message;
use tidemark_proto::record;
use tidemark_state_machine::{Command, Fault, Outcome, StateMachine};
use tidemark_storage::{
    Read,
    contract::{Durability, Snapshot},
    event_repository, tables,
};
use tokio::sync::watch;

pub use digests::Digests;

use crate::{
    convert,
    database::Databases,
    environment::Environment,
    log::LogHandle,
    snapshot::{Received, SnapshotData, Source},
    types::{Applied, CommittedLeaderId, Entry, LogId, Member, NodeId, Payload, StoredMembership, Types},
};

type SnapshotMeta = openraft::SnapshotMeta<CommittedLeaderId, NodeId, Member>;
/// A view of the state and its name.
type View = (SnapshotMeta, Arc<dyn Snapshot>);
type RaftSnapshot = openraft::storage::Snapshot<CommittedLeaderId, NodeId, Member, SnapshotData>;

/// How far this replica's state is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The last applied entry.
    pub log_id: Option<LogId>,
    /// The replicated clock, milliseconds since 1970.
    pub clock_ms: u64,
    /// The last assigned event id.
    pub last_event_id: u64,
}

impl Progress {
    /// Index of the last applied entry; 0 if there is none.
    pub fn index(&self) -> u64 {
        self.log_id.map_or(0, |log_id| log_id.index)
    }
}

/// A chunk ends after this many entries or bytes, so that a batch stays bounded and readers see progress.
const CHUNK_ENTRIES: usize = 256;
const CHUNK_BYTES: usize = 8 * 1024 * 1024;

/// A replaced database is kept this long: the longest that a snapshot of it may live.
const SNAPSHOT_LIFETIME: Duration = Duration::from_secs(60);

/// What the state machine, its snapshot builders and the group's duties share.
pub(crate) struct Replica {
    pub(crate) environment: Environment,
    pub(crate) databases: Arc<Databases>,
    pub(crate) log: LogHandle,
    pub(crate) digests: Arc<Digests>,
    pub(crate) progress: watch::Sender<Progress>,
    group_id: u32,
    machine: Mutex<StateMachine>,
}

impl Replica {
    pub(crate) fn open(
        environment: Environment,
        databases: Arc<Databases>,
        log: LogHandle,
        group_id: u32,
    ) -> Result<Self, Fault> {
        let progress = read_progress(&*databases.current().snapshot()?)?;
        // A crash between the install of a snapshot and the purge behind it: openraft purges at once at the start.
        if let Some(durable) = decode_log_id(databases.current().durable_applied()?)? {
            log.set_purge_limit(durable.index);
        }
        Ok(Self {
            digests: Arc::new(Digests::default()),
            progress: watch::Sender::new(progress),
            machine: Mutex::new(StateMachine::new()),
            environment,
            databases,
            log,
            group_id,
        })
    }

    /// Puts everything applied so far on stable storage and lets the log be purged up to it. Blocks.
    pub(crate) fn flush(&self) -> Result<Option<LogId>, Fault> {
        let db = self.databases.current();
        db.flush()?;
        let durable = decode_log_id(db.durable_applied()?)?;
        if let Some(durable) = durable {
            self.log.set_purge_limit(durable.index);
        }
        Ok(durable)
    }

    /// The durable applied log id. Blocks.
    pub(crate) fn durable_applied(&self) -> Result<Option<LogId>, Fault> {
        decode_log_id(self.databases.current().durable_applied()?)
    }

    fn apply(&self, entries: Vec<Entry>) -> Result<Vec<Applied>, Fault> {
        let mut applied = Vec::with_capacity(entries.len());
        let mut machine = self.machine.lock();
        let mut entries = entries.into_iter().peekable();
        while entries.peek().is_some() {
            let db = self.databases.current();
            let mut chunk = machine.begin(&*db)?;
            let mut last = None;
            let mut digest = None;
            for entry in entries.by_ref() {
                last = Some(entry.log_id);
                let outcome = match entry.payload {
                    Payload::Blank => None,
                    Payload::Normal(command) => {
                        Some(chunk.apply(&Command::decode(command.0, self.group_id)?)?)
                    }
                    Payload::Membership(membership) => {
                        let stored = StoredMembership::new(last, membership);
                        chunk.set_membership(
                            convert::stored_membership_to_record(&stored).encode_to_vec().into(),
                        );
                        None
                    }
                };
                let ends_chunk = outcome.as_ref().is_some_and(Outcome::ends_chunk);
                if let Some(Outcome::Digest { digest_id }) = outcome {
                    digest = Some(digest_id);
                }
                applied.push(Applied(outcome));
                if ends_chunk {
                    break;
                }
            }
            let last = last.expect("the loop runs only while there are entries");
            let chunk = chunk.finish(encode_log_id(&last));
            // Readers page by positions and wait for applied indexes: both may only grow.
            assert!(Some(last) > self.progress.borrow().log_id, "entries are applied once and in order");
            db.commit(chunk.batch, Durability::Buffered)?;
            self.progress.send_replace(Progress {
                log_id: Some(last),
                clock_ms: chunk.clock_ms,
                last_event_id: chunk.last_event_id.get(),
            });
            if let Some(digest_id) = digest {
                self.digests.compute(&self.environment, digest_id, last, db.snapshot()?);
            }
        }
        Ok(applied)
    }

    fn view(&self) -> Result<Option<View>, Fault> {
        let snapshot = self.databases.current().snapshot()?;
        // The log id comes from the view itself: meta older than the data would make the receiver apply twice.
        let (log_id, membership) = read_applied(&*snapshot)?;
        Ok(log_id.map(|log_id| {
            (SnapshotMeta { last_log_id: Some(log_id), last_membership: membership }, snapshot)
        }))
    }

    fn install(&self, received: Received) -> Result<(), io::Error> {
        let mut machine = self.machine.lock();
        let progress =
            received.database.db.snapshot().map_err(Fault::from).and_then(|view| read_progress(&*view));
        let progress = progress.map_err(io::Error::other)?;
        let retired = self.databases.switch(received.database).map_err(io::Error::other)?;
        // The new state is on stable storage, so the log may go up to it, as consensus demands next: an entry behind
        // the snapshot would leave a gap otherwise.
        self.log.set_purge_limit(progress.index());
        *machine = StateMachine::new();
        self.progress.send_replace(progress);
        let environment = self.environment.clone();
        self.environment.executor.spawn(Box::pin(async move {
            tokio::time::sleep(SNAPSHOT_LIFETIME).await;
            environment.blocking(move || retired.destroy()).await;
        }));
        Ok(())
    }
}

fn encode_log_id(log_id: &LogId) -> Bytes {
    convert::log_id_to_record(log_id).encode_to_vec().into()
}

fn decode_log_id(row: Option<Bytes>) -> Result<Option<LogId>, Fault> {
    let decode = |row: Bytes| record::LogId::decode(row).map(|log_id| convert::log_id_from_record(&log_id));
    row.map(decode).transpose().map_err(|source| Fault::Undecodable { source })
}

fn read_applied(source: &(impl Read + ?Sized)) -> Result<(Option<LogId>, StoredMembership), Fault> {
    let log_id = decode_log_id(source.get(&tables::raft_applied_key())?)?;
    let Some(row) = source.get(&tables::raft_membership_key())? else {
        return Ok((log_id, StoredMembership::default()));
    };
    let stored = record::StoredMembership::decode(row).map_err(|source| Fault::Undecodable { source })?;
    let stored = convert::stored_membership_from_record(&stored)
        .expect("the membership row was written from a valid membership");
    Ok((log_id, stored))
}

fn read_progress(source: &(impl Read + ?Sized)) -> Result<Progress, Fault> {
    Ok(Progress {
        log_id: decode_log_id(source.get(&tables::raft_applied_key())?)?,
        clock_ms: event_repository::read_clock(source)?.0,
        last_event_id: event_repository::read_last_id(source)?.get(),
    })
}

/// The state machine that openraft drives.
pub(crate) struct Machine<RT> {
    replica: Arc<Replica>,
    runtime: PhantomData<fn() -> RT>,
}

impl<RT> Machine<RT> {
    pub(crate) fn new(replica: Arc<Replica>) -> Self {
        Self { replica, runtime: PhantomData }
    }
}

impl<RT: AsyncRuntime> Machine<RT> {
    async fn apply_chunk(
        &self,
        entries: Vec<Entry>,
        responders: Vec<Option<ApplyResponder<Types<RT>>>>,
    ) -> Result<(), io::Error> {
        let Some(last) = entries.last() else { return Ok(()) };
        self.replica.log.wait_durable(last.log_id.index).await.map_err(io::Error::other)?;
        let replica = Arc::clone(&self.replica);
        let applied = self.replica.environment.blocking(move || replica.apply(entries)).await;
        let applied = applied
            .inspect_err(|fault| tracing::error!(%fault, "cannot apply: this replica stops"))
            .map_err(io::Error::other)?;
        for (responder, applied) in responders.into_iter().zip(applied) {
            if let Some(responder) = responder {
                responder.send(applied);
            }
        }
        Ok(())
    }
}

fn payload_bytes(entry: &Entry) -> usize {
    match &entry.payload {
        Payload::Normal(command) => command.0.len(),
        Payload::Blank | Payload::Membership(_) => 0,
    }
}

impl<RT: AsyncRuntime> RaftStateMachine<Types<RT>> for Machine<RT> {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = SnapshotBuilder<RT>;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        let replica = Arc::clone(&self.replica);
        let state = self.replica.environment.blocking(move || read_applied(&*replica.databases.current()));
        state.await.map_err(io::Error::other)
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<Types<RT>>, io::Error>> + Unpin + OptionalSend,
    {
        let (mut chunk, mut responders, mut bytes) = (Vec::new(), Vec::new(), 0);
        while let Some((entry, responder)) = entries.try_next().await? {
            bytes += payload_bytes(&entry);
            chunk.push(entry);
            responders.push(responder);
            if chunk.len() >= CHUNK_ENTRIES || bytes >= CHUNK_BYTES {
                self.apply_chunk(std::mem::take(&mut chunk), std::mem::take(&mut responders)).await?;
                bytes = 0;
            }
        }
        self.apply_chunk(chunk, responders).await
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder<RT> {
        SnapshotBuilder { replica: Arc::clone(&self.replica), runtime: PhantomData }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: SnapshotData,
    ) -> Result<(), io::Error> {
        let SnapshotData::Received(received) = snapshot else {
            return Err(io::Error::other("a view of this replica's own database cannot be installed"));
        };
        assert_eq!(&received.meta, meta, "consensus installs the snapshot that was received");
        let replica = Arc::clone(&self.replica);
        self.replica.environment.blocking(move || replica.install(*received)).await?;
        tracing::info!(last_log_id = ?meta.last_log_id, "installed a snapshot");
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<RaftSnapshot>, io::Error> {
        let replica = Arc::clone(&self.replica);
        let view =
            self.replica.environment.blocking(move || replica.view()).await.map_err(io::Error::other)?;
        Ok(view.map(|(meta, snapshot)| openraft::storage::Snapshot {
            meta,
            snapshot: SnapshotData::Source(Source { snapshot }),
        }))
    }
}

/// Makes what openraft calls a snapshot: durable state that the log may be purged behind.
pub(crate) struct SnapshotBuilder<RT> {
    replica: Arc<Replica>,
    runtime: PhantomData<fn() -> RT>,
}

impl<RT: AsyncRuntime> RaftSnapshotBuilder<Types<RT>> for SnapshotBuilder<RT> {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(&mut self) -> Result<RaftSnapshot, io::Error> {
        let replica = Arc::clone(&self.replica);
        let built = self.replica.environment.blocking(move || {
            let view = replica.view()?;
            // The purge that follows must find the view's state on stable storage.
            replica.flush()?;
            Ok::<_, Fault>(view)
        });
        let view = built.await.map_err(io::Error::other)?;
        let (meta, snapshot) =
            view.ok_or_else(|| io::Error::other("nothing is applied, so there is no snapshot"))?;
        Ok(openraft::storage::Snapshot { meta, snapshot: SnapshotData::Source(Source { snapshot }) })
    }
}
