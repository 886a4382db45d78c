//! The `chaos` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidemark_chaos_tests::cli::main()
}
