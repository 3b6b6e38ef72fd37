//! Authorization: the whole permission table, key scopes, and rules that operators add.

use std::fmt::Write as _;
use std::time::Instant;

use gpuaas_contract::Digest;
use gpuaas_contract::id::{ApiTokenId, MembershipId, OrgId, ProjectId, ServiceAccountId, UserId};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::Actor;
use gpuaas_domain::access::{
    Action, ApiToken, BadKeyScopes, KeyScopes, MAX_FILE_BYTES, MAX_FILES, MAX_PATTERNS, MAX_RULES, MemberRole, Membership, Place,
    PlatformRole, Policies, Principal, PrincipalId, ProjectRole, Scope, ScopeKind, Verdict, Who,
};

const ORGANIZATION: OrgId = OrgId::from_bytes([1; 16]);
const PROJECT: ProjectId = ProjectId::from_bytes([2; 16]);
/// Another project of the same organization.
const SIBLING: ProjectId = ProjectId::from_bytes([3; 16]);
/// An organization of another tenant.
const FOREIGN_ORGANIZATION: OrgId = OrgId::from_bytes([4; 16]);
const FOREIGN_PROJECT: ProjectId = ProjectId::from_bytes([5; 16]);

const OWN: Scope = Scope::Project { organization: ORGANIZATION, project: PROJECT };
const BESIDE: Scope = Scope::Project { organization: ORGANIZATION, project: SIBLING };
const FOREIGN: Scope = Scope::Project { organization: FOREIGN_ORGANIZATION, project: FOREIGN_PROJECT };

const EVERY_SCOPE: [Scope; 6] =
    [Scope::Platform, Scope::Organization(ORGANIZATION), Scope::Organization(FOREIGN_ORGANIZATION), OWN, BESIDE, FOREIGN];

fn user() -> Principal {
    Principal::nobody(PrincipalId::User(UserId::from_bytes([9; 16])))
}

fn on_platform(role: PlatformRole) -> Principal {
    Principal { platform: vec![role], ..user() }
}

fn holds(at: Place, role: ProjectRole) -> Principal {
    Principal { memberships: vec![(at, role)], ..user() }
}

fn in_project(role: ProjectRole) -> Principal {
    holds(Place::Project(PROJECT), role)
}

fn in_organization(role: ProjectRole) -> Principal {
    holds(Place::Organization(ORGANIZATION), role)
}

fn embedded() -> Policies {
    Policies::embedded().expect("our own rules are good")
}

fn may(policies: &Policies, principal: &Principal, action: Action, scope: &Scope) -> bool {
    policies.may(principal, action, scope).is_allowed()
}

fn why(verdict: Verdict) -> String {
    match verdict {
        Verdict::Allowed => panic!("this was allowed"),
        Verdict::Denied { why } => why,
    }
}

