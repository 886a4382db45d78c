//! `tidemark bench`: how many saves a cluster takes, and how long each of them takes.
//!
//! A closed loop: each of a fixed number of clients sends its next save when the one before was acknowledged, so
//! latencies include all queueing, and no client gets ahead of the cluster.

mod fsync;
mod load;

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use serde::Serialize;
use tidemark_client::{Client, Options};
use tidemark_proto::v1::BoundaryDefinition;

use super::{
    boundary::create_and_wait,
    exit::CliError,
    output::{Form, Output, grouped},
    processes::{Cluster, ClusterOptions, Keep, Scratch},
    signals,
};
use crate::config::{Engine, UnknownEngine};

/// How long nodes may take to start and to elect a leader.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// Measures saves per second and their latency, and prints one line.
///
/// Starts its own nodes on loopback and removes them at the end; with --nodes 0 it loads a running cluster. Prints
/// events_per_second, p50_ms and p99_ms of acknowledged saves, errors, and fsync_p50_ms: the time of a 4 KiB append
/// with fdatasync on the file system of the data directories, measured just before. A save cannot be faster than
/// that.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Storage engine of the nodes that are started.
    #[arg(long, default_value_t, value_parser = parse_engine)]
    engine: Engine,
    /// Nodes to start; 0 loads the cluster at --url.
    #[arg(long, default_value_t = 3)]
    nodes: u64,
    /// Saves in flight.
    #[arg(long, default_value = "64")]
    clients: NonZeroUsize,
    /// Events per save, 256 bytes of data each.
    #[arg(long, default_value = "1", value_name = "EVENTS")]
    batch: NonZeroUsize,
    /// How long to measure, after the warm-up.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Warm-up before.
    #[arg(long, default_value_t = 2, value_name = "SECONDS")]
    warm_up: u64,
    /// Where the data directories of the nodes go [default: the system's temporary directory].
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
    /// The boundary to write; created when it is missing.
    #[arg(long, default_value = "bench")]
    boundary: String,
}

fn parse_engine(text: &str) -> Result<Engine, UnknownEngine> {
    text.parse()
}

/// What was measured.
#[derive(Debug, Serialize)]
struct Report {
    events_per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    errors: u64,
    fsync_p50_ms: f64,
    engine: String,
    nodes: u64,
    clients: usize,
    batch: usize,
    seconds: f64,
    operations: u64,
}

/// Runs it. The nodes are gone afterwards, whatever happens.
pub async fn run(url: &[String], args: BenchArgs, output: Output) -> Result<(), CliError> {
    let scratch = Scratch::new(args.directory.as_deref(), "bench", Keep::Remove)?;
    let mut cluster = None;
    let result = tokio::select! {
        result = measure(url, &args, scratch.path(), &mut cluster) => result,
        () = signals::interrupted() => Err(CliError::Interrupted),
    };
    if let Some(cluster) = &mut cluster {
        cluster.kill_all().await?;
    }
    let report = result?;
    match output.form() {
        Form::Json => output.json(&report)?,
        Form::Human => output.line(format!(
            "{} events/s, p50 {:.2} ms, p99 {:.2} ms, {} errors ({} nodes, {}, {} clients, batches of {}, fsync p50 {:.2} ms)",
            grouped(report.events_per_second as u64),
            report.p50_ms,
            report.p99_ms,
            report.errors,
            report.nodes,
            report.engine,
            report.clients,
            report.batch,
            report.fsync_p50_ms,
        ))?,
    }
    if report.operations == 0 { Err(CliError::CheckFailed("no save was acknowledged")) } else { Ok(()) }
}

async fn measure(
    url: &[String],
    args: &BenchArgs,
    scratch: &Path,
    cluster: &mut Option<Cluster>,
) -> Result<Report, CliError> {
    let fsync_p50 = fsync::probe(scratch).await?;
    let addresses = if args.nodes == 0 {
        url.to_vec()
    } else {
        let started = cluster.insert(Cluster::new(ClusterOptions {
            program: current_program()?,
            directory: scratch.join("nodes"),
            nodes: args.nodes,
            arguments: vec!["--engine".to_owned(), args.engine.name().to_owned()],
        })?);
        started.start_all(START_PATIENCE).await?;
        started.client_addresses()
    };
    let client = Client::connect(Options::new(addresses)).await?;
    let definition = BoundaryDefinition { name: args.boundary.clone(), ..BoundaryDefinition::default() };
    let exists = client
        .list_boundaries()
        .await?
        .iter()
        .any(|found| found.definition.as_ref().is_some_and(|found| found.name == args.boundary));
    if !exists {
        create_and_wait(&client, definition, START_PATIENCE).await?;
    }
    let info = client.cluster_info().await?;
    let load = load::Load {
        boundary: args.boundary.clone(),
        clients: args.clients.get(),
        batch: args.batch.get(),
        warm_up: Duration::from_secs(args.warm_up),
        measured: Duration::from_secs(args.seconds.max(1)),
    };
    let measured = load::run(&client, &load).await;
    let seconds = load.measured.as_secs_f64();
    Ok(Report {
        events_per_second: measured.operations as f64 * args.batch.get() as f64 / seconds,
        p50_ms: measured.quantile_ms(0.50),
        p99_ms: measured.quantile_ms(0.99),
        errors: measured.errors,
        fsync_p50_ms: fsync_p50.as_secs_f64() * 1e3,
        engine: info.members.first().map_or_else(|| args.engine.to_string(), |member| member.engine.clone()),
        nodes: info.members.len() as u64,
        clients: load.clients,
        batch: load.batch,
        seconds,
        operations: measured.operations,
    })
}

/// The binary that runs, to start more of it.
pub fn current_program() -> Result<PathBuf, CliError> {
    std::env::current_exe()
        .map_err(|source| CliError::System { what: "find this program's own file", source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_one_line_with_the_documented_names() {
        let report = Report {
            events_per_second: 1.0,
            p50_ms: 2.0,
            p99_ms: 3.0,
            errors: 4,
            fsync_p50_ms: 5.0,
            engine: "sqlite".to_owned(),
            nodes: 3,
            clients: 6,
            batch: 1,
            seconds: 7.0,
            operations: 8,
        };
        let line = serde_json::to_string(&report).unwrap();
        let names =
            ["events_per_second", "p50_ms", "p99_ms", "errors", "fsync_p50_ms", "engine", "nodes", "clients"];
        assert!(!line.contains('\n'));
        for name in names.iter().chain(&["batch", "seconds", "operations"]) {
            assert!(line.contains(&format!("\"{name}\":")), "{name}");
        }
    }
}
