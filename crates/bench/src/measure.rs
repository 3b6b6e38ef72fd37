//! Rounds, ratios and verdicts.
//!
//! All sides of a comparison run in the same round, in an order that is reversed every round (A B, B A, …), so that a slowdown of
//! the machine affects all of them. The first round is a warm-up and is dropped. Each round gives one ratio; the median of the
//! ratios is reported with the interval that contains the true median in 95 % of all runs (order statistics, without assumptions
//! about the distribution).

use std::time::Duration;

use futures::future::BoxFuture;
use serde::Serialize;

use crate::Result;
use crate::report::progress;
use crate::times::{Distribution, TimeUnit, Times};

/// One side of a comparison.
pub(crate) trait Side: Send {
    fn name(&self) -> String;
    /// Works for about `time` and returns the measurements.
    fn round(&mut self, time: Duration) -> BoxFuture<'_, Result<Round>>;
}

/// The measurements of one side in one round: rates or sizes, latencies, or both. All sides of a comparison list the same
/// metrics.
#[derive(Clone, Debug, Default)]
pub(crate) struct Round {
    pub(crate) values: Vec<f64>,
    pub(crate) times: Vec<Times>,
}

impl Round {
    /// Creates a round with one value.
    pub(crate) fn value(value: f64) -> Self {
        Self { values: vec![value], times: Vec::new() }
    }

    /// Creates a round with latencies only.
    pub(crate) fn times(times: Vec<Times>) -> Self {
        Self { values: Vec::new(), times }
    }
}

/// A quantile of one of the latencies of a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quantile {
    /// Index into the latencies of the round.
    pub(crate) metric: usize,
    /// From 0 to 1; 0.5 is the median.
    pub(crate) share: f64,
    pub(crate) unit: TimeUnit,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Effort {
    /// Number of rounds, including the dropped first one.
    pub(crate) rounds: usize,
    /// Length of one round of one side, in milliseconds.
    pub(crate) round_ms: u64,
}

/// The measurements of all sides, or why a side stopped.
pub(crate) struct Measured {
    /// For each side, its name and its measurements.
    sides: Vec<(String, Result<Vec<Round>, String>)>,
}

/// Runs all sides in turn.
pub(crate) async fn interleave(sides: &mut [Box<dyn Side>], effort: Effort) -> Measured {
    let time = Duration::from_millis(effort.round_ms);
    let mut results: Vec<Result<Vec<Round>, String>> = sides.iter().map(|_| Ok(Vec::new())).collect();
    for round in 0..effort.rounds {
        progress(format_args!("round {} of {}{}", round + 1, effort.rounds, if round == 0 { ", which is dropped" } else { "" }));
        let mut order: Vec<usize> = (0..sides.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            let Ok(rounds) = &mut results[index] else { continue };
            match sides[index].round(time).await {
                Ok(measured) if round > 0 => rounds.push(measured),
                Ok(_) => {}
                Err(error) => {
                    progress(format_args!("{} is out: {error}", sides[index].name()));
                    results[index] = Err(error.to_string());
                }
            }
        }
    }
    Measured { sides: sides.iter().map(|side| side.name()).zip(results).collect() }
}

/// The goal for the ratio of our value to the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Goal {
    /// More is better.
    AtLeast(f64),
    /// Less is better.
    AtMost(f64),
    /// Only for information.
    Open,
}

impl std::fmt::Display for Goal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtLeast(goal) => write!(f, "≥ {}", number(*goal)),
            Self::AtMost(goal) => write!(f, "≤ {}", number(*goal)),
            Self::Open => f.write_str("–"),
        }
    }
}

/// Whether the goal is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// The whole interval meets the goal.
    Met,
    /// The whole interval misses the goal.
    Missed,
    /// The goal lies inside the interval.
    Inconclusive,
    /// There is nothing to compare with.
    Skip,
    /// No goal was set.
    Info,
}

impl Verdict {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "MISSED",
            Self::Inconclusive => "inconclusive",
            Self::Skip => "SKIP",
            Self::Info => "",
        }
    }
}

/// A median with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Interval {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// The number of ratios behind the interval.
    pub(crate) pairs: usize,
}

