//! Slices: guests on slots.

use std::net::Ipv4Addr;

use gpuaas_contract::guest::GuestSpec;
use gpuaas_contract::id::{AllocationId, NodeId, SlotId};
use gpuaas_contract::names::Open;
use gpuaas_contract::state::{SliceState, SlotState};
use gpuaas_contract::task::slice_vm_power::PowerAction;
use gpuaas_contract::time::{OptionalRfc3339, Timestamp};

use super::{Slot, Task};

/// A guest and its slots.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Slice {
    /// Id of the slice.
    pub allocation_id: AllocationId,
    /// The node it is on.
    pub node_id: NodeId,
    /// Name of the node.
    pub node_name: String,
    /// The worst state among its slots.
    pub state: Open<SliceState>,
    /// Host name of the guest; empty if the guest is unknown.
    pub vm_name: String,
    /// Default user of the guest; empty if the guest is unknown.
    pub default_username: String,
    /// IP address of the guest.
    #[serde(default)]
    pub private_ip: Option<Ipv4Addr>,
    /// When it was requested.
    #[serde(default, with = "OptionalRfc3339")]
    pub created_at: Option<Timestamp>,
    /// The slots that it has, or on which something of it is left, by index.
    pub slots: Vec<Slot>,
    /// Its last tasks, newest first; only the last one in a list of slices.
    pub tasks: Vec<Task>,
}

/// Filter for a list of slices, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SliceListQuery {
    /// Only items on this node, by id or unique name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Only slices with a slot in this state: `leased`, `releasing`, `needs_wipe` or `cleanup_blocked`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<SlotState>,
    /// Returns the items after this one: [`super::Page::next`] of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Maximum number of items, 1 to [`super::MAX_PAGE`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// One slot of a node.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(untagged)]
pub enum SlotName {
    /// Index on the node.
    Index(u32),
    /// Id of the slot.
    Id(SlotId),
}

/// A slice to create.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SliceCreate {
    /// Id of the node, or its name if that is unique.
    pub node: String,
    /// Slots of the slice: 1 to 16, all on that node.
    pub slots: Vec<SlotName>,
    /// Specification of the guest.
    #[serde(flatten)]
    pub guest: GuestSpec,
}

/// Options of the release of a slice.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SliceRelease {
    /// Whether to wipe the drives. Without it, the slots stay reserved until they are wiped.
    #[serde(default = "yes")]
    pub wipe: bool,
    /// How many seconds the guest has to shut down, clamped to 30 to 900; 120 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graceful_timeout_seconds: Option<u32>,
}

fn yes() -> bool {
    true
}

/// A power action on a guest.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SlicePower {
    /// The power action.
    pub action: PowerAction,
    /// How many seconds the guest has to shut down, clamped to 30 to 900; 120 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graceful_timeout_seconds: Option<u32>,
}

/// Range of a guest's serial console. The lines are in the log of the task that reads them.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SliceConsole {
    /// Number of past bytes, at most 1 MiB; 64 KiB by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail_bytes: Option<u32>,
    /// How many seconds to follow new output, at most 3600; 0 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follow_seconds: Option<u32>,
}

/// A slice, and the task that carries out the request.
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