/// The callers of the table: platform roles, roles in ORGANIZATION, roles in PROJECT, and a caller without any role.
fn callers() -> [(&'static str, Principal); 15] {
    [
        ("admin", on_platform(PlatformRole::Admin)),
        ("operator", on_platform(PlatformRole::Operator)),
        ("support", on_platform(PlatformRole::Support)),
        ("auditor", on_platform(PlatformRole::Auditor)),
        ("org owner", in_organization(ProjectRole::Owner)),
        ("org member", in_organization(ProjectRole::Member)),
        ("org viewer", in_organization(ProjectRole::Viewer)),
        ("org billing_admin", in_organization(ProjectRole::BillingAdmin)),
        ("org tenant_auditor", in_organization(ProjectRole::TenantAuditor)),
        ("owner", in_project(ProjectRole::Owner)),
        ("member", in_project(ProjectRole::Member)),
        ("viewer", in_project(ProjectRole::Viewer)),
        ("billing_admin", in_project(ProjectRole::BillingAdmin)),
        ("tenant_auditor", in_project(ProjectRole::TenantAuditor)),
        ("nobody", user()),
    ]
}

/// The expected permissions. `yes`: allowed; the action is about the platform. `all`: allowed everywhere. `org`: in all projects of the
/// organization in which the role is held. `own`: only in the organization or project in which the role is held.
const TABLE: &str = "\
action               about         admin  operator  support  auditor  org owner  org member  org viewer  org billing_admin  org tenant_auditor  owner  member  viewer  billing_admin  tenant_auditor  nobody
self.read            platform      yes    yes       yes      yes      yes        yes         yes         yes                yes                 yes    yes     yes     yes            yes             yes
self.manage          platform      yes    yes       yes      yes      yes        yes         yes         yes                yes                 yes    yes     yes     yes            yes             yes
catalog.read         platform      yes    yes       yes      yes      yes        yes         yes         yes                yes                 yes    yes     yes     yes            yes             -
platform.read        platform      yes    yes       yes      yes      -          -           -           -                  -                   -      -       -       -              -               -
platform.operate     platform      yes    yes       -        -        -          -           -           -                  -                   -      -       -       -              -               -
platform.admin       platform      yes    -         -        -        -          -           -           -                  -                   -      -       -       -              -               -
audit.read           platform      yes    yes       yes      yes      -          -           -           -                  -                   -      -       -       -              -               -
catalog.manage       platform      yes    yes       -        -        -          -           -           -                  -                   -      -       -       -              -               -
capacity.read        platform      yes    yes       yes      yes      -          -           -           -                  -                   -      -       -       -              -               -
maintenance.manage   platform      yes    yes       -        -        -          -           -           -                  -                   -      -       -       -              -               -
organization.list    platform      yes    yes       yes      yes      yes        yes         yes         yes                yes                 yes    yes     yes     yes            yes             -
organization.create  platform      yes    -         -        -        -          -           -           -                  -                   -      -       -       -              -               -
organization.read    organization  all    all       all      all      own        own         own         own                own                 -      -       -       -              -               -
organization.manage  organization  all    -         -        -        own        -           -           -                  -                   -      -       -       -              -               -
quota.read           organization  all    all       all      all      own        own         own         own                -                   -      -       -       -              -               -
quota.read           project       all    all       all      all      org        org         org         org                -                   own    own     own     own            -               -
quota.set            organization  all    all       -        -        -          -           -           -                  -                   -      -       -       -              -               -
quota.set            project       all    all       -        -        -          -           -           -                  -                   -      -       -       -              -               -
project.list         platform      yes    yes       yes      yes      yes        yes         yes         yes                yes                 yes    yes     yes     yes            yes             -
project.create       organization  all    -         -        -        own        -           -           -                  -                   -      -       -       -              -               -
project.read         project       all    all       all      all      org        org         org         org                org                 own    own     own     own            own             -
project.manage       project       all    -         -        -        org        -           -           -                  -                   own    -       -       -              -               -
member.read          platform      yes    yes       yes      yes      -          -           -           -                  -                   -      -       -       -              -               -
member.read          organization  all    all       all      all      own        own         own         -                  own                 -      -       -       -              -               -
member.read          project       all    all       all      all      org        org         org         -                  org                 own    own     own     -              own             -
member.manage        platform      yes    -         -        -        -          -           -           -                  -                   -      -       -       -              -               -
member.manage        organization  all    -         -        -        own        -           -           -                  -                   -      -       -       -              -               -
member.manage        project       all    -         -        -        org        -           -           -                  -                   own    -       -       -              -               -
key.read             project       all    all       all      -        org        org         -           -                  org                 own    own     -       -              own             -
key.manage           project       all    -         -        -        org        -           -           -                  -                   own    -       -       -              -               -
ssh_key.read         project       all    all       all      -        org        org         org         -                  org                 own    own     own     -              own             -
ssh_key.manage       project       all    -         -        -        org        org         -           -                  -                   own    own     -       -              -               -
image.read           project       all    all       all      -        org        org         org         -                  -                   own    own     own     -              -               -
image.manage         project       all    -         -        -        org        org         -           -                  -                   own    own     -       -              -               -
allocation.read      project       all    all       all      all      org        org         org         org                -                   own    own     own     own            -               -
allocation.create    project       all    -         -        -        org        org         -           -                  -                   own    own     -       -              -               -
allocation.operate   project       all    all       -        -        org        org         -           -                  -                   own    own     -       -              -               -
allocation.console   project       all    all       -        -        org        org         -           -                  -                   own    own     -       -              -               -
event.read           project       all    all       all      all      org        org         org         -                  org                 own    own     own     -              own             -
webhook.read         project       all    all       all      -        org        org         -           -                  org                 own    own     -       -              own             -
webhook.manage       project       all    -         -        -        org        -           -           -                  -                   own    -       -       -              -               -
";

fn cell(policies: &Policies, principal: &Principal, action: Action, kind: ScopeKind) -> &'static str {
    let asked: &[Scope] = match kind {
        ScopeKind::Platform => &[Scope::Platform],
        ScopeKind::Organization => &[Scope::Organization(ORGANIZATION), Scope::Organization(FOREIGN_ORGANIZATION)],
        ScopeKind::Project => &[OWN, BESIDE, FOREIGN],
    };
    let answers: Vec<bool> = asked.iter().map(|scope| may(policies, principal, action, scope)).collect();
    match answers[..] {
        [true] => "yes",
        [true, true] | [true, true, true] => "all",
        [true, true, false] => "org",
        [true, false] | [true, false, false] => "own",
        [false] | [false, false] | [false, false, false] => "-",
        _ => "WRONG",
    }
}

