//! The `tidemark` command.

use std::process::ExitCode;

/// Many small objects live briefly on one thread and end on another, which glibc's allocator is slow at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tidemark_node::cli::main()
}
