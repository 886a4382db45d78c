//! Server processes on loopback, started, killed and restarted by their parent.
//!
//! Used by `demo` and `bench` and by tests that break things. **Invariant**: no server outlives its parent. Each
//! child is killed when its handle is dropped, and ends by itself when its standard input closes, which happens
//! however the parent ends.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use tidemark_proto::v1::{
    GetClusterInfoRequest, GetClusterInfoResponse, PingRequest, cluster_client::ClusterClient,
    event_store_client::EventStoreClient,
};
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};
use tonic::transport::{Channel, Endpoint};

/// Ports outside the range from which Linux takes those of outgoing connections (from 32768): the port of a node
/// that was killed stays free until it is restarted.
const PORTS: std::ops::Range<u16> = 15_000..32_000;

const POLL: Duration = Duration::from_millis(20);

/// One question to a node that may be dead.
const ASK_TIMEOUT: Duration = Duration::from_millis(500);

/// Lines of a log that an error shows.
const LOG_TAIL_LINES: usize = 8;

/// Why a process could not be run.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// A directory or file could not be prepared.
    #[error("cannot prepare {}: {source}", path.display())]
    Prepare {
        /// What.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The program could not be started.
    #[error("cannot start {}: {source}", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The process could not be killed or waited for.
    #[error("cannot stop node {id}: {source}")]
    Stop {
        /// The node.
        id: u64,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No free port was found.
    #[error("no free port on 127.0.0.1 between {} and {}", PORTS.start, PORTS.end)]
    NoPort,
    /// A node ended by itself.
    #[error("node {id} ended with {status}; its log ends with\n{log}")]
    Ended {
        /// The node.
        id: u64,
        /// How.
        status: ExitStatus,
        /// The end of its log.
        log: String,
    },
    /// A node does not answer in time.
    #[error("node {id} did not answer within {seconds} s; its log ends with\n{log}")]
    Silent {
        /// The node.
        id: u64,
        /// How long it was waited for.
        seconds: u64,
        /// The end of its log.
        log: String,
    },
    /// No leader was elected in time.
    #[error("the nodes elected no leader within {seconds} s")]
    NoLeader {
        /// How long it was waited for.
        seconds: u64,
    },
}

/// What the processes have in common.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// The `tidemark` binary.
    pub program: PathBuf,
    /// Where data directories and logs go; one subdirectory per node.
    pub directory: PathBuf,
    /// Nodes, from 1.
    pub nodes: u64,
    /// More arguments for `tidemark server`, for example `--engine sqlite`.
    pub arguments: Vec<String>,
}

struct NodeProcess {
    client_port: u16,
    child: Option<Child>,
}

/// The processes of one cluster.
pub struct Cluster {
    options: ClusterOptions,
    initial_members: String,
    nodes: BTreeMap<u64, NodeProcess>,
}

impl Cluster {
    /// Chooses ports and prepares the directory; starts nothing.
    pub fn new(options: ClusterOptions) -> Result<Self, ProcessError> {
        fs::create_dir_all(&options.directory)
            .map_err(|source| ProcessError::Prepare { path: options.directory.clone(), source })?;
        let count = usize::try_from(options.nodes).unwrap_or(usize::MAX);
        let ports = free_ports(count.saturating_mul(2)).ok_or(ProcessError::NoPort)?;
        let (client_ports, peer_ports) = ports.split_at(count);
        let members: Vec<String> =
            (1..=options.nodes).zip(peer_ports).map(|(id, port)| format!("{id}=127.0.0.1:{port}")).collect();
        let nodes = (1..=options.nodes).zip(client_ports);
        Ok(Self {
            initial_members: members.join(","),
            nodes: nodes.map(|(id, port)| (id, NodeProcess { client_port: *port, child: None })).collect(),
            options,
        })
    }