#[test]
fn roles_may_what_the_table_says_and_nothing_else() {
    let (policies, callers) = (embedded(), callers());
    let mut table = format!("{:<21}{:<12}", "action", "about");
    for (name, _) in &callers {
        write!(table, "  {name}").expect("text");
    }
    table.push('\n');
    for action in Action::ALL.iter().copied() {
        for kind in action.scopes().iter().copied() {
            let mut row = format!("{:<21}{:<12}", action.as_str(), kind.as_str());
            for (name, principal) in &callers {
                write!(row, "  {:<width$}", cell(&policies, principal, action, kind), width = name.len()).expect("text");
            }
            writeln!(table, "{}", row.trim_end()).expect("text");
        }
    }
    assert!(table == TABLE, "the table is now:\n{table}");
}

#[test]
fn the_document_shows_the_same_table() {
    let document = include_str!("../../../docs/access.md");
    assert!(document.contains(TABLE), "copy the table of this test into docs/access.md");
}

#[test]
fn an_action_about_the_wrong_kind_of_thing_is_denied_to_everybody() {
    let policies = embedded();
    for action in Action::ALL.iter().copied() {
        for scope in EVERY_SCOPE.iter().filter(|scope| !action.applies_to(scope.kind())) {
            assert!(!may(&policies, &Principal::local_admin(), action, scope), "{action} {scope:?}");
        }
    }
}

#[test]
fn somebody_without_a_role_sees_only_who_they_are() {
    let policies = embedded();
    // A project role that a corrupt row claims on the platform does not count either.
    for principal in [user(), holds(Place::Platform, ProjectRole::Owner)] {
        for scope in EVERY_SCOPE {
            let allowed: Vec<Action> =
                Action::ALL.iter().copied().filter(|action| may(&policies, &principal, *action, &scope)).collect();
            assert_eq!(allowed, if scope == Scope::Platform { vec![Action::SelfRead, Action::SelfManage] } else { vec![] });
            assert!(!principal.can_see(&scope));
        }
    }
}

#[test]
fn whoever_sits_at_the_server_may_everything() {
    let policies = embedded();
    for action in Action::ALL.iter().copied() {
        for scope in EVERY_SCOPE.iter().filter(|scope| action.applies_to(scope.kind())) {
            assert!(may(&policies, &Principal::local_admin(), action, scope), "{action} {scope:?}");
        }
    }
}

