//! Announced maintenance.

use gpuaas_api::dto::{MaintenanceCreate, Page};
use gpuaas_contract::id::MaintenanceId;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::Refusal;
use gpuaas_domain::allocation::Allocation;
use gpuaas_domain::maintenance::{self, Window};
use gpuaas_store::ResourceFilter;

use super::{Caller, PageRequest, allocations, nodes};
use crate::error::ControlError;
use crate::{Control, resources};

/// Lists maintenance windows: of one node if asked for, and those that are over only if asked for.
pub(crate) async fn list(
    control: &Control,
    node: Option<&str>,
    all: bool,
    page: &PageRequest<MaintenanceId>,
) -> Result<Page<Window>, ControlError> {
    let node = nodes::find_id(control, node).await?;
    let now = Timestamp::now();
    let mut found: Vec<Window> = resources::all(control, &ResourceFilter::default()).await?;
    found.retain(|window| all || window.counts(now));
    found.retain(|window| node.is_none_or(|node| window.nodes.contains(&node)));
    found.retain(|window| page.after.is_none_or(|after| window.id > after));
    Ok(page.cut(found, |window| window.id.to_string()))
}

/// Announces maintenance to everybody who has something on the nodes.
pub(crate) async fn announce(control: &Control, caller: &Caller, wanted: MaintenanceCreate) -> Result<Window, ControlError> {
    let context = caller.context();
    let mut nodes = Vec::with_capacity(wanted.nodes.len().min(maintenance::MAX_NODES));
    for name in wanted.nodes.iter().take(maintenance::MAX_NODES + 1) {
        let node = nodes::find(control, name).await?.id;
        if !nodes.contains(&node) {
            nodes.push(node);
        }
    }
    let window = Window {
        id: MaintenanceId::generate(),
        version: 0,
        summary: wanted.summary,
        nodes,
        starts_at: wanted.starts_at,
        ends_at: wanted.ends_at,
        created_by: caller.actor.to_string(),
        created_at: context.now,
        cancelled_at: None,
    };
    let attempt = || async {
        let affected = affected(control, &window).await?;
        Ok(maintenance::announce(window.clone(), &affected, &context)?)
    };
    caller.transact(control, attempt).await
}

async fn affected(control: &Control, window: &Window) -> Result<Vec<Allocation>, ControlError> {
    let mut affected = Vec::new();
    for node in &window.nodes {
        affected.extend(allocations::on_node(control, *node).await?);
    }
    Ok(affected)
}

/// Cancels announced maintenance.
pub(crate) async fn cancel(control: &Control, caller: &Caller, id: MaintenanceId) -> Result<Window, ControlError> {
    let context = caller.context();
    let unknown = || Refusal::not_found("maintenance_unknown", format!("there is no maintenance window {id}"));
    let attempt = || async {
        let window = resources::get::<Window>(control, id).await?.ok_or_else(unknown)?;
        let affected = affected(control, &window).await?;
        Ok(maintenance::cancel(&window, &affected, &context))
    };
    caller.transact(control, attempt).await
}
