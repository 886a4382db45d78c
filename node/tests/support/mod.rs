//! Real nodes in this process, on loopback, for tests.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use tempfile::TempDir;
use tidemark_client::{Client, Options};
use tidemark_node::{
    config::{Address, Config, Engine},
    node::Node,
};
use tidemark_proto::v1;

/// Everything in these tests must be done by then; they end when it is, not after a fixed time.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster in this process.
pub struct Cluster {
    pub nodes: Vec<Option<Node>>,
    configs: Vec<Config>,
    _dir: TempDir,
}

/// A loopback address that no other test has, so that fixed ports can be used: a port that was merely free a moment
/// ago may be taken by a neighbour, or by an outgoing connection, before the node or its restart listens on it.
fn own_host() -> String {
    static CLUSTERS: AtomicU32 = AtomicU32::new(1);
    let (process, cluster) = (std::process::id(), CLUSTERS.fetch_add(1, Ordering::Relaxed));
    format!("127.{}.{}.{}", 1 + (process >> 8) % 250, process % 256, 1 + cluster % 250)
}

impl Cluster {
    /// Starts `size` nodes whose configuration `adjust` may change.
    pub async fn start(size: u64, adjust: impl Fn(&mut Config)) -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let host = own_host();
        let address = |base: u16, id: u64| Address::new(&host, base + u16::try_from(id).expect("few nodes"));
        let founders = if size == 1 { 0 } else { size };
        let members: BTreeMap<u64, Address> = (1..=founders).map(|id| (id, address(7_500, id))).collect();
        let mut configs = Vec::new();
        for id in 1..=size {
            let mut config = Config {
                data_dir: dir.path().join(format!("node-{id}")),
                engine: Engine::Sqlite,
                listen: address(7_400, id),
                ..Config::default()
            };
            config.cluster.node_id = Some(id);
            config.cluster.initial_members = members.clone();
            adjust(&mut config);
            configs.push(config);
        }
        let mut cluster = Self { nodes: Vec::new(), configs, _dir: dir };
        for index in 0..cluster.configs.len() {
            cluster.nodes.push(None);
            cluster.start_node(index).await;
        }
        cluster
    }

    /// Starts a node that is down.
    pub async fn start_node(&mut self, index: usize) {
        let node = Node::start(self.configs[index].clone()).await.expect("the node starts");
        self.nodes[index] = Some(node);
    }

    /// Stops a node in order.
    pub async fn stop_node(&mut self, index: usize) {
        self.nodes[index].take().expect("the node runs").shutdown().await;
    }

    /// Where clients reach a node.
    pub fn address(&self, index: usize) -> String {
        self.configs[index].listen.to_string()
    }

    /// A client of one certain node.
    pub async fn client(&self, index: usize) -> Client {
        let mut options = Options::new([self.address(index)]);
        options.discovery = tidemark_client::Discovery::GivenOnly;
        options.request_timeout = PATIENCE;
        Client::connect(options).await.expect("the node answers")
    }

    /// The index of the leader, once there is one.
    pub async fn leader(&self) -> usize {
        let client = self.client(self.nodes.iter().position(Option::is_some).expect("a node runs")).await;
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let info = client.cluster_info().await.expect("the node answers");
            if info.leader_id > 0 && self.nodes[info.leader_id as usize - 1].is_some() {
                return info.leader_id as usize - 1;
            }
            assert!(tokio::time::Instant::now() < deadline, "no leader was elected");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A boundary of this name without anything special.
pub fn boundary(name: &str) -> v1::BoundaryDefinition {
    v1::BoundaryDefinition { name: name.to_owned(), ..v1::BoundaryDefinition::default() }
}

/// A read of everything, linearizable.
pub fn everything(name: &str) -> v1::GetEventsRequest {
    v1::GetEventsRequest { boundary: name.to_owned(), count: 1_000, ..v1::GetEventsRequest::default() }
}