#[test]
fn the_permissions_of_several_roles_add_up() {
    let policies = embedded();
    let memberships =
        vec![(Place::Project(PROJECT), ProjectRole::Owner), (Place::Organization(ORGANIZATION), ProjectRole::Viewer)];
    let principal = Principal { memberships, ..user() };
    assert!(may(&policies, &principal, Action::KeyManage, &OWN));
    assert!(may(&policies, &principal, Action::AllocationRead, &BESIDE));
    assert!(!may(&policies, &principal, Action::AllocationCreate, &BESIDE));
    // Neither of these roles covers the other.
    let memberships = vec![
        (Place::Project(PROJECT), ProjectRole::BillingAdmin),
        (Place::Organization(ORGANIZATION), ProjectRole::TenantAuditor),
    ];
    let principal = Principal { memberships, ..user() };
    assert!(may(&policies, &principal, Action::QuotaRead, &OWN) && may(&policies, &principal, Action::KeyRead, &OWN));
    assert!(!may(&policies, &principal, Action::QuotaRead, &BESIDE) && may(&policies, &principal, Action::KeyRead, &BESIDE));
}

#[test]
fn roles_that_only_read_change_nothing_but_their_own_password() {
    let policies = embedded();
    let callers = callers()
        .into_iter()
        .filter(|(name, _)| ["support", "viewer", "admin", "auditor"].iter().any(|role| name.ends_with(role)));
    for (name, principal) in callers.filter(|(name, _)| *name != "admin") {
        for action in Action::ALL.iter().copied().filter(|action| !action.reads() && *action != Action::SelfManage) {
            for scope in EVERY_SCOPE {
                assert!(!may(&policies, &principal, action, &scope), "{name} {action} {scope:?}");
            }
        }
    }
}

#[test]
fn what_somebody_can_see_is_where_they_hold_a_role() {
    let seen = |principal: &Principal| EVERY_SCOPE.map(|scope| principal.can_see(&scope));
    // Platform, organization, foreign organization, project, sibling project, foreign project.
    assert_eq!(seen(&on_platform(PlatformRole::Support)), [true; 6]);
    assert_eq!(seen(&in_organization(ProjectRole::Viewer)), [false, true, false, true, true, false]);
    assert_eq!(seen(&in_project(ProjectRole::Owner)), [false, false, false, true, false, false]);
    assert_eq!(seen(&user()), [false; 6]);
}

#[test]
fn a_denial_names_the_role_that_is_missing() {
    let policies = embedded();
    let asked = |principal: Principal, action, scope| why(policies.may(&principal, action, &scope));
    for (denial, expected) in [
        (
            asked(in_project(ProjectRole::Viewer), Action::AllocationCreate, OWN),
            "this needs the role owner or member of the project; ask an owner",
        ),
        (
            asked(in_organization(ProjectRole::Member), Action::ProjectCreate, Scope::Organization(ORGANIZATION)),
            "this needs the role owner of the organization; ask an owner",
        ),
        (
            asked(in_project(ProjectRole::Owner), Action::QuotaSet, OWN),
            "this needs the role admin or operator of the platform; ask an administrator",
        ),
        (
            asked(on_platform(PlatformRole::Operator), Action::MemberManage, Scope::Platform),
            "this needs the role admin of the platform; ask an administrator",
        ),
        (asked(user(), Action::CatalogRead, Scope::Platform), "this needs a role in any project; ask an owner to invite you"),
    ] {
        assert_eq!(denial, expected);
    }
}

