//! What the seed breaks, and when.

use std::time::Duration;

use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::time::Instant;

use super::{
    cluster::{Cluster, NODES},
    network::Quality,
    node::Crash,
    trace::What,
};

/// Simulated time of one sync, from a fast disk to one that is about to fail.
const SYNC_LATENCIES_MS: [u64; 6] = [0, 1, 1, 5, 20, 150];

/// Breaks things and repairs some of them.
pub struct Nemesis {
    cluster: Cluster,
    random: SmallRng,
}

impl Nemesis {
    /// A nemesis of `cluster`.
    pub fn new(seed: u64, cluster: Cluster) -> Self {
        Self { cluster, random: SmallRng::seed_from_u64(seed) }
    }

    /// Works until `until`, and leaves things as they are then.
    pub async fn run(mut self, until: Instant) {
        while Instant::now() < until {
            let pause = self.random.random_range(Duration::from_millis(100)..Duration::from_millis(1_500));
            tokio::time::sleep(pause).await;
            match self.random.random_range(0..100) {
                0..20 => self.crash_leader(),
                20..28 => self.crash_any(),
                28..30 => self.crash_all(),
                30..45 => self.partition(),
                45..70 => self.heal(),
                70..80 => self.weather(),
                80..85 => self.jump_clock(),
                _ => {}
            }
            self.start_some();
        }
    }

    fn note(&self, what: String) {
        self.cluster.trace.note(What::Fault(what));
    }

    fn crash(&mut self, node: u64) {
        let crash = if self.random.random_bool(0.6) { Crash::PowerLoss } else { Crash::Kill };
        self.note(format!("{crash:?} of node {node}"));
        self.cluster.nodes[&node].crash(crash);
    }

    fn crash_leader(&mut self) {
        match self.cluster.leader() {
            Some(leader) => self.crash(leader),
            None => self.crash_any(),
        }
    }

    fn crash_any(&mut self) {
        let node = self.any_node();
        self.crash(node);
    }

    fn crash_all(&mut self) {
        (1..=NODES).for_each(|node| self.crash(node));
    }

    fn start_some(&mut self) {
        let down = self.cluster.nodes.values().filter(|node| node.is_down()).map(|node| node.id());
        for node in down.collect::<Vec<u64>>() {
            if self.random.random_bool(0.45) {
                let latency = SYNC_LATENCIES_MS[self.random.random_range(0..SYNC_LATENCIES_MS.len())];
                self.note(format!("start of node {node}, {latency} ms for a sync"));
                self.cluster.start(node, Duration::from_millis(latency));
            }
        }
    }

    fn partition(&mut self) {
        let node = match self.cluster.leader() {
            Some(leader) if self.random.random_bool(0.6) => leader,
            Some(_) | None => self.any_node(),
        };
        let others = (1..=NODES).filter(|other| *other != node);
        let ways: Vec<(u64, u64)> = match self.random.random_range(0..4) {
            0 => others.map(|other| (node, other)).collect(),
            1 => others.map(|other| (other, node)).collect(),
            2 => others.take(1).flat_map(|other| [(node, other), (other, node)]).collect(),
            _ => others.flat_map(|other| [(node, other), (other, node)]).collect(),
        };
        self.note(format!("cut {ways:?}"));
        self.cluster.network.cut(ways);
    }

    fn heal(&mut self) {
        self.note("heal".to_owned());
        self.cluster.network.heal();
    }

    fn weather(&mut self) {
        let quality = match self.random.random_range(0..3) {
            0 => Quality::GOOD,
            1 => Quality { slow: 0.05, slow_max: Duration::from_millis(400), loss: 0.01, ..Quality::GOOD },
            _ => Quality {
                delay_max: Duration::from_millis(60),
                slow: 0.2,
                slow_max: Duration::from_secs(1),
                loss: 0.05,
                ..Quality::GOOD
            },
        };
        self.note(format!("{quality:?}"));
        self.cluster.network.set_quality(quality);
    }

    fn jump_clock(&mut self) {
        let (node, by_ms) = (self.any_node(), self.random.random_range(-60_000..=60_000));
        self.note(format!("the clock of node {node} jumps by {by_ms} ms"));
        self.cluster.nodes[&node].clock().jump(by_ms);
    }

    fn any_node(&mut self) -> u64 {
        self.random.random_range(1..=NODES)
    }
}
