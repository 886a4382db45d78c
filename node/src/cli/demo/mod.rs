//! `tidemark demo`: three real server processes, a real event log, a leader killed in the middle, and a check of
//! everything that was promised.

mod checks;
mod ledger;

use std::{
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

use clap::Args;
use indicatif::ProgressBar;
use tidemark_client::{Client, Options};
use tidemark_proto::v1::BoundaryDefinition;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use self::{
    checks::{Findings, Report},
    ledger::{Ledger, Record},
};
use super::{
    append::{Batching, ImportOptions, Invalid, Order, Source, Tally, batches, import, prefix},
    bench::current_program,
    boundary::create_and_wait,
    cluster::{Health, LAG_ENTRIES, verdict},
    exit::CliError,
    output::{self, Output, grouped},
    processes::{Cluster, ClusterOptions, Keep, Scratch},
    read::Pages,
    signals,
};
use crate::config::{Engine, UnknownEngine};

const BOUNDARY: &str = "flights";
const NODES: u64 = 3;

/// For each step that waits for the cluster.
const PATIENCE: Duration = Duration::from_secs(60);

const POLL: Duration = Duration::from_millis(50);
const PAGE: u32 = 1_000;

/// Shows a failover of three real processes, and checks it
///
/// Starts three server processes in a temporary directory, imports a log of real flights, kills the leader in the
/// middle, restarts it, and then compares what is readable with what was acknowledged, and the replicas with each
/// other. Ends with 0 only if nothing was lost, doubled, reordered or changed.
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// Storage engine.
    #[arg(long, default_value_t, value_parser = parse_engine)]
    engine: Engine,
    /// Events to import, as for `tidemark append`.
    #[arg(long, default_value = "examples/flights/flights.ndjson.gz", value_name = "FILE")]
    flights: PathBuf,
    /// Events per second, so that the failover happens in the middle of something.
    #[arg(long, default_value = "4000", value_name = "EVENTS")]
    rate: NonZeroU32,
    /// Events per save.
    #[arg(long, default_value = "100", value_name = "EVENTS")]
    batch: NonZeroUsize,
    /// Keeps the temporary directory, with data and logs of all nodes.
    #[arg(long)]
    keep: bool,
}

fn parse_engine(text: &str) -> Result<Engine, UnknownEngine> {
    text.parse()
}

/// Runs it. The processes are gone afterwards, whatever happens.
pub async fn run(args: DemoArgs, output: Output) -> Result<(), CliError> {
    let keep = if args.keep { Keep::Keep } else { Keep::Remove };
    let scratch = Scratch::new(None, "demo", keep)?;
    let source = Source::new(&args.flights);
    let counted = source.clone();
    let total = tokio::task::spawn_blocking(move || prefix(&counted, u64::MAX))
        .await
        .map_err(|error| CliError::System { what: "read the flights", source: error.into() })??
        .lines;
    let mut cluster = Cluster::new(ClusterOptions {
        program: current_program()?,
        directory: scratch.path().to_owned(),
        nodes: NODES,
        arguments: vec!["--engine".to_owned(), args.engine.name().to_owned()],
    })?;
    let narrator = Narrator { bar: output::progress(Some(total), "events") };
    narrator.say(&format!("three nodes with {} in {}", args.engine, scratch.path().display()));
    let result = tokio::select! {
        report = story(&args, source, total, &mut cluster, &narrator) => report,
        () = signals::interrupted() => Err(CliError::Interrupted),
    };
    narrator.bar.finish_and_clear();
    cluster.kill_all().await?;
    if args.keep {
        narrator.say(&format!("kept {}", scratch.path().display()));
    }
    let report = result?;
    report.print(output)?;
    if report.holds() { Ok(()) } else { Err(CliError::CheckFailed("the demo found a broken promise")) }
}

/// Tells what happens, above the progress bar where there is one.
struct Narrator {
    bar: ProgressBar,
}

impl Narrator {
    #[expect(clippy::print_stderr, reason = "a hidden bar prints nothing at all")]
    fn say(&self, text: &str) {
        if self.bar.is_hidden() {
            eprintln!("{text}");
        } else {
            self.bar.println(text);
        }
    }
}

