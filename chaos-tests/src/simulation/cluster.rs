//! Three simulated nodes and everything that can be done to them from outside.

use std::{collections::BTreeMap, time::Duration};

use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tidemark_node::api::Api;
use tidemark_proto::v1;
use tidemark_raft::{environment::Executor, log_id_to_record, types::Payload};
use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};

use super::{
    network::Network,
    node::{Node, Profile, Running},
    outside::SimulatedClock,
    trace::Trace,
};
use crate::history::{self, FinalState, LogView, LoggedEntry, SeenEvent};

/// Nodes of a simulated cluster.
pub const NODES: u64 = 3;

/// Events of one page of a read.
const PAGE_EVENTS: u32 = 10_000;

/// Bytes of a log that are compared at once.
const LOG_BYTES: u64 = u64::MAX;

/// A node did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// It is down and got nothing.
    NotSent,
    /// It crashed with the request in its hands, or took too long.
    Lost,
}

/// The cluster.
#[derive(Clone)]
pub struct Cluster {
    /// The nodes by id.
    pub nodes: BTreeMap<u64, Node>,
    /// What connects them.
    pub network: Network,
    /// What happened.
    pub trace: Trace,
    members: BTreeMap<u64, String>,
}

impl Cluster {
    /// A cluster of nodes that were never started, with clocks that differ.
    pub fn new(seed: u64, profile: &Profile, trace: &Trace) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let network = Network::new(random.random(), trace.clone());
        let members: BTreeMap<u64, String> = (1..=NODES).map(|id| (id, format!("peer-{id}"))).collect();
        let mut node = |id: u64| {
            let clock =
                SimulatedClock::new(random.random_range(-2_000..=2_000), random.random_range(-200..=200));
            (id, Node::new(id, random.random(), profile.clone(), clock, network.clone(), trace.clone()))
        };
        let nodes = members.keys().map(|id| node(*id)).collect();
        Self { nodes, network, trace: trace.clone(), members }
    }

    /// Starts a node; nothing happens unless it is down.
    pub fn start(&self, id: u64, sync_latency: Duration) {
        self.nodes[&id].start(&self.members, sync_latency);
    }

    /// Starts all nodes that are down, on fast disks.
    pub fn start_all(&self) {
        for id in self.nodes.keys() {
            self.start(*id, Duration::from_millis(1));
        }
    }

    /// Every node that is up.
    pub fn running(&self) -> Vec<(u64, Running)> {
        self.nodes.iter().filter_map(|(id, node)| Some((*id, node.running()?))).collect()
    }

    /// The leader as a node that is up knows it.
    pub fn leader(&self) -> Option<u64> {
        let leads = |(_, running): &(u64, Running)| {
            let status = running.raft.status();
            status.leader.map(|leader| (status.term, leader))
        };
        self.running().iter().filter_map(leads).max().map(|(_, leader)| leader)
    }

    /// Makes a request to a node, on the node's own tasks: a crash takes the request with it.
    ///
    /// # Errors
    ///
    /// [`NoAnswer`] if the node is down, crashes or takes longer than `deadline`.
    pub async fn ask<T, F>(
        &self,
        node: u64,
        deadline: Instant,
        request: impl FnOnce(std::sync::Arc<Api>) -> F + Send + 'static,
    ) -> Result<T, NoAnswer>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let running = self.nodes[&node].running().ok_or(NoAnswer::NotSent)?;
        let (sender, answer) = oneshot::channel();
        running.executor.spawn(Box::pin(async move {
            // The client may have given up.
            let _ = sender.send(request(running.api).await);
        }));
        timeout_at(deadline, answer).await.ok().and_then(Result::ok).ok_or(NoAnswer::Lost)
    }

    /// The logs of all nodes that are up, at this moment.
    pub async fn logs(&self) -> Vec<LogView> {
        let mut logs = Vec::new();
        for (node, running) in self.running() {
            // A log that ended in a crash meanwhile cannot be read, and need not be.
            let Ok(entries) = running.raft.log().reader().read_limited(0, u64::MAX, LOG_BYTES).await else {
                continue;
            };
            let logged = |entry: &tidemark_raft::types::Entry| {
                let log_id = log_id_to_record(&entry.log_id);
                LoggedEntry { index: log_id.index, term: log_id.term, payload: payload_hash(&entry.payload) }
            };
            logs.push(LogView { node, entries: entries.iter().map(logged).collect() });
        }
        logs
    }

    /// All events that a node holds, whatever it has heard of others.
    ///
    /// # Errors
    ///
    /// What the node answers.
    pub async fn local_events(&self, node: u64, boundary: &str) -> Result<FinalState, String> {
        let mut events = Vec::new();
        let mut from = None;
        loop {
            let request = read_request(boundary, from, v1::read_consistency::Level::Local(v1::Local {}));
            let deadline = Instant::now() + Duration::from_secs(5);
            let answer =
                self.ask(node, deadline, move |api| async move { api.get_events(request, deadline).await });
            let page = answer.await.map_err(|_| format!("node {node} does not answer"))?;
            let page = page.map_err(|error| format!("read from node {node}: {error}"))?;
            events.extend(history::seen(page.events));
            match page.next_position.filter(|_| page.has_more) {
                Some(next) => from = Some(next),
                None => return Ok(FinalState { node, events, digest: Vec::new() }),
            }
        }
    }

    /// All events from the oldest one on, as far as one page goes.
    pub async fn read(
        &self,
        node: u64,
        boundary: &str,
        level: v1::read_consistency::Level,
        deadline: Instant,
    ) -> Option<Vec<SeenEvent>> {
        let request = read_request(boundary, None, level);
        let answer =
            self.ask(node, deadline, move |api| async move { api.get_events(request, deadline).await });
        let page = answer.await.ok()?.ok()?;
        assert!(!page.has_more, "a workload fits into one page");
        Some(history::seen(page.events))
    }
}

fn read_request(
    boundary: &str,
    from_position: Option<v1::Position>,
    level: v1::read_consistency::Level,
) -> v1::GetEventsRequest {
    v1::GetEventsRequest {
        boundary: boundary.to_owned(),
        from_position,
        count: PAGE_EVENTS,
        consistency: Some(v1::ReadConsistency { level: Some(level) }),
        ..v1::GetEventsRequest::default()
    }
}

fn payload_hash(payload: &Payload) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    match payload {
        Payload::Blank => hasher.update(b"blank"),
        Payload::Normal(command) => hasher.update(b"command").update(&command.0),
        Payload::Membership(membership) => hasher.update(format!("{membership:?}").as_bytes()),
    };
    *hasher.finalize().as_bytes()
}