    /// Starts a node that is not running.
    pub fn start(&mut self, id: u64) -> Result<(), ProcessError> {
        let log_path = self.log_path(id);
        let open = || File::options().create(true).append(true).open(&log_path);
        let log = open().map_err(|source| ProcessError::Prepare { path: log_path.clone(), source })?;
        let data_dir = self.options.directory.join(format!("node-{id}"));
        let program = self.options.program.clone();
        let mut command = Command::new(&program);
        command
            .arg("server")
            .args(["--data-dir", &data_dir.display().to_string()])
            .args(["--listen", &self.client_address(id)])
            .args(["--node-id", &id.to_string()])
            .args(["--initial-members", &self.initial_members])
            .args(["--id-token", &self.options.directory.display().to_string()])
            .arg("--stop-with-stdin")
            .args(&self.options.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true);
        // Ports, engine and the like come from the arguments; a variable of the parent's shell must not change them.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TIDEMARK_") {
                command.env_remove(&name);
            }
        }
        let child = command.spawn().map_err(|source| ProcessError::Spawn { program, source })?;
        self.node_mut(id).child = Some(child);
        Ok(())
    }

    /// Starts all nodes and waits until they have a leader, at most for `patience`.
    pub async fn start_all(&mut self, patience: Duration) -> Result<u64, ProcessError> {
        let ids: Vec<u64> = self.nodes.keys().copied().collect();
        ids.iter().try_for_each(|id| self.start(*id))?;
        for id in ids {
            self.wait_ready(id, patience).await?;
        }
        self.wait_leader(patience).await
    }

    /// Waits until a node answers requests. Notices when it ends instead.
    pub async fn wait_ready(&mut self, id: u64, patience: Duration) -> Result<(), ProcessError> {
        let give_up = Instant::now() + patience;
        let channel = self.channel(id);
        loop {
            if let Some(channel) = &channel
                && let Ok(Ok(_)) =
                    timeout(ASK_TIMEOUT, EventStoreClient::new(channel.clone()).ping(PingRequest::default()))
                        .await
            {
                return Ok(());
            }
            if let Some(status) = self.ended(id)? {
                return Err(ProcessError::Ended { id, status, log: self.log_tail(id) });
            }
            if Instant::now() >= give_up {
                return Err(ProcessError::Silent { id, seconds: patience.as_secs(), log: self.log_tail(id) });
            }
            sleep(POLL).await;
        }
    }

    /// Waits until a running node knows of a leader that is running, and gives the leader's id.
    pub async fn wait_leader(&self, patience: Duration) -> Result<u64, ProcessError> {
        let give_up = Instant::now() + patience;
        loop {
            for id in self.running() {
                let leader = self.cluster_info(id).await.map_or(0, |info| info.leader_id);
                if self.nodes.get(&leader).is_some_and(|node| node.child.is_some()) {
                    return Ok(leader);
                }
            }
            if Instant::now() >= give_up {
                return Err(ProcessError::NoLeader { seconds: patience.as_secs() });
            }
            sleep(POLL).await;
        }
    }

    /// What one node knows about the members; nothing when it does not answer.
    pub async fn cluster_info(&self, id: u64) -> Option<GetClusterInfoResponse> {
        let mut client = ClusterClient::new(self.channel(id)?);
        let answer = timeout(ASK_TIMEOUT, client.get_cluster_info(GetClusterInfoRequest {})).await;
        Some(answer.ok()?.ok()?.into_inner())
    }

    /// Kills a node with SIGKILL and waits until it is gone. Nothing happens when it is not running.
    pub async fn kill(&mut self, id: u64) -> Result<(), ProcessError> {
        let Some(mut child) = self.node_mut(id).child.take() else { return Ok(()) };
        child.kill().await.map_err(|source| ProcessError::Stop { id, source })
    }

    /// Asks a node to stop by closing its standard input, and waits until it has, at most for `patience`; then it is
    /// killed. Nothing happens when it is not running.
    pub async fn stop(&mut self, id: u64, patience: Duration) -> Result<Option<ExitStatus>, ProcessError> {
        let Some(mut child) = self.node_mut(id).child.take() else { return Ok(None) };
        drop(child.stdin.take());
        let failed = |source| ProcessError::Stop { id, source };
        match timeout(patience, child.wait()).await {
            Ok(status) => status.map(Some).map_err(failed),
            Err(_elapsed) => {
                child.kill().await.map_err(failed)?;
                child.wait().await.map(Some).map_err(failed)
            }
        }
    }

    /// Kills all nodes. Dropping the cluster does the same without waiting.
    pub async fn kill_all(&mut self) -> Result<(), ProcessError> {
        let ids: Vec<u64> = self.nodes.keys().copied().collect();
        for id in ids {
            self.kill(id).await?;
        }
        Ok(())
    }

    /// Ids of the nodes that were started and not stopped by us.
    pub fn running(&self) -> Vec<u64> {
        self.nodes.iter().filter(|(_, node)| node.child.is_some()).map(|(id, _)| *id).collect()
    }

    /// The process id of a running node.
    pub fn pid(&self, id: u64) -> Option<u32> {
        self.nodes.get(&id)?.child.as_ref()?.id()
    }

    /// Where clients reach a node, running or not.
    pub fn client_address(&self, id: u64) -> String {
        format!("127.0.0.1:{}", self.node(id).client_port)
    }

    /// The client addresses of all nodes.
    pub fn client_addresses(&self) -> Vec<String> {
        self.nodes.keys().map(|id| self.client_address(*id)).collect()
    }

    /// The file that has what a node wrote to standard error, over all its starts.
    pub fn log_path(&self, id: u64) -> PathBuf {
        self.options.directory.join(format!("node-{id}.log"))
    }

    /// The exit status of a node that ended by itself.
    pub fn ended(&mut self, id: u64) -> Result<Option<ExitStatus>, ProcessError> {
        match &mut self.node_mut(id).child {
            Some(child) => child.try_wait().map_err(|source| ProcessError::Stop { id, source }),
            None => Ok(None),
        }
    }

    fn log_tail(&self, id: u64) -> String {
        let text = fs::read_to_string(self.log_path(id)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
    }

    fn channel(&self, id: u64) -> Option<Channel> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.client_address(id))).ok()?;
        Some(endpoint.connect_timeout(ASK_TIMEOUT).connect_lazy())
    }

    #[track_caller]
    fn node(&self, id: u64) -> &NodeProcess {
        self.nodes.get(&id).expect("callers name nodes of this cluster")
    }

    #[track_caller]
    fn node_mut(&mut self, id: u64) -> &mut NodeProcess {
        self.nodes.get_mut(&id).expect("callers name nodes of this cluster")
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("options", &self.options).field("running", &self.running()).finish()
    }
}

