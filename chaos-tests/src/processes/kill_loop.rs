//! Kills one node after the other with SIGKILL, under load, and measures how long it takes until all is well again.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tidemark_client::{Client, Options, v1};
use tidemark_node::cli::processes::{Cluster, ClusterOptions, Keep, ProcessError, Scratch};
use tokio::time::Instant;

use super::{
    load::Load,
    probe::{self, Saved},
    report::{Report, Role, Round, Times, millis},
    verify::verify,
};
use crate::history::{Append, Outcome};

/// A killed node serves again within this time of its start.
const SERVES_WITHIN: Duration = Duration::from_secs(5);

/// After the kill of a leader, writes succeed again within this time.
const WRITES_WITHIN: Duration = Duration::from_secs(3);

/// How long the first start may take.
const START_PATIENCE: Duration = Duration::from_secs(60);

const BOUNDARY: &str = "killed";

/// What to kill, and how often.
#[derive(clap::Args, Debug, Clone)]
pub struct Args {
    /// How many kills, one after another.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// The storage engine of all nodes.
    #[arg(long, value_parser = ["sqlite", "rocksdb"])]
    engine: String,
    /// Nodes of the cluster.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(3..=9))]
    nodes: u64,
    /// The `tidemark` binary; the one beside this program if not given.
    #[arg(long, value_name = "PATH")]
    tidemark: Option<PathBuf>,
    /// Concurrent saves.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=4096))]
    writers: u64,
    /// Everything is read back after so many rounds, and at the end.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    verify_every: u64,
    /// Whether a slow return is a problem. On a machine that does other work at the same time it says nothing.
    #[arg(long, value_enum, default_value_t = TimeLimits::Enforce)]
    time_limits: TimeLimits,
    /// Chooses nodes and moments; drawn if not given.
    #[arg(long)]
    seed: Option<u64>,
    /// Prints one JSON object.
    #[arg(long)]
    json: bool,
    /// Keeps data directories and logs.
    #[arg(long)]
    keep: bool,
}

/// What measured times are for.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum TimeLimits {
    /// A time above its limit is a problem.
    Enforce,
    /// They are reported; only a node that does not come back is a problem.
    Report,
}

impl TimeLimits {
    fn too_late(self, time: Option<Duration>, limit: Duration) -> bool {
        match self {
            Self::Enforce => time.is_none_or(|time| time >= limit),
            Self::Report => time.is_none(),
        }
    }
}