#[test]
fn a_key_is_good_for_what_its_scopes_name_and_its_holder_may() {
    let policies = embedded();
    let key = |scopes: &str| Principal { scopes: Some(scopes.parse().expect("scopes")), ..in_project(ProjectRole::Member) };
    let allowed = |scopes: &str| {
        let names = Action::ALL.iter().copied().filter(|action| may(&policies, &key(scopes), *action, &OWN));
        names.map(Action::as_str).collect::<Vec<_>>()
    };
    let unlimited = Action::ALL.iter().copied().filter(|action| may(&policies, &in_project(ProjectRole::Member), *action, &OWN));
    assert_eq!(allowed("*"), unlimited.map(Action::as_str).collect::<Vec<_>>());
    assert_eq!(allowed("allocation.create"), ["allocation.create"]);
    assert_eq!(
        allowed("allocation.* key.manage"),
        ["allocation.read", "allocation.create", "allocation.operate", "allocation.console"],
        "scopes give nothing that the role does not"
    );
    assert!(allowed("*.read").iter().all(|name| name.ends_with(".read")));
    assert!(allowed("*.read").contains(&"allocation.read"));
    // Lists are reads, too, and every key may ask whose key it is.
    assert!(may(&policies, &key("*.read"), Action::ProjectList, &Scope::Platform));
    assert!(!may(&policies, &key("allocation.*"), Action::ProjectList, &Scope::Platform));
    assert!(may(&policies, &key("allocation.*"), Action::SelfRead, &Scope::Platform));
    let denial = why(policies.may(&key("*.read"), Action::AllocationCreate, &OWN));
    assert_eq!(denial, "the scopes of this API key do not include allocation.create; use a key that has it (rule keys/scopes)");
    // Even an administrator's key is limited to its scopes.
    let admin = Principal { scopes: Some("*.read".parse().expect("scopes")), ..on_platform(PlatformRole::Admin) };
    assert!(!may(&policies, &admin, Action::PlatformAdmin, &Scope::Platform));
}

