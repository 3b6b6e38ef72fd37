//! `gpuaas-bench`: measures gpuaas against its peers. `cargo xtask bench` prepares the peers and starts it.
//!
//! It prints a table and writes a file. It reports whether goals are met, but never fails because something is slow.

// The output is for a person at a terminal, and the purpose of this program is to run others.
#![allow(clippy::print_stdout, reason = "a developer command prints")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "it starts the peers it compares with")]

mod answers;
mod bare_http;
mod bare_link;
mod calibrate;
mod child;
mod cluster;
mod drive;
mod links;
mod measure;
mod nats;
mod poller;
mod report;
mod rows;
mod salt;
mod site;
mod times;
mod worker;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use gpuaas_contract::time::Timestamp;

use crate::measure::{Effort, Goal, Row};
use crate::report::{Machine, Report};

/// An error ends one row, and only its text is reported.
pub(crate) type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// Measures, or runs a helper for the measuring process.
#[derive(Parser)]
enum Part {
    /// Measure
    Run(Box<Setup>),
    /// List the measurements, or those whose name contains one of these
    List {
        /// Parts of names
        rows: Vec<String>,
    },
    /// Run only our side of the durable tasks, round after round, for a profiler
    Tasks {
        /// `sqlite:PATH` or `postgres://…`, an empty database
        store: String,
        /// Number of concurrent callers
        #[arg(long, default_value_t = 256)]
        callers: usize,
        /// Queue the tasks, as if their nodes were offline
        #[arg(long)]
        queue: bool,
        /// Number of rounds of a second
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
    /// Serve files over plain HTTP, without any logic
    #[command(hide = true)]
    BareHttp {
        /// Folder with the files
        folder: PathBuf,
    },
    /// Answer requests over NATS
    #[command(hide = true)]
    NatsResponder {
        /// The server
        address: SocketAddr,
        /// Path of the client's certificate; the key is beside it
        identity: PathBuf,
        /// The CA's certificate
        ca: PathBuf,
    },
}

/// The inputs of a run.
#[derive(clap::Args)]
pub(crate) struct Setup {
    /// Run few rounds of a second instead of many longer ones
    #[arg(long)]
    quick: bool,
    /// Run only measurements whose name contains one of these
    #[arg(value_name = "ROW")]
    rows: Vec<String>,
    /// Folder for the file with the results, which is named after the time
    #[arg(long)]
    output: PathBuf,
    /// Folder for logs and files of this run, on a disk
    #[arg(long)]
    folder: PathBuf,
    /// Folder on the disk to measure
    #[arg(long)]
    disk: PathBuf,
    /// Folder with the scripts of the peers
    #[arg(long)]
    scripts: PathBuf,
    /// Folder with the installed peers
    #[arg(long)]
    peers: PathBuf,
    /// Folder with our release builds
    #[arg(long)]
    programs: PathBuf,
    /// Folder with our programs as they are shipped
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
    /// Returns the folder with the installed npm packages.
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
}

/// The measurements in order: each with the name that selects it, and a description.
const ROWS: [(&str, &str); 22] = [
    ("durable", "tasks/s in the store, against pgbench and graphile-worker"),
    ("signing", "sign and verify a task, against the bare signature"),
    ("placement", "slots for an allocation among 10,000 nodes, or why there are none"),
    ("allocations", "allocations/s from the request until active and until released, 1,000 nodes, against bare tasks"),
    ("api-reads", "reading allocations and nodes over the API, 1,000 nodes and 5,000 allocations, against bare axum"),
    ("relay", "events/s from the outbox into JetStream, against a bare publisher"),
    ("link", "round trip over the link, against bare tonic and NATS"),
    ("latency", "API call until the handler runs, against graphile-worker and Salt"),
    ("fan-out", "the same for 8 agents at once, against Salt with 8 minions"),
    ("connected-1000", "memory, idle CPU and reconnecting of 1,000 agents, against bare tonic"),
    ("connected-5000", "the same for 5,000 agents"),
    ("footprint", "the agent's memory and size, against prometheus-node-exporter"),
    ("slice-overhead", "the agent's own time over the phases of a guest, on a simulated host"),
    ("slice-image-write", "an image onto a drive, against qemu-img alone"),
    ("slice-wipe", "a proven wipe of a drive, against dd"),
    ("growth-finished", "claims over finished tasks, up to a million"),
    ("growth-depth", "claims and enqueues over queue depth"),
    ("growth-idle", "database queries of idle agents"),
    ("growth-memory", "the agent's memory over 10,000 tasks"),
    ("growth-agents", "tasks/s at a fixed rate over connected agents, up to 5,000"),
    ("growth-dead", "time to notice a dead node over connected agents, up to 5,000"),
    ("growth-waiters", "CPU per task over waiting long-polls"),
];

/// Returns the measurements whose name contains one of these parts, or all of them. A part without a match is an error.
fn chosen(parts: &[String]) -> Result<Vec<(&'static str, &'static str)>> {
    if let Some(part) = parts.iter().find(|part| !ROWS.iter().any(|(name, _)| name.contains(part.as_str()))) {
        return Err(format!("nothing has `{part}` in its name; there are {}", ROWS.map(|(name, _)| name).join(", ")).into());
    }
    let wanted = |name: &str| parts.is_empty() || parts.iter().any(|part| name.contains(part.as_str()));
    Ok(ROWS.into_iter().filter(|(name, _)| wanted(name)).collect())
}

async fn measure(name: &str, setup: &Setup, effort: Effort) -> Result<Vec<Row>> {
    match name {
        "durable" => rows::durable::run(setup, effort).await,
        "signing" => rows::signing::run(effort).await,
        "placement" => rows::placement::run(effort).await,
        "allocations" => rows::allocations::run(setup, effort).await,
        "api-reads" => rows::reads::run(setup, effort).await,
        "relay" => rows::relay::run(setup, effort).await,
        "link" => rows::link::run(setup, effort).await,
        "latency" => rows::latency::one_host(setup, effort).await,
        "fan-out" => rows::latency::many_hosts(setup, effort).await,
        "connected-1000" => rows::scale::run(setup, effort, 1000).await,
        "connected-5000" if setup.quick && !setup.rows.iter().any(|row| row == name) => {
            Err("5,000 agents take minutes: only without --quick, or by its name".into())
        }
        "connected-5000" => rows::scale::run(setup, effort, 5000).await,
        "footprint" => rows::footprint::run(setup).await,
        "slice-overhead" => rows::slice::overhead(setup, effort).await,
        "slice-image-write" => rows::slice::image_write(setup, effort).await,
        "slice-wipe" => rows::slice::wipe(setup, effort).await,
        "growth-finished" => rows::growth::resources::over_finished_tasks(setup).await,
        "growth-depth" => rows::growth::resources::over_queue_depth(setup).await,
        "growth-idle" => rows::growth::idle::run(setup).await,
        "growth-memory" => rows::growth::memory::run(setup).await,
        "growth-agents" => rows::growth::agents::run(setup, effort).await,
        "growth-dead" => rows::growth::dead::run(setup).await,
        "growth-waiters" => rows::growth::waiters::run(setup).await,
        other => Err(format!("{other} is not measured anywhere").into()),
    }
}

fn main() -> Result<()> {
    // An error means that a provider is installed already, which is fine.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match Part::parse() {
            Part::Run(setup) => run(&setup).await,
            Part::List { rows } => {
                chosen(&rows)?.iter().for_each(|(name, what)| println!("{name:<18} {what}"));
                Ok(())
            }
            Part::Tasks { store, callers, queue, rounds } => {
                let way = if queue { rows::durable::WriteMode::Queue } else { rows::durable::WriteMode::Direct };
                rows::durable::alone(&store, callers, way, rounds).await
            }
            Part::BareLink { keys, cluster } => bare_link::serve(&keys, &cluster).await,
            Part::BareHttp { folder } => bare_http::serve(&folder).await,
            Part::NatsResponder { address, identity, ca } => nats::respond(address, &identity, &ca).await,
        }
    })
}

