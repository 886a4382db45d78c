//! Starts one Raft group on this node.

mod adapter;
mod duties;
mod observe;
mod rounds;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use openraft::{AsyncRuntime, SnapshotPolicy, errors::RaftError};
use tidemark_storage::contract::Engine;

use self::{
    adapter::Openraft,
    duties::run_duties,
    observe::{watch_fault, watch_leadership},
    rounds::{AnyRound, OwnRound},
};
use crate::{
    barrier::ReadIndex,
    database::Databases,
    environment::Environment,
    error::StartError,
    handle::{Handle, Inner},
    identity::Identity,
    log::{LogIdentity, SegmentLog},
    machine::{Machine, Replica},
    network::{
        Network,
        client::Shared,
        service::{Contacts, Service, Upcalls},
    },
    snapshot,
    types::{Member, NodeId, Types},
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