/// Distinct ports that are free at the moment. All are held until the last one is found.
fn free_ports(count: usize) -> Option<Vec<u16>> {
    // Many more tries than ports in use on any sensible machine.
    const TRIES: usize = 2_000;
    let mut held = Vec::new();
    for _ in 0..TRIES {
        if held.len() == count {
            break;
        }
        let port = rand::random_range(PORTS);
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            held.push((port, listener));
        }
    }
    (held.len() == count).then(|| held.into_iter().map(|(port, _)| port).collect())
}

/// Whether a scratch directory stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// It is removed at the end.
    Remove,
    /// It stays for a look.
    Keep,
}

/// A fresh directory that is removed when it is dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    keep: Keep,
}

impl Scratch {
    /// Makes a directory in `parent`, or among the system's temporary ones.
    pub fn new(parent: Option<&Path>, name: &str, keep: Keep) -> Result<Self, ProcessError> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
        let path =
            parent.join(format!("tidemark-{name}-{}-{:08x}", std::process::id(), rand::random::<u32>()));
        fs::create_dir_all(&parent)
            .and_then(|()| fs::create_dir(&path))
            .map_err(|source| ProcessError::Prepare { path: path.clone(), source })?;
        Ok(Self { path, keep })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.keep == Keep::Remove
            && let Err(error) = fs::remove_dir_all(&self.path)
        {
            tracing::warn!(%error, path = %self.path.display(), "cannot remove a scratch directory");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_are_distinct_and_can_be_bound() {
        let mut ports = free_ports(8).unwrap();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 8);
        assert!(ports.iter().all(|port| PORTS.contains(port)));
    }

    #[test]
    fn scratch_directories_go_unless_they_are_kept() {
        let parent = tempfile::tempdir().unwrap();
        let removed = Scratch::new(Some(parent.path()), "a", Keep::Remove).unwrap();
        let kept = Scratch::new(Some(parent.path()), "b", Keep::Keep).unwrap();
        let (gone, stays) = (removed.path().to_owned(), kept.path().to_owned());
        assert!(gone.is_dir() && stays.is_dir());
        drop((removed, kept));
        assert!(!gone.exists() && stays.is_dir());
    }

    #[test]
    fn members_and_addresses_do_not_share_ports() {
        let directory = tempfile::tempdir().unwrap();
        let options = ClusterOptions {
            program: "tidemark".into(),
            directory: directory.path().join("cluster"),
            nodes: 3,
            arguments: Vec::new(),
        };
        let cluster = Cluster::new(options).unwrap();
        let mut ports: Vec<&str> =
            cluster.initial_members.split(',').map(|member| member.rsplit_once(':').unwrap().1).collect();
        let clients = cluster.client_addresses();
        ports.extend(clients.iter().map(|address| address.rsplit_once(':').unwrap().1));
        ports.sort_unstable();
        ports.dedup();
        assert_eq!((ports.len(), cluster.running()), (6, vec![]));
    }

    #[tokio::test]
    async fn a_program_that_ends_at_once_is_reported_with_its_log() {
        let directory = tempfile::tempdir().unwrap();
        // A shell takes `server` for a script, finds none, and says so.
        let program = PathBuf::from("/bin/sh");
        let options = ClusterOptions {
            program,
            directory: directory.path().to_owned(),
            nodes: 1,
            arguments: Vec::new(),
        };
        let mut cluster = Cluster::new(options).unwrap();
        cluster.start(1).unwrap();
        let error = cluster.wait_ready(1, Duration::from_secs(60)).await.unwrap_err();
        assert!(
            matches!(&error, ProcessError::Ended { id: 1, log, .. } if log.contains("server")),
            "{error}"
        );
    }
}