impl Interval {
    /// Creates an interval from one ratio per round. Returns `None` if there are no finite ratios.
    pub(crate) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.retain(|value| value.is_finite());
        values.sort_by(f64::total_cmp);
        let (first, last) = (*values.first()?, *values.last()?);
        let pairs = values.len();
        let depth = depth_of_95_percent(pairs);
        let (low, high) = if depth == 0 { (first, last) } else { (values[depth - 1], values[pairs - depth]) };
        Some(Self { median: median(&values)?, low, high, pairs })
    }

    pub(crate) fn verdict(&self, goal: Goal) -> Verdict {
        let (good, bad) = match goal {
            Goal::AtLeast(goal) => (self.low >= goal, self.high < goal),
            Goal::AtMost(goal) => (self.high <= goal, self.low > goal),
            Goal::Open => return Verdict::Info,
        };
        match (good, bad) {
            (true, _) => Verdict::Met,
            (_, true) => Verdict::Missed,
            (false, false) => Verdict::Inconclusive,
        }
    }
}

/// Returns the largest `k` for which the k-th smallest and k-th largest of `n` values enclose the median with a probability of at least
/// 95 %. Returns 0 if even the extremes do not (fewer than 6 values); then the extremes are reported.
fn depth_of_95_percent(n: usize) -> usize {
    let mut outside = 0.0;
    // Probability that exactly `k` of `n` fall below the median: C(n, k) / 2^n.
    let mut exactly = 0.5_f64.powi(i32::try_from(n).unwrap_or(i32::MAX));
    let mut depth = 0;
    for k in 0..n / 2 {
        outside += 2.0 * exactly;
        if outside > 0.05 {
            break;
        }
        depth = k + 1;
        exactly = exactly * count(n - k) / count(k + 1);
    }
    depth
}

/// Returns the median of sorted values.
fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    Some(if sorted.len().is_multiple_of(2) { f64::midpoint(sorted[middle - 1], upper) } else { upper })
}

/// Converts a count to a float.
#[allow(clippy::cast_precision_loss, reason = "counts here are far below 2^53")]
pub(crate) fn count(count: usize) -> f64 {
    count as f64
}

/// Returns the slope of log(y) over log(x): 0 is flat, 1 is linear growth.
pub(crate) fn log_log_slope(points: &[(f64, f64)]) -> Option<f64> {
    let points: Vec<(f64, f64)> = points.iter().filter(|(x, y)| *x > 0.0 && *y > 0.0).map(|(x, y)| (x.ln(), y.ln())).collect();
    let n = count(points.len());
    let mean_x = points.iter().map(|(x, _)| x).sum::<f64>() / n;
    let mean_y = points.iter().map(|(_, y)| y).sum::<f64>() / n;
    let covariance: f64 = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let variance: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    (points.len() >= 2 && variance > 0.0).then_some(covariance / variance)
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// The name of the measurement on the command line. Several rows may share it.
    pub(crate) name: String,
    /// What is measured.
    pub(crate) path: String,
    /// Unit of both values.
    pub(crate) unit: &'static str,
    /// Our median.
    pub(crate) ours: Option<f64>,
    /// The peer's name; empty if there is none.
    pub(crate) peer: String,
    /// The peer's median.
    pub(crate) theirs: Option<f64>,
    /// Ours ÷ the peer's.
    pub(crate) ratio: Option<Interval>,
    /// The goal for the ratio.
    pub(crate) goal: Goal,
    /// Whether the goal is met.
    pub(crate) verdict: Verdict,
    /// Further information, such as why the row was skipped.
    pub(crate) note: String,
    /// Our value and the peer's of every counted round.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) rounds: Vec<(f64, f64)>,
    /// Sizes and values, for rows about growth.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) points: Vec<(f64, f64)>,
    /// Our latencies over all counted rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) our_times: Option<Distribution>,
    /// The peer's latencies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) their_times: Option<Distribution>,
}

impl Row {
    /// Creates a row without values, for a comparison that was not possible.
    pub(crate) fn skipped(path: &str, peer: &str, goal: Goal, why: impl std::fmt::Display) -> Self {
        Self {
            name: String::new(),
            path: path.to_owned(),
            unit: "",
            ours: None,
            peer: peer.to_owned(),
            theirs: None,
            ratio: None,
            goal,
            verdict: Verdict::Skip,
            note: why.to_string(),
            rounds: Vec::new(),
            points: Vec::new(),
            our_times: None,
            their_times: None,
        }
    }

