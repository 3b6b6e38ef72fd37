//! The decision as a pure function of one number and the clock.

use std::time::Duration;

use super::{Decision, Rule};

/// The longest period. It keeps sums of microseconds exact in Redis, whose scripts count in doubles.
const MAX_PERIOD_MICROS: u64 = 400 * 24 * 3600 * 1_000_000;

/// Returns the period in microseconds, the burst and the cost, within their bounds.
pub(super) fn normal(rule: Rule, cost: u32) -> (u64, u64, u64) {
    let per = u64::try_from(rule.per.as_micros()).unwrap_or(u64::MAX).clamp(1, MAX_PERIOD_MICROS);
    let burst = u64::from(rule.burst).clamp(1, per);
    (per, burst, u64::from(cost).min(burst))
}

/// Decides about a request. `arrival` is the theoretical arrival time: the moment at which the whole burst is available again, in
/// microseconds on the clock of `now`. Returns its new value.
pub(super) fn decide(arrival: Option<u64>, now: u64, rule: Rule, cost: u32) -> (Decision, u64) {
    let (per, burst, cost) = normal(rule, cost);
    // A clock that was set back must not lock a caller out for longer than a whole period.
    let arrival = arrival.unwrap_or(now).clamp(now, now + per);
    let after = arrival + scaled(cost, per, burst);
    let allowed = after <= now + per;
    let retry_after = (!allowed).then(|| Duration::from_micros(after.saturating_sub(now + per)));
    let arrival = if allowed { after } else { arrival };
    let remaining = scaled(now + per - arrival, burst, per).min(burst);
    let decision = Decision {
        allowed,
        remaining: u32::try_from(remaining).unwrap_or(u32::MAX),
        reset_after: Duration::from_micros(arrival - now),
        retry_after,
    };
    (decision, arrival)
}

/// Returns `value * by / of`, rounded down.
fn scaled(value: u64, by: u64, of: u64) -> u64 {
    u64::try_from(u128::from(value) * u128::from(by) / u128::from(of)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    const MINUTE: Rule = Rule { per: Duration::from_secs(60), burst: 60 };

    #[test]
    fn a_burst_is_allowed_at_once_and_then_one_after_the_other() {
        let mut arrival = None;
        for remaining in (0..60).rev() {
            let (decision, after) = decide(arrival, 1_000, MINUTE, 1);
            assert!(decision.allowed);
            assert_eq!((decision.remaining, decision.retry_after), (remaining, None));
            arrival = Some(after);
        }
        let (refused, after) = decide(arrival, 1_000, MINUTE, 1);
        assert!(!refused.allowed);
        assert_eq!(refused.retry_after, Some(Duration::from_secs(1)));
        assert_eq!(refused.reset_after, Duration::from_secs(60));
        assert_eq!(Some(after), arrival, "a refusal uses nothing up");
        assert!(!decide(arrival, 1_000 + 999_999, MINUTE, 1).0.allowed, "a moment too early");
        assert!(decide(arrival, 1_000 + 1_000_000, MINUTE, 1).0.allowed, "when it said");
    }

    #[test]
    fn a_cost_of_nothing_only_looks_and_one_above_the_burst_is_the_burst() {
        let (look, arrival) = decide(None, 5, MINUTE, 0);
        assert_eq!((look.allowed, look.remaining, arrival), (true, 60, 5));
        let (all, arrival) = decide(None, 5, MINUTE, u32::MAX);
        assert_eq!((all.allowed, all.remaining), (true, 0));
        assert_eq!(decide(Some(arrival), 5, MINUTE, 61).0.retry_after, Some(Duration::from_secs(60)));
    }

    #[test]
    fn a_clock_that_goes_back_locks_nobody_out_for_longer_than_the_period() {
        let (decision, _) = decide(Some(u64::MAX), 0, MINUTE, 1);
        assert_eq!(decision.retry_after, Some(Duration::from_secs(1)));
    }

    proptest! {
        #[test]
        fn whoever_asks_however_often_never_gets_more_than_the_burst_and_what_came_back(
            per in 1_u64..10_000_000, burst in 1_u32..1000, steps in proptest::collection::vec((0_u64..2_000_000, 0_u32..50), 1..200)
        ) {
            let rule = Rule { per: Duration::from_micros(per), burst };
            let (per, burst, _) = normal(rule, 1);
            let (mut now, mut arrival, mut used) = (1_000_000, None, 0_u64);
            let started = now;
            for (wait, cost) in steps {
                now += wait;
                let (decision, after) = decide(arrival, now, rule, cost);
                arrival = Some(after);
                prop_assert!(u64::from(decision.remaining) <= burst);
                prop_assert_eq!(decision.allowed, decision.retry_after.is_none());
                if decision.allowed {
                    used += normal(rule, cost).2;
                } else {
                    // The promised retry succeeds.
                    let later = now + u64::try_from(decision.retry_after.unwrap_or_default().as_micros()).unwrap_or(0);
                    prop_assert!(decide(arrival, later, rule, cost).0.allowed);
                }
                // Rounding down loses less than a microsecond per step.
                let came_back = (now - started + 200) * burst / per + 1;
                prop_assert!(used <= burst + came_back, "{used} used, {burst} at once, {came_back} came back");
            }
        }

        #[test]
        fn no_numbers_are_too_strange(arrival in any::<Option<u64>>(), per in any::<u64>(), burst in any::<u32>(), cost in any::<u32>()) {
            let now = 1_700_000_000_000_000;
            let (decision, after) = decide(arrival, now, Rule { per: Duration::from_nanos(per), burst }, cost);
            prop_assert!(after >= now);
            prop_assert!(decision.remaining <= burst.max(1));
        }
    }
}
