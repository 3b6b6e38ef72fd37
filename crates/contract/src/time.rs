//! Time as integers: microseconds since the Unix epoch.

use std::time::Duration;

/// A moment, in microseconds since the Unix epoch.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Reads the system clock. The only place in the product that does; pure code takes `now` as an argument.
    #[allow(clippy::disallowed_methods, reason = "this is the one place that may")]
    pub fn now() -> Self {
        #[cfg(feature = "simulation")]
        if let Some(simulated) = crate::simulation::now() {
            return simulated;
        }
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self(micros(since))
    }

    /// `self` plus `by`, saturating.
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(micros(by)))
    }

    /// `self` minus `by`, saturating.
    pub fn minus(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(micros(by)))
    }

    /// Time elapsed since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// RFC 3339 in UTC with microseconds, for people and CloudEvents.
    pub fn rfc3339(self) -> String {
        // Days-to-civil conversion (proleptic Gregorian); spares the contract a calendar dependency.
        let days = self.0.div_euclid(86_400_000_000);
        let micros = self.0.rem_euclid(86_400_000_000);
        let z = days + 719_468;
        let era = z.div_euclid(146_097);
        let day_of_era = z.rem_euclid(146_097);
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let mp = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * mp + 2) / 5 + 1;
        let month = if mp < 10 { mp + 3 } else { mp - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
        format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{fraction:06}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
    }
}

/// Days from the Unix epoch to a date of the proleptic Gregorian calendar.
const fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Parses a text that consists of digits only.
fn digits(text: &str) -> Option<i64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// Converts `08:30` to seconds.
fn hours_and_minutes(text: &str) -> Option<i64> {
    let (hours, minutes) = text.split_once(':').filter(|(hours, minutes)| (hours.len(), minutes.len()) == (2, 2))?;
    let (hours, minutes) = (digits(hours)?, digits(minutes)?);
    (hours <= 23 && minutes <= 59).then_some(hours * 3600 + minutes * 60)
}

impl Timestamp {
    /// Parses RFC 3339 with any offset and up to nine fractional digits; anything finer than a microsecond is truncated. `None` for
    /// anything else, including leap seconds.
    pub fn parse_rfc3339(text: &str) -> Option<Self> {
        let (date, time) = text.split_once(['T', 't'])?;
        let (year, rest) = date.split_at_checked(4)?;
        let (month, day) = rest.strip_prefix('-')?.split_once('-').filter(|(month, day)| (month.len(), day.len()) == (2, 2))?;
        let (year, month, day) = (digits(year)?, digits(month)?, digits(day)?);
        if !(1..=12).contains(&month) || day < 1 {
            return None;
        }
        let days = days_of(year, month, day);
        let next_month = if month == 12 { days_of(year + 1, 1, 1) } else { days_of(year, month + 1, 1) };
        if days >= next_month {
            return None;
        }
        let (clock, offset) = match time.strip_suffix(['Z', 'z']) {
            Some(clock) => (clock, 0),
            None => {
                let (clock, offset) = time.split_at_checked(time.len().checked_sub(6)?)?;
                let sign = if offset.starts_with('+') { 1 } else { -1 };
                (clock, sign * hours_and_minutes(offset.strip_prefix(['+', '-'])?)?)
            }
        };
        let (minutes, seconds) = clock.rsplit_once(':')?;
        let (seconds, fraction) =
            seconds.split_once('.').map_or((seconds, None), |(seconds, fraction)| (seconds, Some(fraction)));
        let seconds = digits(seconds).filter(|number| seconds.len() == 2 && *number <= 59)?;
        let fraction = match fraction {
            Some(fraction) if (1..=9).contains(&fraction.len()) => digits(&format!("{fraction:0<9}"))? / 1000,
            Some(_) => return None,
            None => 0,
        };
        Some(Self((days * 86_400 + hours_and_minutes(minutes)? + seconds - offset) * 1_000_000 + fraction))
    }
}

/// Serializes a timestamp as RFC 3339 in UTC with microseconds: `#[serde(with = "Rfc3339")]`. Documents for people and other programs have
/// times in this form; signed and stored documents have integers.
#[derive(Clone, Copy, Debug)]
pub struct Rfc3339;

/// Same as [`Rfc3339`] for an optional timestamp: `#[serde(default, with = "OptionalRfc3339")]`.
#[derive(Clone, Copy, Debug)]
pub struct OptionalRfc3339;

const EXPECTED: &str = "expected a time as in RFC 3339, such as 2027-03-01T08:00:00Z";

impl Rfc3339 {
    /// Called by serde.
    pub fn serialize<S: serde::Serializer>(at: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(at)
    }

    /// Called by serde.
    pub fn deserialize<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
        let text: std::borrow::Cow<'de, str> = serde::Deserialize::deserialize(deserializer)?;
        Timestamp::parse_rfc3339(&text).ok_or_else(|| serde::de::Error::custom(EXPECTED))
    }
}

impl Rfc3339 {
    /// Called by serde, for files that may date from before times were text: also accepts microseconds since the epoch.
    pub fn deserialize_lenient<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(untagged)]
        enum Written {
            Micros(i64),
            Text(String),
        }
        match serde::Deserialize::deserialize(deserializer)? {
            Written::Micros(micros) => Ok(Timestamp(micros)),
            Written::Text(text) => Timestamp::parse_rfc3339(&text).ok_or_else(|| serde::de::Error::custom(EXPECTED)),
        }
    }
}

