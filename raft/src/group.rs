//! Starts one Raft group on this node and runs its duties.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use openraft::{
    AsyncRuntime, ReadPolicy, ServerState, SnapshotPolicy,
    async_runtime::watch::WatchReceiver,
    errors::{ClientWriteError, LinearizableReadError, RaftError},
    impls::OneshotResponder,
    type_config::TypeConfigExt,
};
use tidemark_storage::contract::Engine;
use tokio::sync::watch;

use crate::{
    barrier::{ReadIndex, Round},
    convert,
    database::Databases,
    environment::Environment,
    error::{BarrierError, ProposeError, StartError},
    handle::{Consensus, Handle, Inner, Leadership, MemberStatus, Proposal, Role, Status},
    identity::Identity,
    log::{LogHandle, LogIdentity, SegmentLog},
    machine::{Machine, Progress, Replica},
    network::{
        Lane, Network, PeerAddress, PeerError,
        client::Shared,
        service::{Contacts, Service, Upcalls},
    },
    snapshot,
    types::{Applied, EncodedCommand, LogId, Member, NodeId, Types},
};

/// Timing of consensus. Defaults are those of the design for a local network.
#[derive(Clone, Debug)]
pub struct Timing {
    /// The leader's heartbeats, milliseconds apart.
    pub heartbeat_ms: u64,
    /// Shortest time without a leader before a member stands for election, in milliseconds.
    pub election_min_ms: u64,
    /// Longest such time, in milliseconds; at least four heartbeats. The leader's lease is half of it.
    pub election_max_ms: u64,
}

/// How much log is kept, and how much state may be replayed after a crash.
#[derive(Clone, Debug)]
pub struct Retention {
    /// The database is flushed this often if something was applied, in milliseconds.
    pub flush_interval_ms: u64,
    /// The log is cut when it holds more than this many bytes …
    pub snapshot_log_bytes: u64,
    /// … and keeps this many, so that a member that was down briefly needs no snapshot.
    pub keep_log_bytes: u64,
}

/// What a group is started with.
#[derive(Clone)]
pub struct Options {
    /// Holds `log/` and `kv/`, beside the identity.
    pub data_dir: PathBuf,
    /// Whose data directory it is; from [`Identity::load_or_create`].
    pub identity: Identity,
    /// The group.
    pub group_id: u32,
    /// Members that found the cluster, with the addresses of their peer listeners; empty for a member that joins.
    pub initial_members: BTreeMap<NodeId, String>,
    /// Where clients reach this node, told to other members.
    pub client_address: String,
    /// Opens databases.
    pub engine: Arc<dyn Engine>,
    /// Size of a log segment.
    pub segment_bytes: u32,
    /// Memory for entries that followers may still need.
    pub log_cache_bytes: u64,
    /// Largest body of an append, unless one entry is larger.
    pub append_body_bytes: u64,
    /// Timing of consensus.
    pub timing: Timing,
    /// How much log is kept.
    pub retention: Retention,
    /// How snapshots are sent.
    pub snapshot: snapshot::Options,
    /// How the log writer is driven.
    pub log_driver: crate::log::Driver,
}

type Raft<RT> = openraft::Raft<Types<RT>, Machine<RT>>;

/// The log may be cut at most this often.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);

/// A snapshot may take this long to be sent and installed.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Starts the group and its duties. The member takes part when this returns, but serves nothing before
/// [`Handle::wait_for_recovery`].
///
/// # Errors
///
/// [`StartError`] when the data directory is foreign, damaged or unreadable, or the options make no sense.
pub async fn start<RT: AsyncRuntime>(
    options: Options,
    environment: Environment,
) -> Result<Handle, StartError> {
    let identity = options.identity;
    let log = open_log(&options, &environment).await?;
    let databases = open_databases(&options, &environment).await?;
    let contacts = Arc::new(Contacts::new(options.client_address.clone(), Arc::clone(&environment.clock)));
    let replica = Replica::open(environment.clone(), Arc::clone(&databases), log.handle(), options.group_id)
        .map_err(|source| StartError::State { dir: databases.dir().to_owned(), source })?;
    let replica = Arc::new(replica);
    check_log_reaches_state(&options, &replica)?;

    let network = Network::<RT>::new(Shared {
        node_id: identity.node_id,
        cluster_id: identity.cluster_id,
        group_id: options.group_id,
        environment: environment.clone(),
        contacts: Arc::clone(&contacts),
        snapshot: options.snapshot.clone(),
        append_timeout: 2 * Duration::from_millis(options.timing.heartbeat_ms)
            + Duration::from_millis(options.timing.election_min_ms),
    });
    let config = configuration(&options)?;
    let machine = Machine::<RT>::new(Arc::clone(&replica));
    let raft = Raft::<RT>::new(identity.node_id, Arc::new(config), network, log, machine)
        .await
        .map_err(|fatal| StartError::Consensus(fatal.to_string()))?;
    initialize(&options, &raft).await?;
    Ok(assemble(options, environment, replica, contacts, raft))
}