#[test]
fn scopes_that_match_nothing_are_refused() {
    for bad in [
        "",
        "allocation",
        "allocation.",
        ".*",
        "*.*",
        "**",
        "*.create",
        "alloc*",
        "gpu.*",
        "Allocation.Read",
        "allocation.reads",
        "a b",
    ] {
        assert_eq!(KeyScopes::parse([bad]), Err(BadKeyScopes::Unknown(bad.to_owned())), "{bad}");
    }
    assert_eq!(KeyScopes::parse([""; 0]), Err(BadKeyScopes::None));
    assert_eq!(KeyScopes::parse(["*"; MAX_PATTERNS + 1]), Err(BadKeyScopes::TooMany));
    assert!(matches!(KeyScopes::parse(["x".repeat(1 << 20)]), Err(BadKeyScopes::Unknown(shown)) if shown.len() <= 64));
    let good = KeyScopes::parse(["*.read", "allocation.*", "ssh_key.manage", "*.read"]).expect("scopes");
    assert_eq!(good.to_string(), "*.read allocation.* ssh_key.manage");
    assert_eq!(good.to_string().parse(), Ok(good.clone()));
    let json = serde_json::to_string(&good).expect("json");
    assert_eq!(json, r#"["*.read","allocation.*","ssh_key.manage"]"#);
    assert_eq!(serde_json::from_str::<KeyScopes>(&json).expect("scopes"), good);
    assert!(serde_json::from_str::<KeyScopes>(r#"["gpu.*"]"#).is_err());
}

#[test]
fn operators_can_forbid_more() {
    let rules = format!(
        r#"
        // Nobody but the operators opens consoles.
        @id("no-console")
        forbid (principal, action == Action::"allocation.console", resource) unless {{ principal in Role::"operator" }};
        // This organization does not pay.
        forbid (principal in Kind::"user", action in Action::"changes", resource in Organization::"{FOREIGN_ORGANIZATION}");
        "#
    );
    let (before, after) = (embedded(), Policies::with_extra(&[("house.cedar", rules)]).expect("good rules"));
    let owner = in_project(ProjectRole::Owner);
    assert!(may(&before, &owner, Action::AllocationConsole, &OWN));
    let denial = why(after.may(&owner, Action::AllocationConsole, &OWN));
    assert_eq!(denial, "the rule house.cedar/no-console forbids this; ask an administrator");
    assert!(may(&after, &on_platform(PlatformRole::Operator), Action::AllocationConsole, &OWN));
    let admin = on_platform(PlatformRole::Admin);
    let denial = why(after.may(&admin, Action::ProjectManage, &FOREIGN));
    assert_eq!(denial, "the rule house.cedar/policy1 forbids this; ask an administrator");
    assert!(may(&after, &Principal::local_admin(), Action::ProjectManage, &FOREIGN), "not a user");
    // A rule that names a role also means the roles that cover it.
    let rule = r#"forbid (principal, action == Action::"event.read", resource) unless { principal in Role::"tenant_auditor" };"#;
    let policies = Policies::with_extra(&[("house.cedar", rule)]).expect("good rules");
    for (role, expected) in [
        (ProjectRole::Owner, true),
        (ProjectRole::Member, true),
        (ProjectRole::TenantAuditor, true),
        (ProjectRole::Viewer, false),
    ] {
        assert_eq!(may(&policies, &in_project(role), Action::EventRead, &OWN), expected, "{role}");
    }
    // Whatever else they do, extra rules allow nothing.
    for (name, principal) in callers() {
        for action in Action::ALL.iter().copied() {
            for scope in EVERY_SCOPE {
                let widened = may(&after, &principal, action, &scope) && !may(&before, &principal, action, &scope);
                assert!(!widened, "{name} {action} {scope:?}");
            }
        }
    }
}

#[test]
fn rules_that_permit_or_cannot_mean_what_they_say_are_refused() {
    let code = |text: &str| Policies::with_extra(&[("house.cedar", text)]).map(|_| "taken").unwrap_or_else(|bad| bad.code());
    for (text, expected) in [
        ("", "taken"),
        ("forbid (principal, action, resource);", "taken"),
        ("permit (principal, action, resource);", "policy_permits"),
        ("forbid (principal, action, resource); permit (principal, action, resource) when { false };", "policy_permits"),
        ("forbid (principal, action, resource)", "policy_syntax"),
        ("no rule", "policy_syntax"),
        ("forbid (principal == ?principal, action, resource);", "policy_template"),
        ("@id(\"a\\nb\") forbid (principal, action, resource);", "policy_id_invalid"),
        (r#"@id("a") forbid (principal, action, resource); @id("a") forbid (principal, action, resource);"#, "policy_id_invalid"),
        // Names that are not in the schema, or are not ids.
        (r#"forbid (principal in Role::"ownr", action, resource);"#, "policy_invalid"),
        (r#"forbid (principal in Kind::"robot", action, resource);"#, "policy_invalid"),
        (r#"forbid (principal, action == Action::"allocation.delete", resource);"#, "policy_invalid"),
        (r#"forbid (principal, action, resource == Planet::"x");"#, "policy_invalid"),
        (r#"forbid (principal, action, resource in Organization::"ml-team");"#, "policy_entity_unknown"),
        (r#"forbid (principal, action, resource) when { resource == Project::"training" };"#, "policy_entity_unknown"),
        (r#"forbid (principal == Caller::"ann", action, resource);"#, "policy_entity_unknown"),
        // Attributes that a request does not have, and rules that can never apply.
        ("forbid (principal, action, resource) when { context.hour > 17 };", "policy_invalid"),
        ("forbid (principal, action, resource) when { principal.kind == \"user\" };", "policy_invalid"),
        ("forbid (principal, action, resource) when { 1 };", "policy_invalid"),
        (r#"forbid (principal, action == Action::"allocation.create", resource is Platform);"#, "policy_invalid"),
    ] {
        assert_eq!(code(text), expected, "{text}");
    }
    let refused = Policies::with_extra(&[("house.cedar", "permit (principal, action, resource);")]).expect_err("refused");
    assert_eq!(
        refused.to_string(),
        "rule `house.cedar/policy0` permits something; rules that are added may only forbid. Give people a role instead"
    );
}

#[test]
fn the_rules_in_the_document_are_good() {
    let document = include_str!("../../../docs/access.md");
    let (_, chapter) = document.split_once("## Rules of your own").expect("the chapter");
    let example = chapter.split("```").nth(1).expect("the example");
    let policies = Policies::with_extra(&[("example.cedar", example)]).expect("good rules");
    assert!(!may(&policies, &in_project(ProjectRole::Owner), Action::AllocationConsole, &OWN));
}

#[test]
fn rules_are_few_short_and_well_named() {
    let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let forbid = "forbid (principal, action, resource);";
    let load = |files: &[(String, String)]| Policies::with_extra(files).map(|_| ()).map_err(|bad| bad.code());
    for bad in ["", "../x", "a b", "a\nb", "ä"] {
        assert_eq!(load(&[file(bad, forbid)]), Err("policy_name_invalid"), "{bad}");
    }
    let many: Vec<_> = (0..=MAX_FILES).map(|n| file(&format!("f{n}"), "")).collect();
    assert_eq!(load(&many), Err("policy_too_many"));
    assert_eq!(load(&[file("f", &forbid.repeat(MAX_RULES + 1))]), Err("policy_too_many"));
    assert_eq!(load(&[file("f", &" ".repeat(MAX_FILE_BYTES + 1))]), Err("policy_too_long"));
    // As deeply nested as a file can be. All that matters is that loading returns.
    let deep = format!("forbid (principal, action, resource) when {{ {}true }};", "!(".repeat(20_000));
    assert_eq!(load(&[file("f", &deep)]), Err("policy_syntax"));
    // Embedded rules cannot be replaced.
    assert_eq!(
        load(&[file("keys", r#"@id("scopes") forbid (principal, action, resource) when { false };"#)]),
        Err("policy_id_invalid")
    );
}

#[test]
fn a_rule_that_fails_when_it_is_applied_denies() {
    // Overflows for callers with a role. Cedar would skip the rule.
    let rule = r#"forbid (principal, action, resource) when { 9223372036854775807 + (if principal in Role::"known" then 1 else 0) < 0 };"#;
    let policies = Policies::with_extra(&[("house.cedar", rule)]).expect("the schema has nothing against it");
    let denial = why(policies.may(&Principal::local_admin(), Action::PlatformRead, &Scope::Platform));
    assert!(denial.contains("could not be applied"), "{denial}");
    assert!(may(&policies, &user(), Action::SelfRead, &Scope::Platform));
}

#[test]
fn roles_are_held_where_they_mean_something() {
    let user = Who::User(UserId::from_bytes([9; 16]));
    let new = |who: &Who, at, role| {
        Membership::new(MembershipId::from_bytes([8; 16]), who.clone(), at, role, "local-admin".to_owned(), Timestamp(7))
    };
    let (admin, owner) = (MemberRole::Platform(PlatformRole::Admin), MemberRole::Project(ProjectRole::Owner));
    for (at, role) in [(Place::Platform, owner), (Place::Organization(ORGANIZATION), admin), (Place::Project(PROJECT), admin)] {
        assert_eq!(new(&user, at, role).map_err(|refusal| refusal.code), Err("role_misplaced"));
    }
    for (at, role) in [(Place::Platform, admin), (Place::Organization(ORGANIZATION), owner), (Place::Project(PROJECT), owner)] {
        let membership = new(&user, at, role).expect("a role where it belongs");
        let json = serde_json::to_string(&membership).expect("json");
        assert_eq!(serde_json::from_str::<Membership>(&json).expect("a membership"), membership);
    }
    let invited = new(&Who::Invited(" Ann@Example.com".to_owned()), Place::Project(PROJECT), owner).expect("an invitation");
    assert_eq!(invited.who, Who::Invited("ann@example.com".to_owned()));
    let json = serde_json::to_value(&invited).expect("json");
    let expected = serde_json::json!({
        "id": "member_08080808080808080808080808080808", "who": "invited:ann@example.com", "at": PROJECT, "role": "owner",
        "invited_by": "local-admin", "created_at": 7, "removed_at": null,
    });
    assert_eq!(json, expected);
    assert!(new(&Who::Invited("ann".to_owned()), Place::Project(PROJECT), owner).is_err());
}

#[test]
fn names_of_roles_are_unique_and_old_ones_are_understood() {
    for role in PlatformRole::ALL {
        assert_eq!(
            (PlatformRole::parse(role.as_str()), MemberRole::parse(role.as_str())),
            (Some(role), Some(MemberRole::Platform(role)))
        );
    }
    for role in ProjectRole::ALL {
        assert_eq!(
            (ProjectRole::parse(role.as_str()), MemberRole::parse(role.as_str())),
            (Some(role), Some(MemberRole::Project(role)))
        );
    }
    assert_eq!(PlatformRole::parse("owner"), None);
}

#[test]
fn actors_are_named_like_the_callers_of_rules() {
    let (sa, key, token) =
        (ServiceAccountId::from_bytes([6; 16]), ApiTokenId::from_bytes([7; 16]), ApiTokenId::from_bytes([8; 16]));
    for (actor, name) in [
        (Actor::User(UserId::from_bytes([9; 16])), "user:user_09090909090909090909090909090909"),
        (Actor::ServiceAccount { id: sa, key }, "sa:sa_06060606060606060606060606060606"),
        (Actor::Token { id: token, role: PlatformRole::Admin }, "token:apitok_08080808080808080808080808080808"),
        (Actor::LocalAdmin, "local-admin"),
    ] {
        assert_eq!(actor.to_string(), name);
        assert_eq!(name.parse::<PrincipalId>().expect("a caller").to_string(), name);
    }
}

#[test]
fn a_token_counts_until_it_expires_or_is_taken_back() {
    let token = ApiToken {
        id: ApiTokenId::from_bytes([8; 16]),
        version: 0,
        name: "ci".to_owned(),
        role: None,
        service_account: Some(ServiceAccountId::from_bytes([6; 16])),
        project: Some(PROJECT),
        parent: None,
        created_by: None,
        scopes: None,
        secret_digest: Digest::of(b"secret"),
        created_at: Timestamp(1),
        expires_at: None,
        revoked_at: None,
    };
    assert!(token.counts(Timestamp(i64::MAX)));
    let expiring = ApiToken { expires_at: Some(Timestamp(10)), ..token.clone() };
    assert_eq!([9, 10, 11].map(|now| expiring.counts(Timestamp(now))), [true, false, false]);
    let revoked = ApiToken { revoked_at: Some(Timestamp(5)), ..token };
    assert!(!revoked.counts(Timestamp(6)));
}

#[test]
fn asking_is_cheap_enough_for_every_request() {
    let policies = embedded();
    let memberships = (0..50).map(|n| (Place::Project(ProjectId::from_bytes([100 + n; 16])), ProjectRole::Member));
    let principal =
        Principal { memberships: memberships.chain([(Place::Project(PROJECT), ProjectRole::Member)]).collect(), ..user() };
    let rounds = 2_000;
    for (name, action, scope, expected) in [
        ("allowed", Action::AllocationCreate, OWN, true),
        ("denied", Action::KeyManage, OWN, false),
        ("about the platform", Action::CatalogRead, Scope::Platform, true),
    ] {
        let start = Instant::now();
        for _ in 0..rounds {
            assert_eq!(may(&policies, &principal, action, &scope), expected);
        }
        println!("{name}: {:.1} µs a question", start.elapsed().as_secs_f64() * 1e6 / f64::from(rounds));
    }
}
