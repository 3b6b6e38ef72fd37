//! Prices: millionths of the currency unit on the wire, plain decimals for people.

/// Millionths in one unit.
const UNIT: u64 = 1_000_000;
/// Digits of a millionth.
const DIGITS: usize = 6;

/// A price per hour, such as `2.50/h`.
pub(crate) fn per_hour(millionths: i64) -> String {
    let sign = if millionths < 0 { "-" } else { "" };
    let (whole, rest) = (millionths.unsigned_abs() / UNIT, millionths.unsigned_abs() % UNIT);
    let rest = format!("{rest:06}");
    // Cents always, smaller parts only where there are some.
    let significant = rest.trim_end_matches('0').len().max(2);
    format!("{sign}{whole}.{}/h", &rest[..significant])
}

/// Reads a price such as `2.5` or `0.000125`.
pub(crate) fn parse(text: &str) -> Result<i64, String> {
    let bad = || "expected a price per hour such as 2.50, with at most six digits after the point".to_owned();
    let (whole, rest) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(rest) || rest.len() > DIGITS {
        return Err(bad());
    }
    let rest: i64 = format!("{rest:0<DIGITS$}").parse().map_err(|_| bad())?;
    let whole: i64 = whole.parse().map_err(|_| bad())?;
    whole.checked_mul(1_000_000).and_then(|whole| whole.checked_add(rest)).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_read_and_shown_as_plain_decimals() {
        for (text, millionths, shown) in [
            ("2.5", 2_500_000, "2.50/h"),
            ("2", 2_000_000, "2.00/h"),
            ("0", 0, "0.00/h"),
            ("0.000125", 125, "0.000125/h"),
            ("19.99", 19_990_000, "19.99/h"),
            ("1.125", 1_125_000, "1.125/h"),
        ] {
            assert_eq!((parse(text), per_hour(millionths).as_str()), (Ok(millionths), shown), "{text}");
        }
        assert_eq!(per_hour(-1_500_000), "-1.50/h");
    }

    #[test]
    fn what_is_no_price_is_refused() {
        for text in ["", ".", "1.", ".5", "-1", "+1", "1,5", "1e3", "0.0000001", "99999999999999999999", "9223372036855"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