async fn open_log(options: &Options, environment: &Environment) -> Result<SegmentLog, StartError> {
    let dir = options.data_dir.join("log");
    let log_options = crate::log::Options {
        vfs: Arc::clone(&environment.vfs),
        directory: dir.clone(),
        identity: LogIdentity {
            cluster_id: options.identity.cluster_id,
            node_id: options.identity.node_id,
            group_id: options.group_id,
        },
        segment_bytes: options.segment_bytes,
        cache_bytes: options.log_cache_bytes,
        append_body_bytes: options.append_body_bytes,
        driver: options.log_driver.clone(),
        blocking: {
            let executor = Arc::clone(&environment.executor);
            Arc::new(move |job| executor.spawn_blocking(job))
        },
        clock: {
            let clock = Arc::clone(&environment.clock);
            Arc::new(move || clock.monotonic())
        },
    };
    let opened = environment.blocking(move || SegmentLog::open(log_options)).await;
    opened.map_err(|source| StartError::Log { dir, source })
}

async fn open_databases(options: &Options, environment: &Environment) -> Result<Arc<Databases>, StartError> {
    let (engine, vfs) = (Arc::clone(&options.engine), Arc::clone(&environment.vfs));
    let dir = options.data_dir.join("kv");
    let opened = environment.blocking(move || Databases::open(engine, vfs, &dir)).await?;
    Ok(Arc::new(opened))
}

fn check_log_reaches_state(options: &Options, replica: &Replica) -> Result<(), StartError> {
    let applied = replica.progress.borrow().index();
    let last = replica.log.last_log_id().map_or(0, |log_id| log_id.index);
    // An installed snapshot may be ahead of the log, which openraft then purges. Without one, apply waits for the
    // log, so a database that is ahead has a log that lost its end.
    if applied > last && replica.databases.is_first() {
        return Err(StartError::LogBehindDatabase { dir: options.data_dir.clone(), applied, last });
    }
    Ok(())
}

fn configuration(options: &Options) -> Result<openraft::Config, StartError> {
    let timing = &options.timing;
    // openraft campaigns when the lease that the leader's last message granted has run out *and* a random time-out
    // has passed; the lease is its largest time-out. Half of ours for each keeps the sum within our bounds.
    let lease_ms = timing.election_max_ms / 2;
    let random_min_ms = timing.election_min_ms.saturating_sub(lease_ms).max(timing.heartbeat_ms + 1);
    let config = openraft::Config {
        cluster_name: "tidemark".to_owned(),
        heartbeat_interval: timing.heartbeat_ms,
        election_timeout_min: random_min_ms,
        election_timeout_max: lease_ms,
        install_snapshot_timeout: u64::try_from(SNAPSHOT_TIMEOUT.as_millis()).unwrap_or(u64::MAX),
        // Snapshots and purges are triggered by log bytes, not by a count of entries.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        enable_pre_vote: Some(true),
        // A restarted leader must not go on in a term whose leases it has forgotten.
        enable_leader_restore: Some(false),
        ..openraft::Config::default()
    };
    config.validate().map_err(|error| StartError::Configuration(error.to_string()))
}

async fn initialize<RT: AsyncRuntime>(options: &Options, raft: &Raft<RT>) -> Result<(), StartError> {
    let failed = |why: String| StartError::Consensus(why);
    if options.initial_members.is_empty() || raft.is_initialized().await.map_err(|e| failed(e.to_string()))? {
        return Ok(());
    }
    let members: BTreeMap<NodeId, Member> = options
        .initial_members
        .iter()
        .map(|(id, address)| (*id, Member { address: address.clone(), store_id: Bytes::new() }))
        .collect();
    match raft.initialize(members).await {
        // Another initial member may have been faster: its log is as good as ours.
        Ok(()) | Err(RaftError::APIError(openraft::errors::InitializeError::NotAllowed(_))) => Ok(()),
        Err(error) => Err(failed(error.to_string())),
    }
}

