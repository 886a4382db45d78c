//! Which nodes there are and which one to ask first.
//!
//! The preferred node is the leader as far as known. It changes at once when it fails or names another leader; a
//! background task asks all nodes for the members, more often while something is wrong. Nodes forward, so a wrong
//! guess costs time and never correctness.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::future::join_all;
use parking_lot::Mutex;
use tidemark_proto::v1::cluster_client::ClusterClient;
use tidemark_proto::v1::{GetClusterInfoRequest, GetClusterInfoResponse};
use tidemark_proto::{ApiError, LeaderHint, UnknownCause};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tonic::Request;

use crate::error::Error;
use crate::node::{Node, attempt};
use crate::options::{Discovery, Options};
use crate::retry::Failure;

/// For one answer about the cluster.
const INFO_TIMEOUT: Duration = Duration::from_secs(1);
/// Between two rounds of questions while no leader is known.
const REFRESH_PAUSE: Duration = Duration::from_millis(200);
/// More members than this are not learned: a cluster has at most a handful.
const NODES_MAX: usize = 64;

pub(crate) struct Topology {
    options: Options,
    /// As given; they stay, in case that members cannot be reached where they say.
    seeds: Vec<Arc<Node>>,
    view: ArcSwap<View>,
    /// Held while the view is replaced.
    changing: Mutex<()>,
    refresh_wanted: Arc<Notify>,
}

/// Never without nodes.
#[derive(Clone)]
struct View {
    nodes: Vec<Arc<Node>>,
    preferred: Arc<Node>,
}

/// What one round of questions found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refreshed {
    /// Nobody answered.
    Unreachable,
    /// Somebody answered, and no leader that can be tried is known.
    NoLeader,
    /// The leader is preferred now.
    Leader,
}

impl Topology {
    pub(crate) fn new(options: Options) -> Result<Self, Error> {
        let seeds: Vec<_> = options
            .addresses
            .iter()
            .map(|address| Node::new(address, &options).map(Arc::new))
            .collect::<Result<_, _>>()?;
        let preferred = seeds.first().ok_or(Error::NoAddress)?.clone();
        let view = ArcSwap::from_pointee(View { nodes: seeds.clone(), preferred });
        let refresh_wanted = Arc::new(Notify::new());
        Ok(Self { options, seeds, view, changing: Mutex::new(()), refresh_wanted })
    }

    pub(crate) fn preferred(&self) -> Arc<Node> {
        self.view.load().preferred.clone()
    }

    /// Draws the conclusions from a failed attempt.
    pub(crate) fn learn_from(&self, node: &Arc<Node>, failure: &Failure) {
        match failure {
            Failure::NotSent(_) | Failure::Lost(_) => self.node_failed(node),
            Failure::Refused(error) => match error {
                ApiError::NotLeader { leader } => match leader {
                    Some(hint) if !hint.address.is_empty() => self.follow(node, hint),
                    Some(_) | None => self.turn_from(node),
                },
                ApiError::Stopping | ApiError::Recovering => self.node_failed(node),
                ApiError::NoQuorum | ApiError::NotCaughtUp { .. } | ApiError::BoundaryNotInstalled { .. } => {
                    self.turn_from(node);
                }
                ApiError::OutcomeUnknown { cause } => match cause {
                    UnknownCause::LeadershipLost => self.turn_from(node),
                    UnknownCause::Stopping => self.node_failed(node),
                    UnknownCause::Deadline => self.refresh_wanted.notify_one(),
                },
                ApiError::Transport { .. }
                | ApiError::InvalidRequest { .. }
                | ApiError::IdempotencyKeyReused
                | ApiError::ContextConflict { .. }
                | ApiError::BoundaryUnknown { .. }
                | ApiError::BoundaryProvisioning { .. }
                | ApiError::BoundaryFailed { .. }
                | ApiError::BoundaryExists { .. }
                | ApiError::BoundaryHashCollision { .. }
                | ApiError::LimitExceeded { .. }
                | ApiError::DeadlineExceeded
                | ApiError::NotSupported { .. }
                | ApiError::Internal { .. }
                | ApiError::NotFound { .. } => {}
            },
        }
    }

    fn node_failed(&self, node: &Arc<Node>) {
        node.failed();
        self.turn_from(node);
    }

    /// Prefers the next node that is not known to be bad, if this one is still the preferred one.
    fn turn_from(&self, node: &Arc<Node>) {
        self.refresh_wanted.notify_one();
        if !Arc::ptr_eq(&self.view.load().preferred, node) {
            return;
        }
        let _changing = self.changing.lock();
        let view = self.view.load_full();
        if !Arc::ptr_eq(&view.preferred, node) {
            return;
        }
        let position = view.nodes.iter().position(|other| Arc::ptr_eq(other, node)).unwrap_or(0);
        let others = || view.nodes.iter().cycle().skip(position + 1).take(view.nodes.len() - 1);
        let next = others().find(|other| !other.is_avoided()).or_else(|| others().next());
        if let Some(next) = next {
            tracing::debug!(from = node.address(), to = next.address(), "turning to another node");
            self.view.store(Arc::new(View { nodes: view.nodes.clone(), preferred: next.clone() }));
        }
    }

