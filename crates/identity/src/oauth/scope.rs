//! Scopes: what a token may be used for.

use std::collections::BTreeSet;
use std::fmt;

use super::error::{OauthError, OauthFailure};

/// The closed list of scopes. What a user may do is decided by roles, not by scopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// Sign-in: issues an ID token.
    OpenId,
    /// Name.
    Profile,
    /// E-mail address.
    Email,
    /// A refresh token.
    OfflineAccess,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 4] = [Self::OpenId, Self::Profile, Self::Email, Self::OfflineAccess];

    /// Returns its name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OpenId => "openid",
            Self::Profile => "profile",
            Self::Email => "email",
            Self::OfflineAccess => "offline_access",
        }
    }
}

/// A set of scopes. As text, their names in a fixed order, separated by spaces.
#[derive(Clone, Debug, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Scopes(BTreeSet<Scope>);

impl Scopes {
    /// Parses the scopes of a request; `openid` if it names none.
    pub fn parse(text: Option<&str>) -> Result<Self, OauthFailure> {
        let Some(text) = text else { return Ok(Self([Scope::OpenId].into())) };
        let named = |name: &str| Scope::ALL.into_iter().find(|scope| scope.as_str() == name);
        let scopes: Option<BTreeSet<Scope>> = text.split(' ').filter(|name| !name.is_empty()).map(named).collect();
        scopes.map(Self).ok_or_else(|| {
            let known = Scope::ALL.map(Scope::as_str).join("`, `");
            OauthFailure::new(OauthError::InvalidScope, format!("`scope` may contain `{known}` and nothing else"))
        })
    }

    /// Returns whether the set contains a scope.
    pub fn contains(&self, scope: Scope) -> bool {
        self.0.contains(&scope)
    }

    /// Returns whether all of them are in `other`.
    pub fn is_within(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Self(scopes.into_iter().collect())
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, scope) in self.0.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            write!(f, "{space}{}", scope.as_str())?;
        }
        Ok(())
    }
}

impl TryFrom<String> for Scopes {
    type Error = OauthFailure;

    fn try_from(text: String) -> Result<Self, OauthFailure> {
        Self::parse(Some(&text))
    }
}

impl From<Scopes> for String {
    fn from(scopes: Scopes) -> String {
        scopes.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_read_back_in_one_order_and_unknown_ones_are_refused() {
        let scopes = Scopes::parse(Some("email  openid email")).expect("scopes");
        assert_eq!(scopes.to_string(), "openid email");
        assert_eq!(Scopes::parse(None).expect("scopes").to_string(), "openid");
        assert_eq!(Scopes::parse(Some("openid admin")).map_err(|failure| failure.error), Err(OauthError::InvalidScope));
        assert!(Scopes::parse(None).expect("scopes").is_within(&scopes));
        assert!(!scopes.is_within(&Scopes::parse(None).expect("scopes")));
    }
}
