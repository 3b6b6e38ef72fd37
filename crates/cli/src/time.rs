//! Moments as people write them: `+2h` from now, or a date and time in UTC.

use std::time::Duration;

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

/// `YYYY-MM-DD`, with `THH:MM` or `THH:MM:SS` and `Z` after it.
fn utc(text: &str) -> Option<Timestamp> {
    let (date, time) = match text.split_once('T') {
        Some((date, time)) => (date, time.strip_suffix('Z')?),
        None => (text, "00:00"),
    };
    let date: Vec<u64> = numbers(date, '-', &[4, 2, 2])?;
    let time: Vec<u64> = numbers(time, ':', &[2, 2, 2]).or_else(|| numbers(time, ':', &[2, 2]))?;
    let (&[year, month, day], hour, minute) = (date.as_slice().first_chunk::<3>()?, time[0], time[1]);
    let second = time.get(2).copied().unwrap_or(0);
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days_of = |month: u64| match month {
        4 | 6 | 9 | 11 => 30,
        2 => 28 + u64::from(leap),
        _ => 31,
    };
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=days_of(month)).contains(&day) {
        return None;
    }
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let before = year - 1;
    let leap_days = before / 4 - before / 100 + before / 400 - 477;
    let days = (year - 1970) * 365 + leap_days + (1..month).map(days_of).sum::<u64>() + day - 1;
    Some(Timestamp(0).plus(Duration::from_secs(days * 86_400 + hour * 3600 + minute * 60 + second)))
}

/// The numbers of a text, each with exactly so many digits.
fn numbers(text: &str, between: char, widths: &[usize]) -> Option<Vec<u64>> {
    let parts: Vec<&str> = text.split(between).collect();
    let fits = |(part, width): (&&str, &usize)| part.len() == *width && part.bytes().all(|byte| byte.is_ascii_digit());
    if parts.len() != widths.len() || !parts.iter().zip(widths).all(fits) {
        return None;
    }
    parts.into_iter().map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
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
        for text in
            ["", "tomorrow", "+", "2027-3-1", "2027-02-29", "2100-02-29", "2027-13-01", "2027-01-01T24:00Z", "2027-01-01T08:00"]
        {
            assert!(parse_at(text, Timestamp(0)).is_err(), "{text}");
        }
    }
}
