//! Fixed limits on records that a tenant, or anyone with a token from a configured issuer, could otherwise create without end. Leased
//! capacity has quotas instead, which operators set.

use crate::refusal::Refusal;

/// A limit on the number of records of one kind in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cap {
    /// Stable code of the refusal.
    pub code: &'static str,
    /// What is limited and where, as part of the refusal's message.
    pub what: &'static str,
    /// Maximum number.
    pub most: u64,
}

/// Users of all issuers together.
pub const USERS: Cap = Cap { code: "too_many_users", what: "users of the platform", most: 100_000 };
/// Platform tokens that are neither revoked nor expired.
pub const PLATFORM_TOKENS: Cap = Cap { code: "too_many_tokens", what: "API tokens of the platform that count", most: 1000 };
/// Projects per organization.
pub const PROJECTS: Cap = Cap { code: "too_many_projects", what: "projects in an organization", most: 500 };
/// Members of the platform, an organization or a project, not counting invitations.
pub const MEMBERS: Cap = Cap { code: "too_many_members", what: "members in one place", most: 1000 };
/// Invitations that have not been accepted yet.
pub const INVITATIONS: Cap = Cap { code: "too_many_invitations", what: "open invitations in one place", most: 200 };
/// Service accounts per project.
pub const SERVICE_ACCOUNTS: Cap = Cap { code: "too_many_service_accounts", what: "service accounts in a project", most: 200 };
/// Keys per service account that are neither revoked nor expired.
pub const API_KEYS: Cap = Cap { code: "too_many_keys", what: "keys of a service account that count", most: 50 };
/// Images per organization, and of the platform.
pub const IMAGES: Cap = Cap { code: "too_many_images", what: "images in an organization", most: 200 };

impl Cap {
    /// Refuses one more if `present` has reached the limit.
    pub fn check(&self, present: u64) -> Result<(), Refusal> {
        if present < self.most {
            return Ok(());
        }
        let message = format!("there are at most {} {}; remove some first", self.most, self.what);
        Err(Refusal::conflict(self.code, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_is_taken_and_no_other() {
        assert_eq!(API_KEYS.check(API_KEYS.most - 1), Ok(()));
        assert_eq!(API_KEYS.check(API_KEYS.most).expect_err("refused").code, "too_many_keys");
    }
}
