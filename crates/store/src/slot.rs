//! Slots.

use constcat::concat;
use gpuaas_contract::id::{AllocationId, NodeId, SlotId, TaskId};
use gpuaas_domain::slot::{Slot, SlotState};

use crate::db::{Arg, Columns, Reader, Select};
use crate::table::{Row, table};
use crate::{MAX_PAGE, Result, Store};

table! {
    "slots" as "slots_row" {
        "id": Text,
        "version": Int,
        "node_id": Text,
        "slot_index": Int,
        "spec": Text,
        "state": Text,
        "reason": Text,
        "proposed_by": Text,
        "approved_by": Text,
        "approved_at": Int,
        "created_at": Int,
        "seal": Text,
        "quarantine": Text,
        "allocation_id": Text,
        "lease_epoch": Int,
        "lease_task": Text,
        "drive_used": Int,
        "devices_used": Int,
    }
}

pub(crate) const OF_ALLOCATION: &str =
    concat!("SELECT ", COLUMNS, " FROM slots WHERE allocation_id IS NOT NULL AND allocation_id = $1 ORDER BY slot_index");
pub(crate) const OF_TASK: &str =
    concat!("SELECT ", COLUMNS, " FROM slots WHERE lease_task IS NOT NULL AND lease_task = $1 ORDER BY slot_index");

/// Which slots to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotFilter {
    /// Only slots of this node.
    pub node: Option<NodeId>,
    /// Only slots in this state.
    pub state: Option<SlotState>,
}

pub(crate) fn to_row(slot: &Slot) -> Result<Row> {
    let Slot { id, version, node_id, spec, state, reason, proposed_by, approved_by, approved_at, created_at, seal, .. } = slot;
    let Slot { quarantine, allocation_id, lease_epoch, lease_task, drive_used, devices_used, .. } = slot;
    Ok(vec![
        Arg::id(id),
        Arg::Int(Some(*version)),
        Arg::id(node_id),
        Arg::count(u64::from(spec.slot_index)),
        Arg::json(spec)?,
        Arg::text(state.as_str()),
        Arg::text(reason),
        Arg::id(proposed_by),
        Arg::text(approved_by),
        Arg::time(*approved_at),
        Arg::time(*created_at),
        Arg::text(seal),
        quarantine.as_ref().map_or(Arg::Text(None), Arg::text),
        Arg::opt_id(allocation_id.as_ref()),
        Arg::count(*lease_epoch),
        Arg::opt_id(lease_task.as_ref()),
        Arg::count(u64::from(*drive_used)),
        Arg::count(u64::from(*devices_used)),
    ])
}

fn from_row(row: &dyn Columns) -> Result<Slot> {
    let row = Reader::new(TABLE.name, row);
    Ok(Slot {
        id: row.parsed("id")?,
        version: row.int("version")?,
        node_id: row.parsed("node_id")?,
        spec: row.json("spec")?,
        state: row.named("state", SlotState::parse)?,
        reason: row.text("reason")?,
        quarantine: row.opt_text("quarantine")?,
        allocation_id: row.opt_parsed("allocation_id")?,
        lease_epoch: row.count("lease_epoch")?,
        lease_task: row.opt_parsed("lease_task")?,
        drive_used: row.int("drive_used")? != 0,
        devices_used: row.int("devices_used")? != 0,
        proposed_by: row.parsed("proposed_by")?,
        approved_by: row.text("approved_by")?,
        approved_at: row.time("approved_at")?,
        created_at: row.time("created_at")?,
        seal: row.text("seal")?,
    })
}

impl Store {
    /// Returns the slot with this id.
    pub async fn slot_get(&self, id: SlotId) -> Result<Option<Slot>> {
        let sql = concat!("SELECT ", COLUMNS, " FROM slots WHERE id = $1");
        self.db().fetch_one("read a slot", sql, vec![Arg::id(id)], from_row).await
    }

    /// Returns these slots. Unknown ids are left out.
    pub async fn slot_many(&self, ids: &[SlotId]) -> Result<Vec<Slot>> {
        let mut found = Vec::new();
        for ids in ids.chunks(usize::try_from(MAX_PAGE).unwrap_or(usize::MAX)) {
            let query = Select::new(concat!("SELECT ", COLUMNS, " FROM slots WHERE TRUE")).of_ids(self.db().engine(), ids)?;
            found.extend(query.fetch(self.db(), "read slots", from_row).await?);
        }
        Ok(found)
    }

    /// Returns every slot of a node, by index.
    pub async fn slot_of_node(&self, node: NodeId) -> Result<Vec<Slot>> {
        let sql = concat!("SELECT ", COLUMNS, " FROM slots WHERE node_id = $1 ORDER BY slot_index");
        self.db().fetch("list slots", sql, vec![Arg::id(node)], from_row).await
    }

    /// Returns the slots that an allocation has, or that still hold its data, by index.
    pub async fn slot_of_allocation(&self, allocation: AllocationId) -> Result<Vec<Slot>> {
        self.db().fetch("list slots", OF_ALLOCATION, vec![Arg::id(allocation)], from_row).await
    }

    /// Returns the slots that a task decides about, by index.
    pub async fn slot_of_task(&self, task: TaskId) -> Result<Vec<Slot>> {
        self.db().fetch("list slots", OF_TASK, vec![Arg::id(task)], from_row).await
    }

    /// Lists allocations whose slots match `filter`, the oldest first, after `after`.
    pub async fn allocation_list(
        &self,
        filter: &SlotFilter,
        after: Option<AllocationId>,
        limit: u32,
    ) -> Result<Vec<AllocationId>> {
        let read = |row: &dyn Columns| Reader::new(TABLE.name, row).parsed("allocation_id");
        Select::new("SELECT DISTINCT allocation_id FROM slots WHERE allocation_id IS NOT NULL")
            .and_if("node_id =", filter.node.map(Arg::id))
            .and_if("state =", filter.state.map(|state| Arg::text(state.as_str())))
            .and_if("allocation_id >", after.map(Arg::id))
            .page("allocation_id", limit)
            .fetch(self.db(), "list slices", read)
            .await
    }

    /// Lists slots in the order in which they were created, after `after`.
    pub async fn slot_list(&self, filter: &SlotFilter, after: Option<SlotId>, limit: u32) -> Result<Vec<Slot>> {
        Select::new(concat!("SELECT ", COLUMNS, " FROM slots WHERE TRUE"))
            .and_if("node_id =", filter.node.map(Arg::id))
            .and_if("state =", filter.state.map(|state| Arg::text(state.as_str())))
            .and_if("id >", after.map(Arg::id))
            .page("id", limit)
            .fetch(self.db(), "list slots", from_row)
            .await
    }
}
