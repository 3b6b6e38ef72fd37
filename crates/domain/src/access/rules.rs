//! Loads the rules: the embedded ones, and those that an operator adds, which may only forbid.
//!
//! A rule that does not mean what its author thinks is worse than none, so loading reports everything that can be detected: names that the
//! schema does not have, rules that can never apply, names where ids are needed. The server does not start with such a rule.

use std::str::FromStr as _;

use cedar_policy::{Effect, EntityUid, Policy, PolicyId, PolicySet, Schema, ValidationMode, Validator};
use gpuaas_contract::id::{OrgId, ProjectId};

use super::principal::PrincipalId;

/// Maximum number of files an operator can add.
pub const MAX_FILES: usize = 64;
/// Maximum size of a file.
pub const MAX_FILE_BYTES: usize = 64 * 1024;
/// Maximum number of rules in all files of an operator; each is evaluated with every request.
pub const MAX_RULES: usize = 256;

/// Maximum number of validation messages shown for one rule.
const MAX_DETAILS: usize = 3;

const SCHEMA: &str = include_str!("../../policies/schema.cedarschema");
const EMBEDDED: [(&str, &str); 3] = [
    ("platform", include_str!("../../policies/platform.cedar")),
    ("project", include_str!("../../policies/project.cedar")),
    ("keys", include_str!("../../policies/keys.cedar")),
];

/// Why rules cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPolicies {
    /// The schema does not parse, which only a mistake in the program can cause.
    #[error("the schema of the policies cannot be read: {0}")]
    Schema(String),
    /// The file name is not safe to show in messages.
    #[error("the policy file `{}` needs a name of 1 to 100 letters, digits, `-`, `_` and `.`", .0.escape_default())]
    Name(String),
    /// More than [`MAX_FILES`] files or [`MAX_RULES`] rules.
    #[error(
        "at most {MAX_FILES} policy files with {MAX_RULES} rules in all are taken; every rule is looked at with every request"
    )]
    TooMany,
    /// A file is larger than [`MAX_FILE_BYTES`].
    #[error("the policy file {file} is longer than {MAX_FILE_BYTES} bytes; split it")]
    TooLong {
        /// Name of the file.
        file: String,
    },
    /// The file is not valid Cedar.
    #[error("the policy file {file} cannot be read: {detail}")]
    Syntax {
        /// Name of the file.
        file: String,
        /// The parser's message.
        detail: String,
    },
    /// The rule's id is used twice, or is not safe to show in messages.
    #[error("rule `{}` of the policy file {file} needs an id of its own: 1 to 100 letters, digits, `-`, `_` and `.`", .id.escape_default())]
    Id {
        /// Name of the file.
        file: String,
        /// The rule's id.
        id: String,
    },
    /// A rule of an operator permits something.
    #[error("rule `{rule}` permits something; rules that are added may only forbid. Give people a role instead")]
    Permits {
        /// Name of the rule.
        rule: String,
    },
    /// The rule is a template, and nothing would ever fill its slots.
    #[error("the policy file {file} has a rule with `?principal` or `?resource`; name who and what is meant")]
    Template {
        /// Name of the file.
        file: String,
    },
    /// The rule has a name where an id is needed, so it would never apply.
    #[error("rule `{rule}` says {entity}, which nothing is called; {expected}")]
    Entity {
        /// Name of the rule.
        rule: String,
        /// The entity as the rule names it.
        entity: String,
        /// What it should look like instead.
        expected: &'static str,
    },
    /// The rule does not match the schema, or can never apply.
    #[error("rule `{rule}` is not right: {detail}")]
    Invalid {
        /// Name of the rule.
        rule: String,
        /// The validator's messages.
        detail: String,
    },
}

impl BadPolicies {
    /// Stable code for programs.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Schema(_) => "policy_schema_broken",
            Self::Name(_) => "policy_name_invalid",
            Self::TooMany => "policy_too_many",
            Self::TooLong { .. } => "policy_too_long",
            Self::Syntax { .. } => "policy_syntax",
            Self::Id { .. } => "policy_id_invalid",
            Self::Permits { .. } => "policy_permits",
            Self::Template { .. } => "policy_template",
            Self::Entity { .. } => "policy_entity_unknown",
            Self::Invalid { .. } => "policy_invalid",
        }
    }
}

/// The schema and the rules, validated.
pub(super) struct Rules {
    pub(super) schema: Schema,
    /// Only the rules that are compiled into the program.
    pub(super) embedded: PolicySet,
    /// The embedded rules and the operator's.
    pub(super) all: PolicySet,
}

