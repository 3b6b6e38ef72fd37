//! Maintenance windows: times in which operators may disturb nodes, announced to the tenants on them.

use gpuaas_contract::event::{AllocationMaintenance, Event, MaintenanceAnnounced, MaintenanceCancelled};
use gpuaas_contract::id::{MaintenanceId, NodeId};
use gpuaas_contract::time::Timestamp;

use crate::allocation::Allocation;
use crate::decision::{Context, Decision};
use crate::names::checked_text;
use crate::refusal::Refusal;
use crate::resource::{Keys, resource};

/// Maximum number of nodes per window.
pub const MAX_NODES: usize = 1000;

/// A time in which operators may disturb nodes.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Window {
    /// Unique id of the window.
    pub id: MaintenanceId,
    /// Row version.
    #[serde(skip)]
    pub version: i64,
    /// What is done and why; tenants read it.
    pub summary: String,
    /// The affected nodes.
    pub nodes: Vec<NodeId>,
    /// Start of the window.
    pub starts_at: Timestamp,
    /// End of the window.
    pub ends_at: Timestamp,
    /// The actor who announced it.
    pub created_by: String,
    /// When it was announced.
    pub created_at: Timestamp,
    /// When it was canceled; `None` if it takes place.
    pub cancelled_at: Option<Timestamp>,
}

resource!(Window, Maintenance);

impl Window {
    fn found_by(&self) -> Keys {
        Keys { state: if self.cancelled_at.is_some() { "cancelled" } else { "announced" }, ..Keys::default() }
    }

    /// Whether it is in progress or still to come.
    pub fn counts(&self, now: Timestamp) -> bool {
        self.cancelled_at.is_none() && self.ends_at > now
    }
}

/// Announces a window. `affected` are the allocations on its nodes; an event for each notifies its tenant.
pub fn announce(window: Window, affected: &[Allocation], context: &Context) -> Result<(Window, Decision), Refusal> {
    checked_text(&window.summary, "the summary")?;
    if window.summary.is_empty() || window.nodes.is_empty() || window.nodes.len() > MAX_NODES {
        let message = format!("a window has a summary and 1 to {MAX_NODES} nodes");
        return Err(Refusal::invalid("maintenance_invalid", message));
    }
    if window.ends_at <= window.starts_at || window.ends_at <= context.now {
        return Err(Refusal::invalid("maintenance_invalid", "a window ends after it starts, and not in the past"));
    }
    let event = Event::MaintenanceAnnounced(MaintenanceAnnounced {
        maintenance_id: window.id,
        summary: window.summary.clone(),
        nodes: window.nodes.clone(),
        starts_at: window.starts_at,
        ends_at: window.ends_at,
    });
    let decision = Decision::default().insert(&window).record(context, window.id, event);
    Ok((window.clone(), tell(decision, &window, affected, Event::AllocationMaintenanceAnnounced, context)))
}

/// Cancels a window. Idempotent.
pub fn cancel(window: &Window, affected: &[Allocation], context: &Context) -> (Window, Decision) {
    if window.cancelled_at.is_some() {
        return (window.clone(), Decision::default());
    }
    let next = Window { cancelled_at: Some(context.now), ..window.clone() };
    let event = Event::MaintenanceCancelled(MaintenanceCancelled { maintenance_id: next.id });
    let decision = Decision::default().update(&next).record(context, next.id, event);
    (next.clone(), tell(decision, &next, affected, Event::AllocationMaintenanceCancelled, context))
}

fn tell(
    mut decision: Decision,
    window: &Window,
    affected: &[Allocation],
    event: fn(AllocationMaintenance) -> Event,
    context: &Context,
) -> Decision {
    for allocation in affected.iter().filter(|allocation| !allocation.state.is_terminal()) {
        let data = AllocationMaintenance {
            allocation: allocation.event_ref(),
            maintenance_id: window.id,
            summary: window.summary.clone(),
            starts_at: window.starts_at,
            ends_at: window.ends_at,
        };
        decision = decision.record(context, allocation.id, event(data));
    }
    decision
}
