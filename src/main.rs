//! The `lepus` command.

#![forbid(unsafe_code)]

use std::env;
use std::process::ExitCode;

use lepus::{cli, server};

/// Heaps of their own for threads: what a shard allocates and frees never meets another core.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::run(env::args_os(), env::vars_os(), server::run)
}
