//! Policy evaluation: may this caller do that, there?

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::str::FromStr as _;

use cedar_policy::{
    ActionConstraint, Authorizer, Context, Decision, Entities, Entity, EntityId, EntityTypeName, EntityUid, PolicySet, Request,
    Response, RestrictedExpression, Schema,
};
use gpuaas_contract::names::Named as _;

use super::principal::{Principal, PrincipalId};
use super::rules::{BadPolicies, Rules};
use super::{Action, MemberRole, Scope, ScopeKind};

/// The result of an authorization check.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The caller may do it.
    Allowed,
    /// The caller may not do it.
    Denied {
        /// Which permission is missing or which rule forbids it, and what to do next.
        why: String,
    },
}

impl Verdict {
    /// Whether the caller may do it.
    pub const fn is_allowed(&self) -> bool {
        match self {
            Self::Allowed => true,
            Self::Denied { .. } => false,
        }
    }
}

/// Permitted actions, each with the kind of scope it applies to.
type Permissions = HashSet<(Action, ScopeKind)>;

/// A role as the embedded rules define it.
struct Role {
    /// Everything the role permits where it is held.
    permissions: Permissions,
    /// All roles that permit nothing beyond that, including the role itself.
    covers: Vec<MemberRole>,
}

/// All rules, loaded and validated. Built once; a check takes microseconds and changes nothing.
pub struct Policies {
    schema: Schema,
    rules: RulesByAction,
    /// Only the rules that are compiled into the program.
    embedded: RulesByAction,
    authorizer: Authorizer,
    words: Words,
    /// What each role permits. Derived by evaluating the rules, so it cannot disagree with them.
    roles: HashMap<MemberRole, Role>,
    /// What any role, held anywhere, permits.
    known: Permissions,
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policies").field("rules", &self.rules.count).finish_non_exhaustive()
    }
}

impl Policies {
    /// Loads only the rules that are compiled into the program.
    pub fn embedded() -> Result<Self, BadPolicies> {
        Self::with_extra::<&str, &str>(&[])
    }

    /// Loads the embedded rules and an operator's rules, given as file names and texts. The operator's rules may only forbid.
    pub fn with_extra<N: AsRef<str>, T: AsRef<str>>(extra: &[(N, T)]) -> Result<Self, BadPolicies> {
        let Rules { schema, embedded, all } = Rules::load(extra)?;
        let words = Words::new(&schema)?;
        let (roles, known) = (HashMap::new(), Permissions::new());
        let rules = RulesByAction::new(&all, &words)?;
        let embedded = RulesByAction::new(&embedded, &words)?;
        let mut policies = Self { schema, rules, embedded, authorizer: Authorizer::new(), words, roles, known };
        policies.known = policies.permissions(None);
        policies.roles = policies.roles_by_permissions();
        Ok(policies)
    }

    /// Whether `principal` may do `action` in `scope`. Denied if the rules cannot be evaluated.
    pub fn may(&self, principal: &Principal, action: Action, scope: &Scope) -> Verdict {
        let denied = |why: String| Verdict::Denied { why };
        if !action.applies_to(scope.kind()) {
            return denied(format!(
                "{action} cannot be about the {}; this is a mistake in the control plane",
                scope.kind().as_str()
            ));
        }
        let key_allows = principal.scopes.as_ref().is_none_or(|scopes| scopes.allow(action));
        let broken = |what: &dyn fmt::Display| denied(format!("the rules could not be applied ({what}); ask an administrator"));
        let response = match self.ask(&self.rules, principal.who, &self.held(principal, scope), action, scope, key_allows) {
            Ok(response) => response,
            Err(error) => return broken(&error),
        };
        let diagnostics = response.diagnostics();
        // Cedar skips a rule that fails to evaluate. A skipped rule could be one that forbids, so any error denies.
        if let Some(error) = diagnostics.errors().next() {
            return broken(error);
        }
        match response.decision() {
            Decision::Allow => Verdict::Allowed,
            Decision::Deny => match diagnostics.reason().map(ToString::to_string).min() {
                Some(rule) if rule == "keys/scopes" => {
                    denied(format!("the scopes of this API key do not include {action}; use a key that has it (rule {rule})"))
                }
                Some(rule) => denied(format!("the rule {rule} forbids this; ask an administrator")),
                None => denied(self.missing(action, scope.kind())),
            },
        }
    }

