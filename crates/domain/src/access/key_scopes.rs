//! Scopes that limit an API key.

use super::Action;
use crate::refusal::Refusal;

/// Maximum number of patterns per key.
pub const MAX_PATTERNS: usize = 32;

/// Longest pattern that is parsed; longer than the name of any action.
const MAX_PATTERN_BYTES: usize = 64;

/// The actions that a key is limited to, as patterns. A key may do what both its holder's roles and its scopes allow; scopes only restrict.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct KeyScopes(Vec<Pattern>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pattern {
    /// `*`
    Everything,
    /// `*.read`: all actions that only read, including lists.
    Reads,
    /// `allocation.*`
    Group(&'static str),
    /// `allocation.create`
    One(Action),
}

/// Why patterns were rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKeyScopes {
    /// No pattern at all: a key without any permission is a mistake.
    #[error("name at least one scope, or leave the scopes out for a key without such a limit")]
    None,
    /// More than [`MAX_PATTERNS`].
    #[error(
        "a key has at most {MAX_PATTERNS} scopes; `group.*` stands for all actions of a group, `*.read` for everything that only reads"
    )]
    TooMany,
    /// The pattern matches no action, so it cannot mean what its author intended.
    #[error("the scope `{}` matches no action; use `*`, `*.read`, a group such as `allocation.*`, or an action such as `allocation.create`", .0.escape_default())]
    Unknown(String),
}

impl BadKeyScopes {
    /// Stable code for programs.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::None => "key_scopes_missing",
            Self::TooMany => "key_scopes_too_many",
            Self::Unknown(_) => "key_scope_unknown",
        }
    }
}

impl From<BadKeyScopes> for Refusal {
    fn from(bad: BadKeyScopes) -> Self {
        Self::invalid(bad.code(), bad.to_string())
    }
}

impl Pattern {
    fn parse(text: &str) -> Result<Self, BadKeyScopes> {
        if text.len() > MAX_PATTERN_BYTES {
            return Err(BadKeyScopes::Unknown(text.chars().take(MAX_PATTERN_BYTES).collect()));
        }
        let found = match (text, text.strip_suffix(".*")) {
            ("*", _) => Some(Self::Everything),
            ("*.read", _) => Some(Self::Reads),
            (_, Some(group)) => Action::ALL.iter().map(|action| action.group()).find(|name| *name == group).map(Self::Group),
            (name, None) => Action::parse(name).map(Self::One),
        };
        found.ok_or_else(|| BadKeyScopes::Unknown(text.to_owned()))
    }

    fn within(self, wider: Self) -> bool {
        match (self, wider) {
            (_, Self::Everything) => true,
            (Self::One(action), wider) => wider.matches(action),
            (Self::Group(own), Self::Group(other)) => own == other,
            (Self::Reads, Self::Reads) => true,
            (Self::Everything, Self::Reads | Self::Group(_) | Self::One(_))
            | (Self::Group(_), Self::Reads | Self::One(_))
            | (Self::Reads, Self::Group(_) | Self::One(_)) => false,
        }
    }

    fn matches(self, action: Action) -> bool {
        match self {
            Self::Everything => true,
            Self::Reads => action.reads(),
            Self::Group(group) => action.group() == group,
            Self::One(one) => action == one,
        }
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Everything => f.write_str("*"),
            Self::Reads => f.write_str("*.read"),
            Self::Group(group) => write!(f, "{group}.*"),
            Self::One(action) => action.fmt(f),
        }
    }
}

impl KeyScopes {
    /// Parses patterns: `*`, `*.read`, `group.*` and names of actions. Duplicates count once.
    pub fn parse(patterns: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, BadKeyScopes> {
        let mut known = Vec::new();
        for (index, text) in patterns.into_iter().enumerate() {
            if index >= MAX_PATTERNS {
                return Err(BadKeyScopes::TooMany);
            }
            let pattern = Pattern::parse(text.as_ref())?;
            if !known.contains(&pattern) {
                known.push(pattern);
            }
        }
        if known.is_empty() { Err(BadKeyScopes::None) } else { Ok(Self(known)) }
    }

    /// Whether the scopes include `action`. The holder's roles must allow it as well.
    pub fn allow(&self, action: Action) -> bool {
        self.0.iter().any(|pattern| pattern.matches(action))
    }

    /// Whether `other` includes everything that these scopes include. Compares patterns instead of today's actions, so that an action added
    /// by a later version cannot change the result.
    pub fn within(&self, other: &Self) -> bool {
        self.0.iter().all(|pattern| other.0.iter().any(|wider| pattern.within(*wider)))
    }

    /// The patterns as text.
    pub fn patterns(&self) -> Vec<String> {
        self.0.iter().map(Pattern::to_string).collect()
    }
}

/// The patterns separated by spaces; parse it back with [`std::str::FromStr`].
impl std::fmt::Display for KeyScopes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.patterns().join(" "))
    }
}

impl std::str::FromStr for KeyScopes {
    type Err = BadKeyScopes;

    fn from_str(text: &str) -> Result<Self, BadKeyScopes> {
        Self::parse(text.split_whitespace())
    }
}

impl TryFrom<Vec<String>> for KeyScopes {
    type Error = BadKeyScopes;

    fn try_from(patterns: Vec<String>) -> Result<Self, BadKeyScopes> {
        Self::parse(patterns)
    }
}

impl From<KeyScopes> for Vec<String> {
    fn from(scopes: KeyScopes) -> Self {
        scopes.patterns()
    }
}
