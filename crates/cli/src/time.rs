//! Points in time as people write them: `+2h` from now, or a date and time in UTC.

use gpuaas_contract::time::Timestamp;

use crate::duration;

/// Parses `+2h` (from now), `now`, or a time in UTC such as `2027-03-01T08:00Z` or `2027-03-01`.
pub(crate) fn parse(text: &str) -> Result<Timestamp, String> {
    parse_at(text, Timestamp::now())
}

fn parse_at(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    if text == "now" {
        return Ok(now);
    }
    if let Some(later) = text.strip_prefix('+') {
        return duration::parse(later).map(|later| now.plus(later));
    }
    utc(text).ok_or_else(|| "expected `+2h` for a time from now, or UTC such as 2027-03-01T08:00Z".to_owned())
}

/// Parses a time in the past: `2h` or `3d` before now, or a time in UTC such as `2027-03-01T08:00Z` or `2027-03-01`.
pub(crate) fn parse_past(text: &str) -> Result<Timestamp, String> {
    parse_past_at(text, Timestamp::now())
}

fn parse_past_at(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    // A date starts with a digit as well, but contains dashes.
    let time = if text.contains('-') { utc(text) } else { duration::parse(text).ok().map(|ago| now.minus(ago)) };
    time.ok_or_else(|| "expected a duration before now such as 2h or 3d, or UTC such as 2027-03-01T08:00Z".to_owned())
}

/// Parses RFC 3339 and two shorter forms: `YYYY-MM-DD`, and `YYYY-MM-DDTHH:MMZ` without seconds.
fn utc(text: &str) -> Option<Timestamp> {
    let Some((date, time)) = text.split_once('T') else { return Timestamp::parse_rfc3339(&format!("{text}T00:00:00Z")) };
    match time.strip_suffix('Z').filter(|time| time.len() == "08:00".len()) {
        Some(minutes) => Timestamp::parse_rfc3339(&format!("{date}T{minutes}:00Z")),
        None => Timestamp::parse_rfc3339(text),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn moments_are_read_relative_to_now_and_as_utc() {
        let now = Timestamp(1_000_000_000_000_000);
        assert_eq!(parse_at("now", now), Ok(now));
        assert_eq!(parse_at("+2h", now), Ok(now.plus(Duration::from_secs(7200))));
        for (text, shown) in [
            ("1970-01-01", "1970-01-01T00:00:00"),
            ("2000-02-29T23:59:59Z", "2000-02-29T23:59:59"),
            ("2027-03-01T08:00Z", "2027-03-01T08:00:00"),
            ("2028-12-31", "2028-12-31T00:00:00"),
            ("2100-03-01", "2100-03-01T00:00:00"),
        ] {
            let read = parse_at(text, now).expect(text);
            assert!(read.rfc3339().starts_with(shown), "{text} is {read}");
        }
    }

    #[test]
    fn a_time_in_the_past_is_a_duration_or_a_date() {
        let now = Timestamp(1_000_000_000_000_000);
        assert_eq!(parse_past_at("2h", now), Ok(now.minus(Duration::from_secs(7200))));
        assert_eq!(parse_past_at("3d", now), Ok(now.minus(Duration::from_secs(3 * 86_400))));
        assert_eq!(parse_past_at("2001-09-09", now).map(|at| at.rfc3339()), Ok("2001-09-09T00:00:00.000000Z".to_owned()));
        assert_eq!(parse_past_at("2001-09-09T01:46:40.5Z", now), Ok(Timestamp(1_000_000_000_500_000)));
        for text in ["", "yesterday", "-2h", "2 h", "2001-9-9", "2h ago", "+2h"] {
            assert!(parse_past_at(text, now).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_no_moment_is_refused() {
        for text in [
            "",
            "tomorrow",
            "+",
            "2027-3-1",
            "2027-03-01T08:\u{e9}Z",
            "2027-02-29",
            "2100-02-29",
            "2027-13-01",
            "2027-01-01T24:00Z",
            "2027-01-01T08:00",
        ] {
            assert!(parse_at(text, Timestamp(0)).is_err(), "{text}");
        }
    }
}
