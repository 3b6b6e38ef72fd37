//! `allocation.deprovision_user`: removes the user of a tenant who leased the whole host, and everything that belonged to the user.
//!
//! A success is the proof: the user is not in the user database, no process runs as the user, no file on the host's own file systems
//! belongs to the user, and the home folder, the keys, the sudo rule and everything that would have started on the user's behalf are gone.

use super::allocation_provision_user::check_order;
use super::{Examples, Parameters};
use crate::id::AllocationId;
use crate::slice::{Holder, UserName};

/// The user to remove.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// The allocation; the same as in the envelope.
    pub allocation_id: AllocationId,
    /// Lease epoch of the allocation; the same as in the envelope.
    pub lease_epoch: u64,
    /// The user's name.
    pub username: UserName,
    /// Removes the user even if it belongs to an earlier allocation, whose lease epoch is lower than this one. A user that was not created
    /// for an allocation is never touched.
    #[serde(default)]
    pub take_over: bool,
}

impl Params {
    /// The allocation and lease that the task acts on.
    pub fn holder(&self) -> Holder {
        Holder { allocation_id: self.allocation_id, lease_epoch: self.lease_epoch }
    }
}

impl Parameters for Params {
    fn check(&self) -> Result<(), String> {
        check_order(self.lease_epoch, &self.username)
    }

    fn lease(&self) -> Option<Holder> {
        Some(self.holder())
    }
}

pub(super) const EXAMPLES: Examples = Examples {
    params: &[
        r#"{"allocation_id":"alloc_0198f0000000700080000000000000aa","lease_epoch":1,"username":"tenant-1","take_over":true}"#,
    ],
    refused_params: &[r#"{"username":"-rf"}"#, "[1]"],
    outputs: &[
        r#"{"username":"tenant-1","existed":true,"sessions_ended":1,"processes_ended":2,"files_removed":3,"home_removed":true}"#,
    ],
    refused_outputs: &[],
};

/// What was removed. If the agent was restarted in between, the counts start at the restart.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// The user.
    pub username: UserName,
    /// Whether there was anything to remove: the user, or a lease of the host for it.
    pub existed: bool,
    /// Number of its sessions that were ended.
    pub sessions_ended: u32,
    /// Number of its processes that were ended.
    pub processes_ended: u32,
    /// Number of its files and folders that were removed, including those in its home directory.
    pub files_removed: u64,
    /// Whether its home directory was removed; false if it had none.
    pub home_removed: bool,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::task::{BadParams, Output as AnyOutput, Task, TaskType};

    #[test]
    fn parameters_outside_their_limits_are_refused_with_the_name_of_the_field() {
        let params = json!({ "allocation_id": AllocationId::generate(), "lease_epoch": 3, "username": "tenant-1" });
        let parse = |params: &serde_json::Value| Task::parse(TaskType::AllocationDeprovisionUser, &params.to_string());
        let task = parse(&params).expect("taken");
        assert_eq!(task.holder().map(|holder| holder.lease_epoch), Some(3));
        assert!(matches!(task, Task::AllocationDeprovisionUser(params) if !params.take_over));
        for (field, value) in [("lease_epoch", json!(0)), ("username", json!("root"))] {
            let mut params = params.clone();
            params[field] = value;
            assert!(parse(&params).expect_err("refused").to_string().contains(field), "{field}");
        }
        let mut unknown = params;
        unknown["force"] = json!(true);
        assert!(matches!(parse(&unknown), Err(BadParams::UnknownField { .. })));
    }

    #[test]
    fn an_answer_reads_back_as_it_was_given() {
        let output = Output {
            username: "tenant-1".parse().expect("a name"),
            existed: true,
            sessions_ended: 1,
            processes_ended: 2,
            files_removed: u64::MAX,
            home_removed: true,
        };
        let json = serde_json::to_string(&output).expect("JSON");
        let read = AnyOutput::parse(TaskType::AllocationDeprovisionUser, &json).expect("an answer");
        assert_eq!(read, AnyOutput::AllocationDeprovisionUser(output));
    }
}
