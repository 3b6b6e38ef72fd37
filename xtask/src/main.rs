//! `cargo xtask`: the developer commands of gpuaas.

// This program prints for a person at a terminal, and its purpose is to run other programs.
#![allow(clippy::print_stdout, reason = "a developer command prints")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a developer command runs cargo and PostgreSQL")]

mod attack;
mod bench;
mod cargo;
mod counts;
mod daemon;
mod fuzz;
mod guard;
mod lab;
mod nats;
mod parallel;
mod postgres;
mod previous;
mod prove;
mod redis;
mod requirements;
mod schema_check;
mod servers;
mod sim;
mod step_ca;
mod temporal;
mod test;
mod test_programs;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Developer commands of gpuaas.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build everything, lint it and run all tests, with a private PostgreSQL, NATS, Redis and Temporal
    Test(test::Options),
    /// Measure gpuaas against its peers; prints a table and writes JSON to target/bench
    Bench(bench::Options),
    /// Run the long forms of the fault tests: a million random tasks, fifty killed databases, and so on
    Prove(prove::Options),
    /// Attack real processes from outside while a legitimate user works: sockets, memory, sign-in, enrollment
    Attack(attack::Options),
    /// Run the fuzz targets under libFuzzer with a nightly compiler, ten minutes each
    Fuzz(fuzz::Options),
    /// Run the simulated cluster under faults: thousands of seeds, or replay one of them
    Sim(sim::Options),
    /// Test with real components on this machine: libvirt, QEMU, Open vSwitch and VFIO, under emulation
    Lab(lab::Options),
    /// Call every operation of a real server's OpenAPI document, and check the responses against the document
    SchemaCheck(schema_check::Options),
    /// Check the rules of the repository: dependency directions, licenses, bans, sizes, links
    Tidy,
    /// Print the task catalog with its JSON Schemas
    Schema,
}

fn main() -> ExitCode {
    let succeeded = match Arguments::parse().command {
        Command::Test(options) => test::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Prove(options) => prove::run(&options),
        Command::Attack(options) => attack::run(&options),
        Command::Fuzz(options) => fuzz::run(&options),
        Command::Sim(options) => sim::run(&options),
        Command::Lab(options) => lab::run(&options),
        Command::SchemaCheck(options) => schema_check::run(&options),
        Command::Tidy => cargo::run(&["test", "--package", "xtask", "--test", "tidy"]),
        Command::Schema => cargo::run(&["run", "--quiet", "--package", "gpuaas-contract", "--example", "catalog"]),
    };
    match succeeded {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
