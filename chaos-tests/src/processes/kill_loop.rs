//! Kills.
use std::process::ExitCode;
/// Args.
#[derive(clap::Args, Debug)]
pub struct Args {}
/// Main.
pub fn main(_: Args) -> ExitCode {
    ExitCode::FAILURE
}
