//! The roles of a server process.

use std::collections::BTreeSet;

/// A part of the control plane that a process can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// REST for operators and the CLI.
    Api,
    /// Agents: enrollment, stream, long-poll, dispatch.
    Link,
    /// Runs of allocations.
    Provisioning,
    /// The relay of the outbox to the event bus.
    Outbox,
    /// Notifications for browsers, over Redis.
    Notify,
    /// Deliveries to webhooks.
    Webhook,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 6] = [Self::Api, Self::Link, Self::Provisioning, Self::Outbox, Self::Notify, Self::Webhook];

    /// Returns its name on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Link => "link",
            Self::Provisioning => "provisioning",
            Self::Outbox => "outbox",
            Self::Notify => "notify",
            Self::Webhook => "webhook",
        }
    }
}

/// A list of roles that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("unknown role `{0}`; choose from api, link, provisioning, outbox, notify, webhook (or all)")]
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
        assert_eq!(parse("link, api").expect("both"), [Role::Api, Role::Link].into());
        assert_eq!(parse("api").expect("one"), [Role::Api].into());
        assert!(parse("").is_err() && parse("api,cook").is_err());
    }
}