    /// Prefers the node that another one named as its leader.
    fn follow(&self, node: &Arc<Node>, hint: &LeaderHint) {
        self.refresh_wanted.notify_one();
        if node.address() == hint.address {
            return self.turn_from(node);
        }
        if self.view.load().preferred.address() == hint.address {
            return;
        }
        let changing = self.changing.lock();
        let view = self.view.load_full();
        let known = view.nodes.iter().find(|other| other.address() == hint.address).cloned();
        let named = known.or_else(|| self.add(&view, &hint.address));
        match named {
            Some(named) if !named.is_avoided() => {
                let mut nodes = view.nodes.clone();
                if !nodes.iter().any(|other| Arc::ptr_eq(other, &named)) {
                    nodes.push(named.clone());
                }
                tracing::debug!(from = node.address(), to = named.address(), "following a leader hint");
                self.view.store(Arc::new(View { nodes, preferred: named }));
            }
            Some(_) | None => {
                drop(changing);
                self.turn_from(node);
            }
        }
    }

    fn add(&self, view: &View, address: &str) -> Option<Arc<Node>> {
        if self.options.discovery == Discovery::GivenOnly || view.nodes.len() >= NODES_MAX {
            return None;
        }
        // A hint that is no address is like none.
        Node::new(address, &self.options).ok().map(Arc::new)
    }

    /// Asks all nodes about the cluster, at the same time.
    pub(crate) async fn refresh(&self) -> Refreshed {
        let nodes = self.view.load().nodes.clone();
        let answers = join_all(nodes.iter().map(|node| ask(node))).await;
        let mut reached = Refreshed::Unreachable;
        let mut infos = Vec::new();
        for (node, answer) in nodes.iter().zip(answers) {
            match answer {
                Ok(info) => {
                    node.succeeded();
                    reached = Refreshed::NoLeader;
                    infos.push((node.clone(), info));
                }
                Err(Failure::Refused(_)) => reached = Refreshed::NoLeader,
                Err(Failure::NotSent(_) | Failure::Lost(_)) => node.failed(),
            }
        }
        if self.options.discovery == Discovery::GivenOnly {
            // There is nothing to find out, hence nothing to ask again soon.
            return if reached == Refreshed::Unreachable { reached } else { Refreshed::Leader };
        }
        if self.adopt(&infos) { Refreshed::Leader } else { reached }
    }

    /// When nothing is wrong it is enough that the preferred node says it leads: with many clients, asking every
    /// node each time would cost the cluster something.
    async fn confirm(&self) -> bool {
        let node = self.preferred();
        match ask(&node).await {
            Ok(info) if info.leader_id == info.node_id => self.adopt(&[(node, info)]),
            Ok(_) | Err(_) => false,
        }
    }

    /// Takes over what the answers say; tells whether the leader is preferred now.
    fn adopt(&self, infos: &[(Arc<Node>, GetClusterInfoResponse)]) -> bool {
        // The answer of the highest term knows the latest leader; members are the same in all but for a moment.
        let newest = infos.iter().map(|(_, info)| info).max_by_key(|info| (info.term, info.leader_id));
        let Some(newest) = newest else { return false };
        let _changing = self.changing.lock();
        let view = self.view.load_full();
        // Where a node has answered it can be reached, whatever address it goes by among the members.
        let mut members: BTreeMap<u64, Arc<Node>> = BTreeMap::new();
        for (node, info) in infos {
            members.entry(info.node_id).or_insert_with(|| node.clone());
        }
        for member in newest.members.iter().filter(|member| !member.client_address.is_empty()) {
            if members.contains_key(&member.node_id) || members.len() >= NODES_MAX {
                continue;
            }
            let known = view.nodes.iter().find(|node| node.address() == member.client_address).cloned();
            if let Some(node) = known.or_else(|| self.add(&view, &member.client_address)) {
                members.insert(member.node_id, node);
            }
        }
        // 0 stands for none.
        let leader = (newest.leader_id != 0).then(|| members.get(&newest.leader_id)).flatten();
        let leader = leader.filter(|leader| !leader.is_avoided()).cloned();
        let mut nodes: Vec<_> = members.into_values().collect();
        for node in &self.seeds {
            if !nodes.iter().any(|other| Arc::ptr_eq(other, node)) {
                nodes.push(node.clone());
            }
        }
        let found = leader.is_some();
        let kept = nodes.iter().find(|node| Arc::ptr_eq(node, &view.preferred)).cloned();
        if let Some(preferred) = leader.or(kept).or_else(|| nodes.first().cloned()) {
            self.view.store(Arc::new(View { nodes, preferred }));
        }
        found
    }

    /// Keeps the topology fresh until it is dropped.
    pub(crate) async fn keep_fresh(topology: Weak<Self>) {
        let Some((wanted, interval)) = topology
            .upgrade()
            .map(|topology| (topology.refresh_wanted.clone(), topology.options.refresh_interval))
        else {
            return;
        };
        let mut pause = Duration::ZERO;
        loop {
            let quiet = tokio::select! {
                () = wanted.notified() => false,
                () = sleep(pause) => pause == interval,
            };
            let began = Instant::now();
            let Some(topology) = topology.upgrade() else { return };
            if quiet && topology.confirm().await {
                continue;
            }
            pause = match topology.refresh().await {
                Refreshed::Leader => interval,
                Refreshed::NoLeader | Refreshed::Unreachable => REFRESH_PAUSE,
            };
            drop(topology);
            // However many calls fail, the nodes are asked at most this often.
            sleep(REFRESH_PAUSE.saturating_sub(began.elapsed())).await;
        }
    }
}

async fn ask(node: &Node) -> Result<GetClusterInfoResponse, Failure> {
    let mut client = ClusterClient::new(node.channel());
    attempt(Instant::now() + INFO_TIMEOUT, |timeout| {
        let mut request = Request::new(GetClusterInfoRequest {});
        request.set_timeout(timeout);
        async move { client.get_cluster_info(request).await }
    })
    .await
}
