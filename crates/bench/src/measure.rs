//! Rounds, ratios and verdicts.
//!
//! All sides of a comparison run in the same round, in an order that is turned around every round (A B, B A, …), so that a machine
//! that gets slower hits all of them. The first round warms up and is dropped. Each round gives one ratio; the median
//! of the ratios is reported with the interval that holds the true median in 95 % of all runs (order statistics: nothing is
//! assumed about the distribution).

use std::time::Duration;

use futures::future::BoxFuture;
use serde::Serialize;

use crate::Result;

/// One side of a comparison.
pub(crate) trait Side: Send {
    /// What to call it.
    fn name(&self) -> String;
    /// Works for about this long and says what it measured: one number per metric.
    fn round(&mut self, time: Duration) -> BoxFuture<'_, Result<Vec<f64>>>;
}

/// How many rounds, and how long.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Effort {
    /// Rounds, with the first that is dropped.
    pub(crate) rounds: usize,
    /// Length of one round of one side, in milliseconds.
    pub(crate) round_ms: u64,
}

/// What all sides measured, or why a side stopped.
pub(crate) struct Measured {
    /// Per side, its name and what it measured.
    sides: Vec<(String, Result<Rounds, String>)>,
}

/// Per counted round, per metric.
type Rounds = Vec<Vec<f64>>;

/// Runs all sides against each other.
pub(crate) async fn interleave(sides: &mut [Box<dyn Side>], effort: Effort) -> Measured {
    let time = Duration::from_millis(effort.round_ms);
    let mut results: Vec<Result<Vec<Vec<f64>>, String>> = sides.iter().map(|_| Ok(Vec::new())).collect();
    for round in 0..effort.rounds {
        let mut order: Vec<usize> = (0..sides.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            let Ok(rounds) = &mut results[index] else { continue };
            match sides[index].round(time).await {
                Ok(metrics) if round > 0 => rounds.push(metrics),
                Ok(_) => {}
                Err(error) => results[index] = Err(error.to_string()),
            }
        }
    }
    Measured { sides: sides.iter().map(|side| side.name()).zip(results).collect() }
}

/// What a ratio of ours to the peer's should be.
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

/// What became of the goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// The whole interval is on the good side.
    Met,
    /// The whole interval is on the bad side.
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

/// A median and where it could be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Interval {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// How many ratios it comes from.
    pub(crate) pairs: usize,
}

impl Interval {
    /// From one ratio per round; `None` if there are none.
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

/// The largest `k` for which the k-th smallest and k-th largest of `n` values enclose the median with at least 95 %; 0
/// if even the extremes do not (fewer than 6 values), and then the extremes are all there is to say.
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

/// The middle of sorted values.
fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    Some(if sorted.len().is_multiple_of(2) { f64::midpoint(sorted[middle - 1], upper) } else { upper })
}

/// The value below which this share (0 to 1) of all values lies. Sorts them.
pub(crate) fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a position in a list of bounded length")]
    let position = (count(values.len().saturating_sub(1)) * share).round() as usize;
    values.get(position).copied().unwrap_or(f64::NAN)
}

/// A count as a number to calculate with.
#[allow(clippy::cast_precision_loss, reason = "counts here are far below 2^53")]
pub(crate) fn count(count: usize) -> f64 {
    count as f64
}

/// The slope of log(y) over log(x): 0 is flat, 1 is linear growth.
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
    /// What is measured.
    pub(crate) path: String,
    /// Unit of both values.
    pub(crate) unit: &'static str,
    /// Median of ours.
    pub(crate) ours: Option<f64>,
    /// The peer's name.
    pub(crate) peer: String,
    /// Median of the peer's.
    pub(crate) theirs: Option<f64>,
    /// Ours ÷ the peer's.
    pub(crate) ratio: Option<Interval>,
    /// What the ratio should be.
    pub(crate) goal: Goal,
    /// Whether it is.
    pub(crate) verdict: Verdict,
    /// What else there is to know, such as why it was skipped.
    pub(crate) note: String,
}