fn assemble<RT: AsyncRuntime>(
    options: Options,
    environment: Environment,
    replica: Arc<Replica>,
    contacts: Arc<Contacts>,
    raft: Raft<RT>,
) -> Handle {
    let identity = options.identity;
    let leadership = watch_leadership(&environment, identity.node_id, &raft, replica.progress.subscribe());
    let fault = watch_fault(&environment, &raft, &replica.log);
    let round_timeout = Duration::from_millis(options.timing.election_max_ms);
    let own_round = Arc::new(OwnRound { raft: raft.clone() });
    let read_index = ReadIndex::start(&environment, own_round, round_timeout);
    let remote_round = AnyRound {
        own: read_index.clone(),
        own_id: identity.node_id,
        leadership: leadership.clone(),
        raft: raft.clone(),
        environment: environment.clone(),
    };
    let barrier = ReadIndex::start(&environment, Arc::new(remote_round), round_timeout);
    run_duties(&environment, &options.retention, &replica, &raft);

    let upcalls: Arc<OnceLock<Arc<dyn Upcalls>>> = Arc::default();
    let receiver = snapshot::Receiver::new(
        Arc::clone(&replica.databases),
        identity.cluster_id,
        options.group_id,
        replica.progress.subscribe(),
    );
    let peer = Service::<RT> {
        raft: raft.clone(),
        environment: environment.clone(),
        contacts: Arc::clone(&contacts),
        digests: Arc::clone(&replica.digests),
        read_index,
        receiver,
        upcalls: Arc::clone(&upcalls),
    };
    Handle {
        inner: Arc::new(Inner {
            identity,
            group_id: options.group_id,
            consensus: Arc::new(Openraft { raft }),
            replica,
            contacts,
            transport: Arc::clone(&environment.transport),
            leadership,
            fault,
            barrier,
            upcalls,
            peer: Arc::new(peer),
        }),
    }
}

fn watch_leadership<RT: AsyncRuntime>(
    environment: &Environment,
    own_id: NodeId,
    raft: &Raft<RT>,
    mut progress: watch::Receiver<Progress>,
) -> watch::Receiver<Leadership> {
    let mut server = raft.server_metrics();
    let (sender, receiver) = watch::channel(Leadership::Unknown);
    environment.executor.spawn(Box::pin(async move {
        loop {
            let metrics = server.borrow_watched().clone();
            let leadership = if metrics.state == ServerState::Leader && metrics.vote.is_committed() {
                let term = metrics.vote.leader_id().term;
                let applied = progress.borrow_and_update().log_id;
                match applied {
                    Some(log_id) if log_id.committed_leader_id().term == term => Leadership::Ready { term },
                    _ => Leadership::Preparing,
                }
            } else {
                match metrics.current_leader {
                    Some(leader) if leader != own_id => Leadership::Following { leader },
                    _ => Leadership::Unknown,
                }
            };
            sender.send_if_modified(|current| {
                let changed = *current != leadership;
                *current = leadership;
                changed
            });
            let changed = if leadership == Leadership::Preparing {
                tokio::select! {
                    changed = server.changed() => changed.is_ok(),
                    changed = progress.changed() => changed.is_ok(),
                }
            } else {
                server.changed().await.is_ok()
            };
            if !changed {
                sender.send_replace(Leadership::Unknown);
                return;
            }
        }
    }));
    receiver
}

fn watch_fault<RT: AsyncRuntime>(
    environment: &Environment,
    raft: &Raft<RT>,
    log: &LogHandle,
) -> watch::Receiver<Option<String>> {
    let (sender, receiver) = watch::channel(None);
    let mut metrics = raft.metrics();
    let log = log.clone();
    environment.executor.spawn(Box::pin(async move {
        loop {
            let fault = match &metrics.borrow_watched().running_state {
                Ok(()) | Err(openraft::errors::Fatal::Stopped) => None,
                // The log's own words say more than what consensus makes of them.
                Err(fatal) => {
                    Some(log.current_fault().map_or_else(|| fatal.to_string(), |fault| fault.to_string()))
                }
            };
            if fault.is_some() {
                sender.send_replace(fault);
                return;
            }
            tokio::select! {
                changed = metrics.changed() => if changed.is_err() { return },
                fault = log.fault() => {
                    sender.send_replace(Some(fault.to_string()));
                    return;
                }
            }
        }
    }));
    receiver
}

