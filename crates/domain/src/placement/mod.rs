//! Placement: which slots of which node, or which whole machine, an allocation gets, or why nothing fits.
//!
//! Placement is a pure function of a [`Fleet`], a compact view of the nodes and their approved slots that the caller maintains next to the
//! rows and updates node by node. The view authorizes nothing: the lease is committed on condition of the rows themselves, so an outdated
//! view costs another try but never leases a slot twice.
//!
//! - All slots of an allocation are on one node: on one NUMA node if possible, then close together on the bus, then with adjacent indexes.
//! - [`Policy::Pack`] takes the tightest fit, and does not break up a node that is entirely free while a partly used one would do.
//!   [`Policy::Spread`] takes the node with the most free slots.
//! - A node with maintenance announced before the end of the allocation is taken only if nothing else fits.
//! - The same fleet and the same request give the same placement; ties are broken by the node's id.
//! - A node reports its own GPU models ([`gpuaas_contract::telemetry::HostFacts`]); an operator decides which devices are slots.

mod affinity;
mod candidate;
mod capacity;
mod fleet;
mod no_fit;
mod reason;

use std::collections::BTreeSet;
use std::time::Duration;

use gpuaas_contract::id::{NodeId, SlotId};
use gpuaas_contract::slice::MAX_SLOTS;
use gpuaas_contract::time::Timestamp;

pub use candidate::{Candidate, MachineOffer, MachineUse, denied_to_slots};
pub use capacity::{CapacityRow, NodeCapacity, SlotModel};
pub use fleet::Fleet;
pub use no_fit::{MAX_LISTED, NoFit, NodeReason};
pub use reason::{NotFree, Reason, ReasonKind};

use crate::refusal::Refusal;

/// How far ahead announced maintenance matters for an allocation without an end.
pub const MAINTENANCE_NOTICE: Duration = Duration::from_secs(3600);

/// A number of slots: 1 to [`MAX_SLOTS`], the limits of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotCount(usize);

impl SlotCount {
    /// Checks that a slice can have this many slots.
    pub fn new(count: usize) -> Result<Self, Refusal> {
        if (1..=MAX_SLOTS).contains(&count) {
            return Ok(Self(count));
        }
        let message = format!("a slice has 1 to {MAX_SLOTS} slots, all in one machine; {count} are asked for");
        Err(Refusal::invalid("slot_count_invalid", message))
    }

    /// The number of slots.
    pub const fn get(self) -> usize {
        self.0
    }
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Slots of one node.
    Slots {
        /// Number of slots.
        count: SlotCount,
        /// The GPU's name or `vendor:device`, in any case. If `None`, any slot will do, and slots without a GPU are preferred.
        gpu_model: Option<String>,
        /// Minimum number of vCPUs of each slot.
        min_vcpus_per_slot: u32,
        /// Minimum memory of each slot, in MiB.
        min_memory_mib_per_slot: u64,
    },
    /// A whole machine.
    Machine {
        /// It has GPUs of this name or `vendor:device`. If `None`, any machine will do.
        gpu_model: Option<String>,
        /// Exact number of these GPUs; without a model, of GPUs of any kind.
        gpus: Option<u32>,
    },
}

/// Which node to prefer if several fit. Makes no difference for whole machines: the one with the fewest GPUs is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The tightest fit, so that large requests find room later.
    Pack,
    /// The node with the most room, so that neighbors do not disturb each other.
    Spread,
}

impl Policy {
    /// All policies.
    pub const ALL: [Self; 2] = [Self::Pack, Self::Spread];

    /// Name on the wire and in configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pack => "pack",
            Self::Spread => "spread",
        }
    }

    /// Looks a policy up by name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.as_str() == name)
    }
}

/// What an allocation asks of the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementRequest {
    /// Slots or a machine.
    pub what: What,
    /// Which node to prefer if several fit.
    pub policy: Policy,
    /// Nodes that an operator pinned the request to; `None` for any node.
    pub only_nodes: Option<BTreeSet<NodeId>>,
    /// Nodes on which the allocation failed before.
    pub avoid_nodes: BTreeSet<NodeId>,
    /// When the allocation ends, if it has an end.
    pub must_end_by: Option<Timestamp>,
}

impl PlacementRequest {
    /// A request for `what` on any node, packed and without an end.
    pub fn new(what: What) -> Self {
        Self { what, policy: Policy::Pack, only_nodes: None, avoid_nodes: BTreeSet::new(), must_end_by: None }
    }

    /// Maintenance that starts before this time would disturb the allocation.
    fn disturbed_until(&self, now: Timestamp) -> Timestamp {
        self.must_end_by.unwrap_or_else(|| now.plus(MAINTENANCE_NOTICE))
    }

    fn is_pinned_elsewhere(&self, node: NodeId) -> bool {
        self.only_nodes.as_ref().is_some_and(|only| !only.contains(&node))
    }

    fn allows(&self, node: NodeId) -> bool {
        !self.is_pinned_elsewhere(node) && !self.avoid_nodes.contains(&node)
    }
}

/// A place for an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The node to use.
    pub node_id: NodeId,
    /// The node's name, for people.
    pub node_name: String,
    /// The slots, sorted by index. For a machine, all its slots, because they are leased along with it; empty if it was never sliced.
    pub slots: Vec<SlotId>,
    /// NUMA node of each slot, in the same order; -1 where the host reports none.
    pub numa: Vec<i32>,
    /// Whether all slots are on the same NUMA node.
    pub same_numa: bool,
    /// Start of announced maintenance that would disturb the allocation; set only if nothing else was free.
    pub maintenance_at: Option<Timestamp>,
    /// What the requester should know about the place, as a sentence.
    pub note: Option<String>,
}
