//! One run: a safety phase in which the seed breaks things, a liveness phase in which everything must converge,
//! and the verdict.

use std::{fmt, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tidemark_proto::v1;
use tidemark_raft::Retention;
use tokio::{
    runtime::{Builder, RngSeed},
    time::Instant,
};

use super::{
    client::Client,
    cluster::Cluster,
    nemesis::Nemesis,
    network::Quality,
    node::Profile,
    panics,
    trace::{Step, Trace, TraceHash, What},
};
use crate::{
    history::{FinalState, History, Outcome},
    invariants::{self, Violation},
};

/// The boundary of all workloads.
pub(super) const BOUNDARY: &str = "simulated";

/// How long things break, in simulated time.
const SAFETY_PHASE: Duration = Duration::from_secs(25);

/// Everything must have converged so long after the last repair, in simulated time.
const CONVERGES_WITHIN: Duration = Duration::from_secs(30);

/// How often the logs are compared, in simulated time.
const LOG_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How often panics of tasks are looked for, in simulated time.
const PANIC_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// A whole run takes less simulated time; a run that does not is stuck.
const RUN_MAX: Duration = Duration::from_secs(300);

/// A finished run without a violation.
#[derive(Clone, Debug)]
pub struct Run {
    /// Everything that happened.
    pub steps: Vec<Step>,
    /// What the clients did and saw.
    pub history: History,
}

/// Why a run has no good verdict.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// An invariant did not hold.
    #[error("{}", Listed(.0))]
    Violated(Vec<Violation>),
    /// The cluster did not get well again.
    #[error("no convergence: {0}")]
    NotConverged(String),
    /// An assertion failed or a node stopped by itself.
    #[error("a task panicked: {0}")]
    Panicked(String),
}

struct Listed<'a>(&'a [Violation]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&texts.join("; "))
    }
}

/// What a run came to, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Acknowledged appends.
    pub acknowledged: usize,
    /// Refused appends.
    pub rejected: usize,
    /// Appends with unknown outcome.
    pub unknown: usize,
    /// Answered reads.
    pub reads: usize,
    /// Leaderships.
    pub elections: usize,
    /// Things that were broken or repaired.
    pub faults: usize,
    /// Events in the final log.
    pub events: usize,
}

impl Run {
    /// The hash of everything that happened.
    pub fn hash(&self) -> TraceHash {
        TraceHash::of(&self.steps)
    }

    /// The run in numbers.
    pub fn summary(&self) -> Summary {
        let outcomes = |wanted: fn(&Outcome) -> bool| {
            self.history.appends.iter().filter(|append| wanted(&append.outcome)).count()
        };
        Summary {
            acknowledged: outcomes(|outcome| matches!(outcome, Outcome::Acknowledged { .. })),
            rejected: outcomes(|outcome| matches!(outcome, Outcome::Rejected { .. })),
            unknown: outcomes(|outcome| matches!(outcome, Outcome::Unknown)),
            reads: self.history.reads.len(),
            elections: self.history.elections.len(),
            faults: self.steps.iter().filter(|step| matches!(step.what, What::Fault(_))).count(),
            events: self.history.final_events().len(),
        }
    }
}

/// Runs one seed.
///
/// # Errors
///
/// [`Failure`].
pub fn run(seed: u64) -> Result<Run, Failure> {
    in_simulated_time(seed, simulate(seed))
}

/// Runs a simulation on a runtime whose every decision follows from `seed`.
pub(super) fn in_simulated_time<T>(
    seed: u64,
    simulation: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .rng_seed(RngSeed::from_bytes(&seed.to_le_bytes()))
        .build()
        .expect("a runtime without input and output needs nothing from the system");
    panics::watch();
    let whole = async {
        tokio::select! {
            // In this order: after a panic nothing else counts.
            biased;
            what = first_panic() => Err(Failure::Panicked(what)),
            result = tokio::time::timeout(RUN_MAX, simulation) => match result {
                Ok(result) => result,
                Err(_) => Err(Failure::NotConverged("the run did not end".to_owned())),
            }
        }
    };
    let result = std::panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(whole)));
    drop(runtime);
    match (panics::take(), result) {
        (Some(what), _) => Err(Failure::Panicked(what)),
        (None, Ok(result)) => result,
        (None, Err(_)) => Err(Failure::Panicked("the simulation itself".to_owned())),
    }
}

/// Nobody joins most tasks: a panic in one of them must not pass unseen.
async fn first_panic() -> String {
    loop {
        tokio::time::sleep(PANIC_CHECK_INTERVAL).await;
        if let Some(what) = panics::first() {
            return what;
        }
    }
}

async fn simulate(seed: u64) -> Result<Run, Failure> {
    let mut random = SmallRng::seed_from_u64(seed);
    let trace = Trace::begin();
    let cluster = Cluster::new(random.random(), &profile(&mut random), &trace);
    cluster.start_all();
    create_boundary(&cluster).await?;

    let history = Arc::new(Mutex::new(History::default()));
    let until = Instant::now() + SAFETY_PHASE;
    let pause_max = Duration::from_millis([60, 200, 600][random.random_range(0..3)]);
    let clients: Vec<_> = (1..=random.random_range(2..=6))
        .map(|id| {
            let client = Client::new(id, random.random(), cluster.clone(), BOUNDARY, Arc::clone(&history));
            tokio::spawn(client.run(until, pause_max))
        })
        .collect();
    let nemesis = tokio::spawn(Nemesis::new(random.random(), cluster.clone()).run(until));
    while Instant::now() < until {
        tokio::time::sleep(LOG_CHECK_INTERVAL).await;
        compare_logs(&cluster, &history).await?;
    }
    nemesis.await.map_err(|error| Failure::Panicked(error.to_string()))?;

    repair(&cluster);
    for client in clients {
        client.await.map_err(|error| Failure::Panicked(error.to_string()))?;
    }
    converge(&cluster).await?;
    compare_logs(&cluster, &history).await?;
    let finals = final_states(&cluster).await?;
    let steps = trace.steps();
    let mut history = std::mem::take(&mut *history.lock());
    history.finals = finals;
    take_from_trace(&mut history, &steps);
    let violations = invariants::violations(&history);
    if violations.is_empty() { Ok(Run { steps, history }) } else { Err(Failure::Violated(violations)) }
}

