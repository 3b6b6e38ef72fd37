//! The `gpuaas` program as a library. Cargo compiles a library while its dependencies are still being built; a program would wait for them.
//!
//! Every command prints its result, and nothing else, to stdout. Progress, hints and errors go to stderr. The exit codes are
//! explained in [`exit`] and in `gpuaas --help`.

// A new variant of our own enums must be considered everywhere.
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

mod advice;
mod args;
mod backend_args;
mod ca_args;
mod commands;
mod config;
mod context;
mod credentials;
mod dev;
mod dev_demo;
mod dev_ssh_key;
mod duration;
mod error;
mod evidence;
mod exit;
mod files;
mod follow;
mod hidden;
mod list;
mod output;
mod pages;
mod params;
mod price;
mod resolve;
mod server;
mod support;
mod tenants;
mod time;

/// Runs the program with the arguments of this process.
pub fn main() -> std::process::ExitCode {
    // The server holds the cluster's keys, and clients hold tokens: neither belongs in a core dump.
    if let Err(error) = gpuaas_runtime::process::forbid_memory_dumps() {
        eprintln!(
            "gpuaas: cannot turn core dumps off for this process ({error}); a seccomp filter or sandbox must allow prctl and setrlimit"
        );
        return std::process::ExitCode::FAILURE;
    }
    // Fails only if a provider is already installed, which cannot be at the start of main.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let cli = match args::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => return args::report(&error),
    };
    let format = cli.global.output;
    let session = match context::CommandContext::new(cli.global) {
        Ok(session) => session,
        Err(failure) => {
            output::Output::new(format, true).failure(&failure);
            return failure.exit.into();
        }
    };
    // Checked before the first request to a server.
    if cli.is_unconfirmed && !commands::confirm::somebody_is_there() {
        let failure = commands::confirm::required();
        session.output.failure(&failure);
        return failure.exit.into();
    }
    let result = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime.block_on(commands::run(&session, cli.command)),
        Err(error) => Err(error::CliError::internal(format!("cannot start the async runtime: {error}"))),
    };
    match result {
        Ok(exit) => exit.into(),
        Err(failure) => {
            session.output.failure(&failure);
            failure.exit.into()
        }
    }
}
