//! The simulated network: seeded delays, loss, and partitions in one or both directions.
//!
//! Messages of one connection arrive in order, like those of TCP. A message that is lost takes its connection with
//! it, and so does a partition that lasts; a short one only delays what was under way, so that old messages
//! arrive after it is healed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tidemark_raft::network::{Lane, Peer, PeerAddress, PeerError, Transport};
use tokio::{sync::watch, time::Instant};

use super::{
    executor::SimulatedExecutor,
    stub::Stub,
    trace::{Trace, What},
};

/// Silence after which a connection counts as broken.
const KEEP_ALIVE: Duration = Duration::from_secs(2);

/// How good the network is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quality {
    /// Shortest way of a message.
    pub delay_min: Duration,
    /// Longest way of an ordinary message.
    pub delay_max: Duration,
    /// The share of messages that are held up …
    pub slow: f64,
    /// … for up to this long.
    pub slow_max: Duration,
    /// The share of messages that are lost.
    pub loss: f64,
}

impl Quality {
    /// A local network on a good day.
    pub const GOOD: Self = Self {
        delay_min: Duration::from_micros(100),
        delay_max: Duration::from_millis(2),
        slow: 0.0,
        slow_max: Duration::ZERO,
        loss: 0.0,
    };
}

/// One life of a node, as a sender.
#[derive(Clone, Debug)]
pub struct Sender {
    /// The node.
    pub node: u64,
    /// Its tasks.
    pub executor: SimulatedExecutor,
}

/// One life of a node, as a receiver.
#[derive(Clone)]
pub(super) struct Receiver {
    pub(super) service: Arc<dyn Peer>,
    pub(super) executor: SimulatedExecutor,
}

/// Who sends what to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) kind: &'static str,
}

impl Way {
    pub(super) fn back(self) -> Self {
        Self { from: self.to, to: self.from, ..self }
    }
}

struct State {
    random: SmallRng,
    quality: Quality,
    receivers: BTreeMap<u64, Receiver>,
    cut: BTreeSet<(u64, u64)>,
}

/// The network. Clones are the same one.
#[derive(Clone)]
pub struct Network {
    state: Arc<Mutex<State>>,
    /// Announces changes of what is cut.
    changes: watch::Sender<u64>,
    trace: Trace,
}

impl Network {
    /// A good network without anybody on it.
    pub fn new(seed: u64, trace: Trace) -> Self {
        let state = State {
            random: SmallRng::seed_from_u64(seed),
            quality: Quality::GOOD,
            receivers: BTreeMap::new(),
            cut: BTreeSet::new(),
        };
        Self { state: Arc::new(Mutex::new(state)), changes: watch::Sender::new(0), trace }
    }

    /// Makes the network better or worse from now on.
    pub fn set_quality(&self, quality: Quality) {
        self.state.lock().quality = quality;
    }

    /// Cuts these ways, each in its direction only.
    pub fn cut(&self, ways: impl IntoIterator<Item = (u64, u64)>) {
        self.state.lock().cut.extend(ways);
        self.changes.send_modify(|change| *change += 1);
    }

    /// Repairs all ways.
    pub fn heal(&self) {
        self.state.lock().cut.clear();
        self.changes.send_modify(|change| *change += 1);
    }

    /// Lets a node answer.
    pub fn attach(&self, node: u64, service: Arc<dyn Peer>, executor: SimulatedExecutor) {
        self.state.lock().receivers.insert(node, Receiver { service, executor });
    }

    /// A node answers no more.
    pub fn detach(&self, node: u64) {
        self.state.lock().receivers.remove(&node);
    }

    /// The transport of one life of a node.
    pub fn transport(&self, sender: Sender) -> Arc<dyn Transport> {
        Arc::new(SimulatedTransport { network: self.clone(), sender })
    }

    pub(super) fn receiver(&self, node: u64) -> Result<Receiver, PeerError> {
        let receiver = self.state.lock().receivers.get(&node).cloned();
        receiver.ok_or_else(|| PeerError::Unreachable("nobody listens".to_owned()))
    }

    /// When a message that is sent now arrives, unless something comes between; `None` if it is lost.
    pub(super) fn send(&self, way: Way) -> Option<Instant> {
        let mut state = self.state.lock();
        let quality = state.quality;
        let delay = state.random.random_range(quality.delay_min..=quality.delay_max);
        // Every message draws the same numbers, so that a change of quality changes as little as possible.
        let (slow, share): (f64, f64) = (state.random.random(), state.random.random());
        let lost = state.random.random::<f64>() < quality.loss;
        let delay = if slow < quality.slow { delay + quality.slow_max.mul_f64(share) } else { delay };
        drop(state);
        if lost {
            self.trace.note(What::Lost { from: way.from, to: way.to, kind: way.kind });
            return None;
        }
        Some(Instant::now() + delay)
    }

    /// Waits until a message that was sent arrives.
    pub(super) async fn arrival(&self, way: Way, due: Option<Instant>) -> Result<(), PeerError> {
        let broken = || PeerError::Unreachable("the connection broke".to_owned());
        let Some(due) = due else {
            tokio::time::sleep(KEEP_ALIVE).await;
            return Err(broken());
        };
        tokio::time::sleep_until(due).await;
        let give_up = Instant::now() + KEEP_ALIVE;
        let mut changes = self.changes.subscribe();
        while self.state.lock().cut.contains(&(way.from, way.to)) {
            match tokio::time::timeout_at(give_up, changes.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return Err(broken()),
            }
        }
        self.trace.note(What::Delivered { from: way.from, to: way.to, kind: way.kind });
        Ok(())
    }
}

struct SimulatedTransport {
    network: Network,
    sender: Sender,
}

impl Transport for SimulatedTransport {
    fn connect(&self, target: &PeerAddress, _lane: Lane) -> Arc<dyn Peer> {
        // Every call and stream has a connection of its own, so lanes cannot disturb each other.
        Arc::new(Stub::new(self.network.clone(), self.sender.clone(), target.node_id))
    }
}
