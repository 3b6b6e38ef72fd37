//! Moments as people write them: `+2h` from now, or a date and time in UTC.

use gpuaas_contract::time::Timestamp;

use crate::duration;

/// Reads `+2h` (from now), `now`, or a moment in UTC such as `2027-03-01T08:00Z` or `2027-03-01`.
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

/// RFC 3339, and shorter: `YYYY-MM-DD`, or without seconds `YYYY-MM-DDTHH:MMZ`.
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