    /// Creates a row from our values and the peer's of every round, or from one value of each, such as the size of a file.
    pub(crate) fn compared(path: &str, unit: &'static str, peer: &str, rounds: Vec<(f64, f64)>, goal: Goal) -> Self {
        let ratio = Interval::of(rounds.iter().map(|(ours, theirs)| ours / theirs).collect());
        let median =
            |side: fn(&(f64, f64)) -> f64| Interval::of(rounds.iter().map(side).collect()).map(|interval| interval.median);
        Self {
            unit,
            ours: median(|pair| pair.0),
            theirs: median(|pair| pair.1),
            ratio,
            verdict: ratio.map_or(Verdict::Skip, |ratio| ratio.verdict(goal)),
            rounds,
            ..Self::skipped(path, peer, goal, "")
        }
    }

    /// Creates a row for one of our values, without a peer. The goal applies to the value itself.
    pub(crate) fn alone(path: &str, unit: &'static str, ours: f64, goal: Goal, note: String) -> Self {
        let value = Interval { median: ours, low: ours, high: ours, pairs: 1 };
        Self { unit, ours: Some(ours), verdict: value.verdict(goal), ..Self::skipped(path, "", goal, note) }
    }
}

/// The rounds of ours and of the peer, and the peer's name.
type Pair<'a> = (&'a [Round], &'a [Round], &'a str);

impl Measured {
    /// Returns the rounds of two sides, or a row that explains why they are missing.
    fn pair(&self, path: &str, ours: usize, peer: usize, goal: Goal) -> Result<Pair<'_>, Box<Row>> {
        let (our_name, our_rounds) = &self.sides[ours];
        let (peer_name, peer_rounds) = &self.sides[peer];
        let failed = |name: &str, why: &str| Box::new(Row::skipped(path, peer_name, goal, format!("{name} failed: {why}")));
        match (our_rounds, peer_rounds) {
            (Ok(ours), Ok(peers)) => Ok((ours, peers, peer_name)),
            (Err(why), _) => Err(failed(our_name, why)),
            (_, Err(why)) => Err(failed(peer_name, why)),
        }
    }

    /// Compares value `metric` of side `ours` with that of side `peer`.
    pub(crate) fn row(&self, path: &str, unit: &'static str, ours: usize, peer: usize, metric: usize, goal: Goal) -> Row {
        let (ours, theirs, peer) = match self.pair(path, ours, peer, goal) {
            Ok(pair) => pair,
            Err(skipped) => return *skipped,
        };
        let of = |round: &Round| round.values.get(metric).copied().unwrap_or(f64::NAN);
        Row::compared(path, unit, peer, ours.iter().map(of).zip(theirs.iter().map(of)).collect(), goal)
    }

    /// Compares a quantile of the latencies of side `ours` with that of side `peer`.
    pub(crate) fn time_row(&self, path: &str, ours: usize, peer: usize, quantile: Quantile, goal: Goal) -> Row {
        let (ours, theirs, peer) = match self.pair(path, ours, peer, goal) {
            Ok(pair) => pair,
            Err(skipped) => return *skipped,
        };
        let Quantile { metric, share, unit } = quantile;
        let of = |round: &Round| round.times.get(metric).map_or(f64::NAN, |times| times.quantile(share, unit));
        let all = |rounds: &[Round]| Some(together(rounds, metric)?.distribution(unit));
        Row {
            our_times: all(ours),
            their_times: all(theirs),
            ..Row::compared(path, unit.as_str(), peer, ours.iter().map(of).zip(theirs.iter().map(of)).collect(), goal)
        }
    }

    /// Creates a row for a latency quantile of one side, without a peer. The goal applies to the quantile itself.
    pub(crate) fn own_time_row(&self, path: &str, side: usize, quantile: Quantile, goal: Goal) -> Row {
        let row = self.time_row(path, side, side, quantile, Goal::Open);
        let mut row = Row { peer: String::new(), theirs: None, ratio: None, their_times: None, goal, ..row };
        if let Some(range) = Interval::of(row.rounds.drain(..).map(|(ours, _)| ours).collect()) {
            row.verdict = range.verdict(goal);
            row.note = format!("between {} and {} {}", number(range.low), number(range.high), row.unit);
        }
        row
    }
}

/// Merges the latencies of all rounds.
fn together(rounds: &[Round], metric: usize) -> Option<Times> {
    let mut all = rounds.iter().filter_map(|round| round.times.get(metric));
    let mut merged = all.next()?.clone();
    // Does not fail: the histograms resize automatically.
    all.try_for_each(|times| merged.merge(times)).ok()?;
    Some(merged)
}