async fn run(setup: &Setup) -> Result<()> {
    let names = chosen(&setup.rows)?;
    child::raise_descriptor_limit()?;
    let started_at = Timestamp::now();
    let file = started_at.rfc3339();
    let file = file.split('.').next().unwrap_or("results").replace(':', "-");
    let file = setup.output.join(format!("{file}Z.json"));
    report::progress("calibration");
    let calibration = calibrate::calibrate(&setup.disk).await?;
    println!("{calibration}");
    let mut report = Report {
        started_at,
        mode: if setup.quick { "quick" } else { "full" },
        effort: setup.effort(),
        machine: Machine::look(),
        calibration,
        rows: Vec::new(),
        seconds: Vec::new(),
    };
    report::print_head();
    for (name, what) in names {
        report::progress(format_args!("{name}: {what}"));
        let started = std::time::Instant::now();
        let rows = measure(name, setup, report.effort).await;
        let rows = rows.unwrap_or_else(|error| vec![Row::skipped(name, "", Goal::Open, error)]);
        for row in rows {
            report::print_row(&row);
            report.rows.push(Row { name: name.to_owned(), ..row });
        }
        report.seconds.push((name, started.elapsed().as_secs()));
        report::write(&report, &file)?;
    }
    report::print_end(&report, &file);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_names_choose_rows_and_a_slip_of_the_pen_is_told() {
        let names = |parts: &[&str]| {
            let parts: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
            chosen(&parts).map(|rows| rows.len()).map_err(|error| error.to_string())
        };
        assert_eq!(names(&[]), Ok(ROWS.len()));
        assert_eq!(names(&["connected", "link"]), Ok(3));
        assert!(names(&["link", "lnk"]).is_err_and(|error| error.contains("`lnk`")));
    }
}
