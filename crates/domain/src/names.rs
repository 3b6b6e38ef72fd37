//! Validation of names, descriptions, tags and email addresses.

use std::collections::BTreeMap;

use crate::refusal::Refusal;

/// Maximum length of the name of an organization, a project or a product.
pub const MAX_HANDLE: usize = 40;
/// Maximum length of a description or other free text, in bytes.
pub const MAX_TEXT: usize = 200;
/// Maximum number of tags.
pub const MAX_TAGS: usize = 32;

/// Validates a name that is also typed on command lines: lower-case letters, digits and dashes.
pub fn checked_handle(text: &str, what: &'static str) -> Result<String, Refusal> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let good = (1..=MAX_HANDLE).contains(&text.len())
        && text.bytes().all(plain)
        && !text.starts_with('-')
        && !text.ends_with('-')
        // Could be mistaken for an id.
        && !text.contains("--");
    if good {
        return Ok(text.to_owned());
    }
    let message = format!(
        "the name of {what} has 1 to {MAX_HANDLE} lower-case letters, digits and single dashes inside, such as `ml-team`"
    );
    Err(Refusal::invalid("name_invalid", message))
}

/// Validates free text on one line.
pub fn checked_text(text: &str, what: &'static str) -> Result<String, Refusal> {
    if text.len() <= MAX_TEXT && !text.chars().any(char::is_control) {
        return Ok(text.to_owned());
    }
    Err(Refusal::invalid("text_invalid", format!("{what} has at most {MAX_TEXT} bytes on one line")))
}

/// Validates tags: few, short, with plain keys.
pub fn checked_tags(tags: &BTreeMap<String, String>) -> Result<(), Refusal> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/');
    let key = |key: &String| (1..=63).contains(&key.len()) && key.bytes().all(plain);
    let value = |value: &String| value.len() <= MAX_TEXT && !value.chars().any(char::is_control);
    if tags.len() <= MAX_TAGS && tags.keys().all(key) && tags.values().all(value) {
        return Ok(());
    }
    let message = format!(
        "at most {MAX_TAGS} tags; a key has 1 to 63 letters, digits and -_./, a value at most {MAX_TEXT} bytes on one line"
    );
    Err(Refusal::invalid("tags_invalid", message))
}

/// Validates an email address and converts it to lower case. Only refuses what is certainly not one: the proof is that someone signs in
/// with it.
pub fn checked_email(text: &str) -> Result<String, Refusal> {
    let text = text.trim().to_lowercase();
    let (local, domain) = text.rsplit_once('@').unwrap_or_default();
    let plain = |c: char| !c.is_control() && !c.is_whitespace() && !"<>()[],;:\\\"".contains(c);
    if text.len() <= 254 && !local.is_empty() && domain.contains('.') && text.chars().all(plain) {
        return Ok(text);
    }
    Err(Refusal::invalid("email_invalid", format!("`{}` is not an e-mail address", text.escape_default())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_plain_and_short() {
        for good in ["a", "ml-team", "h100-8x", &"a".repeat(MAX_HANDLE)] {
            assert!(checked_handle(good, "a project").is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "a--b", "A", "a b", "ä", "a/b", "..", &"a".repeat(MAX_HANDLE + 1)] {
            assert_eq!(checked_handle(bad, "a project").map_err(|refusal| refusal.code), Err("name_invalid"), "{bad}");
        }
    }

    #[test]
    fn addresses_are_lowered_and_nonsense_is_refused() {
        assert_eq!(checked_email(" Ann@Example.COM ").as_deref(), Ok("ann@example.com"));
        for bad in ["", "ann", "@example.com", "ann@", "ann@example", "a b@example.com", "<ann@example.com>", "a\n@example.com"] {
            assert!(checked_email(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn tags_have_plain_keys_and_limits() {
        let tags =
            |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<BTreeMap<_, _>>();
        assert!(checked_tags(&tags(&[("team", "a b"), ("cost/center", "")])).is_ok());
        for bad in [tags(&[("", "x")]), tags(&[("a b", "x")]), tags(&[("a", "x\ny")]), tags(&[("a'", "x")])] {
            assert!(checked_tags(&bad).is_err(), "{bad:?}");
        }
        let many: BTreeMap<_, _> = (0..=MAX_TAGS).map(|n| (format!("k{n}"), String::new())).collect();
        assert!(checked_tags(&many).is_err());
    }
}
