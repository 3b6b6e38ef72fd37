//! The door: may this caller do that, there?

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::str::FromStr as _;

use cedar_policy::{
    Authorizer, Context, Decision, Entities, Entity, EntityId, EntityTypeName, EntityUid, PolicySet, Request, Response,
    RestrictedExpression, Schema,
};

use super::principal::{HeldRole, Principal, PrincipalId};
use super::rules::{BadPolicies, Rules};
use super::{Action, PlatformRole, ProjectRole, Scope, ScopeKind};

/// The answer to a question.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// They may.
    Allowed,
    /// They may not.
    Denied {
        /// What is missing or which rule forbids it, and what to do next.
        why: String,
    },
}

impl Verdict {
    /// Whether they may.
    pub const fn is_allowed(&self) -> bool {
        match self {
            Self::Allowed => true,
            Self::Denied { .. } => false,
        }
    }
}

/// The least that a question needs, for the message to those who do not have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    /// A role anywhere.
    Known,
    Project(ProjectRole),
    Platform(PlatformRole),
    /// No role is enough.
    Impossible,
}

/// All rules, read and checked. Made once; asking takes microseconds and changes nothing.
pub struct Policies {
    schema: Schema,
    rules: PolicySet,
    /// Those that are part of the program.
    embedded: PolicySet,
    authorizer: Authorizer,
    words: Words,
    /// For each action and kind of scope the least that the rules of the program ask for.
    needs: HashMap<(Action, ScopeKind), Needs>,
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policies").field("rules", &self.rules.num_of_policies()).finish_non_exhaustive()
    }
}

impl Policies {
    /// The rules that are part of the program.
    pub fn embedded() -> Result<Self, BadPolicies> {
        Self::with_extra::<&str, &str>(&[])
    }

    /// The rules that are part of the program, and those of an operator: files by name and text. They may only forbid.
    pub fn with_extra<N: AsRef<str>, T: AsRef<str>>(extra: &[(N, T)]) -> Result<Self, BadPolicies> {
        let Rules { schema, embedded, all } = Rules::load(extra)?;
        let words = Words::new(&schema)?;
        let mut policies =
            Self { schema, rules: embedded.clone(), embedded, authorizer: Authorizer::new(), words, needs: HashMap::new() };
        policies.needs = policies.least_roles();
        policies.rules = all;
        Ok(policies)
    }

    /// Whether `principal` may do `action` where `scope` says. Whatever cannot be decided is denied.
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
        let response = match self.ask(&self.rules, principal.who, &principal.roles_at(scope), action, scope, key_allows) {
            Ok(response) => response,
            Err(error) => return broken(&error),
        };
        let diagnostics = response.diagnostics();
        // Cedar leaves out a rule that fails. One that forbids must not be left out.
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

    /// Whether the roles and the key scopes of `principal` allow it, by the rules of the program alone: a rule that an operator added says
    /// whom it means, and is asked when they act.
    pub(super) fn roles_allow(&self, principal: &Principal, action: Action, scope: &Scope) -> bool {
        let key_allows = principal.scopes.as_ref().is_none_or(|scopes| scopes.allow(action));
        let response = self.ask(&self.embedded, principal.who, &principal.roles_at(scope), action, scope, key_allows);
        response.is_ok_and(|response| response.decision() == Decision::Allow && response.diagnostics().errors().next().is_none())
    }

    /// What somebody lacks whom no rule permits it.
    fn missing(&self, action: Action, kind: ScopeKind) -> String {
        let place = kind.as_str();
        match self.needs.get(&(action, kind)) {
            Some(Needs::Known) => "this needs a role in any project; ask an owner to invite you".to_owned(),
            Some(Needs::Project(role)) => format!("this needs the role {} of the {place}; ask an owner", role.as_str()),
            Some(Needs::Platform(role)) => format!("this needs the role {} of the platform; ask an administrator", role.as_str()),
            Some(Needs::Impossible) | None => format!("no role may do {action}"),
        }
    }

