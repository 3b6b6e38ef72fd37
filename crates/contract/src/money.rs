//! Money: an amount in millionths of a currency unit. Documents show it as `{"amount":"2.50","currency":"USD"}`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// Millionths per currency unit.
const UNIT: u64 = 1_000_000;
/// Decimal digits after the point.
const DIGITS: usize = 6;

/// A currency, as its three-letter ISO 4217 code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Currency([u8; 3]);

impl Currency {
    /// The currency of prices unless another one is given.
    pub const USD: Self = Self(*b"USD");

    /// The three-letter code.
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.0).unwrap_or_else(|_| unreachable!("three ASCII letters"))
    }
}

/// The text is not three upper-case letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a currency as three upper-case letters, such as USD")]
pub struct BadCurrency;

impl FromStr for Currency {
    type Err = BadCurrency;

    fn from_str(text: &str) -> Result<Self, BadCurrency> {
        let letters: [u8; 3] = text.as_bytes().try_into().map_err(|_| BadCurrency)?;
        if letters.iter().all(u8::is_ascii_uppercase) { Ok(Self(letters)) } else { Err(BadCurrency) }
    }
}

impl TryFrom<String> for Currency {
    type Error = BadCurrency;

    fn try_from(text: String) -> Result<Self, BadCurrency> {
        text.parse()
    }
}

impl From<Currency> for String {
    fn from(currency: Currency) -> Self {
        currency.as_str().to_owned()
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Millionths of a currency unit. Serialized as a plain decimal such as `2.50`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Amount(pub i64);

/// The text is not an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected an amount such as 2.50, with at most six digits after the point")]
pub struct BadAmount;

impl FromStr for Amount {
    type Err = BadAmount;

    fn from_str(text: &str) -> Result<Self, BadAmount> {
        let (is_negative, text) = text.strip_prefix('-').map_or((false, text), |text| (true, text));
        let (whole, rest) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(rest) || rest.len() > DIGITS {
            return Err(BadAmount);
        }
        let rest: i64 = format!("{rest:0<DIGITS$}").parse().map_err(|_| BadAmount)?;
        let whole: i64 = whole.parse().map_err(|_| BadAmount)?;
        let millionths = whole.checked_mul(1_000_000).and_then(|whole| whole.checked_add(rest)).ok_or(BadAmount)?;
        Ok(Self(if is_negative { -millionths } else { millionths }))
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let (whole, rest) = (self.0.unsigned_abs() / UNIT, self.0.unsigned_abs() % UNIT);
        let rest = format!("{rest:06}");
        // Always print cents; print smaller digits only if they are not zero.
        let significant = rest.trim_end_matches('0').len().max(2);
        write!(f, "{sign}{whole}.{}", &rest[..significant])
    }
}

impl TryFrom<String> for Amount {
    type Error = BadAmount;

    fn try_from(text: String) -> Result<Self, BadAmount> {
        text.parse()
    }
}

impl From<Amount> for String {
    fn from(amount: Amount) -> Self {
        amount.to_string()
    }
}

/// An amount of a currency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Money {
    /// Amount as a plain decimal with two to six digits after the point.
    pub amount: Amount,
    /// Currency code: three upper-case letters as in ISO 4217.
    pub currency: Currency,
}

impl Money {
    /// This many millionths of a currency unit.
    pub const fn of_millionths(millionths: i64, currency: Currency) -> Self {
        Self { amount: Amount(millionths), currency }
    }

    /// Deserializes from the store. Rows written before currencies existed have a bare number: millionths of a US dollar.
    pub fn read_stored<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(untagged)]
        enum Stored {
            Millionths(i64),
            Money(Money),
        }
        Ok(match serde::Deserialize::deserialize(deserializer)? {
            Stored::Millionths(millionths) => Self::of_millionths(millionths, Currency::USD),
            Stored::Money(money) => money,
        })
    }
}

impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.amount, self.currency)
    }
}

impl schemars::JsonSchema for Currency {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Currency".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "pattern": "^[A-Z]{3}$" })
    }
}

impl schemars::JsonSchema for Amount {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "pattern": r"^-?[0-9]{1,13}(\.[0-9]{1,6})?$" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_and_written_as_plain_decimals() {
        for (text, millionths, written) in [
            ("2.5", 2_500_000, "2.50"),
            ("2", 2_000_000, "2.00"),
            ("0", 0, "0.00"),
            ("0.000125", 125, "0.000125"),
            ("19.99", 19_990_000, "19.99"),
            ("1.125", 1_125_000, "1.125"),
            ("-1.5", -1_500_000, "-1.50"),
        ] {
            assert_eq!((text.parse(), Amount(millionths).to_string().as_str()), (Ok(Amount(millionths)), written), "{text}");
        }
    }

    #[test]
    fn what_is_no_amount_is_refused() {
        for text in ["", ".", "-", "1.", ".5", "--1", "+1", "1,5", "1e3", "0.0000001", "99999999999999999999", "9223372036855"] {
            assert_eq!(text.parse::<Amount>(), Err(BadAmount), "{text}");
        }
        for text in ["", "usd", "US", "USDT", "U\u{20ac}"] {
            assert_eq!(text.parse::<Currency>(), Err(BadCurrency), "{text}");
        }
    }

    #[test]
    fn money_is_an_object_and_old_rows_have_millionths_of_us_dollars() {
        #[derive(serde::Deserialize)]
        struct Row {
            #[serde(deserialize_with = "Money::read_stored")]
            price: Money,
        }
        let money = Money::of_millionths(2_500_000, Currency::USD);
        let text = r#"{"amount":"2.50","currency":"USD"}"#;
        assert_eq!(serde_json::to_string(&money).expect("json"), text);
        assert_eq!(serde_json::from_str::<Money>(text).expect("money"), money);
        for text in [r#"{"price":2500000}"#.to_owned(), format!(r#"{{"price":{text}}}"#)] {
            assert_eq!(serde_json::from_str::<Row>(&text).expect("a row").price, money);
        }
        for wrong in
            [r#"{"amount":2.5,"currency":"USD"}"#, r#"{"amount":"2.50"}"#, r#"{"amount":"2.50","currency":"usd"}"#, "2500000"]
        {
            assert!(serde_json::from_str::<Money>(wrong).is_err(), "{wrong}");
        }
    }
}
