//! Slices: guests on slots.

use std::net::Ipv4Addr;

use gpuaas_contract::guest::GuestSpec;
use gpuaas_contract::id::{AllocationId, NodeId, SlotId};
use gpuaas_contract::names::Open;
use gpuaas_contract::state::{SliceState, SlotState};
use gpuaas_contract::task::slice_vm_power::PowerAction;
use gpuaas_contract::time::{OptionalRfc3339, Timestamp};

use super::{Slot, Task};

/// A guest and the slots it has.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Slice {
    /// Its id.
    pub allocation_id: AllocationId,
    /// The node it is on.
    pub node_id: NodeId,
    /// That node's name.
    pub node_name: String,
    /// The state of the slot that is worst off.
    pub state: Open<SliceState>,
    /// The name the guest gives itself; empty if the guest is unknown.
    pub vm_name: String,
    /// Its user; empty if the guest is unknown.
    pub default_username: String,
    /// Its address.
    #[serde(default)]
    pub private_ip: Option<Ipv4Addr>,
    /// When it was asked for.
    #[serde(default, with = "OptionalRfc3339")]
    pub created_at: Option<Timestamp>,
    /// The slots it has, or on which its remains are, by index.
    pub slots: Vec<Slot>,
    /// Its last tasks, newest first; only the last one in a list of slices.
    pub tasks: Vec<Task>,
}

/// Which slices to list; the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SliceListQuery {
    /// Only those on this node, by id or unique name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Only those with a slot in this state: `leased`, `releasing`, `needs_wipe` or `cleanup_blocked`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<SlotState>,
    /// [`super::Page::next`] of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Most items; 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// One slot of a node.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(untagged)]
pub enum SlotName {
    /// Its place on the node.
    Index(u32),
    /// Its id.
    Id(SlotId),
}

/// A slice to make.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SliceCreate {
    /// The node: its id, or its name if no other node has the same.
    pub node: String,
    /// Its slots: 1 to 16, all on that node.
    pub slots: Vec<SlotName>,
    /// What the guest is.
    #[serde(flatten)]
    pub guest: GuestSpec,
}

/// A slice to give back.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SliceRelease {
    /// Wipe the drives. Without it the slots wait for a wipe and nobody gets them.
    #[serde(default = "yes")]
    pub wipe: bool,
    /// How long the guest may take to shut down, brought into 30 to 900 s; 120 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graceful_timeout_seconds: Option<u32>,
}

fn yes() -> bool {
    true
}

/// A guest to stop, start or reboot.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SlicePower {
    /// What to do.
    pub action: PowerAction,
    /// How long the guest may take to shut down, brought into 30 to 900 s; 120 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graceful_timeout_seconds: Option<u32>,
}

/// What to read of a guest's serial console. The lines are the log of the task that reads them.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SliceConsole {
    /// How much of the past, at most 1 MiB; 64 KiB unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail_bytes: Option<u32>,
    /// How long to go on with what comes, at most 3600; 0 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_seconds: Option<u32>,
}

/// What was asked for, and the task that does it.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct SliceOrder {
    /// The slice.
    pub allocation_id: AllocationId,
    /// The task.
    pub task: Task,
    /// The slice's slots, by index.
    pub slots: Vec<Slot>,
}

#[cfg(test)]
mod tests {
    use gpuaas_contract::Digest;
    use gpuaas_contract::guest::DEFAULT_USERNAME;

    use super::*;

    #[test]
    fn what_is_not_said_has_its_default_and_what_is_misspelled_is_refused() {
        let digest = Digest::of(b"image");
        let text = format!(
            r#"{{"node":"n","slots":[0,"{}"],"vm_name":"a","image":{{"path":"x","sha256":"{digest}"}}}}"#,
            SlotId::generate()
        );
        let create: SliceCreate = serde_json::from_str(&text).expect("parses");
        assert_eq!((create.guest.default_username.as_str(), create.guest.ovs_bridge), (DEFAULT_USERNAME, None));
        for wrong in
            [text.replace("vm_name", "vm_nam"), text.replace("\"path\"", "\"pat\""), text.replace("{\"node", "{\"x\":1,\"node")]
        {
            assert!(serde_json::from_str::<SliceCreate>(&wrong).is_err(), "{wrong}");
        }
        assert!(matches!(create.slots.as_slice(), [SlotName::Index(0), SlotName::Id(_)]));
        let release: SliceRelease = serde_json::from_str("{}").expect("parses");
        assert!(release.wipe, "a release wipes unless told otherwise");
        assert!(serde_json::from_str::<SliceRelease>(r#"{"wip":true}"#).is_err());
    }
}
