//! `gpuaas-bench`: measures gpuaas against its peers. `cargo xtask bench` prepares the peers and starts it.
//!
//! It prints a table and writes a file; it judges, but it never fails because something is slow.

// It talks to a person at a terminal, and its purpose is to run other programs.
#![allow(clippy::print_stdout, reason = "a developer command prints")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "it starts the peers it compares with")]

mod bare_link;
mod calibrate;
mod child;
mod cluster;
mod measure;
mod nats;
mod report;
mod rows;
mod salt;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use gpuaas_contract::time::Timestamp;

use crate::measure::{Effort, Goal, Row};
use crate::report::{Machine, Report};

/// Whatever goes wrong ends one row, and its text is all that is left of it.
pub(crate) type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// Measures, or plays a part for the process that measures.
#[derive(Parser)]
enum Part {
    /// Measure
    Run(Box<Setup>),
    /// Only our side of the durable tasks, round after round, to look at with a profiler
    Tasks {
        /// `sqlite:PATH` or `postgres://…`, an empty database
        store: String,
        /// Callers at a time
        #[arg(long, default_value_t = 256)]
        callers: usize,
        /// Rounds of a second
        #[arg(long, default_value_t = 10)]
        rounds: usize,
    },
    /// Serve bare tonic streams over mutual TLS
    #[command(hide = true)]
    BareLink {
        /// Folder with the CA's key
        keys: PathBuf,
        /// The CA's cluster
        cluster: String,
    },
    /// Answer requests over NATS
    #[command(hide = true)]
    NatsResponder {
        /// The server
        address: SocketAddr,
        /// Path of the client's certificate; the key lies beside it
        identity: PathBuf,
        /// The CA's certificate
        ca: PathBuf,
    },
}

/// What the run works with.
#[derive(clap::Args)]
pub(crate) struct Setup {
    /// A few rounds of a second instead of many longer ones
    #[arg(long)]
    quick: bool,
    /// Only rows whose group has this in its name (may be given several times)
    #[arg(long = "only", value_name = "GROUP")]
    only: Vec<String>,
    /// Folder for the file with the results, which is named after the time
    #[arg(long)]
    output: PathBuf,
    /// Folder for logs and files of this run, on a disk
    #[arg(long)]
    folder: PathBuf,
    /// Folder on the disk that is measured
    #[arg(long)]
    disk: PathBuf,
    /// Folder with the scripts of the peers
    #[arg(long)]
    scripts: PathBuf,
    /// Folder with the peers that were installed
    #[arg(long)]
    peers: PathBuf,
    /// Folder with our own programs, built for release
    #[arg(long)]
    programs: PathBuf,
    /// Folder with our own programs, built as they are shipped
    #[arg(long)]
    dist: PathBuf,
    /// Folder with the programs of PostgreSQL
    #[arg(long)]
    postgres_programs: Vec<PathBuf>,
    /// A PostgreSQL on disk
    #[arg(long)]
    postgres_disk: Option<String>,
    /// A PostgreSQL in memory
    #[arg(long)]
    postgres_tmpfs: Option<String>,
}

impl Setup {
    /// The folder with the installed npm packages.
    pub(crate) fn node_modules(&self) -> Result<PathBuf> {
        let folder = self.peers.join("npm");
        if folder.join("node_modules/graphile-worker").is_dir() {
            Ok(folder)
        } else {
            Err("graphile-worker is not installed".into())
        }
    }

    fn effort(&self) -> Effort {
        if self.quick { Effort { rounds: 7, round_ms: 1000 } } else { Effort { rounds: 9, round_ms: 4000 } }
    }

    fn wants(&self, group: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| group.contains(part.as_str()))
    }
}

fn main() -> Result<()> {
    // The first provider wins; a second call would only say so.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match Part::parse() {
            Part::Run(setup) => run(&setup).await,
            Part::Tasks { store, callers, rounds } => rows::durable::alone(&store, callers, rounds).await,
            Part::BareLink { keys, cluster } => bare_link::serve(&keys, &cluster).await,
            Part::NatsResponder { address, identity, ca } => nats::respond(address, &identity, &ca).await,
        }
    })
}

async fn run(setup: &Setup) -> Result<()> {
    let started_at = Timestamp::now();
    let effort = setup.effort();
    let calibration = calibrate::calibrate(&setup.disk).await?;
    println!("{calibration}");
    report::print_head();
    let mut all: Vec<Row> = Vec::new();
    let mut add = |group: &str, rows: Result<Vec<Row>>| {
        let rows = rows.unwrap_or_else(|error| vec![Row::skipped(group, "", Goal::Open, error)]);
        for row in rows {
            report::print_row(&row);
            all.push(row);
        }
    };
    if setup.wants("durable") {
        add("durable", rows::durable::run(setup, effort).await);
    }
    if setup.wants("signing") {
        add("signing", rows::signing::run(effort).await);
    }
    if setup.wants("link") {
        add("link", rows::link::run(setup, effort).await);
    }
    if setup.wants("latency") {
        add("latency", rows::latency::run(setup, effort).await);
    }
    if setup.wants("scale") {
        add("scale", rows::scale::run(setup, effort).await);
    }
    if setup.wants("footprint") {
        add("footprint", rows::footprint::run(setup).await);
    }
    if setup.wants("growth") {
        add("growth", rows::growth::run(setup).await);
    }
    let mode = if setup.quick { "quick" } else { "full" };
    let report = Report { started_at, mode, effort, machine: Machine::look(), calibration, rows: all };
    let name = started_at.rfc3339();
    let name = name.split('.').next().unwrap_or("results").replace(':', "-");
    report::finish(&report, &setup.output.join(format!("{name}Z.json")))
}
