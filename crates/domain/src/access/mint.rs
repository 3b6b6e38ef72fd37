//! Delegation: a caller never hands on more than the caller has.
//!
//! Whoever grants a role or creates a key, person or program, needs every permission that it conveys. What is created with an API key must
//! not outlive that key either; a person's sign-in has no such limit.

use gpuaas_contract::id::{OrgId, ProjectId, ServiceAccountId};
use gpuaas_contract::time::Timestamp;

use super::MemberRole;
use super::key_scopes::KeyScopes;
use super::membership::Place;
use super::policies::Policies;
use super::principal::{Principal, PrincipalId};
use super::{Action, Scope};
use crate::refusal::Refusal;

/// Maximum length of a chain of keys in which each was created with the previous one. Every request checks all keys of the chain.
pub const MAX_KEY_CHAIN: usize = 4;

/// What limits an API key, besides the roles of its holder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyLimits {
    /// The actions it may be used for; `None` if it is not limited.
    pub scopes: Option<KeyScopes>,
    /// When it expires; `None` for never.
    pub expires_at: Option<Timestamp>,
}

impl KeyLimits {
    /// The limits of the credential that the caller uses. A person's sign-in has none, because the person can sign in again.
    pub fn of(caller: &Principal) -> Self {
        match caller.who {
            PrincipalId::ServiceAccount(_) | PrincipalId::Token(_) => {
                Self { scopes: caller.scopes.clone(), expires_at: caller.expires_at }
            }
            PrincipalId::User(_) | PrincipalId::LocalAdmin => Self::default(),
        }
    }

    /// Whether a key with the limits `other` can do no more than this one and lasts no longer.
    pub fn contain(&self, other: &Self) -> bool {
        self.contain_scopes(other) && self.contain_life(other)
    }

    fn contain_scopes(&self, other: &Self) -> bool {
        match (&self.scopes, &other.scopes) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(own), Some(theirs)) => theirs.within(own),
        }
    }

    fn contain_life(&self, other: &Self) -> bool {
        match (self.expires_at, other.expires_at) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(own), Some(theirs)) => theirs <= own,
        }
    }

    /// The limits of a key that is created with this one. Limits that are left out are inherited; wider ones are refused.
    pub fn child(&self, wanted: Self) -> Result<Self, Refusal> {
        let child =
            Self { scopes: wanted.scopes.or_else(|| self.scopes.clone()), expires_at: wanted.expires_at.or(self.expires_at) };
        if !self.contain_scopes(&child) {
            let message = "a key cannot be given scopes that the key you use does not have; name fewer scopes, leave them out to \
                           inherit yours, or sign in as a person";
            return Err(Refusal::forbidden("key_scopes_exceed_own", message));
        }
        if !self.contain_life(&child) {
            let message = "a key cannot outlive the key it is made with; choose an earlier end, leave it out to inherit yours, or \
                           sign in as a person";
            return Err(Refusal::forbidden("key_life_exceeds_own", message));
        }
        Ok(child)
    }
}

/// Refuses to grant a role unless the caller may do everything that the role permits, in the place where it is granted. `organization` is
/// the organization of the project, if `at` is a project.
pub fn check_role(
    policies: &Policies,
    caller: &Principal,
    at: Place,
    organization: Option<OrgId>,
    role: MemberRole,
) -> Result<(), Refusal> {
    let mut given = Principal::nobody(PrincipalId::ServiceAccount(ServiceAccountId::from_bytes([0; 16])));
    match role {
        MemberRole::Platform(role) => given.platform.push(role),
        MemberRole::Project(role) => given.memberships.push((at, role)),
    }
    let any_project = ProjectId::from_bytes([0; 16]);
    let any_organization = organization.unwrap_or(OrgId::from_bytes([0; 16]));
    let scopes = match at {
        Place::Platform => vec![
            Scope::Platform,
            Scope::Organization(any_organization),
            Scope::Project { organization: any_organization, project: any_project },
        ],
        Place::Organization(organization) => {
            vec![Scope::Organization(organization), Scope::Project { organization, project: any_project }]
        }
        Place::Project(project) => vec![Scope::Project { organization: any_organization, project }],
    };
    match beyond(policies, caller, &given, &scopes) {
        None => Ok(()),
        Some(action) => {
            let message = format!(
                "the role {} allows {action}, which {} here; choose a role that allows less",
                role.as_str(),
                may_not(caller)
            );
            Err(Refusal::forbidden("role_exceeds_own", message))
        }
    }
}