impl OptionalRfc3339 {
    /// Called by serde.
    pub fn serialize<S: serde::Serializer>(at: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
        match at {
            Some(at) => serializer.collect_str(at),
            None => serializer.serialize_none(),
        }
    }

    /// Called by serde.
    pub fn deserialize<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
        let text: Option<std::borrow::Cow<'de, str>> = serde::Deserialize::deserialize(deserializer)?;
        text.map(|text| Timestamp::parse_rfc3339(&text).ok_or_else(|| serde::de::Error::custom(EXPECTED))).transpose()
    }
}

impl schemars::JsonSchema for Rfc3339 {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Rfc3339".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "format": "date-time" })
    }
}

impl schemars::JsonSchema for OptionalRfc3339 {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "OptionalRfc3339".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": ["string", "null"], "format": "date-time" })
    }
}

impl std::fmt::Display for Timestamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.rfc3339())
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments_print_as_rfc3339() {
        for (micros, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000000Z"),
            (1_735_689_599_999_999, "2024-12-31T23:59:59.999999Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
        ] {
            assert_eq!(Timestamp(micros).rfc3339(), text);
        }
    }

    #[test]
    fn what_is_printed_is_read_back() {
        for micros in [0, 951_782_400_000_000, 1_735_689_599_999_999, -1, -62_135_596_800_000_000, 253_402_300_799_999_999] {
            assert_eq!(Timestamp::parse_rfc3339(&Timestamp(micros).rfc3339()), Some(Timestamp(micros)));
        }
        for day in (0..150_000).step_by(7) {
            let at = Timestamp(day * 86_400_000_000 + 3_723_000_001);
            assert_eq!(Timestamp::parse_rfc3339(&at.rfc3339()), Some(at), "{at}");
        }
    }

    #[test]
    fn any_offset_and_fraction_of_rfc3339_is_read() {
        for (text, same) in [
            ("2027-03-01T08:00:00Z", "2027-03-01T08:00:00.000000Z"),
            ("2027-03-01t08:00:00.5z", "2027-03-01T08:00:00.500000Z"),
            ("2027-03-01T08:00:00.123456789Z", "2027-03-01T08:00:00.123456Z"),
            ("2027-03-01T00:30:00+02:00", "2027-02-28T22:30:00.000000Z"),
            ("2024-02-29T23:00:00-01:30", "2024-03-01T00:30:00.000000Z"),
        ] {
            assert_eq!(Timestamp::parse_rfc3339(text).map(Timestamp::rfc3339).as_deref(), Some(same), "{text}");
        }
    }

    #[test]
    fn what_is_no_moment_is_not_read() {
        for text in [
            "",
            "T",
            "2027-03-01",
            "2027-03-01T08:00Z",
            "2027-03-01T08:00:00",
            "2027-02-29T00:00:00Z",
            "2100-02-29T00:00:00Z",
            "2027-13-01T00:00:00Z",
            "2027-00-01T00:00:00Z",
            "2027-01-00T00:00:00Z",
            "2027-01-32T00:00:00Z",
            "2027-01-01T24:00:00Z",
            "2027-01-01T00:60:00Z",
            "2027-01-01T00:00:60Z",
            "2027-01-01T00:00:00.Z",
            "2027-01-01T00:00:00.1234567890Z",
            "2027-01-01T00:00:00+24:00",
            "2027-01-01T00:00:00+0200",
            "+027-01-01T00:00:00Z",
            "2027-1-01T00:00:00Z",
            "2027-01-01T00:00:00 Z",
            "1735689599",
            "20270-01-01T00:00:00Z",
            "2027-01-01T0\u{e9}:00:00Z",
        ] {
            assert_eq!(Timestamp::parse_rfc3339(text), None, "{text}");
        }
    }

    #[test]
    fn documents_have_times_as_text() {
        #[derive(serde::Serialize, serde::Deserialize, Debug, PartialEq)]
        struct Document {
            #[serde(with = "Rfc3339")]
            at: Timestamp,
            #[serde(default, with = "OptionalRfc3339")]
            until: Option<Timestamp>,
        }
        let document = Document { at: Timestamp(1), until: Some(Timestamp(0)) };
        let text = r#"{"at":"1970-01-01T00:00:00.000001Z","until":"1970-01-01T00:00:00.000000Z"}"#;
        assert_eq!(serde_json::to_string(&document).expect("serializes"), text);
        assert_eq!(serde_json::from_str::<Document>(text).expect("reads"), document);
        let absent: Document = serde_json::from_str(r#"{"at":"1970-01-01T00:00:00.000001Z"}"#).expect("reads");
        assert_eq!((absent.until, absent.at), (None, Timestamp(1)));
        let error = serde_json::from_str::<Document>(r#"{"at":"yesterday"}"#).expect_err("no time").to_string();
        assert!(error.contains("2027-03-01T08:00:00Z"), "{error}");
    }

    #[test]
    fn arithmetic_saturates_instead_of_wrapping() {
        assert_eq!(Timestamp(i64::MAX).plus(Duration::from_secs(1)), Timestamp(i64::MAX));
        assert_eq!(Timestamp(5).since(Timestamp(9)), Duration::ZERO);
    }
}