    /// Whether the roles and key scopes of `principal` allow the action by the embedded rules alone. An operator's rule names whom it
    /// applies to and is evaluated when that caller acts.
    pub(super) fn roles_allow(&self, principal: &Principal, action: Action, scope: &Scope) -> bool {
        let key_allows = principal.scopes.as_ref().is_none_or(|scopes| scopes.allow(action));
        let response = self.ask(&self.embedded, principal.who, &self.held(principal, scope), action, scope, key_allows);
        response.is_ok_and(|response| response.decision() == Decision::Allow && response.diagnostics().errors().next().is_none())
    }

    /// Whether `role` permits everything that `other` permits. Platform roles and project roles never cover each other.
    pub fn covers(&self, role: MemberRole, other: MemberRole) -> bool {
        self.roles.get(&role).is_some_and(|role| role.covers.contains(&other))
    }

    /// The names, as the rules use them, of all roles that the caller has in `scope`.
    fn held(&self, principal: &Principal, scope: &Scope) -> Vec<&'static str> {
        let mut names: Vec<&'static str> = principal.is_known().then_some(KNOWN).into_iter().collect();
        for role in principal.roles_at(scope) {
            // A role without an entry covers only itself.
            let covered = self.roles.get(&role).map_or(std::slice::from_ref(&role), |role| role.covers.as_slice());
            names.extend(covered.iter().map(|role| role.as_str()));
        }
        names
    }

    /// What a caller is missing for whom no rule permits the action, as a message.
    fn missing(&self, action: Action, kind: ScopeKind) -> String {
        if self.known.contains(&(action, kind)) {
            return "this needs a role in any project; ask an owner to invite you".to_owned();
        }
        let permits = |role: &MemberRole| self.roles.get(role).is_some_and(|role| role.permissions.contains(&(action, kind)));
        let mut platform = Vec::new();
        let mut tenants = Vec::new();
        for role in MemberRole::VALUES.iter().copied().filter(permits) {
            match role {
                MemberRole::Platform(role) => platform.push(role.as_str()),
                MemberRole::Project(role) => tenants.push(role.as_str()),
            }
        }
        if !tenants.is_empty() {
            format!("this needs the role {} of the {}; ask an owner", either(&tenants), kind.as_str())
        } else if !platform.is_empty() {
            format!("this needs the role {} of the platform; ask an administrator", either(&platform))
        } else {
            format!("no role may do {action}")
        }
    }

    /// Evaluates the embedded rules to find what each role permits, and thereby which roles it covers.
    fn roles_by_permissions(&self) -> HashMap<MemberRole, Role> {
        let permissions: Vec<(MemberRole, Permissions)> =
            MemberRole::VALUES.iter().map(|role| (*role, self.permissions(Some(*role)))).collect();
        let same_kind = |one: MemberRole, other: MemberRole| {
            matches!(
                (one, other),
                (MemberRole::Platform(_), MemberRole::Platform(_)) | (MemberRole::Project(_), MemberRole::Project(_))
            )
        };
        let covers = |role: MemberRole, own: &Permissions| {
            let covered = permissions.iter().filter(|(other, theirs)| same_kind(role, *other) && theirs.is_subset(own));
            covered.map(|(other, _)| *other).collect()
        };
        let roles = permissions.iter().map(|(role, own)| {
            let declared = Role { permissions: own.clone(), covers: covers(*role, own) };
            (*role, declared)
        });
        roles.collect()
    }

    /// Everything that the embedded rules permit to a caller who has this role where it is held, or any role elsewhere.
    fn permissions(&self, role: Option<MemberRole>) -> Permissions {
        let held: Vec<&str> = role.map(MemberRole::as_str).into_iter().chain([KNOWN]).collect();
        let mut permissions = Permissions::new();
        for action in Action::ALL.iter().copied() {
            for kind in action.scopes().iter().copied() {
                let scope = match kind {
                    ScopeKind::Platform => Scope::Platform,
                    ScopeKind::Organization => Scope::Organization(NO_ORGANIZATION),
                    ScopeKind::Project => Scope::Project { organization: NO_ORGANIZATION, project: NO_PROJECT },
                };
                // A project role does not count on the platform, no matter what it permits.
                let counts = kind != ScopeKind::Platform || !matches!(role, Some(MemberRole::Project(_)));
                let held = if counts { held.as_slice() } else { &[KNOWN] };
                let response = self.ask(&self.embedded, PrincipalId::LocalAdmin, held, action, &scope, true);
                if response.is_ok_and(|response| response.decision() == Decision::Allow) {
                    permissions.insert((action, kind));
                }
            }
        }
        permissions
    }

    /// Evaluates one request with Cedar.
    fn ask(
        &self,
        rules: &RulesByAction,
        who: PrincipalId,
        roles: &[&str],
        action: Action,
        scope: &Scope,
        key_allows: bool,
    ) -> Result<Response, Box<dyn std::error::Error>> {
        let words = &self.words;
        let caller = words.uid(&words.caller, who);
        let mut parents: HashSet<EntityUid> = roles.iter().map(|role| words.uid(&words.role, role)).collect();
        parents.insert(words.kind(who));
        let rules = rules.by_action.get(&action).ok_or("an action without rules")?;
        let action = words.actions.get(&action).ok_or("an action that the schema does not have")?;
        let (resource, about) = words.about(scope);
        let entities = about.into_iter().chain([Entity::new_no_attrs(caller.clone(), parents), action.clone()]);
        // Not validated against the schema: the entities are built from types that already guarantee what the schema would check.
        let entities = Entities::from_entities(entities, None)?;
        let context = if key_allows { &words.key_allows } else { &words.key_forbids };
        let request = Request::new(caller, action.uid(), resource, context.clone(), Some(&self.schema))?;
        Ok(self.authorizer.is_authorized(&request, rules, &entities))
    }
}

