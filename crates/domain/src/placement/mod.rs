//! Placement: which slots of which node an allocation gets, or which whole machine, or why nothing fits.
//!
//! It is a pure function over a [`Fleet`]: a compact picture of the nodes and their approved slots that the caller keeps beside the rows
//! and brings up to date node by node. The picture authorizes nothing. What is placed is then leased in a commit that is conditional on the
//! rows themselves, so a picture that is behind costs another try and never a slot that is given away twice.
//!
//! - All slots of an allocation are on one node: on one NUMA node if possible, then near each other on the bus, then side by side.
//! - [`Policy::Pack`] takes the tightest fit and does not break up a node that is entirely free while one that is partly used would do.
//!   [`Policy::Spread`] takes the node with the most free slots.
//! - A node on which maintenance is announced before the allocation would end is taken only if nothing else fits.
//! - The same fleet and the same request give the same placement; what is equally good is decided by the node's id.
//! - The model of a GPU is the node's own word ([`gpuaas_contract::telemetry::HostFacts`]); which devices are slots is the operator's.

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

/// How far ahead announced maintenance counts for an allocation that has no end.
pub const MAINTENANCE_NOTICE: Duration = Duration::from_secs(3600);

/// How many slots: 1 to [`MAX_SLOTS`], as a slice can have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotCount(usize);

impl SlotCount {
    /// This many, if a slice can have that many.
    pub fn new(count: usize) -> Result<Self, Refusal> {
        if (1..=MAX_SLOTS).contains(&count) {
            return Ok(Self(count));
        }
        let message = format!("a slice has 1 to {MAX_SLOTS} slots, all in one machine; {count} are asked for");
        Err(Refusal::invalid("slot_count_invalid", message))
    }

    /// The number.
    pub const fn get(self) -> usize {
        self.0
    }
}

/// What is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Slots of one node.
    Slots {
        /// How many.
        count: SlotCount,
        /// The GPU's name or `vendor:device`, in upper or lower case. Without it any slot will do, and those without a GPU are taken first.
        gpu_model: Option<String>,
        /// Each has at least this many vCPUs.
        min_vcpus_per_slot: u32,
        /// Each has at least this much memory.
        min_memory_mib_per_slot: u64,
    },
    /// A whole machine.
    Machine {
        /// It has GPUs of this name or `vendor:device`. Without it any machine will do.
        gpu_model: Option<String>,
        /// It has exactly this many of them; without a model, this many GPUs of any kind.
        gpus: Option<u32>,
    },
}

/// Which node, if several fit. A machine is taken whole, so there it makes no difference: the one with the fewest GPUs is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The tightest fit, so that large requests find room later.
    Pack,
    /// The one with the most room, so that neighbors do not disturb each other.
    Spread,
}

impl Policy {
    /// Every policy.
    pub const ALL: [Self; 2] = [Self::Pack, Self::Spread];

    /// Name on the wire and in configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pack => "pack",
            Self::Spread => "spread",
        }
    }

    /// The policy with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.as_str() == name)
    }
}

/// What an allocation asks of the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementRequest {
    /// Slots or a machine.
    pub what: What,
    /// Which node, if several fit.
    pub policy: Policy,
    /// An operator's pin: these nodes and no others.
    pub only_nodes: Option<BTreeSet<NodeId>>,
    /// Not these, because it failed there before.
    pub avoid_nodes: BTreeSet<NodeId>,
    /// When it will have ended, if it has an end.
    pub must_end_by: Option<Timestamp>,
}

impl PlacementRequest {
    /// A request for this on any node, packed and without an end.
    pub fn new(what: What) -> Self {
        Self { what, policy: Policy::Pack, only_nodes: None, avoid_nodes: BTreeSet::new(), must_end_by: None }
    }

    /// Maintenance that starts before this disturbs it.
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

/// Where an allocation goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The node.
    pub node_id: NodeId,
    /// Its host name.
    pub node_name: String,
    /// The slots, by index. Of a machine all its slots, since they go along: none if it was never sliced.
    pub slots: Vec<SlotId>,
    /// NUMA node of each slot, in the same order; -1 where the host has none.
    pub numa: Vec<i32>,
    /// Whether that is the same for all.
    pub same_numa: bool,
    /// When announced maintenance disturbs it. Nothing else was free.
    pub maintenance_at: Option<Timestamp>,
    /// What whoever asked should know about it, in words.
    pub note: Option<String>,
}