/// Formats a number with about three significant digits.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if size == 0.0 => "0".to_owned(),
        _ if size >= 100.0 => format!("{value:.0}"),
        _ if size >= 10.0 => format!("{value:.1}"),
        _ if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_encloses_the_median_of_small_samples_as_the_binomial_table_says() {
        // Of six values, the extremes enclose the median with 96.9 %; of nine, the second ones with 96.1 %; of fifteen, the fourth ones
        // with 96.5 %.
        assert_eq!([5, 6, 8, 9, 15].map(depth_of_95_percent), [0, 1, 1, 2, 4]);
    }

    #[test]
    fn a_verdict_needs_the_whole_interval() {
        let interval = Interval::of(vec![0.9, 1.1, 1.0, 1.2, 0.95, 1.05]).expect("values");
        assert_eq!((interval.median, interval.low, interval.high), (1.025, 0.9, 1.2));
        assert_eq!(interval.verdict(Goal::AtLeast(0.8)), Verdict::Met);
        assert_eq!(interval.verdict(Goal::AtLeast(1.0)), Verdict::Inconclusive);
        assert_eq!(interval.verdict(Goal::AtLeast(1.3)), Verdict::Missed);
        assert_eq!(interval.verdict(Goal::AtMost(1.2)), Verdict::Met);
        assert_eq!(interval.verdict(Goal::AtMost(0.5)), Verdict::Missed);
    }

    #[test]
    fn the_slope_tells_flat_from_linear() {
        let flat = log_log_slope(&[(10.0, 5.0), (1000.0, 5.0)]).expect("a slope");
        let linear = log_log_slope(&[(10.0, 5.0), (100.0, 50.0), (1000.0, 500.0)]).expect("a slope");
        assert!(flat.abs() < 1e-9 && (linear - 1.0).abs() < 1e-9, "{flat} {linear}");
        assert_eq!(log_log_slope(&[(10.0, 5.0)]), None);
    }

    #[test]
    fn a_number_without_a_peer_is_judged_over_its_rounds() {
        let round = |milliseconds: u64| {
            let mut times = Times::new().expect("times");
            times.record(Duration::from_millis(milliseconds)).expect("recorded");
            Round::times(vec![times])
        };
        let sides = vec![("ours".to_owned(), Ok([40, 41, 42].map(round).into())), ("gone".to_owned(), Err("no disk".to_owned()))];
        let measured = Measured { sides };
        let p50 = Quantile { metric: 0, share: 0.5, unit: TimeUnit::Milliseconds };
        let verdict = |goal| measured.own_time_row("path", 0, p50, Goal::AtMost(goal)).verdict;
        assert_eq!([50.0, 41.0, 30.0].map(verdict), [Verdict::Met, Verdict::Inconclusive, Verdict::Missed]);
        let gone = measured.own_time_row("path", 1, p50, Goal::AtMost(50.0));
        assert!(gone.verdict == Verdict::Skip && gone.note.contains("no disk"), "{}", gone.note);
    }

    /// A side with predetermined results.
    struct Fixed(&'static str, Vec<Result<Vec<f64>, String>>);

    impl Side for Fixed {
        fn name(&self) -> String {
            self.0.to_owned()
        }

        fn round(&mut self, _: Duration) -> BoxFuture<'_, Result<Round>> {
            let next = self.1.remove(0);
            Box::pin(async move { Ok(Round { values: next?, times: Vec::new() }) })
        }
    }

    #[tokio::test]
    async fn the_first_round_is_dropped_and_a_failing_peer_is_a_skip() {
        let effort = Effort { rounds: 3, round_ms: 1 };
        let mut sides: Vec<Box<dyn Side>> = vec![
            Box::new(Fixed("ours", vec![Ok(vec![900.0]), Ok(vec![2.0]), Ok(vec![4.0])])),
            Box::new(Fixed("peer", vec![Ok(vec![1.0]), Ok(vec![1.0]), Ok(vec![1.0])])),
            Box::new(Fixed("broken", vec![Ok(vec![1.0]), Err("no disk".to_owned())])),
        ];
        let measured = interleave(&mut sides, effort).await;
        let row = measured.row("path", "x/s", 0, 1, 0, Goal::AtLeast(1.0));
        assert_eq!((row.ours, row.theirs, row.verdict), (Some(3.0), Some(1.0), Verdict::Met));
        assert_eq!(row.ratio.expect("a ratio").pairs, 2);
        let row = measured.row("path", "x/s", 0, 2, 0, Goal::AtLeast(1.0));
        assert_eq!(row.verdict, Verdict::Skip);
        assert!(row.note.contains("no disk"), "{}", row.note);
    }
}
