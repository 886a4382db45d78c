//! The composition root: the only place where concrete types meet.

mod listeners;

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tidemark_proto::peer;
use tidemark_raft::{
    Handle, Identity, Leadership, TokioRuntime, cluster_id,
    environment::{Environment, SystemClock, SystemRandom, TokioExecutor},
    error::StartError as GroupError,
    log::Driver,
    network::{
        PeerError, Stream,
        grpc::{GrpcOptions, GrpcTransport, PeerIdentity},
        service::Upcalls,
    },
    vfs::RealVfs,
};
use tidemark_storage::{EngineOptions, Mode, contract::Engine};
use tokio::{runtime::Runtime, sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{
    api::{Api, Parts, Readiness, limits::Limits},
    config::{Address, Config, Engine as EngineName},
    leader::{Router, Sequencer, SequencerOptions, accept},
};
use listeners::{bind, listen_error, serve_clients, serve_peers};

/// The Raft group that everything is placed on.
const GROUP: u32 = 0;

/// Why a node could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address could not be listened on.
    #[error("listen on {address}: {source}")]
    Listen {
        /// The address.
        address: Address,
        /// What happened.
        source: std::io::Error,
    },
    /// The engine could not be set up.
    #[error("set up the storage engine: {0}")]
    Engine(#[source] tidemark_storage::error::Error),
    /// The threads of consensus could not be started.
    #[error("start the threads of consensus: {0}")]
    Threads(#[source] std::io::Error),
    /// The Raft group could not be started.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// A private directory in memory could not be made.
    #[error("make a directory in memory at {}: {source}", path.display())]
    MemoryDirectory {
        /// The directory.
        path: PathBuf,
        /// What happened.
        source: std::io::Error,
    },
    /// The process ran out of something while it started.
    #[error("the start was interrupted")]
    Interrupted,
}

/// Why a running node ended by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// A disk failed, data is damaged, or an entry cannot be applied: the node must not go on.
    Fault(String),
    /// A listener ended.
    Listener(String),
}

/// A running node.
pub struct Node {
    raft: Handle,
    api: Arc<Api>,
    client_address: SocketAddr,
    readiness: watch::Sender<Readiness>,
    listeners: CancellationToken,
    served: watch::Receiver<Option<String>>,
    clients: Mutex<Option<JoinHandle<()>>>,
    executor: TokioExecutor,
    /// Consensus has threads of its own, so that client load cannot starve heartbeats.
    consensus: Mutex<Option<Consensus>>,
    shutdown_timeout: Duration,
    memory_dir: Option<PathBuf>,
}

impl Node {
    /// Starts a node. It takes part in its cluster when this returns, and serves clients as soon as it has
    /// recovered: until then requests wait, within their deadlines.
    ///
    /// # Errors
    ///
    /// [`StartError`].
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let engine = engine(&config)?;
        let memory_dir = memory_dir(&config)?;
        let clients = bind(&config.listen).await?;
        let client_address = clients.local_addr().map_err(listen_error(&config.listen))?;
        let advertised = config.advertise.clone().unwrap_or_else(|| client_address.into()).to_string();
        let consensus = Consensus::start(config.server.raft_threads)?;
        let data_dir = memory_dir.clone().unwrap_or_else(|| config.data_dir.clone());
        let grpc = grpc_options(&config);
        let group = GroupParts { data_dir, engine, advertised: advertised.clone(), grpc: grpc.clone() };
        let executor = TokioExecutor::new(consensus.runtime().handle().clone());
        let (raft, environment) =
            consensus.run(start_group(config.clone(), group, executor.clone())).await??;

        let (readiness, readiness_receiver) = watch::channel(Readiness::Recovering);
        let sequencer = Sequencer::start(raft.clone(), &environment, sequencer_options(&config));
        let router = Arc::new(Router::new(raft.clone(), environment.clone(), sequencer.clone()));
        let api = Arc::new(Api::new(Parts {
            raft: raft.clone(),
            router,
            // Reads block on the threads of clients, not on those of consensus.
            environment: Environment {
                executor: Arc::new(TokioExecutor::new(tokio::runtime::Handle::current())),
                ..environment
            },
            limits: Limits::from(&config),
            readiness: readiness_receiver.clone(),
            request_timeout: Duration::from_millis(config.server.request_timeout_ms),
            client_address: advertised,
        }));
        raft.serve_upcalls(Arc::new(NodeUpcalls { api: Arc::downgrade(&api), sequencer }));

        let listeners = CancellationToken::new();
        let (ended, served) = watch::channel(None);
        if let Some(address) = config.peer_address() {
            let listener = {
                let address = address.clone();
                consensus.run(async move { bind(&address).await }).await??
            };
            consensus.runtime().spawn(serve_peers(
                raft.clone(),
                grpc,
                listener,
                listeners.clone(),
                ended.clone(),
            ));
        }
        let clients = tokio::spawn(serve_clients(
            Arc::clone(&api),
            clients,
            listeners.clone(),
            ended,
            readiness_receiver,
        ));
        spawn_recovery(raft.clone(), readiness.clone());
        Ok(Self {
            raft,
            api,
            client_address,
            readiness,
            listeners,
            served,
            clients: Mutex::new(Some(clients)),
            executor,
            consensus: Mutex::new(Some(consensus)),
            shutdown_timeout: Duration::from_millis(config.server.shutdown_timeout_ms),
            memory_dir,
        })
    }

    /// The address that clients are served on.
    pub fn client_address(&self) -> SocketAddr {
        self.client_address
    }

    /// What the node offers, without a socket.
    pub fn api(&self) -> &Arc<Api> {
        &self.api
    }

    /// Waits until the node serves everything, not only `LOCAL` reads.
    pub async fn recovered(&self) {
        let mut readiness = self.readiness.subscribe();
        // The sender is in `self`.
        let _ = readiness.wait_for(|readiness| *readiness != Readiness::Recovering).await;
    }

    /// Waits until the node ends by itself, and says why.
    pub async fn stopped(&self) -> StopReason {
        let (mut fault, mut served) = (self.raft.fault(), self.served.clone());
        let why = |reason: &Option<String>| reason.clone().unwrap_or_else(|| "it ended".to_owned());
        tokio::select! {
            fault = fault.wait_for(Option::is_some) => StopReason::Fault(match fault {
                Ok(fault) => why(&fault),
                Err(_) => "consensus ended".to_owned(),
            }),
            ended = served.wait_for(Option::is_some) => StopReason::Listener(match ended {
                Ok(ended) => why(&ended),
                Err(_) => "the listeners ended".to_owned(),
            }),
        }
    }

    /// Stops in order: hands leadership over, answers what is in progress, flushes log and database.
    pub async fn shutdown(self) {
        let deadline = tokio::time::Instant::now() + self.shutdown_timeout;
        self.readiness.send_replace(Readiness::Stopping);
        if tokio::time::timeout_at(deadline, self.stop()).await.is_err() {
            tracing::warn!("the shutdown took too long; the next start replays the log");
        }
    }

    async fn stop(&self) {
        self.hand_over().await;
        self.listeners.cancel();
        let clients = self.clients.lock().take();
        if let Some(clients) = clients
            && tokio::time::timeout(LAST_ANSWERS_TIMEOUT, clients).await.is_err()
        {
            tracing::warn!("some clients keep their connections; they are cut");
        }
        let raft = self.raft.clone();
        let consensus = self.consensus.lock().take();
        let Some(consensus) = consensus else { return };
        // An error means that the task was cancelled with the runtime: nothing is left to stop.
        let _ = consensus.run(async move { raft.shutdown().await }).await;
        self.executor.stop();
        consensus.end().await;
    }

    /// Gives leadership to the voter whose log reaches furthest, if there is another one.
    async fn hand_over(&self) {
        let mut leadership = self.raft.leadership();
        if !matches!(*leadership.borrow_and_update(), Leadership::Ready { .. }) {
            return;
        }
        let own_id = self.raft.identity().node_id;
        let info = self.api.cluster_info().await;
        let others =
            info.members.iter().filter(|member| member.voter && member.node_id != own_id && member.reachable);
        let Some(successor) = others.max_by_key(|member| member.last_log_index) else { return };
        tracing::info!(successor = successor.node_id, "handing leadership over");
        self.raft.transfer_leader(successor.node_id).await;
        let moved = leadership.wait_for(|leadership| !matches!(leadership, Leadership::Ready { .. }));
        if tokio::time::timeout(HAND_OVER_TIMEOUT, moved).await.is_err() {
            tracing::warn!("leadership was not taken over in time; the others elect a leader themselves");
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.listeners.cancel();
        self.executor.stop();
        drop(self.consensus.lock().take());
        if let Some(dir) = &self.memory_dir
            && let Err(error) = std::fs::remove_dir_all(dir)
        {
            tracing::warn!(dir = %dir.display(), %error, "could not remove the directory in memory");
        }
    }
}

/// How long a node that stops waits for clients to take their last answers.
const LAST_ANSWERS_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a node that stops waits for its own tasks.
const LAST_TASKS_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a leader that stops waits for its successor.
const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(2);

/// The threads of consensus.
struct Consensus {
    runtime: Option<Runtime>,
}

impl Consensus {
    fn start(threads: usize) -> Result<Self, StartError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("tidemark-raft")
            .enable_all()
            .build()
            .map_err(StartError::Threads)?;
        Ok(Self { runtime: Some(runtime) })
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("the runtime is taken only when this is dropped")
    }

    /// Waits until all tasks are gone, and with them what they hold, such as the database.
    async fn end(mut self) {
        if let Some(runtime) = self.runtime.take() {
            // An error means that this runtime is ending too.
            let _ = tokio::task::spawn_blocking(move || runtime.shutdown_timeout(LAST_TASKS_TIMEOUT)).await;
        }
    }

    /// Runs `task` on these threads.
    async fn run<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, StartError> {
        self.runtime().spawn(task).await.map_err(|_| StartError::Interrupted)
    }
}

