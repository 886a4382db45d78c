//! A simulated node: disks that outlive it, and the real raft, sequencer, router and API on top.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tidemark_node::{
    api::{Api, Parts, Readiness, limits::Limits},
    leader::{Router, Sequencer, SequencerOptions, accept},
};
use tidemark_proto::peer;
use tidemark_raft::{
    Handle, Identity, Leadership, Retention, Role, SimulatedRuntime, Timing, cluster_id,
    environment::{Environment, Executor},
    log::Driver,
    network::{PeerError, Stream, service::Upcalls},
    vfs::SimulatedDisk,
};
use tidemark_storage::model::{ModelDisk, ModelEngine};
use tokio::sync::watch;

use super::{
    executor::SimulatedExecutor,
    network::{Network, Sender},
    outside::{SimulatedClock, SimulatedRandom},
    trace::{Trace, What},
};
use crate::history::{AppliedEntry, Election};

const DATA_DIR: &str = "/data";

/// How one cluster's nodes are set up.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Size of a log segment.
    pub segment_bytes: u32,
    /// Memory for entries.
    pub log_cache_bytes: u64,
    /// When the log is cut.
    pub retention: Retention,
    /// Rows of a snapshot that travel together.
    pub snapshot_block_bytes: usize,
    /// Entries that are proposed and not yet applied.
    pub entries_in_flight: usize,
}

/// How a node goes down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The power goes: of what was not synced, anything may survive.
    PowerLoss,
    /// The process is killed: what it wrote stays, what it held in memory is gone.
    Kill,
}

/// What is running.
#[derive(Clone)]
pub struct Running {
    /// The group.
    pub raft: Handle,
    /// What clients reach.
    pub api: Arc<Api>,
    /// Its tasks.
    pub executor: SimulatedExecutor,
}

enum Life {
    Down,
    Starting(SimulatedExecutor),
    Up(Running),
}

struct Inner {
    id: u64,
    profile: Profile,
    disk: SimulatedDisk,
    model: ModelDisk,
    clock: SimulatedClock,
    network: Network,
    trace: Trace,
    random: Mutex<SmallRng>,
    life: Mutex<Life>,
}

/// A node. Clones are the same one.
#[derive(Clone)]
pub struct Node {
    inner: Arc<Inner>,
}

