//! The `tidemark` command: one file per subcommand.
//!
//! Every command but `server` talks to a cluster through the client that users have too, so what it can do, they
//! can do.

mod api;
mod append;
mod bench;
mod boundary;
mod cluster;
mod completions;
mod demo;
mod exit;
mod output;
mod position;
pub mod processes;
mod read;
mod server;
mod signals;

use std::{process::ExitCode, time::Duration};

use clap::{Args, Parser, Subcommand};
use tidemark_client::{Client, Options};

use self::{
    exit::{CliError, EXIT_CODES},
    output::{Form, Output},
};

/// A replicated event store: append events and say which facts each decision was based on.
#[derive(Parser, Debug)]
#[command(name = "tidemark", version, after_help = EXIT_CODES)]
struct Cli {
    /// Prints JSON.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Server(Box<server::ServerArgs>),
    Boundary {
        #[command(flatten)]
        connection: Connection,
        #[command(subcommand)]
        command: boundary::BoundaryCommand,
    },
    Append {
        #[command(flatten)]
        connection: Connection,
        #[command(flatten)]
        args: append::AppendArgs,
    },
    Read {
        #[command(flatten)]
        connection: Connection,
        #[command(flatten)]
        args: read::ReadArgs,
    },
    Cluster {
        #[command(flatten)]
        connection: Connection,
        #[command(subcommand)]
        command: cluster::ClusterCommand,
    },
    Bench {
        #[command(flatten)]
        connection: Connection,
        #[command(flatten)]
        args: bench::BenchArgs,
    },
    Demo(demo::DemoArgs),
    Completions(completions::CompletionsArgs),
}

/// How a running cluster is reached.
#[derive(Args, Debug, Clone)]
struct Connection {
    /// Addresses of nodes for clients; one is enough, the others are found.
    #[arg(
        long,
        global = true,
        env = "TIDEMARK_URL",
        default_value = "127.0.0.1:7400",
        value_delimiter = ',',
        value_name = "HOST:PORT,…"
    )]
    url: Vec<String>,
    /// How long one request may take, all its attempts together.
    #[arg(long, global = true, default_value_t = 15, value_name = "SECONDS")]
    timeout: u64,
}

impl Connection {
    async fn client(&self) -> Result<Client, CliError> {
        let options = Options {
            request_timeout: Duration::from_secs(self.timeout.max(1)),
            ..Options::new(self.url.iter().cloned())
        };
        Ok(Client::connect(options).await?)
    }
}

/// Parses the command line, runs the command, and gives the exit code.
pub fn main() -> ExitCode {
    // Usage errors end here with exit code 2.
    let cli = Cli::parse();
    let output = Output::new(if cli.json { Form::Json } else { Form::Human });
    match run(cli.command, output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(),
    }
}

fn run(command: Command, output: Output) -> Result<(), CliError> {
    match command {
        // The server sizes its own runtimes.
        Command::Server(args) => server::run(*args, output),
        Command::Completions(args) => completions::run(&args),
        other => {
            let runtime = tokio::runtime::Runtime::new()
                .map_err(|source| CliError::System { what: "start threads", source })?;
            let result = runtime.block_on(ask(other, output));
            // A read of standard input cannot be interrupted and must not hold up the end.
            runtime.shutdown_background();
            result
        }
    }
}

async fn ask(command: Command, output: Output) -> Result<(), CliError> {
    match command {
        Command::Boundary { connection, command } => {
            boundary::run(&connection.client().await?, command, output).await
        }
        Command::Append { connection, args } => append::run(&connection.client().await?, args, output).await,
        Command::Read { connection, args } => read::run(&connection.client().await?, args, output).await,
        Command::Cluster { connection, command } => {
            cluster::run(&connection.client().await?, command, output).await
        }
        Command::Bench { connection, args } => bench::run(&connection.url, args, output).await,
        Command::Demo(args) => demo::run(args, output).await,
        Command::Server(_) | Command::Completions(_) => unreachable!("handled by the caller"),
    }
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
    fn every_command_is_parsed_with_its_arguments() {
        // Reading the values out, not only checking the definition, finds arguments of two types with one name.
        for line in [
            "server --listen 127.0.0.1:0 --print-config",
            "boundary create flights --idempotency-retention 12h --timeout 3",
            "boundary list",
            "append --boundary flights - --batch 10 --rate 5 --source feed",
            "read --boundary flights --from 1/2 --limit 3 --descending --format table",
            "cluster status --timeout 3",
            "cluster verify --patience 3",
            "bench --engine sqlite --nodes 3 --clients 4 --batch 1 --seconds 2 --json",
            "demo --engine sqlite --flights f --rate 100 --keep",
            "completions bash",
        ] {
            let words = std::iter::once("tidemark").chain(line.split(' '));
            assert!(Cli::try_parse_from(words).is_ok(), "{line}");
        }
    }

    #[test]
    fn json_and_addresses_are_taken_after_subcommands() {
        let line = ["tidemark", "cluster", "status", "--url", "a:1,b:2", "--json"];
        let cli = Cli::try_parse_from(line).unwrap();
        assert!(cli.json);
        let Command::Cluster { connection, .. } = cli.command else { panic!("cluster status") };
        assert_eq!(connection.url, ["a:1", "b:2"]);
    }
}
