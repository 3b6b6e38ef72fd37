//! Slots.

use gpuaas_contract::id::{NodeId, SlotId};
use gpuaas_domain::slot::{Slot, SlotState};

use crate::db::{Arg, Columns, Reader, Select};
use crate::table::Kind::{Int, Text};
use crate::table::{Row, Table};
use crate::{Result, Store};

pub(crate) const TABLE: Table = Table {
    name: "slots",
    columns: &[
        ("id", Text),
        ("version", Int),
        ("node_id", Text),
        ("slot_index", Int),
        ("spec", Text),
        ("state", Text),
        ("reason", Text),
        ("proposed_by", Text),
        ("approved_by", Text),
        ("approved_at", Int),
        ("created_at", Int),
        ("seal", Text),
    ],
};

/// Which slots to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotFilter {
    /// Only those of this node.
    pub node: Option<NodeId>,
    /// Only those in this state.
    pub state: Option<SlotState>,
}

pub(crate) fn to_row(slot: &Slot) -> Result<Row> {
    let Slot { id, version, node_id, spec, state, reason, proposed_by, approved_by, approved_at, created_at, seal } = slot;
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
        proposed_by: row.parsed("proposed_by")?,
        approved_by: row.text("approved_by")?,
        approved_at: row.time("approved_at")?,
        created_at: row.time("created_at")?,
        seal: row.text("seal")?,
    })
}

impl Store {
    /// The slot with this id.
    pub async fn slot_get(&self, id: SlotId) -> Result<Option<Slot>> {
        let sql = "SELECT * FROM slots WHERE id = $1";
        self.db().fetch_one("read a slot", sql, vec![Arg::id(id)], from_row).await
    }

    /// Every slot of a node, by index.
    pub async fn slot_of_node(&self, node: NodeId) -> Result<Vec<Slot>> {
        let sql = "SELECT * FROM slots WHERE node_id = $1 ORDER BY slot_index";
        self.db().fetch("list slots", sql, vec![Arg::id(node)], from_row).await
    }

    /// Slots in the order in which they were made, after `after`.
    pub async fn slot_list(&self, filter: &SlotFilter, after: Option<SlotId>, limit: u32) -> Result<Vec<Slot>> {
        Select::new("SELECT * FROM slots WHERE TRUE")
            .and_if("node_id =", filter.node.map(Arg::id))
            .and_if("state =", filter.state.map(|state| Arg::text(state.as_str())))
            .and_if("id >", after.map(Arg::id))
            .page("id", limit)
            .fetch(self.db(), "list slots", from_row)
            .await
    }
}
