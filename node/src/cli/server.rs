//! `tidemark server`: one node in this process.

use std::{io::Read, path::PathBuf, time::Duration};

use clap::{Arg, ArgMatches, Args, FromArgMatches};

use super::{
    exit::CliError,
    output::{Form, Output},
    signals,
};
use crate::{
    config::{Config, KEYS, Key, Sources, reference},
    node::{Node, StopReason},
    telemetry::logging,
};

/// For tasks that are left after the node has stopped.
const LEFTOVERS_TIMEOUT: Duration = Duration::from_millis(500);

/// Runs one node
///
/// Without any configuration it is a single durable node on 127.0.0.1:7400 in ./tidemark-data.
///
/// Every key of the configuration file is also a flag and an environment variable; docs/configuration.md describes
/// them. Stops within 10 seconds on SIGTERM and SIGINT.
#[derive(Args, Debug)]
pub struct ServerArgs {
    /// The configuration file (TOML).
    #[arg(long, env = "TIDEMARK_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Prints the effective configuration, and where each value comes from, and ends.
    #[arg(long)]
    print_config: bool,
    /// Prints docs/configuration.md and ends.
    #[arg(long, hide = true)]
    config_reference: bool,
    /// Stops when standard input closes: for a parent process that must not leave a server behind.
    #[arg(long, hide = true)]
    stop_with_stdin: bool,
    #[command(flatten)]
    keys: KeyFlags,
}

/// One flag per configuration key, made from the table of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyFlags {
    values: Vec<(String, String)>,
}

impl Args for KeyFlags {
    fn augment_args(command: clap::Command) -> clap::Command {
        command.args(KEYS.iter().map(flag))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for KeyFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given =
            KEYS.iter().filter_map(|key| Some((key.path.to_owned(), matches.get_one(key.path).cloned()?)));
        Ok(Self { values: given.collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn flag(key: &'static Key) -> Arg {
    let defaults = Config::default();
    let default = match (key.default_words, (key.get)(&defaults)) {
        (Some(words), _) => words.replace('`', ""),
        (None, value) => value.map_or_else(|| "unset".to_owned(), |value| value.to_string()),
    };
    let arg = Arg::new(key.path)
        .long(key.flag())
        .value_name("VALUE")
        .help(format!("{} [default: {default}]", key.description()))
        .help_heading("Configuration")
        // `-h` shows what a first cluster needs, `--help` everything.
        .hide_short_help(!matches!(key.section(), "" | "cluster"));
    if matches!((key.get)(&defaults), Some(toml::Value::Boolean(_))) {
        arg.num_args(0..=1).require_equals(true).default_missing_value("true")
    } else {
        arg
    }
}

/// Runs it.
pub fn run(args: ServerArgs, output: Output) -> Result<(), CliError> {
    if args.config_reference {
        return output.line(reference().trim_end());
    }
    let sources = Sources {
        file: args.config,
        // A variable that is no Unicode cannot be one of ours.
        environment: std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect(),
        flags: args.keys.values,
    };
    let effective = Config::load(&sources)?;
    if args.print_config {
        return match output.form() {
            Form::Json => output.json(&effective.to_json()),
            Form::Human => output.line(effective.to_toml().trim_end()),
        };
    }
    let config = effective.config;
    logging::init(&config.log)?;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.enable_all().thread_name("tidemark");
    if config.server.runtime_threads > 0 {
        builder.worker_threads(config.server.runtime_threads);
    }
    let runtime = builder
        .build()
        .map_err(|source| CliError::System { what: "start the threads of the server", source })?;
    let result = runtime.block_on(serve(config, args.stop_with_stdin, output));
    // The node has stopped in order, or its time was up; a task that is stuck must not keep the process.
    runtime.shutdown_timeout(LEFTOVERS_TIMEOUT);
    result
}

async fn serve(config: Config, stop_with_stdin: bool, output: Output) -> Result<(), CliError> {
    let parent_gone =
        async move { if stop_with_stdin { stdin_closed().await } else { std::future::pending().await } };
    tokio::pin!(parent_gone);
    let interrupted = signals::interrupted();
    tokio::pin!(interrupted);

    let node = tokio::select! {
        started = Node::start(config) => started.map_err(|error| CliError::Start(Box::new(error)))?,
        () = &mut interrupted => return Ok(()),
        () = &mut parent_gone => return Ok(()),
    };
    let address = node.client_address();
    match output.form() {
        Form::Json => output.json(&serde_json::json!({ "serving": address.to_string() }))?,
        Form::Human => output.line(format!("serving clients on {address}"))?,
    }
    let fault = tokio::select! {
        reason = node.stopped() => Some(match reason {
            StopReason::Fault(why) | StopReason::Listener(why) => why,
        }),
        () = &mut interrupted => None,
        () = &mut parent_gone => None,
    };
    node.shutdown().await;
    match fault {
        Some(reason) => Err(CliError::Fault(reason)),
        None => Ok(()),
    }
}

/// Waits until standard input closes; what arrives on it is not looked at.
async fn stdin_closed() {
    let (closed, wait) = tokio::sync::oneshot::channel();
    // A thread of its own: the runtime would wait at its end for a read that never returns.
    std::thread::spawn(move || {
        let mut buffer = [0; 256];
        let mut stdin = std::io::stdin().lock();
        while matches!(stdin.read(&mut buffer), Ok(1..)) {}
        let _ = closed.send(());
    });
    // Without the thread nobody would ever answer: that is the same as a closed input.
    let _ = wait.await;
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: ServerArgs,
    }

    fn values(line: &[&str]) -> Vec<(String, String)> {
        Command::try_parse_from([&["server"], line].concat()).unwrap().args.keys.values
    }

    #[test]
    fn every_key_is_a_flag() {
        for key in KEYS {
            let given = values(&[&format!("--{}=17", key.flag())]);
            assert_eq!(given, [(key.path.to_owned(), "17".to_owned())]);
        }
        assert_eq!(values(&[]), []);
    }

    #[test]
    fn a_switch_needs_no_value_and_takes_one() {
        assert_eq!(values(&["--insecure"]), [("insecure".to_owned(), "true".to_owned())]);
        assert_eq!(values(&["--insecure=false"]), [("insecure".to_owned(), "false".to_owned())]);
    }

    #[test]
    fn an_unknown_flag_is_refused() {
        assert!(Command::try_parse_from(["server", "--heartbeat-ms", "1"]).is_err());
    }
}
