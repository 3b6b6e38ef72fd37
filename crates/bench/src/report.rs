//! The table for people and the file for programs.

use std::path::Path;
use std::sync::LazyLock;
use std::time::Instant;

use gpuaas_contract::time::Timestamp;
use serde::Serialize;

use crate::Result;
use crate::calibrate::Calibration;
use crate::measure::{Effort, Row, Verdict, number};

#[derive(Serialize)]
pub(crate) struct Report {
    pub(crate) started_at: Timestamp,
    pub(crate) mode: &'static str,
    pub(crate) effort: Effort,
    pub(crate) machine: Machine,
    pub(crate) calibration: Calibration,
    pub(crate) rows: Vec<Row>,
    /// The duration of each measurement, in seconds.
    pub(crate) seconds: Vec<(&'static str, u64)>,
}

static STARTED: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Prints the current step on standard error, so that a long run does not look stuck.
pub(crate) fn progress(what: impl std::fmt::Display) {
    let seconds = STARTED.elapsed().as_secs();
    eprintln!("  [{:02}:{:02}] {what}", seconds / 60, seconds % 60);
}

/// The machine that the benchmark ran on.
#[derive(Serialize)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    pub(crate) memory_kib: u64,
    pub(crate) kernel: String,
    pub(crate) processor: String,
}

impl Machine {
    pub(crate) fn look() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
        };
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_kib: field(&read("/proc/meminfo"), "MemTotal").trim_end_matches(" kB").parse().unwrap_or(0),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            processor: field(&read("/proc/cpuinfo"), "model name"),
        }
    }
}

/// Prints the head of the table.
pub(crate) fn print_head() {
    println!("\n{:<58} {:>11} {:<24} {:>11} {:>22}  {:<8} verdict", "path", "ours", "peer", "peer's", "ratio [95 %]", "goal");
}

pub(crate) fn print_row(row: &Row) {
    let value = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), number);
    let ratio = row.ratio.map_or_else(
        || "–".to_owned(),
        |r| match r.pairs {
            1 => number(r.median),
            _ => format!("{} [{} – {}]", number(r.median), number(r.low), number(r.high)),
        },
    );
    let path = if row.unit.is_empty() { row.path.clone() } else { format!("{}, {}", row.path, row.unit) };
    let (ours, theirs) = (value(row.ours), value(row.theirs));
    let goal = row.goal.to_string();
    let verdict = row.verdict.as_str();
    println!("{path:<58} {ours:>11} {:<24} {theirs:>11} {ratio:>22}  {goal:<8} {verdict}", row.peer);
    if !row.note.is_empty() {
        println!("    {}", row.note);
    }
}

/// Writes the file. Called after every measurement, so that an interrupted run keeps its results.
pub(crate) fn write(report: &Report, file: &Path) -> Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    Ok(std::fs::write(file, serde_json::to_vec_pretty(report)?)?)
}

/// Prints how many goals are met, and the path of the file.
pub(crate) fn print_end(report: &Report, file: &Path) {
    let with = |verdict| report.rows.iter().filter(|row| row.verdict == verdict).count();
    let (met, missed) = (with(Verdict::Met), with(Verdict::Missed));
    let (inconclusive, skipped) = (with(Verdict::Inconclusive), with(Verdict::Skip));
    println!("\nwritten to {}", file.display());
    println!("{met} met, {missed} missed, {inconclusive} inconclusive, {skipped} skipped");
}