impl Rules {
    /// Loads and validates the schema and all rules.
    pub(super) fn load<N: AsRef<str>, T: AsRef<str>>(extra: &[(N, T)]) -> Result<Self, BadPolicies> {
        let schema = Schema::from_cedarschema_str(SCHEMA).map_err(|error| BadPolicies::Schema(chain(&error)))?.0;
        let mut embedded = PolicySet::new();
        for (file, text) in EMBEDDED {
            for rule in rules(file, text)? {
                add(&mut embedded, rule, file)?;
            }
        }
        let mut all = embedded.clone();
        if extra.len() > MAX_FILES {
            return Err(BadPolicies::TooMany);
        }
        let mut count = 0;
        for (file, text) in extra {
            let (file, text) = (file.as_ref(), text.as_ref());
            if !plain(file) {
                return Err(BadPolicies::Name(file.chars().take(100).collect()));
            }
            if text.len() > MAX_FILE_BYTES {
                return Err(BadPolicies::TooLong { file: file.to_owned() });
            }
            for rule in rules(file, text)? {
                count += 1;
                if count > MAX_RULES {
                    return Err(BadPolicies::TooMany);
                }
                match rule.effect() {
                    Effect::Forbid => {}
                    Effect::Permit => return Err(BadPolicies::Permits { rule: rule.id().to_string() }),
                }
                add(&mut all, rule, file)?;
            }
        }
        validate(&schema, &all)?;
        Ok(Self { schema, embedded, all })
    }
}

/// The rules of a file, each named `file/id`. The id is the rule's annotation, or Cedar's number if it has none.
fn rules(file: &str, text: &str) -> Result<Vec<Policy>, BadPolicies> {
    let syntax = |detail| BadPolicies::Syntax { file: file.to_owned(), detail };
    let read = PolicySet::from_str(text).map_err(|error| syntax(chain(&error)))?;
    if read.num_of_templates() > 0 {
        return Err(BadPolicies::Template { file: file.to_owned() });
    }
    let mut rules = Vec::new();
    for rule in read.policies() {
        let id = match rule.annotation("id") {
            Some(id) if plain(id) => id.to_owned(),
            Some(id) => return Err(BadPolicies::Id { file: file.to_owned(), id: id.chars().take(100).collect() }),
            // Cedar numbers rules by their position in the file: `policy0`, `policy1`, …
            None => rule.id().to_string(),
        };
        rules.push(rule.new_id(PolicyId::new(format!("{file}/{id}"))));
    }
    // Cedar returns them in arbitrary order; sort, so that the same file always gives the same result.
    rules.sort_by_key(|rule| rule.id().to_string());
    Ok(rules)
}

fn add(set: &mut PolicySet, rule: Policy, file: &str) -> Result<(), BadPolicies> {
    let id = rule.id().to_string();
    for entity in rule.entity_literals() {
        check_entity(&id, &entity)?;
    }
    set.add(rule).map_err(|_| BadPolicies::Id { file: file.to_owned(), id })
}

/// Checks ids. The schema lists all roles, kinds and actions, but accepts any text as the id of an organization, a project or a caller.
fn check_entity(rule: &str, entity: &EntityUid) -> Result<(), BadPolicies> {
    let id = entity.id().unescaped();
    let (good, expected) = match entity.type_name().basename() {
        "Organization" => (id.parse::<OrgId>().is_ok(), "use the id of the organization, such as Organization::\"org_…\""),
        "Project" => (id.parse::<ProjectId>().is_ok(), "use the id of the project, such as Project::\"proj_…\""),
        "Caller" => (id.parse::<PrincipalId>().is_ok(), "name the caller as the audit log does, such as Caller::\"user:user_…\""),
        // All other entities are enumerated in the schema.
        _ => (true, ""),
    };
    if good {
        return Ok(());
    }
    Err(BadPolicies::Entity { rule: rule.to_owned(), entity: entity.to_string(), expected })
}

/// Treats warnings as errors: they are about rules that never apply and about confusable characters.
fn validate(schema: &Schema, rules: &PolicySet) -> Result<(), BadPolicies> {
    let result = Validator::new(schema.clone()).validate(rules, ValidationMode::Strict);
    let errors = result.validation_errors().map(|error| (error.policy_id().to_string(), error.to_string()));
    let mut found: Vec<(String, String)> = errors.collect();
    if found.is_empty() {
        // Only without errors: an error often makes a rule impossible as well, and that warning says less.
        let warnings = result.validation_warnings();
        found = warnings.map(|warning| (warning.policy_id().to_string(), warning.to_string())).collect();
    }
    // Report the first rule by name, so that the same files always give the same result.
    found.sort();
    found.dedup();
    let Some(rule) = found.first().map(|(rule, _)| rule.clone()) else { return Ok(()) };
    let about_it = found.iter().filter(|(of, _)| *of == rule).take(MAX_DETAILS);
    let details: Vec<&str> = about_it.map(|(_, detail)| without_name(detail, &rule)).collect();
    Err(BadPolicies::Invalid { detail: details.join("; "), rule })
}

/// The validator's message without the rule name that it starts with.
fn without_name<'a>(detail: &'a str, rule: &str) -> &'a str {
    let rest =
        detail.strip_prefix("for policy `").and_then(|rest| rest.strip_prefix(rule)).and_then(|rest| rest.strip_prefix('`'));
    rest.map_or(detail, |rest| rest.trim_start_matches([',', ':', ' ']))
}

/// Whether a name is safe in messages and log lines.
fn plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=100).contains(&name.len()) && name.bytes().all(plain)
}

/// An error and its causes, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text.replace('\n', " ")
}
