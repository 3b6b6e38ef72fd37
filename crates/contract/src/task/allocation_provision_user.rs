//! `allocation.provision_user`: creates an operating system user for a tenant who leases the whole host.

use super::{Examples, Parameters};
use crate::guest::{MAX_KEYS, check_keys};
use crate::id::AllocationId;
use crate::slice::{Holder, SshPublicKey, UserName};

/// Names that a tenant never gets. A user is in a group of the same name, and membership in these groups grants rights.
pub const RESERVED: [&str; 20] = [
    "adm",
    "admin",
    "bin",
    "daemon",
    "disk",
    "docker",
    "gpuaas",
    "incus",
    "incus-admin",
    "kmem",
    "kvm",
    "libvirt",
    "lxd",
    "nobody",
    "root",
    "shadow",
    "staff",
    "sudo",
    "sys",
    "wheel",
];

/// The user to create.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// The allocation; the same as in the envelope.
    pub allocation_id: AllocationId,
    /// Lease epoch of the allocation; the same as in the envelope.
    pub lease_epoch: u64,
    /// The user's name. The host's policy must allow it.
    pub username: UserName,
    /// SSH keys that can sign in as the user. There is no other way to sign in: the user has no password.
    #[schemars(length(min = 1, max = MAX_KEYS))]
    pub ssh_public_keys: Vec<SshPublicKey>,
    /// Allows the user to become root. The host's policy must allow it, and nobody can prove what root left behind.
    #[serde(default)]
    pub sudo: bool,
}

impl Params {
    /// The allocation and lease that the task acts on.
    pub fn holder(&self) -> Holder {
        Holder { allocation_id: self.allocation_id, lease_epoch: self.lease_epoch }
    }
}

impl Parameters for Params {
    fn check(&self) -> Result<(), String> {
        check_order(self.lease_epoch, &self.username)?;
        if self.ssh_public_keys.is_empty() {
            return Err(format!("ssh_public_keys: none is given; choose 1 to {MAX_KEYS}"));
        }
        check_keys(&self.ssh_public_keys)
    }

    fn lease(&self) -> Option<Holder> {
        Some(self.holder())
    }
}

