//! `tidemark completions`: completion scripts for shells.

use std::io::Write;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, exit::CliError};

/// Prints a completion script for a shell
///
/// For example: tidemark completions bash > /etc/bash_completion.d/tidemark
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs it.
pub fn run(args: &CompletionsArgs) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tidemark", &mut script);
    std::io::stdout().lock().write_all(&script).map_err(CliError::Output)
}
