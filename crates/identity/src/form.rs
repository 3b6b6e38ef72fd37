//! Parses and writes query strings and form bodies. OAuth allows each parameter at most once, which is checked here.

use std::collections::BTreeMap;

/// Maximum size of a query string or form body, in bytes.
pub(crate) const MAX_BYTES: usize = 16 * 1024;
/// Maximum number of parameters.
const MAX_FIELDS: usize = 64;

/// Why a form cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadForm {
    /// There are too many bytes or fields.
    #[error("the request has more than {MAX_BYTES} bytes or {MAX_FIELDS} parameters")]
    TooLarge,
    /// Invalid percent-encoding, or bytes that are not UTF-8.
    #[error("the parameters are not URL-encoded UTF-8")]
    Encoding,
    /// A parameter is repeated.
    #[error("a parameter is given more than once; give each once")]
    Repeated,
}

/// Parameters by name. An empty value counts as absent (RFC 6749, section 3.1).
#[derive(Clone, Default)]
pub struct Form(BTreeMap<String, String>);

/// Forms contain passwords and codes, which must not be logged.
impl std::fmt::Debug for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Form {
    /// Parses a query string (without `?`) or a form body.
    pub fn parse(text: &str) -> Result<Self, BadForm> {
        if text.len() > MAX_BYTES {
            return Err(BadForm::TooLarge);
        }
        let mut fields = BTreeMap::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            if fields.len() == MAX_FIELDS {
                return Err(BadForm::TooLarge);
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if fields.insert(decode(name)?, decode(value)?).is_some() {
                return Err(BadForm::Repeated);
            }
        }
        Ok(Self(fields))
    }

    /// Returns the value of a parameter that is present and not empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

/// Encodes parameters for a query string or a form body.
pub(crate) fn encode<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut text = String::new();
    for (name, value) in fields {
        if !text.is_empty() {
            text.push('&');
        }
        push_encoded(&mut text, name);
        text.push('=');
        push_encoded(&mut text, value);
    }
    text
}

/// Returns `uri` with these parameters appended to its own.
pub(crate) fn with_query<'a>(uri: &str, fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let separator = if uri.contains('?') { '&' } else { '?' };
    format!("{uri}{separator}{}", encode(fields))
}

fn push_encoded(text: &mut String, value: &str) {
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            text.push(char::from(byte));
        } else {
            text.push('%');
            text.push_str(&gpuaas_contract::hex(&[byte]).to_ascii_uppercase());
        }
    }
}

fn decode(text: &str) -> Result<String, BadForm> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let (high, low) = (rest.next().and_then(nibble), rest.next().and_then(nibble));
                high.zip(low).map(|(high, low)| high << 4 | low).ok_or(BadForm::Encoding)?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).map_err(|_| BadForm::Encoding)
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_reads_back() {
        let hostile = "a b+c&d=e%f#ü\"<\r\n";
        let form = Form::parse(&encode([("state", hostile), ("x", "1")])).expect("a form");
        assert_eq!(form.get("state"), Some(hostile));
        assert_eq!(form.get("x"), Some("1"));
    }

    #[test]
    fn repeated_parameters_are_refused_and_empty_ones_are_absent() {
        assert_eq!(Form::parse("a=1&a=2").err(), Some(BadForm::Repeated));
        assert_eq!(Form::parse("a=&b").expect("a form").get("a"), None);
    }

    #[test]
    fn broken_encodings_are_refused() {
        for bad in ["a=%", "a=%2", "a=%zz", "a=%ff", "%=1"] {
            assert_eq!(Form::parse(bad).err(), Some(BadForm::Encoding), "{bad}");
        }
    }

    #[test]
    fn large_forms_are_refused() {
        assert_eq!(Form::parse(&"a".repeat(MAX_BYTES + 1)).err(), Some(BadForm::TooLarge));
        let many: Vec<String> = (0..=MAX_FIELDS).map(|n| format!("f{n}=1")).collect();
        assert_eq!(Form::parse(&many.join("&")).err(), Some(BadForm::TooLarge));
    }

    #[test]
    fn parameters_go_behind_those_an_address_has() {
        assert_eq!(with_query("https://a/b", [("c", "d e")]), "https://a/b?c=d%20e");
        assert_eq!(with_query("https://a/b?x=1", [("c", "d")]), "https://a/b?x=1&c=d");
    }
}
