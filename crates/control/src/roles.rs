//! What one server process does.

use std::collections::BTreeSet;

/// A part of the control plane that a process can play.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// REST for operators and the CLI.
    Api,
    /// Agents: enrolment, stream, long-poll, dispatch.
    Link,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 2] = [Self::Api, Self::Link];

    /// Name on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Link => "link",
        }
    }
}

/// A list of roles that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("unknown role `{0}`; choose from api, link (or all)")]
pub struct BadRoles(String);

/// Parses `api,link` or `all`.
pub fn parse(text: &str) -> Result<BTreeSet<Role>, BadRoles> {
    let mut roles = BTreeSet::new();
    for name in text.split(',').map(str::trim) {
        if name == "all" {
            roles.extend(Role::ALL);
            continue;
        }
        let role = Role::ALL.into_iter().find(|role| role.as_str() == name).ok_or_else(|| BadRoles(name.to_owned()))?;
        roles.insert(role);
    }
    Ok(roles)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_named_alone_together_or_all() {
        assert_eq!(parse("all").expect("all"), Role::ALL.into());
        assert_eq!(parse("link, api").expect("both"), Role::ALL.into());
        assert_eq!(parse("api").expect("one"), [Role::Api].into());
        assert!(parse("").is_err() && parse("api,cook").is_err());
    }
}