/// Refuses to create a key that may do more than its creator. `holder` is the service account with its roles, limited as the key will be;
/// `scope` is the account's project.
pub fn check_key(policies: &Policies, caller: &Principal, holder: &Principal, scope: Scope) -> Result<(), Refusal> {
    match beyond(policies, caller, holder, &[scope]) {
        None => Ok(()),
        Some(action) => {
            let message = format!("the key would allow {action}, which {} here; name scopes that allow less", may_not(caller));
            Err(Refusal::forbidden("key_exceeds_own", message))
        }
    }
}

/// The first action that `given` may do somewhere in `scopes` and the caller may not.
fn beyond(policies: &Policies, caller: &Principal, given: &Principal, scopes: &[Scope]) -> Option<Action> {
    for scope in scopes {
        let applicable = Action::ALL.iter().copied().filter(|action| action.applies_to(scope.kind()));
        for action in applicable {
            if policies.roles_allow(given, action, scope) && !policies.roles_allow(caller, action, scope) {
                return Some(action);
            }
        }
    }
    None
}

fn may_not(caller: &Principal) -> &'static str {
    match caller.who {
        PrincipalId::User(_) | PrincipalId::LocalAdmin => "you may not do",
        PrincipalId::ServiceAccount(_) | PrincipalId::Token(_) => "the key you use does not allow",
    }
}

/// Refuses to grant a role with a key that expires: the holder could use the role without that key, and roles do not expire.
pub fn check_role_life(caller: &Principal) -> Result<(), Refusal> {
    match KeyLimits::of(caller).expires_at {
        None => Ok(()),
        Some(_) => {
            let message = "a role has no end, but the key you use has one; sign in as a person, or use a key without an end";
            Err(Refusal::forbidden("role_outlives_key", message))
        }
    }
}