impl Row {
    /// A line without a comparison.
    pub(crate) fn skipped(path: &str, peer: &str, goal: Goal, why: impl std::fmt::Display) -> Self {
        Self {
            path: path.to_owned(),
            unit: "",
            ours: None,
            peer: peer.to_owned(),
            theirs: None,
            ratio: None,
            goal,
            verdict: Verdict::Skip,
            note: why.to_string(),
        }
    }

    /// A line from one value of each side, such as the size of a file.
    pub(crate) fn single(path: &str, unit: &'static str, ours: f64, peer: &str, theirs: f64, goal: Goal) -> Self {
        let ratio = Interval::of(vec![ours / theirs]);
        Self {
            path: path.to_owned(),
            unit,
            ours: Some(ours),
            peer: peer.to_owned(),
            theirs: Some(theirs),
            ratio,
            goal,
            verdict: ratio.map_or(Verdict::Skip, |ratio| ratio.verdict(goal)),
            note: String::new(),
        }
    }

    /// A number of ours that has no peer. The verdict is about the number itself.
    pub(crate) fn alone(path: &str, unit: &'static str, ours: f64, goal: Goal, note: String) -> Self {
        let value = Interval { median: ours, low: ours, high: ours, pairs: 1 };
        Self {
            path: path.to_owned(),
            unit,
            ours: Some(ours),
            peer: String::new(),
            theirs: None,
            ratio: None,
            goal,
            verdict: value.verdict(goal),
            note,
        }
    }
}

impl Measured {
    /// Compares metric `metric` of side `ours` with that of side `peer`.
    pub(crate) fn row(&self, path: &str, unit: &'static str, ours: usize, peer: usize, metric: usize, goal: Goal) -> Row {
        let (our_name, our_rounds) = &self.sides[ours];
        let (peer_name, peer_rounds) = &self.sides[peer];
        let (our_rounds, peer_rounds) = match (our_rounds, peer_rounds) {
            (Ok(ours), Ok(peers)) => (ours, peers),
            (Err(why), _) => return Row::skipped(path, peer_name, goal, format!("{our_name} failed: {why}")),
            (_, Err(why)) => return Row::skipped(path, peer_name, goal, format!("{peer_name} failed: {why}")),
        };
        let of = |rounds: &[Vec<f64>]| -> Vec<f64> { rounds.iter().filter_map(|round| round.get(metric).copied()).collect() };
        let (ours, theirs) = (of(our_rounds), of(peer_rounds));
        let ratio = Interval::of(ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect());
        Row {
            path: path.to_owned(),
            unit,
            ours: Interval::of(ours).map(|interval| interval.median),
            peer: peer_name.clone(),
            theirs: Interval::of(theirs).map(|interval| interval.median),
            ratio,
            goal,
            verdict: ratio.map_or(Verdict::Skip, |ratio| ratio.verdict(goal)),
            note: String::new(),
        }
    }
}

/// A number with about three significant digits.
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
        // Six values: the extremes enclose it with 96.9 %; nine: the second ones with 96.1 %; fifteen: the fourth with 96.5 %.
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
    fn percentiles_are_values_of_the_list() {
        let mut values: Vec<f64> = (0..=100_u32).rev().map(f64::from).collect();
        assert_eq!((percentile(&mut values, 0.5), percentile(&mut values, 0.99)), (50.0, 99.0));
    }

    /// A side whose numbers are known.
    struct Fixed(&'static str, Vec<Result<Vec<f64>, String>>);

    impl Side for Fixed {
        fn name(&self) -> String {
            self.0.to_owned()
        }

        fn round(&mut self, _: Duration) -> BoxFuture<'_, Result<Vec<f64>>> {
            let next = self.1.remove(0);
            Box::pin(async move { Ok(next?) })
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
