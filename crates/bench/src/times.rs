//! Latencies: HDR histograms, and calls at fixed times, whatever the result of earlier ones.
//!
//! A load generator that waits for an answer before it sends the next request leaves out exactly the calls that would have had to wait
//! (coordinated omission). So calls are scheduled in advance, and each is timed from when it was due.

use std::time::{Duration, Instant};

use gpuaas_contract::time::Timestamp;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::Result;

/// The normal delay of a timer: the timers of both tokio and Node.js have a resolution of a millisecond. A call that starts later than
/// this was held up, and the delay is part of its latency.
const TIMER_SLACK: Duration = Duration::from_millis(2);

/// The unit in which times are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeUnit {
    Microseconds,
    Milliseconds,
}

impl TimeUnit {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Microseconds => "µs",
            Self::Milliseconds => "ms",
        }
    }

    /// Converts nanoseconds to this unit.
    #[allow(clippy::cast_precision_loss, reason = "times here are far below 2^53 ns")]
    pub(crate) fn show(self, nanoseconds: u64) -> f64 {
        let nanoseconds = nanoseconds as f64;
        match self {
            Self::Microseconds => nanoseconds / 1e3,
            Self::Milliseconds => nanoseconds / 1e6,
        }
    }
}

/// A histogram of times, with three significant digits.
#[derive(Clone, Debug)]
pub(crate) struct Times(Histogram<u64>);

/// A summary of a distribution, for the file with the results.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Distribution {
    pub(crate) unit: &'static str,
    pub(crate) count: u64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p99_9: f64,
    pub(crate) max: f64,
}

impl Times {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(Histogram::new(3)?))
    }

    pub(crate) fn record(&mut self, time: Duration) -> Result<()> {
        Ok(self.0.record(u64::try_from(time.as_nanos())?)?)
    }

    /// Reads the measurements of a peer that is written in another language, in microseconds.
    pub(crate) fn from_microseconds(list: &serde_json::Value) -> Result<Self> {
        let mut times = Self::new()?;
        for time in list.as_array().ok_or("no list of numbers")? {
            times.record(Duration::try_from_secs_f64(time.as_f64().ok_or("a time that is no number")? / 1e6)?)?;
        }
        Ok(times)
    }

    pub(crate) fn merge(&mut self, other: &Self) -> Result<()> {
        Ok(self.0.add(&other.0)?)
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.len()
    }

    /// Returns the time within which this share (0 to 1) of all calls finished.
    pub(crate) fn quantile(&self, share: f64, unit: TimeUnit) -> f64 {
        if self.0.is_empty() { f64::NAN } else { unit.show(self.0.value_at_quantile(share)) }
    }

    pub(crate) fn distribution(&self, unit: TimeUnit) -> Distribution {
        Distribution {
            unit: unit.as_str(),
            count: self.len(),
            p50: self.quantile(0.5, unit),
            p90: self.quantile(0.9, unit),
            p99: self.quantile(0.99, unit),
            p99_9: self.quantile(0.999, unit),
            max: unit.show(self.0.max()),
        }
    }
}

/// A schedule of calls at fixed times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    started: Instant,
    started_at: Timestamp,
    period: Duration,
    calls: u32,
}

/// The moment from which a call is timed, on both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begin {
    pub(crate) at: Instant,
    pub(crate) wall: Timestamp,
}

impl Schedule {
    /// Creates a schedule with one call every `period` for about `time`, from now on.
    pub(crate) fn new(period: Duration, time: Duration) -> Result<Self> {
        let calls = u32::try_from(time.as_nanos() / period.as_nanos().max(1))?.max(1);
        Ok(Self { started: Instant::now(), started_at: Timestamp::now(), period, calls })
    }

    pub(crate) const fn calls(&self) -> u32 {
        self.calls
    }

    pub(crate) const fn started_at(&self) -> Timestamp {
        self.started_at
    }

    pub(crate) const fn started(&self) -> Instant {
        self.started
    }

    /// Waits until this call is due, and returns the moment from which it is timed.
    pub(crate) async fn wait(&self, number: u32) -> Begin {
        let due = self.started + self.period * number;
        tokio::time::sleep_until(due.into()).await;
        let at = timed_from(due, Instant::now());
        Begin { at, wall: self.started_at.plus(at.duration_since(self.started)) }
    }
}

/// Returns the moment from which a call is timed: `due` if it was held up, `now` otherwise.
fn timed_from(due: Instant, now: Instant) -> Instant {
    if now.duration_since(due) > TIMER_SLACK { due } else { now }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_keep_three_digits() {
        let mut times = Times::new().expect("a histogram");
        for microseconds in 1..=1000 {
            times.record(Duration::from_micros(microseconds)).expect("record");
        }
        let near = |share, expected: f64| (times.quantile(share, TimeUnit::Microseconds) - expected).abs() < expected / 500.0;
        assert!(near(0.5, 500.0) && near(0.99, 990.0), "{:?}", times.distribution(TimeUnit::Microseconds));
        assert_eq!(times.len(), 1000);
    }

    #[test]
    fn a_call_that_was_held_up_counts_from_when_it_was_due() {
        let due = Instant::now();
        assert_eq!(timed_from(due, due + Duration::from_millis(1)), due + Duration::from_millis(1));
        assert_eq!(timed_from(due, due + Duration::from_millis(40)), due);
    }
}
