//! The `tidemark` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidemark_node::cli::main()
}
