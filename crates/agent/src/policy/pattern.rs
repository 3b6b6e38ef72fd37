//! Patterns for names, in which `*` matches any characters.

/// A pattern in which `*` matches any number of characters, including none.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Pattern(String);

/// Maximum length of a pattern in bytes.
const MAX_PATTERN: usize = 64;

impl TryFrom<String> for Pattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'*');
        if !text.is_empty() && text.len() <= MAX_PATTERN && text.bytes().all(plain) {
            return Ok(Self(text));
        }
        Err(format!("usernames must be 1 to {MAX_PATTERN} lower-case letters, digits, dashes, underscores and `*`"))
    }
}

impl Pattern {
    pub(super) fn matches(&self, name: &str) -> bool {
        let Some((start, rest)) = self.0.split_once('*') else { return self.0 == name };
        let Some(mut name) = name.strip_prefix(start) else { return false };
        let mut parts: Vec<&str> = rest.split('*').collect();
        let end = parts.pop().unwrap_or_default();
        // The leftmost match leaves the most text for the remaining parts, so no backtracking is needed.
        for part in parts {
            let Some(at) = name.find(part) else { return false };
            name = &name[at + part.len()..];
        }
        name.ends_with(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_letters_and_everything_else_for_itself() {
        let matches = |pattern: &str, name: &str| Pattern::try_from(pattern.to_owned()).expect("a pattern").matches(name);
        for (pattern, name) in [
            ("*", "x"),
            ("tenant-*", "tenant-1"),
            ("tenant-*", "tenant-"),
            ("*-gpu", "a-gpu"),
            ("a*b*c", "abc"),
            ("a*b*c", "axxbbyc"),
            ("a*a", "aa"),
            ("exact", "exact"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("tenant-*", "tenant"),
            ("tenant-*", "xtenant-1"),
            ("*-gpu", "a-gpu-b"),
            ("a*b*c", "acb"),
            ("a*a", "a"),
            ("a*bc*c", "abc"),
            ("exact", "exactly"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }
}