fn profile(random: &mut SmallRng) -> Profile {
    let segment_bytes = [8 << 10, 32 << 10, 1 << 20][random.random_range(0..3)];
    Profile {
        segment_bytes,
        log_cache_bytes: [0, 16 << 10, 1 << 20][random.random_range(0..3)],
        retention: Retention {
            flush_interval_ms: [50, 500, 5_000][random.random_range(0..3)],
            snapshot_log_bytes: u64::from(segment_bytes) * [2, 8][random.random_range(0..2)],
            keep_log_bytes: u64::from(segment_bytes),
        },
        snapshot_block_bytes: 4 << 10,
        entries_in_flight: [1, 4, 16][random.random_range(0..3)],
    }
}

/// Creates the boundary through any node, as soon as there is a leader.
pub(super) async fn create_boundary(cluster: &Cluster) -> Result<(), Failure> {
    let give_up = Instant::now() + CONVERGES_WITHIN;
    loop {
        let definition = v1::BoundaryDefinition { name: BOUNDARY.to_owned(), ..Default::default() };
        let request = v1::CreateBoundaryRequest { definition: Some(definition) };
        let deadline = Instant::now() + Duration::from_secs(2);
        let created = cluster
            .ask(1, deadline, move |api| async move { api.create_boundary(request, deadline).await })
            .await;
        if matches!(created, Ok(Ok(_))) {
            return Ok(());
        }
        if Instant::now() >= give_up {
            return Err(Failure::NotConverged(format!("no boundary was created: {created:?}")));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn compare_logs(cluster: &Cluster, history: &Mutex<History>) -> Result<(), Failure> {
    let moment = History { logs: vec![cluster.logs().await], ..History::default() };
    invariants::log_matching::check(&moment)
        .map_err(|evidence| Failure::Violated(vec![Violation { invariant: "log_matching", evidence }]))?;
    // The last one stays for the final verdict; all of them would be most of the memory of a run.
    history.lock().logs = moment.logs;
    Ok(())
}

fn repair(cluster: &Cluster) {
    cluster.trace.note(What::Fault("everything is repaired".to_owned()));
    cluster.network.heal();
    cluster.network.set_quality(Quality::GOOD);
    cluster.start_all();
}

/// Waits until all nodes are up and have applied everything that any of them holds.
pub(super) async fn converge(cluster: &Cluster) -> Result<(), Failure> {
    let give_up = Instant::now() + CONVERGES_WITHIN;
    loop {
        let running = cluster.running();
        let last = running.iter().map(|(_, running)| running.raft.status().last_log_index).max();
        let applied = |running: &super::node::Running| running.raft.progress().borrow().index();
        let all_up = running.len() == cluster.nodes.len() && cluster.leader().is_some();
        if all_up && running.iter().all(|(_, running)| Some(applied(running)) == last) {
            return Ok(());
        }
        if Instant::now() >= give_up {
            let states: Vec<_> =
                running.iter().map(|(_, running)| (running.raft.status(), applied(running))).collect();
            return Err(Failure::NotConverged(format!("{states:?}")));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Digests and events of all nodes.
pub(super) async fn final_states(cluster: &Cluster) -> Result<Vec<FinalState>, Failure> {
    let deadline = Instant::now() + CONVERGES_WITHIN;
    let request = v1::CompareReplicasRequest { timeout_ms: 10_000 };
    let compared =
        cluster.ask(1, deadline, move |api| async move { api.compare_replicas(request).await }).await;
    let compared = match compared {
        Ok(Ok(compared)) => compared,
        other => return Err(Failure::NotConverged(format!("replicas cannot be compared: {other:?}"))),
    };
    let mut finals = Vec::new();
    for replica in compared.replicas {
        if !replica.problem.is_empty() {
            return Err(Failure::NotConverged(format!("node {}: {}", replica.node_id, replica.problem)));
        }
        let state = cluster.local_events(replica.node_id, BOUNDARY).await.map_err(Failure::NotConverged)?;
        let digest = replica.digest.to_vec();
        cluster.trace.note(What::Digest { node: replica.node_id, digest: digest.clone() });
        finals.push(FinalState { digest, ..state });
    }
    if finals.len() != cluster.nodes.len() {
        return Err(Failure::NotConverged(format!("{} replicas were compared", finals.len())));
    }
    Ok(finals)
}

fn take_from_trace(history: &mut History, steps: &[Step]) {
    for step in steps {
        match &step.what {
            What::Elected(election) => history.elections.push(*election),
            What::Applied(applied) => history.applied.push(*applied),
            What::Delivered { .. }
            | What::Lost { .. }
            | What::Acknowledged { .. }
            | What::NotAcknowledged { .. }
            | What::Read { .. }
            | What::Fault(_)
            | What::Digest { .. } => {}
        }
    }
}
