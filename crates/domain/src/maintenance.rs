//! Maintenance windows: times in which operators work on nodes, announced to those who have something there.

use gpuaas_contract::id::{MaintenanceId, NodeId};
use gpuaas_contract::time::Timestamp;
use serde_json::json;

use crate::allocation::Allocation;
use crate::decision::{Context, Decision};
use crate::names::checked_text;
use crate::refusal::Refusal;
use crate::resource::{Keys, resource};

/// Most nodes of one window.
pub const MAX_NODES: usize = 1000;

/// A time in which operators work on nodes.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Window {
    /// Its id.
    pub id: MaintenanceId,
    /// Row version.
    #[serde(skip)]
    pub version: i64,
    /// Why, in words that tenants read.
    pub summary: String,
    /// The nodes.
    pub nodes: Vec<NodeId>,
    /// From.
    pub starts_at: Timestamp,
    /// To.
    pub ends_at: Timestamp,
    /// Who announced it.
    pub created_by: String,
    /// When.
    pub created_at: Timestamp,
    /// Set when it does not take place.
    pub cancelled_at: Option<Timestamp>,
}

resource!(Window, Maintenance);

impl Window {
    fn found_by(&self) -> Keys {
        Keys { state: if self.cancelled_at.is_some() { "cancelled" } else { "announced" }, ..Keys::default() }
    }

    /// Whether it is still to come, or goes on.
    pub fn counts(&self, now: Timestamp) -> bool {
        self.cancelled_at.is_none() && self.ends_at > now
    }
}

/// Announces a window. `affected` are the allocations on its nodes: an event for each tells its tenant.
pub fn announce(window: Window, affected: &[Allocation], context: &Context) -> Result<(Window, Decision), Refusal> {
    checked_text(&window.summary, "the summary")?;
    if window.summary.is_empty() || window.nodes.is_empty() || window.nodes.len() > MAX_NODES {
        let message = format!("a window has a summary and 1 to {MAX_NODES} nodes");
        return Err(Refusal::invalid("maintenance_invalid", message));
    }
    if window.ends_at <= window.starts_at || window.ends_at <= context.now {
        return Err(Refusal::invalid("maintenance_invalid", "a window ends after it starts, and not in the past"));
    }
    let id = window.id.to_string();
    let data = json!({
        "maintenance_id": id, "summary": window.summary, "nodes": window.nodes, "starts_at": window.starts_at.rfc3339(), "ends_at": window.ends_at.rfc3339(),
    });
    let decision = Decision::default().insert(&window);
    let decision = decision.record(context, "gpuaas.maintenance.announced.v1", "maintenance.announce", &id, data);
    Ok((window.clone(), tell(decision, &window, affected, "gpuaas.allocation.maintenance_announced.v1", context)))
}

/// It does not take place. Saying it twice changes nothing.
pub fn cancel(window: &Window, affected: &[Allocation], context: &Context) -> (Window, Decision) {
    if window.cancelled_at.is_some() {
        return (window.clone(), Decision::default());
    }
    let next = Window { cancelled_at: Some(context.now), ..window.clone() };
    let id = next.id.to_string();
    let decision = Decision::default().update(&next);
    let data = json!({ "maintenance_id": id });
    let decision = decision.record(context, "gpuaas.maintenance.cancelled.v1", "maintenance.cancel", &id, data);
    (next.clone(), tell(decision, &next, affected, "gpuaas.allocation.maintenance_cancelled.v1", context))
}

fn tell(mut decision: Decision, window: &Window, affected: &[Allocation], kind: &'static str, context: &Context) -> Decision {
    for allocation in affected.iter().filter(|allocation| !allocation.state.is_terminal()) {
        let id = allocation.id.to_string();
        let data = json!({
            "allocation_id": id, "project_id": allocation.project_id, "organization_id": allocation.organization_id,
            "name": allocation.name, "maintenance_id": window.id, "summary": window.summary,
            "starts_at": window.starts_at.rfc3339(), "ends_at": window.ends_at.rfc3339(),
        });
        decision = decision.record(context, kind, "maintenance.tell", &id, data);
    }
    decision
}