impl Node {
    /// A node that was never started.
    pub fn new(
        id: u64,
        seed: u64,
        profile: Profile,
        clock: SimulatedClock,
        network: Network,
        trace: Trace,
    ) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let disk = SimulatedDisk::new(random.random());
        let inner = Inner {
            id,
            profile,
            disk,
            model: ModelDisk::new(),
            clock,
            network,
            trace,
            random: Mutex::new(random),
            life: Mutex::new(Life::Down),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Its id.
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// Its clock.
    pub fn clock(&self) -> &SimulatedClock {
        &self.inner.clock
    }

    /// What is running, once the start is over.
    pub fn running(&self) -> Option<Running> {
        match &*self.inner.life.lock() {
            Life::Up(running) => Some(running.clone()),
            Life::Down | Life::Starting(_) => None,
        }
    }

    /// Whether it is neither up nor starting.
    pub fn is_down(&self) -> bool {
        matches!(*self.inner.life.lock(), Life::Down)
    }

    /// Starts the node on the members `members`. It comes up by itself; nothing happens unless it is down.
    pub fn start(&self, members: &BTreeMap<u64, String>, sync_latency: Duration) {
        if !self.is_down() {
            return;
        }
        let executor = SimulatedExecutor::new(self.inner.random.lock().random());
        *self.inner.life.lock() = Life::Starting(executor.clone());
        let (node, members, life) = (self.clone(), members.clone(), executor.clone());
        executor.spawn(Box::pin(async move {
            // A panic ends the simulation: a node that cannot start again after a crash has lost something.
            let running = node.bring_up(members, sync_latency, life).await;
            *node.inner.life.lock() = Life::Up(running);
        }));
    }

    /// Takes the node down at once.
    pub fn crash(&self, crash: Crash) {
        let life = std::mem::replace(&mut *self.inner.life.lock(), Life::Down);
        let executor = match &life {
            Life::Down => return,
            Life::Starting(executor) => executor,
            Life::Up(running) => &running.executor,
        };
        self.inner.network.detach(self.inner.id);
        executor.crash();
        match crash {
            Crash::PowerLoss => {
                self.inner.disk.cut_power();
                self.inner.disk.restart();
            }
            Crash::Kill => self.inner.disk.restart_process(),
        }
        let mut random = self.inner.random.lock();
        self.inner.model.crash(|_, unflushed| random.random_range(0..=unflushed));
        if let Life::Up(running) = life {
            // Consensus has tasks of its own. Cut off from disk and network they do no more harm; this ends them.
            let seed = random.random();
            tokio::spawn(SimulatedRuntime::scope(seed, async move { running.raft.shutdown().await }));
        }
    }

    async fn bring_up(
        &self,
        members: BTreeMap<u64, String>,
        sync_latency: Duration,
        executor: SimulatedExecutor,
    ) -> Running {
        let environment = self.environment(&executor);
        let options = self.options(&environment, members, &executor, sync_latency);
        let raft = tidemark_raft::start::<SimulatedRuntime>(options, environment.clone())
            .await
            .expect("a node starts on what a crash has left");
        let (readiness, readiness_receiver) = watch::channel(Readiness::Recovering);
        let limits = Limits::DEFAULT;
        let sequencer = Sequencer::start(raft.clone(), &environment, self.sequencer_options(&limits, &raft));
        let router = Arc::new(Router::new(raft.clone(), environment.clone(), sequencer.clone()));
        let api = Arc::new(Api::new(Parts {
            raft: raft.clone(),
            router,
            environment: environment.clone(),
            limits,
            readiness: readiness_receiver,
            request_timeout: Duration::from_secs(5),
            client_address: format!("client-{}", self.inner.id),
        }));
        raft.serve_upcalls(Arc::new(SimulatedUpcalls { api: Arc::clone(&api), sequencer }));
        let recovering = raft.clone();
        executor.spawn(Box::pin(async move {
            recovering.wait_for_recovery().await;
            readiness.send_replace(Readiness::Serving);
        }));
        self.watch(&raft, &executor);
        self.inner.network.attach(self.inner.id, raft.peer_service(), executor.clone());
        Running { raft, api, executor }
    }

    fn environment(&self, executor: &SimulatedExecutor) -> Environment {
        let sender = Sender { node: self.inner.id, executor: executor.clone() };
        Environment {
            clock: Arc::new(self.inner.clock.clone()),
            random: Arc::new(SimulatedRandom::new(self.inner.random.lock().random())),
            vfs: Arc::new(self.inner.disk.vfs()),
            transport: self.inner.network.transport(sender),
            executor: Arc::new(executor.clone()),
        }
    }

    fn options(
        &self,
        environment: &Environment,
        members: BTreeMap<u64, String>,
        executor: &SimulatedExecutor,
        sync_latency: Duration,
    ) -> tidemark_raft::Options {
        let founding: Vec<(u64, String)> = members.clone().into_iter().collect();
        let cluster = cluster_id("simulation", &founding);
        let data_dir = Path::new(DATA_DIR);
        let (vfs, random) = (&*environment.vfs, &*environment.random);
        let identity = Identity::load_or_create(vfs, random, data_dir, Some(cluster), self.inner.id)
            .expect("the identity survives every crash");
        let profile = &self.inner.profile;
        let limits = Limits::DEFAULT;
        tidemark_raft::Options {
            data_dir: data_dir.to_owned(),
            identity,
            group_id: 0,
            initial_members: members,
            client_address: format!("client-{}", self.inner.id),
            engine: Arc::new(ModelEngine::new(self.inner.model.clone())),
            segment_bytes: profile.segment_bytes,
            log_cache_bytes: profile.log_cache_bytes,
            append_body_bytes: limits.peer_append_bytes,
            timing: Timing { heartbeat_ms: 200, election_min_ms: 1_000, election_max_ms: 2_000 },
            retention: profile.retention.clone(),
            snapshot: tidemark_raft::snapshot::Options {
                block_bytes: profile.snapshot_block_bytes,
                bytes_per_second: 16 << 20,
            },
            log_driver: Driver::Task { spawn: executor.surviving(), sync_latency },
        }
    }

    fn sequencer_options(&self, limits: &Limits, raft: &Handle) -> SequencerOptions {
        let bytes = |limit: u64| usize::try_from(limit).expect("the default limits fit in memory");
        SequencerOptions {
            queue_requests: limits.queue_requests,
            queue_bytes: bytes(limits.queue_bytes),
            entry_requests: limits.entry_requests,
            entry_events: limits.entry_events,
            // Segments are small here, and an entry has to fit into one.
            entry_bytes: bytes(u64::from(self.inner.profile.segment_bytes) / 4),
            max_entry_bytes: raft.log().entry_bytes_max(),
            batch_delay: Duration::ZERO,
            entries_in_flight: self.inner.profile.entries_in_flight,
            flush_timeout: Duration::from_secs(30),
        }
    }

    /// Notes elections and applied entries in the trace, and ends the simulation if the node stops by itself.
    fn watch(&self, raft: &Handle, executor: &SimulatedExecutor) {
        let (node, trace) = (self.inner.id, self.inner.trace.clone());
        let (handle, mut leadership) = (raft.clone(), raft.leadership());
        executor.spawn(Box::pin(async move {
            let mut known = None;
            loop {
                let term = match *leadership.borrow_and_update() {
                    Leadership::Ready { term } => Some(term),
                    Leadership::Preparing | Leadership::Following { .. } | Leadership::Unknown => {
                        let status = handle.status();
                        (status.role == Role::Leader).then_some(status.term)
                    }
                };
                if let Some(term) = term.filter(|term| known != Some(*term)) {
                    trace.note(What::Elected(Election { term, node }));
                    known = Some(term);
                }
                if leadership.changed().await.is_err() {
                    return;
                }
            }
        }));
        let (trace, mut progress) = (self.inner.trace.clone(), raft.progress());
        executor.spawn(Box::pin(async move {
            while progress.changed().await.is_ok() {
                let applied = progress.borrow_and_update().log_id;
                let Some(log_id) = applied.as_ref().map(tidemark_raft::log_id_to_record) else { continue };
                let entry = AppliedEntry { node, index: log_id.index, term: log_id.term };
                trace.note(What::Applied(entry));
            }
        }));
        let mut fault = raft.fault();
        executor.spawn(Box::pin(async move {
            if let Ok(fault) = fault.wait_for(Option::is_some).await {
                panic!(
                    "node {node} stopped by itself: {}",
                    fault.as_deref().unwrap_or("it does not say why")
                );
            }
        }));
    }
}

struct SimulatedUpcalls {
    api: Arc<Api>,
    sequencer: Sequencer,
}

#[async_trait]
impl Upcalls for SimulatedUpcalls {
    async fn forward(
        &self,
        requests: Stream<peer::ForwardRequest>,
    ) -> Result<Stream<Result<peer::ForwardResponse, PeerError>>, PeerError> {
        Ok(accept(self.sequencer.clone(), requests))
    }

    async fn describe(&self) -> Result<peer::DescribeResponse, PeerError> {
        Ok(self.api.describe().await)
    }
}