    /// Asks the rules what each action needs, so that the messages are true whatever the rules say.
    fn least_roles(&self) -> HashMap<(Action, ScopeKind), Needs> {
        let mut needs = HashMap::new();
        for action in Action::ALL.iter().copied() {
            for kind in action.scopes().iter().copied() {
                needs.insert((action, kind), self.least_role(action, kind));
            }
        }
        needs
    }

    fn least_role(&self, action: Action, kind: ScopeKind) -> Needs {
        let scope = match kind {
            ScopeKind::Platform => Scope::Platform,
            ScopeKind::Organization => Scope::Organization(NO_ORGANIZATION),
            ScopeKind::Project => Scope::Project { organization: NO_ORGANIZATION, project: NO_PROJECT },
        };
        let project = ProjectRole::ALL.into_iter().rev().filter(|_| kind != ScopeKind::Platform);
        let project = project.map(|role| {
            let roles = ProjectRole::ALL.into_iter().filter(move |other| role.includes(*other)).map(HeldRole::Project);
            (Needs::Project(role), roles.collect::<Vec<_>>())
        });
        let platform = PlatformRole::ALL.into_iter().rev().map(|role| {
            let roles = PlatformRole::ALL.into_iter().filter(move |other| role.includes(*other)).map(HeldRole::Platform);
            (Needs::Platform(role), roles.collect::<Vec<_>>())
        });
        let enough = |(_, roles): &(Needs, Vec<HeldRole>)| {
            let response = self.ask(&self.rules, PrincipalId::LocalAdmin, roles, action, &scope, true);
            response.is_ok_and(|response| response.decision() == Decision::Allow)
        };
        let known = std::iter::once((Needs::Known, vec![HeldRole::Known]));
        known.chain(project).chain(platform).find(enough).map_or(Needs::Impossible, |(needs, _)| needs)
    }

    /// One question to Cedar.
    fn ask(
        &self,
        rules: &PolicySet,
        who: PrincipalId,
        roles: &[HeldRole],
        action: Action,
        scope: &Scope,
        key_allows: bool,
    ) -> Result<Response, Box<dyn std::error::Error>> {
        let words = &self.words;
        let caller = words.uid(&words.caller, who);
        let mut parents: HashSet<EntityUid> = roles.iter().map(|held| words.role(*held)).collect();
        parents.insert(words.kind(who));
        let action = words.actions.get(&action).ok_or("an action that the schema does not have")?;
        let (resource, about) = words.about(scope);
        let entities = about.into_iter().chain([Entity::new_no_attrs(caller.clone(), parents), action.clone()]);
        // Our own entities: the schema has nothing to say about them that the types do not say already.
        let entities = Entities::from_entities(entities, None)?;
        let context = if key_allows { &words.key_allows } else { &words.key_forbids };
        let request = Request::new(caller, action.uid(), resource, context.clone(), Some(&self.schema))?;
        Ok(self.authorizer.is_authorized(&request, rules, &entities))
    }
}

/// Stand-ins for questions about any organization and project.
const NO_ORGANIZATION: gpuaas_contract::id::OrgId = gpuaas_contract::id::OrgId::from_bytes([0; 16]);
const NO_PROJECT: gpuaas_contract::id::ProjectId = gpuaas_contract::id::ProjectId::from_bytes([0; 16]);

/// The words of the schema, made once.
struct Words {
    caller: EntityTypeName,
    organization: EntityTypeName,
    project: EntityTypeName,
    role: EntityTypeName,
    kind: EntityTypeName,
    platform: EntityUid,
    /// With the groups they are in.
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

    fn role(&self, held: HeldRole) -> EntityUid {
        let name = match held {
            HeldRole::Platform(role) => role.as_str(),
            HeldRole::Project(role) => role.as_str(),
            HeldRole::Known => "known",
        };
        self.uid(&self.role, name)
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

    /// What the question is about, and everything above it.
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
        for ((action, kind), needs) in &policies.needs {
            assert_ne!(*needs, Needs::Impossible, "{action} about the {}", kind.as_str());
        }
    }
}