fn run_duties<RT: AsyncRuntime>(
    environment: &Environment,
    retention: &Retention,
    replica: &Arc<Replica>,
    raft: &Raft<RT>,
) {
    let flush_interval = Duration::from_millis(retention.flush_interval_ms);
    environment.executor.spawn(Box::pin(flush_regularly(Arc::clone(replica), flush_interval)));
    let cut = cut_log_regularly(Arc::clone(replica), raft.clone(), retention.clone());
    environment.executor.spawn(Box::pin(cut));
}

async fn flush_regularly(replica: Arc<Replica>, interval: Duration) {
    let mut flushed = None;
    loop {
        tokio::time::sleep(interval).await;
        let applied = replica.progress.borrow().log_id;
        if applied == flushed {
            continue;
        }
        let flushing = Arc::clone(&replica);
        match replica.environment.blocking(move || flushing.flush()).await {
            Ok(_) => flushed = applied,
            // The log stays as long as it is needed; the next flush may succeed, and apply will tell otherwise.
            Err(fault) => tracing::error!(%fault, "could not flush the database"),
        }
    }
}

async fn cut_log_regularly<RT: AsyncRuntime>(replica: Arc<Replica>, raft: Raft<RT>, retention: Retention) {
    loop {
        tokio::time::sleep(MAINTENANCE_INTERVAL).await;
        if replica.log.stats().bytes_on_disk <= retention.snapshot_log_bytes {
            continue;
        }
        let Some(upto) = replica.log.purge_candidate(retention.keep_log_bytes) else { continue };
        let Some(applied) = replica.progress.borrow().log_id else { continue };
        tracing::info!(upto, applied = applied.index, "cutting the log");
        // openraft purges only behind a snapshot; building one here means flushing.
        if raft.trigger().snapshot().await.is_err() || wait_for_snapshot(&raft, upto).await.is_none() {
            continue;
        }
        if raft.trigger().purge_log(upto).await.is_err() {
            return;
        }
    }
}

/// A snapshot is a flush, which a slow disk may delay.
const SNAPSHOT_BUILD_TIMEOUT: Duration = Duration::from_secs(60);

async fn wait_for_snapshot<RT: AsyncRuntime>(raft: &Raft<RT>, upto: u64) -> Option<()> {
    let wait = raft.wait(Some(SNAPSHOT_BUILD_TIMEOUT));
    let built = wait.metrics(
        |metrics| metrics.snapshot.is_some_and(|snapshot| snapshot.index >= upto),
        "a snapshot behind the entries to purge",
    );
    built.await.ok().map(|_| ())
}

/// A read index from this member's own leadership.
struct OwnRound<RT: AsyncRuntime> {
    raft: Raft<RT>,
}

#[async_trait]
impl<RT: AsyncRuntime> Round for OwnRound<RT> {
    async fn read_index(&self) -> Result<LogId, BarrierError> {
        match self.raft.get_read_log_id(ReadPolicy::ReadIndex).await {
            Ok((read_log_id, _)) => Ok(*read_log_id.log_id()),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(_))) => {
                Err(BarrierError::NoLeader)
            }
            Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))) => {
                Err(BarrierError::NoQuorum)
            }
            Err(RaftError::Fatal(_)) => Err(BarrierError::Stopped),
        }
    }
}

/// A read index from whoever leads.
struct AnyRound<RT: AsyncRuntime> {
    own: ReadIndex,
    own_id: NodeId,
    leadership: watch::Receiver<Leadership>,
    raft: Raft<RT>,
    environment: Environment,
}