async fn story(
    args: &DemoArgs,
    source: Source,
    total: u64,
    cluster: &mut Cluster,
    narrator: &Narrator,
) -> Result<Report, CliError> {
    let leader = cluster.start_all(PATIENCE).await?;
    narrator.say(&format!("node {leader} leads"));
    let client = Client::connect(Options::new(cluster.client_addresses())).await?;
    let definition = BoundaryDefinition { name: BOUNDARY.to_owned(), ..BoundaryDefinition::default() };
    create_and_wait(&client, definition, PATIENCE).await?;
    narrator.say(&format!("importing {} events into boundary {BOUNDARY}", grouped(total)));

    let (acknowledged, progress) = watch::channel(0);
    let mut ledger = Ledger::new(narrator.bar.clone(), acknowledged);
    let mut tally = Tally::default();
    let options = ImportOptions {
        boundary: BOUNDARY.to_owned(),
        source: BOUNDARY.to_owned(),
        label: source.label(),
        order: Order::Kept,
        rate: Some(args.rate),
        patience: PATIENCE,
    };
    let batching = Batching { events: args.batch.get(), invalid: Invalid::Stop, skip_lines: 0 };
    let importing = import(&client, batches(source, batching), &options, &mut tally, &mut ledger);
    let ((), failover) = tokio::try_join!(importing, fail_over(cluster, progress, total, narrator))?;

    wait_level(&client).await?;
    narrator.say("all nodes have everything; checking");
    let findings = check(&client, &ledger).await?;
    let compared = client.compare_replicas(PATIENCE).await?;
    Ok(Report {
        acknowledged: ledger.records().len() as u64,
        retries: tally.retries,
        killed: failover.killed,
        killed_at: failover.acknowledged_at_kill,
        total,
        new_leader: failover.new_leader,
        election: failover.election,
        longest_gap: ledger.longest_gap(),
        caught_up_in: failover.caught_up_in,
        findings,
        replicas: compared.replicas.len() as u64,
        replicas_equal: compared.equal,
    })
}

/// What happened to the leader.
struct Failover {
    killed: u64,
    acknowledged_at_kill: u64,
    new_leader: u64,
    election: Duration,
    caught_up_in: Duration,
}

/// Kills the leader when half of the events are acknowledged, and restarts it when the others go on without it.
async fn fail_over(
    cluster: &mut Cluster,
    mut progress: watch::Receiver<u64>,
    total: u64,
    narrator: &Narrator,
) -> Result<Failover, CliError> {
    wait_for(&mut progress, |acknowledged| acknowledged >= total / 2).await;
    let killed = cluster.wait_leader(PATIENCE).await?;
    cluster.kill(killed).await?;
    let killed_at = Instant::now();
    let acknowledged_at_kill = *progress.borrow();
    narrator.say(&format!(
        "killed node {killed}, the leader, with SIGKILL after {} events",
        grouped(acknowledged_at_kill)
    ));
    let new_leader = cluster.wait_leader(PATIENCE).await?;
    let election = killed_at.elapsed();
    narrator.say(&format!("node {new_leader} leads after {:.2} s", election.as_secs_f64()));
    wait_for(&mut progress, |acknowledged| acknowledged > acknowledged_at_kill).await;
    let restarted_at = Instant::now();
    cluster.start(killed)?;
    cluster.wait_ready(killed, PATIENCE).await?;
    narrator.say(&format!("node {killed} is back"));
    let caught_up_in = wait_caught_up(cluster, new_leader, killed, restarted_at).await?;
    narrator.say(&format!("node {killed} has caught up after {:.2} s", caught_up_in.as_secs_f64()));
    Ok(Failover { killed, acknowledged_at_kill, new_leader, election, caught_up_in })
}

/// Waits until a restarted node is no further behind than a healthy one under load, and gives the time since its
/// restart.
async fn wait_caught_up(
    cluster: &Cluster,
    leader: u64,
    restarted: u64,
    restarted_at: Instant,
) -> Result<Duration, CliError> {
    loop {
        let info = cluster.cluster_info(leader).await.unwrap_or_default();
        let caught_up = info.members.iter().any(|member| {
            let unapplied = member.committed_index.saturating_sub(member.applied_index);
            member.node_id == restarted
                && member.reachable
                && member.lag_entries.max(unapplied) <= LAG_ENTRIES
        });
        if caught_up {
            return Ok(restarted_at.elapsed());
        }
        if restarted_at.elapsed() >= PATIENCE {
            return Err(CliError::TimedOut { what: "catching up", seconds: PATIENCE.as_secs() });
        }
        sleep(POLL).await;
    }
}

async fn wait_for(progress: &mut watch::Receiver<u64>, reached: impl Fn(u64) -> bool) {
    // An error means that the import has ended; its own result says why.
    let _ = progress.wait_for(|acknowledged| reached(*acknowledged)).await;
}

/// Waits until every member has applied what the leader has.
async fn wait_level(client: &Client) -> Result<(), CliError> {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let info = client.cluster_info().await?;
        let level = info.members.iter().map(|member| member.applied_index).max();
        let all_level = info
            .members
            .iter()
            .all(|member| member.reachable && member.lag_entries == 0 && Some(member.applied_index) == level);
        if all_level && verdict(&info).health == Health::Good {
            return Ok(());
        }
        if Instant::now() >= give_up {
            return Err(CliError::TimedOut { what: "catching up", seconds: PATIENCE.as_secs() });
        }
        sleep(POLL).await;
    }
}

/// Reads everything back and compares it with what was acknowledged.
async fn check(client: &Client, ledger: &Ledger) -> Result<Findings, CliError> {
    let mut pages = Pages::linearizable(BOUNDARY);
    let (mut read, mut positions) = (Vec::new(), Vec::new());
    while let Some(events) = pages.next(client, PAGE).await? {
        for event in events {
            let position = event.position.unwrap_or_default();
            positions.push((position.commit_position, position.prepare_position));
            read.push(Record::new(&event.event_id, &event.data));
        }
    }
    Ok(checks::compare(ledger.records(), &read, &positions))
}