/// Why a loop could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no server to start.
    #[error("no server at {}: build it with `cargo build -p tidemark-node`, or name it with --tidemark", .0.display())]
    NoServer(PathBuf),
    /// A process could not be run.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A node does not answer.
    #[error("ask the cluster: {0}")]
    Client(#[from] tidemark_client::Error),
    /// No threads.
    #[error("start threads: {0}")]
    Threads(#[source] std::io::Error),
}

/// Runs the loop and reports.
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "the report of a command")]
pub fn main(args: Args) -> ExitCode {
    let seed = args.seed.unwrap_or_else(rand::random);
    let json = args.json;
    let reproduce = format!(
        "REPRODUCE: chaos kill-loop --rounds {} --engine {} --nodes {} --writers {} --seed {seed}",
        args.rounds, args.engine, args.nodes, args.writers
    );
    let result = tokio::runtime::Runtime::new()
        .map_err(Error::Threads)
        .and_then(|runtime| runtime.block_on(KillLoop::run(args, seed)));
    let report = match result {
        Ok(report) => report,
        Err(error) => {
            eprintln!("{reproduce}");
            eprintln!("FAIL: {error}");
            return ExitCode::from(2);
        }
    };
    if json {
        println!("{}", serde_json::to_string(&report).expect("a report of numbers and texts is JSON"));
    } else {
        print!("{}", report.table());
        report.problems.iter().for_each(|problem| println!("{problem}"));
        if !report.passed {
            println!("{reproduce}");
        }
        println!("{}", report.summary());
    }
    if report.passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

struct KillLoop {
    args: Args,
    seed: u64,
    random: SmallRng,
    cluster: Cluster,
    client: Client,
    load: Load,
    start: Instant,
    /// Saves of probes.
    probed: Vec<Append>,
    rounds: Vec<Round>,
    verifications: usize,
    problems: Vec<String>,
}

impl KillLoop {
    async fn run(args: Args, seed: u64) -> Result<Report, Error> {
        let keep = if args.keep { Keep::Keep } else { Keep::Remove };
        let scratch = Scratch::new(None, "kill-loop", keep)?;
        let mut kill_loop = Self::prepare(args, seed, &scratch).await?;
        for round in 1..=kill_loop.args.rounds {
            kill_loop.round(round).await?;
            if round == kill_loop.args.rounds || round % kill_loop.args.verify_every == 0 {
                kill_loop.verify().await?;
            }
        }
        let report = kill_loop.report();
        kill_loop.cluster.kill_all().await?;
        Ok(report)
    }

    async fn prepare(args: Args, seed: u64, scratch: &Scratch) -> Result<Self, Error> {
        let options = ClusterOptions {
            program: program(&args)?,
            directory: scratch.path().to_owned(),
            nodes: args.nodes,
            arguments: vec!["--engine".to_owned(), args.engine.clone()],
        };
        let mut cluster = Cluster::new(options)?;
        cluster.start_all(START_PATIENCE).await?;
        let client = Client::connect(Options::new(cluster.client_addresses())).await?;
        let definition = v1::BoundaryDefinition { name: BOUNDARY.to_owned(), ..Default::default() };
        client.create_boundary(definition).await?;
        let start = Instant::now();
        let load = Load::start(&client, BOUNDARY, args.writers, start);
        Ok(Self {
            args,
            seed,
            random: SmallRng::seed_from_u64(seed),
            cluster,
            client,
            load,
            start,
            probed: Vec::new(),
            rounds: Vec::new(),
            verifications: 0,
            problems: Vec::new(),
        })
    }

    async fn round(&mut self, round: u64) -> Result<(), Error> {
        // The moment of a kill is part of the fault, not a wait for something.
        let moment = self.random.random_range(Duration::from_millis(100)..Duration::from_millis(1_500));
        tokio::time::sleep(moment).await;
        let leader = self.cluster.wait_leader(START_PATIENCE).await?;
        let others: Vec<u64> = (1..=self.args.nodes).filter(|id| *id != leader).collect();
        let role = if self.random.random_bool(0.5) { Role::Leader } else { Role::Follower };
        let node = match role {
            Role::Leader => leader,
            Role::Follower => others[self.random.random_range(0..others.len())],
        };
        let survivor = others[self.random.random_range(0..others.len())];
        let probe = match role {
            Role::Leader => {
                Some(Client::connect(Options::new([self.cluster.client_address(survivor)])).await?)
            }
            Role::Follower => None,
        };
        let killed = Instant::now();
        self.cluster.kill(node).await?;
        let started = Instant::now();
        self.cluster.start(node)?;

        let address = self.cluster.client_address(node);
        let event_id = format!("probe-{round}");
        let began = self.start.elapsed();
        let (serves, writes) = tokio::join!(probe::serves(&address, BOUNDARY, started), async {
            match &probe {
                Some(client) => Some(probe::writes(client, BOUNDARY, &event_id, killed).await),
                None => None,
            }
        });
        let serves = serves?;
        if let Some(written) = writes {
            self.note_probe(event_id, began, written);
        }
        let writes = writes.map(|saved| saved.map(|saved| saved.after));
        self.judge(round, role, node, serves, writes)?;
        let writes_after_ms = writes.flatten().map(millis);
        self.rounds.push(Round { round, node, role, serves_after_ms: serves.map(millis), writes_after_ms });
        Ok(())
    }

    fn note_probe(&mut self, event_id: String, began: Duration, saved: Option<Saved>) {
        let outcome = match saved {
            Some(saved) => Outcome::Acknowledged { position: saved.position },
            None => Outcome::Unknown,
        };
        self.probed.push(Append {
            client: 0,
            idempotency_key: None,
            event_ids: vec![event_id],
            began,
            ended: self.start.elapsed(),
            outcome,
        });
    }

    fn judge(
        &mut self,
        round: u64,
        role: Role,
        node: u64,
        serves: Option<Duration>,
        writes: Option<Option<Duration>>,
    ) -> Result<(), Error> {
        let limits = self.args.time_limits;
        if limits.too_late(serves, SERVES_WITHIN) {
            self.problems.push(format!("round {round}: node {node} serves again after {serves:?}"));
        }
        if let Some(writes) = writes.filter(|writes| limits.too_late(*writes, WRITES_WITHIN)) {
            self.problems
                .push(format!("round {round}: after the kill of a {role:?}, writes go on after {writes:?}"));
        }
        for id in 1..=self.args.nodes {
            if let Some(status) = self.cluster.ended(id)? {
                self.problems.push(format!("round {round}: node {id} ended by itself with {status}"));
            }
        }
        Ok(())
    }

    async fn verify(&mut self) -> Result<(), Error> {
        let _paused = self.load.pause().await;
        let nodes: Vec<(u64, String)> =
            (1..=self.args.nodes).map(|id| (id, self.cluster.client_address(id))).collect();
        let mut appends = self.load.appends();
        appends.extend(self.probed.iter().cloned());
        self.problems.extend(verify(&self.client, &nodes, BOUNDARY, appends).await?);
        self.verifications += 1;
        Ok(())
    }

    fn report(&mut self) -> Report {
        let appends = self.load.appends();
        let count =
            |wanted: fn(&Outcome) -> bool| appends.iter().filter(|append| wanted(&append.outcome)).count();
        let refused = self.load.refused_for_good();
        self.problems.extend(refused.iter().map(|error| format!("a writer was refused for good: {error}")));
        let acknowledged = count(|outcome| matches!(outcome, Outcome::Acknowledged { .. }));
        if acknowledged == 0 {
            self.problems.push("nothing was acknowledged: the run proves nothing".to_owned());
        }
        Report {
            passed: self.problems.is_empty(),
            engine: self.args.engine.clone(),
            nodes: self.args.nodes,
            seed: self.seed,
            serves_after: Times::of(self.rounds.iter().filter_map(|round| round.serves_after_ms)),
            writes_after: Times::of(self.rounds.iter().filter_map(|round| round.writes_after_ms)),
            rounds: std::mem::take(&mut self.rounds),
            acknowledged,
            rejected: count(|outcome| matches!(outcome, Outcome::Rejected { .. })),
            unknown: count(|outcome| matches!(outcome, Outcome::Unknown)),
            verifications: self.verifications,
            problems: std::mem::take(&mut self.problems),
        }
    }
}

fn program(args: &Args) -> Result<PathBuf, Error> {
    let beside = || {
        let own = std::env::current_exe().unwrap_or_default();
        own.with_file_name(format!("tidemark{}", std::env::consts::EXE_SUFFIX))
    };
    let program = args.tidemark.clone().unwrap_or_else(beside);
    if program.is_file() { Ok(program) } else { Err(Error::NoServer(program)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_return_counts_only_where_times_are_enforced_and_none_counts_always() {
        let (limit, late) = (Duration::from_secs(5), Some(Duration::from_secs(6)));
        assert!(TimeLimits::Enforce.too_late(late, limit));
        assert!(!TimeLimits::Report.too_late(late, limit));
        assert!(!TimeLimits::Enforce.too_late(Some(Duration::from_secs(4)), limit));
        assert!(TimeLimits::Enforce.too_late(None, limit) && TimeLimits::Report.too_late(None, limit));
    }
}