#[async_trait]
impl<RT: AsyncRuntime> Round for AnyRound<RT> {
    async fn read_index(&self) -> Result<LogId, BarrierError> {
        let leadership = *self.leadership.borrow();
        let leader = match leadership {
            Leadership::Ready { .. } | Leadership::Preparing => return self.own.local().await,
            Leadership::Unknown => return Err(BarrierError::NoLeader),
            Leadership::Following { leader } => leader,
        };
        debug_assert_ne!(leader, self.own_id);
        let address = {
            let metrics = self.raft.server_metrics();
            let metrics = metrics.borrow_watched();
            metrics.membership_config.membership().get_node(&leader).map(|member| member.address.clone())
        };
        let address = PeerAddress { node_id: leader, address: address.ok_or(BarrierError::NoLeader)? };
        let peer = self.environment.transport.connect(&address, Lane::Control);
        let answer = peer.read_index(tidemark_proto::peer::ReadIndexRequest {}).await;
        let answer = answer.map_err(|error: PeerError| BarrierError::LeaderUnreachable(error.to_string()))?;
        let log_id = answer.log_id.as_ref().map(convert::log_id_from_record);
        log_id.ok_or_else(|| BarrierError::LeaderUnreachable("an answer without a log id".to_owned()))
    }
}

/// openraft behind the face that the handle sees.
struct Openraft<RT: AsyncRuntime> {
    raft: Raft<RT>,
}

#[async_trait]
impl<RT: AsyncRuntime> Consensus for Openraft<RT> {
    async fn propose(&self, command: Bytes, term: u64) -> Result<Proposal, ProposeError> {
        let (sender, answer) = Types::<RT>::oneshot();
        let responder = OneshotResponder::new(sender);
        let request = self.raft.write(EncodedCommand(command)).with_leader(term).responder(responder);
        // Nothing reached the log if the core is gone.
        request.await.map_err(|_| ProposeError::NotProposed { leader: None })?;
        let answer = async move {
            match answer.await {
                Ok(Ok(written)) => match written.data {
                    Applied(Some(outcome)) => Ok((written.log_id, outcome)),
                    Applied(None) => Err(ProposeError::Unknown),
                },
                Ok(Err(error)) => Err(not_written(error)),
                // The core stopped with the command in its hands.
                Err(_) => Err(ProposeError::Unknown),
            }
        };
        Ok(Proposal { answer: Box::pin(answer) })
    }

    async fn transfer_leader(&self, to: NodeId) {
        // An error means that the core has stopped, and with it the leadership.
        let _ = self.raft.trigger().transfer_leader(to).await;
    }

    async fn trigger_snapshot(&self) {
        // As above.
        let _ = self.raft.trigger().snapshot().await;
    }

    async fn wait_for_recovery(&self) {
        // Without a time limit the only error is that the core stopped, which the fault tells.
        let _ = self.raft.wait_for_recovery(None).await;
    }

    async fn shutdown(&self) {
        // A core that panicked has nothing left to shut down.
        let _ = self.raft.shutdown().await;
    }

    fn status(&self) -> Status {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let membership = metrics.membership_config.membership();
        let voters: std::collections::BTreeSet<NodeId> = membership.voter_ids().collect();
        Status {
            role: match metrics.state {
                ServerState::Leader => Role::Leader,
                ServerState::Follower => Role::Follower,
                ServerState::Candidate => Role::Candidate,
                ServerState::Learner => Role::Learner,
                ServerState::Shutdown => Role::Stopped,
            },
            term: metrics.current_term,
            leader: metrics.current_leader,
            last_log_index: metrics.last_log_index.unwrap_or(0),
            committed_index: metrics.local_committed.map_or(0, |log_id| log_id.index),
            members: membership
                .nodes()
                .map(|(id, member)| MemberStatus {
                    node_id: *id,
                    peer_address: member.address.clone(),
                    voter: voters.contains(id),
                })
                .collect(),
        }
    }
}

/// openraft refuses with `ForwardToLeader` before anything enters the log; an entry that entered it and lost its
/// leader is `LogEntryDiscarded`.
fn not_written<RT: AsyncRuntime>(error: ClientWriteError<Types<RT>>) -> ProposeError {
    match error {
        ClientWriteError::ForwardToLeader(forward) => ProposeError::NotProposed { leader: forward.leader_id },
        ClientWriteError::PreconditionFailed(_) => ProposeError::NotProposed { leader: None },
        ClientWriteError::LogEntryDiscarded(_) | ClientWriteError::ChangeMembershipError(_) => {
            ProposeError::Unknown
        }
    }
}
