//! The `chaos` command line.
//!
//! The exit code is 0 only for a valid verdict: everything that was asked for was run, and nothing was violated.

use std::{ops::Range, process::ExitCode};

use clap::{Parser, Subcommand};

use crate::{processes::kill_loop, simulation};

/// Breaks Tidemark and checks what it promised.
#[derive(Parser, Debug)]
#[command(name = "chaos", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Simulates a cluster of three nodes in one thread, once per seed.
    Sim {
        /// Seeds to run, the end excluded.
        #[arg(long, value_name = "FROM..TO", value_parser = seeds, default_value = "0..100")]
        seeds: Range<u64>,
    },
    /// Kills real processes under load, one after another.
    KillLoop(kill_loop::Args),
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let (from, to) = text.split_once("..").ok_or("give a range like 0..100")?;
    let number = |text: &str| text.trim().parse::<u64>().map_err(|error| format!("{text:?}: {error}"));
    let seeds = number(from)?..number(to)?;
    if seeds.is_empty() {
        Err("the range is empty: a run without seeds proves nothing".to_owned())
    } else {
        Ok(seeds)
    }
}

/// Parses the command line, runs the command, and gives the exit code.
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Sim { seeds } => simulate(seeds),
        Command::KillLoop(args) => kill_loop::main(args),
    }
}

#[expect(clippy::print_stdout, reason = "the report of a command")]
fn simulate(seeds: Range<u64>) -> ExitCode {
    let (mut failed, mut total) = (Vec::new(), simulation::Summary::default());
    for seed in seeds.clone() {
        match simulation::run(seed) {
            Ok(run) => {
                let summary = run.summary();
                println!(
                    "seed {seed}: trace {}, {} steps, {} appends acknowledged, {} refused, {} unknown, {} reads, \
                     {} leaderships, {} faults",
                    run.hash(),
                    run.steps.len(),
                    summary.acknowledged,
                    summary.rejected,
                    summary.unknown,
                    summary.reads,
                    summary.elections,
                    summary.faults
                );
                total.acknowledged += summary.acknowledged;
                total.reads += summary.reads;
                total.faults += summary.faults;
            }
            Err(failure) => {
                println!("seed {seed}: {failure}");
                println!("REPRODUCE: chaos sim --seeds {seed}..{}", seed + 1);
                failed.push(seed);
            }
        }
    }
    let count = seeds.end - seeds.start;
    println!(
        "{}: {} of {count} seeds without a violation; {} appends acknowledged, {} reads, {} faults",
        if failed.is_empty() { "PASS" } else { "FAIL" },
        count - failed.len() as u64,
        total.acknowledged,
        total.reads,
        total.faults
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_range_without_seeds_is_refused() {
        assert_eq!(seeds("3..7"), Ok(3..7));
        assert!(seeds("7..7").is_err());
        assert!(seeds("7").is_err());
    }
}