impl Drop for Consensus {
    fn drop(&mut self) {
        // A failed start drops this inside another runtime, where waiting for threads is not allowed.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

struct GroupParts {
    data_dir: PathBuf,
    engine: Arc<dyn Engine>,
    advertised: String,
    grpc: GrpcOptions,
}

async fn start_group(
    config: Config,
    parts: GroupParts,
    executor: TokioExecutor,
) -> Result<(Handle, Environment), StartError> {
    let node_id = config.node_id();
    let vfs = Arc::new(RealVfs);
    let founding: Vec<(u64, String)> =
        config.cluster.initial_members.iter().map(|(id, address)| (*id, address.to_string())).collect();
    let cluster = (!founding.is_empty()).then(|| cluster_id(&config.cluster.id_token, &founding));
    let clock = Arc::new(SystemClock::default());
    let random = Arc::new(SystemRandom);
    let executor: Arc<dyn tidemark_raft::environment::Executor> = Arc::new(executor);
    let identity = Identity::load_or_create(&*vfs, &*random, &parts.data_dir, cluster, node_id)?;
    let peer_identity = PeerIdentity { cluster_id: identity.cluster_id, group_id: GROUP, node_id };
    let environment = Environment {
        clock,
        random,
        vfs,
        transport: Arc::new(GrpcTransport::new(peer_identity, parts.grpc)),
        executor,
    };
    let initial_members = if founding.is_empty() {
        // A single node has no peers to be reached by, unless it listens for some.
        let address = config.peer_address().map(ToString::to_string).unwrap_or_default();
        [(node_id, address)].into()
    } else {
        founding.into_iter().collect()
    };
    let options = tidemark_raft::Options {
        data_dir: parts.data_dir,
        identity,
        group_id: GROUP,
        initial_members,
        client_address: parts.advertised,
        engine: parts.engine,
        segment_bytes: u32::try_from(config.raft.segment_bytes).unwrap_or(u32::MAX),
        log_cache_bytes: config.raft.log_cache_bytes,
        append_body_bytes: config.limits.peer_append_bytes,
        timing: tidemark_raft::Timing {
            heartbeat_ms: config.raft.heartbeat_ms,
            election_min_ms: config.raft.election_min_ms,
            election_max_ms: config.raft.election_max_ms,
        },
        retention: tidemark_raft::Retention {
            flush_interval_ms: config.storage.flush_interval_ms,
            snapshot_log_bytes: config.raft.snapshot_log_bytes,
            keep_log_bytes: config.raft.keep_log_bytes,
        },
        snapshot: tidemark_raft::snapshot::Options {
            block_bytes: SNAPSHOT_BLOCK_BYTES,
            bytes_per_second: config.raft.snapshot_bytes_per_second,
        },
        log_driver: Driver::Thread,
    };
    let handle = tidemark_raft::start::<TokioRuntime>(options, environment.clone()).await?;
    Ok((handle, environment))
}

/// Rows of a snapshot that travel together.
const SNAPSHOT_BLOCK_BYTES: usize = 256 * 1024;

/// A message between members holds an entry and what frames it.
const PEER_MESSAGE_OVERHEAD_BYTES: u64 = 64 * 1024;

fn grpc_options(config: &Config) -> GrpcOptions {
    let entry = config.limits.max_entry_bytes.max(config.limits.peer_append_bytes);
    GrpcOptions {
        message_bytes_max: usize::try_from(entry + PEER_MESSAGE_OVERHEAD_BYTES).unwrap_or(usize::MAX),
        connect_timeout: Duration::from_millis(config.raft.election_min_ms),
        keep_alive: Duration::from_millis(config.raft.election_max_ms),
    }
}

fn sequencer_options(config: &Config) -> SequencerOptions {
    SequencerOptions {
        queue_requests: config.limits.queue_requests,
        queue_bytes: usize::try_from(config.limits.queue_bytes).unwrap_or(usize::MAX),
        entry_requests: config.sequencer.entry_requests,
        entry_events: config.sequencer.entry_events,
        entry_bytes: usize::try_from(config.sequencer.entry_bytes).unwrap_or(usize::MAX),
        max_entry_bytes: config.limits.max_entry_bytes,
        batch_delay: Duration::from_millis(config.sequencer.batch_delay_ms),
        entries_in_flight: config.sequencer.entries_in_flight,
        flush_timeout: Duration::from_millis(config.sequencer.flush_timeout_ms),
    }
}

fn engine(config: &Config) -> Result<Arc<dyn Engine>, StartError> {
    let bytes = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    let (name, mode) = match config.engine {
        EngineName::Memory => (tidemark_storage::default_engine(), Mode::Memory),
        EngineName::RocksDb | EngineName::Sqlite => (config.engine.name(), Mode::Disk),
    };
    let options = EngineOptions {
        mode,
        block_cache_bytes: bytes(config.storage.block_cache_bytes),
        memtable_bytes: bytes(config.storage.memtable_bytes),
    };
    tidemark_storage::by_name(name, &options).map_err(StartError::Engine)
}

/// A node that keeps nothing has its log in shared memory: one code path, and nothing to find after a restart.
fn memory_dir(config: &Config) -> Result<Option<PathBuf>, StartError> {
    if config.engine != EngineName::Memory {
        return Ok(None);
    }
    let path = PathBuf::from("/dev/shm").join(format!("tidemark-{}", uuid::Uuid::new_v4()));
    std::fs::create_dir_all(&path)
        .map(|()| Some(path.clone()))
        .map_err(|source| StartError::MemoryDirectory { path, source })
}

fn spawn_recovery(raft: Handle, readiness: watch::Sender<Readiness>) {
    tokio::spawn(async move {
        raft.wait_for_recovery().await;
        readiness.send_if_modified(|readiness| {
            let recovering = *readiness == Readiness::Recovering;
            if recovering {
                *readiness = Readiness::Serving;
                tracing::info!("recovered; serving");
            }
            recovering
        });
    });
}

struct NodeUpcalls {
    /// Weak, for the API holds the group that holds this.
    api: Weak<Api>,
    sequencer: Sequencer,
}

#[async_trait]
impl Upcalls for NodeUpcalls {
    async fn forward(
        &self,
        requests: Stream<peer::ForwardRequest>,
    ) -> Result<Stream<Result<peer::ForwardResponse, PeerError>>, PeerError> {
        Ok(accept(self.sequencer.clone(), requests))
    }

    async fn describe(&self) -> Result<peer::DescribeResponse, PeerError> {
        let api =
            self.api.upgrade().ok_or_else(|| PeerError::Unavailable("the node is stopping".to_owned()))?;
        Ok(api.describe().await)
    }
}
