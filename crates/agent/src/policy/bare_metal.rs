//! Who may be a tenant of the whole host, according to its policy.

use gpuaas_contract::slice::UserName;

use super::pattern::Pattern;

/// The section `[bare_metal]`. Without it, nobody can lease the whole host, whatever `allowed_tasks` says.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct BareMetalRules {
    /// Patterns for permitted user names. An empty list permits none.
    usernames: Vec<Pattern>,
    /// Whether tasks may let users become root.
    allow_sudo: bool,
    /// Maximum number of tenants that may be removed per hour.
    pub(super) destroys_per_hour: Option<u32>,
}

impl BareMetalRules {
    pub(super) fn allows_sudo(&self) -> bool {
        self.allow_sudo
    }
}

/// Refuses a user name that the policy does not permit.
pub(super) fn check_username(rules: Option<&BareMetalRules>, username: &UserName) -> Result<(), String> {
    let rules = rules.ok_or("there is no section [bare_metal], so nobody is a tenant of the whole host")?;
    if rules.usernames.iter().any(|pattern| pattern.matches(username.as_str())) {
        return Ok(());
    }
    Err(format!("usernames of [bare_metal] does not allow {username}"))
}

#[cfg(test)]
mod tests {
    use gpuaas_contract::id::AllocationId;
    use gpuaas_contract::task::{Task, TaskType, allocation_deprovision_user};

    use super::super::{Policy, PolicyError};

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

    /// A policy with these rules, and its folder, which must outlive it because the policy is read again on every check.
    fn policy(rules: &str) -> (tempfile::TempDir, Result<Policy, PolicyError>) {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("policy.toml");
        let text = format!("allowed_tasks = [\"allocation.provision_user\", \"allocation.deprovision_user\"]\n{rules}");
        gpuaas_host::private_file::write(&path, text.as_bytes()).expect("written");
        let policy = Policy::load(&path);
        (folder, policy)
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
