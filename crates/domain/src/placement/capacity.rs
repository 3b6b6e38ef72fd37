//! Capacity reports for operators: how much there is, how much of it works, and how much is free.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use gpuaas_contract::id::NodeId;
use gpuaas_contract::task::TaskType;

use super::candidate::{Candidate, Gpu, MachineUse, Model, SlotView};
use super::fleet::Fleet;
use crate::node::NodeService;
use crate::slot::SlotState;

/// The GPU of a slot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SlotModel {
    /// A GPU, as `vendor:device`, or by its name if the node reports nothing else. Requests can ask for it by this name.
    Gpu(Arc<str>),
    /// A GPU that its node does not report.
    UnknownGpu,
    /// The slot has no GPU.
    NoGpu,
}

impl fmt::Display for SlotModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpu(model) => f.write_str(model),
            Self::UnknownGpu => f.write_str("unknown GPU"),
            Self::NoGpu => f.write_str("no GPU"),
        }
    }
}

/// The slots of one GPU model. `delivered` = `healthy` + `unhealthy`, and `healthy` = `allocated` + `free`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapacityRow {
    /// The GPU in these slots.
    pub model: SlotModel,
    /// Name that nodes report for it; empty if none does.
    pub name: Arc<str>,
    /// Number of nodes with such slots.
    pub nodes: usize,
    /// Approved slots of nodes that are not retired.
    pub delivered: usize,
    /// Slots that serve an allocation, or could immediately.
    pub healthy: usize,
    /// All other slots: dirty, quarantined, or on a node that is offline, quarantined or locked; and free slots on a draining node, or on a
    /// host whose policy denies guests.
    pub unhealthy: usize,
    /// Held by an allocation, or on a machine that is leased as a whole.
    pub allocated: usize,
    /// Can be leased now.
    pub free: usize,
    /// The most that a single allocation could get.
    pub largest_free_on_one_node: usize,
}

/// The slots of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCapacity {
    /// The id of the node.
    pub node_id: NodeId,
    /// The node's name, for people.
    pub name: String,
    /// One row per GPU model.
    pub rows: Vec<CapacityRow>,
    /// Tasks that its slots or the whole machine need and the host policy does not allow; they are not leased because of it.
    pub denied_tasks: Vec<TaskType>,
}

/// What a slot counts as.
enum SlotStatus {
    Allocated,
    Free,
    Unhealthy,
}

impl CapacityRow {
    fn none(model: SlotModel) -> Self {
        Self {
            model,
            name: "".into(),
            nodes: 0,
            delivered: 0,
            healthy: 0,
            unhealthy: 0,
            allocated: 0,
            free: 0,
            largest_free_on_one_node: 0,
        }
    }

    fn count(&mut self, slot_status: &SlotStatus) {
        self.delivered += 1;
        match slot_status {
            SlotStatus::Allocated => self.allocated += 1,
            SlotStatus::Free => self.free += 1,
            SlotStatus::Unhealthy => self.unhealthy += 1,
        }
        self.healthy = self.allocated + self.free;
        self.largest_free_on_one_node = self.free;
    }

    /// Nodes may report different names for the same model; the alphabetically first one is shown.
    fn call(&mut self, name: &Arc<str>) {
        if !name.is_empty() && (self.name.is_empty() || *name < self.name) {
            self.name = Arc::clone(name);
        }
    }

    fn add(&mut self, node: &Self) {
        self.call(&node.name);
        self.nodes += node.nodes;
        self.delivered += node.delivered;
        self.healthy += node.healthy;
        self.unhealthy += node.unhealthy;
        self.allocated += node.allocated;
        self.free += node.free;
        self.largest_free_on_one_node = self.largest_free_on_one_node.max(node.free);
    }
}

impl Fleet {
    /// All slots, with one row per GPU model.
    pub fn capacity(&self) -> Vec<CapacityRow> {
        let mut rows: BTreeMap<SlotModel, CapacityRow> = BTreeMap::new();
        for row in self.candidates().flat_map(rows_of) {
            rows.entry(row.model.clone()).or_insert_with(|| CapacityRow::none(row.model.clone())).add(&row);
        }
        rows.into_values().collect()
    }

    /// The same per node, sorted by id, without retired nodes.
    pub fn capacity_by_node(&self) -> Vec<NodeCapacity> {
        let counted = self.candidates().filter(|candidate| candidate.service != NodeService::Retired);
        let of = |candidate: &Candidate| NodeCapacity {
            node_id: candidate.node_id,
            name: candidate.name.clone(),
            rows: rows_of(candidate).collect(),
            denied_tasks: candidate.denied_tasks(),
        };
        counted.map(of).collect()
    }
}

fn rows_of(candidate: &Candidate) -> impl Iterator<Item = CapacityRow> {
    let mut rows: BTreeMap<SlotModel, CapacityRow> = BTreeMap::new();
    let counted: &[SlotView] = if candidate.service == NodeService::Retired { &[] } else { &candidate.slots };
    for slot in counted {
        let known = candidate.model(slot);
        let model = match (slot.gpu, known.and_then(Model::key)) {
            (Gpu::None, _) => SlotModel::NoGpu,
            (Gpu::Unknown | Gpu::Known(_), None) => SlotModel::UnknownGpu,
            (Gpu::Unknown | Gpu::Known(_), Some(key)) => SlotModel::Gpu(key),
        };
        let row = rows.entry(model.clone()).or_insert_with(|| CapacityRow { nodes: 1, ..CapacityRow::none(model) });
        row.count(&slot_status(candidate, slot));
        if let Some(model) = known {
            row.call(&model.name);
        }
    }
    rows.into_values()
}

fn slot_status(candidate: &Candidate, slot: &SlotView) -> SlotStatus {
    let may_connect = candidate.online && candidate.service != NodeService::Quarantined && candidate.service.may_connect();
    let machine = match candidate.machine {
        None | Some(MachineUse::Free) => None,
        Some(MachineUse::Leased) => Some(SlotStatus::Allocated),
        Some(MachineUse::Dirty) => Some(SlotStatus::Unhealthy),
    };
    match (machine, slot.state) {
        _ if !may_connect => SlotStatus::Unhealthy,
        (Some(slot_status), _) => slot_status,
        (None, SlotState::Leased | SlotState::Releasing) => SlotStatus::Allocated,
        (None, SlotState::Available)
            if slot.is_free() && candidate.service.takes_work() && candidate.denied_to_slots.is_empty() =>
        {
            SlotStatus::Free
        }
        (
            None,
            SlotState::Available
            | SlotState::CleanupBlocked
            | SlotState::NeedsWipe
            | SlotState::Quarantined
            | SlotState::Withdrawn,
        ) => SlotStatus::Unhealthy,
    }
}
