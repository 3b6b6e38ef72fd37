//! What must not grow: each row is the slope of a log-log line, 0 for flat and 1 for linear.

pub(crate) mod agents;
pub(crate) mod dead;
pub(crate) mod idle;
mod load;
pub(crate) mod memory;
pub(crate) mod resources;
pub(crate) mod waiters;

use crate::measure::{Goal, Interval, Row, log_log_slope, number};
use crate::rows::durable::create_database;
use crate::{Result, Setup};

/// Slopes up to this are noise: over two powers of ten, the value grows by a quarter.
const FLAT: Goal = Goal::AtMost(0.05);

/// Creates a database on PostgreSQL, which a real site would use. Returns `None`, for SQLite, if there is no PostgreSQL server.
async fn database(setup: &Setup, name: &str) -> Result<Option<String>> {
    match &setup.postgres_disk {
        Some(server) => Ok(Some(create_database(server, name).await?)),
        None => Ok(None),
    }
}

/// One point: the size, and the measurement of every batch.
pub(crate) type Point = (f64, Vec<f64>);

pub(crate) fn slope_row(path: &str, points: &[Point], unit: &str, goal: Goal) -> Row {
    let batches = points.iter().map(|(_, values)| values.len()).min().unwrap_or(0);
    let of_batch = |batch: usize| points.iter().map(|(x, values)| (*x, values[batch])).collect::<Vec<_>>();
    let slopes: Vec<f64> = (0..batches).filter_map(|batch| log_log_slope(&of_batch(batch))).collect();
    let Some(slope) = Interval::of(slopes) else { return Row::skipped(path, "", goal, "too few points") };
    let middle = |values: &[f64]| Interval::of(values.to_vec()).map_or(f64::NAN, |values| values.median);
    let medians: Vec<(f64, f64)> = points.iter().map(|(x, values)| (*x, middle(values))).collect();
    let told = medians.iter().map(|(x, y)| format!("{} → {} {unit}", number(*x), number(*y)));
    let between =
        if slope.pairs > 1 { format!("between {} and {}; ", number(slope.low), number(slope.high)) } else { String::new() };
    let note = format!("{between}{}", told.collect::<Vec<_>>().join(", "));
    Row { verdict: slope.verdict(goal), points: medians, ..Row::alone(path, "slope", slope.median, goal, note) }
}