pub(super) const EXAMPLES: Examples = Examples {
    params: &[concat!(
        r#"{"allocation_id":"alloc_0198f0000000700080000000000000aa","lease_epoch":1,"username":"tenant-1","ssh_public_keys":"#,
        r#"["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcH c"],"sudo":true}"#
    )],
    refused_params: &[r#"{"username":"root"}"#, r#"{"ssh_public_keys":["command=\"x\" ssh-ed25519 AAAA"]}"#, "{}"],
    outputs: &[r#"{"username":"tenant-1","uid":20000,"home":"/srv/tenant-1","keys":1,"created":true}"#],
    refused_outputs: &[],
};

/// Checks that apply to the removal of a user as well.
pub(super) fn check_order(lease_epoch: u64, username: &UserName) -> Result<(), String> {
    if lease_epoch == 0 {
        return Err("lease_epoch counts from 1".to_owned());
    }
    if RESERVED.contains(&username.as_str()) {
        return Err(format!("username: `{username}` is a name of the system; choose another"));
    }
    Ok(())
}

/// The user that was created.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// The user.
    pub username: UserName,
    /// Its user id. No user of this host had this id shortly before, and no file on the host's disks belonged to it.
    pub uid: u32,
    /// Its home directory.
    pub home: String,
    /// Number of distinct SSH keys that can sign in.
    pub keys: u32,
    /// Whether this task created the user. If not, an earlier task of the same allocation did, and this one replaced the keys.
    pub created: bool,
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use serde_json::{Value, json};

    use super::*;
    use crate::task::{BadParams, Task, TaskType};

    fn key(number: u8) -> String {
        let mut bytes = b"\0\0\0\x0bssh-ed25519\0\0\0\x20".to_vec();
        bytes.extend([number; 32]);
        format!("ssh-ed25519 {}", base64::engine::general_purpose::STANDARD.encode(bytes))
    }

    fn params(change: impl FnOnce(&mut Value)) -> Result<Task, BadParams> {
        let mut params = json!({
            "allocation_id": AllocationId::generate(),
            "lease_epoch": 1,
            "username": "tenant-1",
            "ssh_public_keys": [key(1)],
            "sudo": false,
        });
        change(&mut params);
        Task::parse(TaskType::AllocationProvisionUser, &params.to_string())
    }

    #[test]
    fn parameters_within_their_limits_are_taken_and_name_their_holder() {
        let task = params(|params| params["ssh_public_keys"] = (0..32).map(key).collect()).expect("taken");
        assert_eq!(task.holder().map(|holder| holder.lease_epoch), Some(1));
        assert!(task.slots().is_empty() && task.task_type().needs_lease() && task.task_type().undoes_itself());
        assert!(!task.task_type().may_prove_cleanup(), "its proof is its success");
        let without_sudo = params(|params| drop(params.as_object_mut().expect("an object").remove("sudo")));
        assert!(matches!(without_sudo, Ok(Task::AllocationProvisionUser(params)) if !params.sudo));
    }

    #[test]
    fn parameters_outside_their_limits_are_refused_with_the_name_of_the_field() {
        let long_key = |number: u8| {
            let mut bytes = b"\0\0\0\x07ssh-rsa".to_vec();
            bytes.extend([number; 1000]);
            format!("ssh-rsa {}", base64::engine::general_purpose::STANDARD.encode(bytes))
        };
        for (field, value) in [
            ("lease_epoch", json!(0)),
            ("ssh_public_keys", json!([])),
            ("ssh_public_keys", (0..33).map(key).collect()),
            ("ssh_public_keys", (0..32).map(long_key).collect()),
            ("username", json!("root")),
            ("username", json!("sudo")),
        ] {
            let error = params(|params| params[field] = value.clone()).expect_err("refused").to_string();
            assert!(error.contains(field), "{field} {value}: {error}");
        }
        assert!(matches!(params(|params| params["shell"] = json!("/bin/sh")), Err(BadParams::UnknownField { .. })));
    }

    #[test]
    fn a_hostile_name_is_no_name() {
        for name in [
            "",
            "-rf",
            "--root",
            "a b",
            "a:b",
            "a,b",
            "a/b",
            "../etc",
            "a\nb",
            "a\0",
            "A",
            "1000",
            "0",
            "a.b",
            "é",
            "a$",
            "a%",
            "#1",
            "%wheel",
            "a-",
            "abcdefghijklmnopqrstuvwxyz0123456",
        ] {
            let refused = params(|params| params["username"] = json!(name));
            assert!(matches!(refused, Err(BadParams::Invalid { .. })), "{name:?}");
        }
    }

    #[test]
    fn nothing_but_kind_and_bytes_of_a_key_goes_on() {
        let good = key(7);
        let Ok(Task::AllocationProvisionUser(taken)) =
            params(|params| params["ssh_public_keys"] = json!([format!("  {good}   jane@example from=\"*\"")]))
        else {
            panic!("a comment is no harm")
        };
        assert_eq!(taken.ssh_public_keys[0].as_str(), good, "the comment is gone, whatever it says");
        for hostile in [
            format!("command=\"/bin/sh\" {good}"),
            format!("from=\"10.0.0.1\" {good}"),
            format!("no-pty,command=\"x\" {good}"),
            format!("cert-authority {good}"),
            format!("restrict,{good}"),
            format!("{good}\ncommand=\"x\" {good}"),
            format!("{good}\r{good}"),
            format!("{good}\0"),
            format!("#{good}"),
            good.replace("ssh-ed25519 ", "ssh-ed25519\u{a0}"),
            good.replace("ssh-ed25519", "ssh-dss"),
            good.replace("ssh-ed25519", "ssh-rsa"),
            format!("ssh-ed25519 command=\"x\" {good}"),
        ] {
            let refused = params(|params| params["ssh_public_keys"] = json!([hostile]));
            assert!(matches!(refused, Err(BadParams::Invalid { .. })), "{hostile:?}");
        }
    }
}
