//! Whom the owner lets be a tenant of the whole host.

use gpuaas_contract::task::Task;

/// The section `[bare_metal]`. Without it there are no such tenants, whatever `allowed_tasks` says.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct BareMetalRules {
    /// Names that users may have. An empty list allows none.
    usernames: Vec<Pattern>,
    /// Users may be allowed to become root.
    allow_sudo: bool,
}

/// A name in which `*` stands for any letters, also none.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "String")]
struct Pattern(String);

/// Longest pattern.
const MAX_PATTERN: usize = 64;

impl TryFrom<String> for Pattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_' | b'*');
        if !text.is_empty() && text.len() <= MAX_PATTERN && text.bytes().all(plain) {
            return Ok(Self(text));
        }
        Err(format!("usernames must be 1 to {MAX_PATTERN} lower-case letters, digits, dashes, underscores and `*`"))
    }
}

impl Pattern {
    fn matches(&self, name: &str) -> bool {
        let Some((start, rest)) = self.0.split_once('*') else { return self.0 == name };
        let Some(mut name) = name.strip_prefix(start) else { return false };
        let mut parts: Vec<&str> = rest.split('*').collect();
        let end = parts.pop().unwrap_or_default();
        // What is found early leaves most for the rest.
        for part in parts {
            let Some(at) = name.find(part) else { return false };
            name = &name[at + part.len()..];
        }
        name.ends_with(end)
    }
}

/// Whether the owner lets this task do what it says. Tasks that are about nobody are fine.
pub(super) fn check(rules: Option<&BareMetalRules>, task: &Task) -> Result<(), String> {
    let (username, sudo) = match task {
        Task::AllocationProvisionUser(params) => (&params.username, params.sudo),
        Task::AllocationDeprovisionUser(params) => (&params.username, false),
        Task::DiagPing(_)
        | Task::DiagHealthProbe(_)
        | Task::PackageList(_)
        | Task::SliceTopologyDiscover(_)
        | Task::SliceVmProvision(_)
        | Task::SliceVmRelease(_)
        | Task::SliceVmPower(_)
        | Task::SliceConsoleRead(_) => return Ok(()),
    };
    let rules = rules.ok_or("there is no section [bare_metal], so nobody is a tenant of the whole host")?;
    if !rules.usernames.iter().any(|pattern| pattern.matches(username.as_str())) {
        return Err(format!("usernames of [bare_metal] does not allow {username}"));
    }
    if sudo && !rules.allow_sudo {
        return Err("allow_sudo of [bare_metal] is false".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use gpuaas_contract::id::AllocationId;
    use gpuaas_contract::task::{TaskType, allocation_deprovision_user};

    use super::super::{Policy, PolicyError};
    use super::*;

    fn task(name: &str) -> Task {
        Task::AllocationDeprovisionUser(allocation_deprovision_user::Params {
            allocation_id: AllocationId::generate(),
            lease_epoch: 1,
            username: name.parse().expect("a name"),
            take_over: false,
        })
    }

    fn provision(name: &str, sudo: bool) -> Task {
        let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcH";
        let params = serde_json::json!({
            "allocation_id": AllocationId::generate(), "lease_epoch": 1, "username": name, "ssh_public_keys": [key], "sudo": sudo,
        });
        Task::parse(TaskType::AllocationProvisionUser, &params.to_string()).expect("a task")
    }

    /// The policy, and the folder that it is read from again whenever it is asked.
    fn policy(rules: &str) -> (tempfile::TempDir, Result<Policy, PolicyError>) {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("policy.toml");
        let text = format!("allowed_tasks = [\"allocation.provision_user\", \"allocation.deprovision_user\"]\n{rules}");
        gpuaas_host::private_file::write(&path, text.as_bytes()).expect("written");
        let policy = Policy::load(&path);
        (folder, policy)
    }

    #[test]
    fn a_star_stands_for_any_letters_and_everything_else_for_itself() {
        let matches = |pattern: &str, name: &str| Pattern::try_from(pattern.to_owned()).expect("a pattern").matches(name);
        for (pattern, name) in [
            ("*", "x"),
            ("tenant-*", "tenant-1"),
            ("tenant-*", "tenant-"),
            ("*-gpu", "a-gpu"),
            ("a*b*c", "abc"),
            ("a*b*c", "axxbbyc"),
            ("a*a", "aa"),
            ("exact", "exact"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("tenant-*", "tenant"),
            ("tenant-*", "xtenant-1"),
            ("*-gpu", "a-gpu-b"),
            ("a*b*c", "acb"),
            ("a*a", "a"),
            ("a*bc*c", "abc"),
            ("exact", "exactly"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn without_its_section_nobody_is_a_tenant_of_the_whole_host() {
        let (_folder, none) = policy("");
        let none = none.expect("loads");
        for task in [provision("tenant-1", false), task("tenant-1")] {
            assert!(none.check(task.task_type()).is_ok(), "the kind itself is allowed");
            assert!(none.check_task(&task).expect_err("denied").0.contains("[bare_metal]"));
            assert!(!none.still_allows(&task));
        }
        let (_folder, empty) = policy("[bare_metal]\n");
        assert!(empty.expect("loads").check_task(&task("tenant-1")).expect_err("denied").0.contains("usernames"));
    }

    #[test]
    fn names_and_sudo_are_allowed_as_the_section_says() {
        let (_folder, some) = policy("[bare_metal]\nusernames = [\"tenant-*\", \"jane\"]\n");
        let some = some.expect("loads");
        for name in ["tenant-1", "jane"] {
            assert!(some.check_task(&task(name)).is_ok() && some.check_task(&provision(name, false)).is_ok(), "{name}");
            assert!(some.check_task(&provision(name, true)).expect_err("denied").0.contains("allow_sudo"), "{name}");
        }
        assert!(some.check_task(&task("john")).is_err());
        let (_folder, sudo) = policy("[bare_metal]\nusernames = [\"*\"]\nallow_sudo = true\n");
        assert!(sudo.expect("loads").check_task(&provision("john", true)).is_ok());
        for bad in
            ["usernames = [\"Tenant\"]", "usernames = [\"\"]", "usernames = [\"a b\"]", "usernames = \"*\"", "allow_root = true"]
        {
            assert!(matches!(policy(&format!("[bare_metal]\n{bad}\n")).1, Err(PolicyError::Malformed { .. })), "{bad}");
        }
    }
}