/// The rules that can concern each action. Cedar evaluates every rule it is given, and most are about other actions.
struct RulesByAction {
    by_action: HashMap<Action, PolicySet>,
    /// The number of rules in all.
    count: usize,
}

impl RulesByAction {
    fn new(rules: &PolicySet, words: &Words) -> Result<Self, BadPolicies> {
        let mut by_action = HashMap::new();
        for (action, entity) in &words.actions {
            let (uid, _, groups) = entity.clone().into_inner();
            let is_it = |named: &EntityUid| *named == uid || groups.contains(named);
            let concerning = rules.policies().filter(|rule| match rule.action_constraint() {
                ActionConstraint::Any => true,
                ActionConstraint::Eq(named) => named == uid,
                ActionConstraint::In(named) => named.iter().any(is_it),
            });
            let concerning =
                PolicySet::from_policies(concerning.cloned()).map_err(|error| BadPolicies::Schema(error.to_string()))?;
            by_action.insert(*action, concerning);
        }
        Ok(Self { by_action, count: rules.num_of_policies() })
    }
}

/// Name of the role of every caller who has a role anywhere.
const KNOWN: &str = "known";

/// Joins names into a phrase: `admin`, `admin or operator`, `owner, member or viewer`.
fn either(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [name] => (*name).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// Placeholders for requests about any organization and project.
const NO_ORGANIZATION: gpuaas_contract::id::OrgId = gpuaas_contract::id::OrgId::from_bytes([0; 16]);
const NO_PROJECT: gpuaas_contract::id::ProjectId = gpuaas_contract::id::ProjectId::from_bytes([0; 16]);

/// The names from the Cedar schema, parsed once.
struct Words {
    caller: EntityTypeName,
    organization: EntityTypeName,
    project: EntityTypeName,
    role: EntityTypeName,
    kind: EntityTypeName,
    platform: EntityUid,
    /// Each with the groups that the schema puts it in.
    actions: HashMap<Action, Entity>,
    key_allows: Context,
    key_forbids: Context,
}

impl Words {
    fn new(schema: &Schema) -> Result<Self, BadPolicies> {
        let broken = |error: &dyn fmt::Display| BadPolicies::Schema(error.to_string());
        let name = |name: &str| EntityTypeName::from_str(name).map_err(|error| broken(&error));
        let context = |allows: bool| {
            let pairs = [("key_scopes_allow".to_owned(), RestrictedExpression::new_bool(allows))];
            Context::from_pairs(pairs).map_err(|error| broken(&error))
        };
        let mut actions = HashMap::new();
        for entity in schema.action_entities().map_err(|error| broken(&error))? {
            if let Some(action) = Action::parse(entity.uid().id().unescaped()) {
                actions.insert(action, entity);
            }
        }
        let platform = EntityUid::from_type_name_and_id(name("Platform")?, EntityId::new("platform"));
        Ok(Self {
            caller: name("Caller")?,
            organization: name("Organization")?,
            project: name("Project")?,
            role: name("Role")?,
            kind: name("Kind")?,
            platform,
            actions,
            key_allows: context(true)?,
            key_forbids: context(false)?,
        })
    }

    fn uid(&self, kind: &EntityTypeName, id: impl fmt::Display) -> EntityUid {
        EntityUid::from_type_name_and_id(kind.clone(), EntityId::new(id.to_string()))
    }

    fn kind(&self, who: PrincipalId) -> EntityUid {
        let name = match who {
            PrincipalId::User(_) => "user",
            PrincipalId::ServiceAccount(_) => "service_account",
            PrincipalId::Token(_) => "token",
            PrincipalId::LocalAdmin => "local_admin",
        };
        self.uid(&self.kind, name)
    }

    /// The Cedar resource for a scope, and the entities of the scope and of its ancestors.
    fn about(&self, scope: &Scope) -> (EntityUid, Vec<Entity>) {
        let child = |uid: &EntityUid, of: EntityUid| Entity::new_no_attrs(uid.clone(), HashSet::from([of]));
        match scope {
            Scope::Platform => (self.platform.clone(), Vec::new()),
            Scope::Organization(id) => {
                let organization = self.uid(&self.organization, id);
                let entities = vec![child(&organization, self.platform.clone())];
                (organization, entities)
            }
            Scope::Project { organization, project } => {
                let organization = self.uid(&self.organization, organization);
                let project = self.uid(&self.project, project);
                let entities = vec![child(&organization, self.platform.clone()), child(&project, organization)];
                (project, entities)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_and_the_program_have_the_same_actions_about_the_same_things() {
        let policies = Policies::embedded().expect("our own rules");
        for action in Action::ALL.iter().copied() {
            let entity = policies.words.actions.get(&action).unwrap_or_else(|| panic!("{action} is not in the schema"));
            let (_, _, parents) = entity.clone().into_inner();
            let groups: Vec<String> = parents.iter().map(|group| group.id().unescaped().to_owned()).collect();
            assert_eq!(groups, [if action.reads() { "reads" } else { "changes" }], "{action}");
            let mut about: Vec<String> = policies
                .schema
                .resources_for_action(&entity.uid())
                .expect("an action")
                .map(|name| name.basename().to_lowercase())
                .collect();
            about.sort();
            let mut wanted: Vec<&str> = action.scopes().iter().map(|kind| kind.as_str()).collect();
            wanted.sort_unstable();
            assert_eq!(about, wanted, "{action}");
        }
        let groups = ["reads", "changes"].len();
        assert_eq!(
            policies.schema.actions().count(),
            Action::ALL.len() + groups,
            "the schema has actions that the program lacks"
        );
    }

    #[test]
    fn every_action_has_a_role_that_may_do_it() {
        let policies = Policies::embedded().expect("our own rules");
        for action in Action::ALL.iter().copied() {
            for kind in action.scopes().iter().copied() {
                let permitted = policies.roles.values().any(|role| role.permissions.contains(&(action, kind)));
                assert!(permitted, "{action} about the {}", kind.as_str());
            }
        }
    }

    #[test]
    fn a_role_covers_those_that_permit_nothing_beyond_it_and_not_every_two_compare() {
        let policies = Policies::embedded().expect("our own rules");
        let covered = |role: &str| {
            let role = MemberRole::parse(role).expect("a role");
            let all = MemberRole::VALUES.iter().copied().filter(|other| policies.covers(role, *other));
            all.map(MemberRole::as_str).collect::<Vec<_>>()
        };
        assert_eq!(covered("admin"), ["admin", "operator", "support", "auditor"]);
        assert_eq!(covered("operator"), ["operator", "support", "auditor"]);
        assert_eq!(covered("support"), ["support", "auditor"]);
        assert_eq!(covered("auditor"), ["auditor"]);
        assert_eq!(covered("owner"), ["owner", "member", "viewer", "billing_admin", "tenant_auditor"]);
        assert_eq!(covered("member"), ["member", "viewer", "billing_admin", "tenant_auditor"]);
        assert_eq!(covered("viewer"), ["viewer", "billing_admin"]);
        assert_eq!(covered("billing_admin"), ["billing_admin"]);
        assert_eq!(covered("tenant_auditor"), ["tenant_auditor"]);
    }
}
