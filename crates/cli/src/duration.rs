//! Durations on the command line: `90`, `90s`, `5m`, `2h`, `1d`.

use std::time::Duration;

/// Parses a duration. Without a unit it is in seconds.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let (digits, unit) = match text.find(|c: char| !c.is_ascii_digit()) {
        Some(at) => text.split_at(at),
        None => (text, "s"),
    };
    let factor = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err("give a number and one of s, m, h, d; for example 90s or 5m".to_owned()),
    };
    let number: u64 = digits.parse().map_err(|_| "it must start with a number; for example 90s or 5m".to_owned())?;
    let seconds = number.checked_mul(factor).filter(|seconds| *seconds > 0).ok_or("it must be at least one second")?;
    Ok(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_with_and_without_unit() {
        for (text, seconds) in [("90", 90), ("90s", 90), ("5m", 300), ("2h", 7200), ("1d", 86_400)] {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "m", "0", "0s", "5 m", "-1", "1.5h", "99999999999999999999", "18446744073709551615d", "5mm"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