/// Refuses to set a person's password with a key that expires: passwords do not.
pub fn check_password_life(caller: &Principal) -> Result<(), Refusal> {
    match KeyLimits::of(caller).expires_at {
        None => Ok(()),
        Some(_) => {
            let message =
                "a password has no end, but the token you use has one; sign in as a person, or use a token without an end";
            Err(Refusal::forbidden("password_outlives_key", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use gpuaas_contract::id::UserId;

    use super::*;
    use crate::access::{PlatformRole, ProjectRole};

    const ROLES: usize = ProjectRole::ALL.len();

    fn patterns() -> Vec<String> {
        let mut all: Vec<String> = vec!["*".to_owned(), "*.read".to_owned()];
        for action in Action::ALL {
            all.push(action.to_string());
            all.push(format!("{}.*", action.group()));
        }
        all
    }

    fn scopes() -> impl Strategy<Value = Option<KeyScopes>> {
        let some = proptest::collection::vec(proptest::sample::select(patterns()), 1..5);
        proptest::option::weighted(0.7, some.prop_map(|patterns| KeyScopes::parse(patterns).expect("patterns")))
    }

    fn limits() -> impl Strategy<Value = KeyLimits> {
        (scopes(), proptest::option::of(0_i64..1000))
            .prop_map(|(scopes, end)| KeyLimits { scopes, expires_at: end.map(Timestamp) })
    }

    fn allows(limits: &KeyLimits, action: Action) -> bool {
        limits.scopes.as_ref().is_none_or(|scopes| scopes.allow(action))
    }

    /// Loaded once, because loading takes longer than all checks of a case.
    static POLICIES: LazyLock<Policies> = LazyLock::new(|| Policies::embedded().expect("our own rules"));

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn no_chain_of_keys_ends_in_one_that_may_more_or_lasts_longer(root in limits(), wanted in proptest::collection::vec(limits(), 1..6)) {
            let mut chain = vec![root];
            for wanted in wanted {
                let parent = chain.last().expect("the root").clone();
                match parent.child(wanted.clone()) {
                    Ok(child) => chain.push(child),
                    Err(refusal) => {
                        prop_assert!(["key_scopes_exceed_own", "key_life_exceeds_own"].contains(&refusal.code));
                        prop_assert!(!parent.contain(&wanted), "what fits was refused");
                    }
                }
            }
            for (place, child) in chain.iter().enumerate() {
                for ancestor in &chain[..place] {
                    prop_assert!(ancestor.contain(child));
                    for action in Action::ALL.iter().copied() {
                        prop_assert!(!allows(child, action) || allows(ancestor, action), "{action}");
                    }
                    if let Some(end) = ancestor.expires_at {
                        prop_assert!(child.expires_at.is_some_and(|theirs| theirs <= end));
                    }
                }
            }
        }

        #[test]
        fn nobody_gives_a_role_that_allows_more_than_they_may(scopes in scopes(), held in 0..ROLES, given in 0..ROLES, in_organization: bool, person: bool) {
            let policies = &*POLICIES;
            let (organization, project) = (OrgId::from_bytes([7; 16]), ProjectId::from_bytes([8; 16]));
            let place = if in_organization { Place::Organization(organization) } else { Place::Project(project) };
            let who = if person { PrincipalId::User(UserId::from_bytes([9; 16])) } else { PrincipalId::ServiceAccount(ServiceAccountId::from_bytes([9; 16])) };
            let mut caller = Principal::nobody(who);
            caller.memberships.push((place, ProjectRole::ALL[held]));
            caller.scopes = if person { None } else { scopes };
            let role = ProjectRole::ALL[given];
            let at = Place::Project(project);
            if check_role(policies, &caller, at, Some(organization), MemberRole::Project(role)).is_ok() {
                let mut holder = Principal::nobody(PrincipalId::ServiceAccount(ServiceAccountId::from_bytes([1; 16])));
                holder.memberships.push((at, role));
                let scope = Scope::Project { organization, project };
                for action in Action::ALL.iter().copied().filter(|action| action.applies_to(scope.kind())) {
                    let theirs = policies.may(&holder, action, &scope).is_allowed();
                    prop_assert!(!theirs || policies.may(&caller, action, &scope).is_allowed(), "{action}");
                }
            } else {
                prop_assert!(caller.scopes.is_some() || !policies.covers(MemberRole::Project(ProjectRole::ALL[held]), MemberRole::Project(role)), "what they have was refused");
            }
        }
    }

    #[test]
    fn whoever_gives_a_role_needs_all_that_it_permits() {
        let policies = &*POLICIES;
        let code = |refused: Result<(), Refusal>| refused.expect_err("refused").code;
        let (organization, project) = (OrgId::generate(), ProjectId::generate());
        let at = Place::Project(project);
        let with = |role| Principal { memberships: vec![(at, role)], ..Principal::nobody(PrincipalId::User(UserId::generate())) };
        let give = |role: ProjectRole, to: ProjectRole| {
            check_role(policies, &with(role), at, Some(organization), MemberRole::Project(to))
        };
        for role in ProjectRole::ALL {
            assert_eq!(give(ProjectRole::Owner, role), Ok(()), "{role}");
        }
        // Neither role covers the other.
        assert_eq!(code(give(ProjectRole::Viewer, ProjectRole::TenantAuditor)), "role_exceeds_own");
        assert_eq!(code(give(ProjectRole::TenantAuditor, ProjectRole::Viewer)), "role_exceeds_own");
        assert_eq!(code(give(ProjectRole::Viewer, ProjectRole::Owner)), "role_exceeds_own");
        // A role in a project permits nothing in its organization.
        let owner = with(ProjectRole::Owner);
        let viewer = MemberRole::Project(ProjectRole::Viewer);
        assert_eq!(code(check_role(policies, &owner, Place::Organization(organization), None, viewer)), "role_exceeds_own");
        assert_eq!(check_role_life(&Principal { expires_at: Some(Timestamp(1)), ..owner }), Ok(()), "people sign in again");

        let mut token = Principal::nobody(PrincipalId::Token(gpuaas_contract::id::ApiTokenId::generate()));
        token.platform = vec![PlatformRole::Operator];
        let admin = MemberRole::Platform(PlatformRole::Admin);
        assert_eq!(code(check_role(policies, &token, Place::Platform, None, admin)), "role_exceeds_own");
        token.platform = vec![PlatformRole::Admin];
        assert_eq!(check_role(policies, &token, Place::Platform, None, admin), Ok(()));
        token.expires_at = Some(Timestamp(1));
        assert_eq!(code(check_role_life(&token)), "role_outlives_key");
    }

    #[test]
    fn whoever_makes_a_key_needs_all_that_it_permits() {
        let (organization, project) = (OrgId::generate(), ProjectId::generate());
        let with = |role, scopes: Option<&str>| Principal {
            memberships: vec![(Place::Project(project), role)],
            scopes: scopes.map(|scopes| scopes.parse().expect("scopes")),
            ..Principal::nobody(PrincipalId::ServiceAccount(ServiceAccountId::generate()))
        };
        let make = |caller: &Principal, holder: &Principal| {
            check_key(&POLICIES, caller, holder, Scope::Project { organization, project }).map_err(|refusal| refusal.code)
        };
        let (owner, viewer) = (with(ProjectRole::Owner, None), with(ProjectRole::Viewer, None));
        assert_eq!(make(&owner, &viewer), Ok(()));
        assert_eq!(make(&viewer, &owner), Err("key_exceeds_own"));
        assert_eq!(make(&viewer, &with(ProjectRole::Owner, Some("allocation.read"))), Ok(()), "the scopes leave what they may");
        assert_eq!(make(&with(ProjectRole::Owner, Some("key.*")), &viewer), Err("key_exceeds_own"));
    }
}
