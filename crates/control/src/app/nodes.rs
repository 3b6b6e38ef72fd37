//! Nodes.

use std::collections::BTreeMap;

use gpuaas_api::dto::Page;
use gpuaas_contract::event::OperatorAction;
use gpuaas_contract::id::{NodeId, OrgId};
use gpuaas_domain::allocation::{Allocation, operators_act};
use gpuaas_domain::budget::Scope;
use gpuaas_domain::node::{self, Node, NodeService, Operation};
use gpuaas_domain::placement::{CapacityRow, NodeCapacity};
use gpuaas_domain::slot::SlotState;
use gpuaas_domain::{Refusal, task};
use gpuaas_store::NodeFilter;

use super::{Caller, PageRequest, allocations, organizations};
use crate::error::ControlError;
use crate::{Control, lease_settlement};

/// Nodes looked at in one query.
const NAMES_PAGE: u32 = 1000;

/// A node, and how many of its tasks are not over.
pub(crate) struct NodeWithTasks {
    /// The node.
    pub(crate) node: Node,
    /// Its tasks that are not over.
    pub(crate) tasks_open: u64,
}

/// The node with this id, or with this name if only one node that is not retired has it.
pub(crate) async fn find(control: &Control, name: &str) -> Result<Node, ControlError> {
    let unknown = || Refusal::not_found("node_unknown", format!("there is no node `{name}`"));
    if let Ok(id) = name.parse::<NodeId>() {
        return get(control, id).await;
    }
    let mut found: Vec<Node> = Vec::new();
    let mut after = None;
    loop {
        let page = control.store.node_list(&NodeFilter::default(), after, NAMES_PAGE).await?;
        after = page.last().map(|node| node.id);
        let full = page.len() >= usize::try_from(NAMES_PAGE).unwrap_or(usize::MAX);
        found.extend(page.into_iter().filter(|node| node.name == name));
        if !full {
            break;
        }
    }
    // A name of a retired node is free for another one, which is then meant.
    if found.iter().any(|node| node.service != NodeService::Retired) {
        found.retain(|node| node.service != NodeService::Retired);
    }
    let mut found = found.into_iter();
    match (found.next(), found.next()) {
        (Some(node), None) => Ok(node),
        (None, _) => Err(unknown().into()),
        (Some(one), Some(two)) => {
            let message = format!("more than one node is called `{name}` ({}, {}, …); use the id", one.id, two.id);
            Err(Refusal::conflict("node_name_ambiguous", message).into())
        }
    }
}

/// The node that a request names in its field `node`.
pub(crate) async fn find_in_body(control: &Control, name: &str) -> Result<Node, ControlError> {
    let in_body = |error| if let ControlError::Refused(refusal) = error { refusal.in_body("/node").into() } else { error };
    find(control, name).await.map_err(in_body)
}

/// The id of the node that a list is about, if it is about one.
pub(super) async fn find_id(control: &Control, name: Option<&str>) -> Result<Option<NodeId>, ControlError> {
    match name {
        Some(name) => Ok(Some(find(control, name).await?.id)),
        None => Ok(None),
    }
}

/// The node with this id.
pub(crate) async fn get(control: &Control, id: NodeId) -> Result<Node, ControlError> {
    let unknown = || Refusal::not_found("node_unknown", format!("there is no node `{id}`"));
    Ok(control.store.node_get(id).await?.ok_or_else(unknown)?)
}

/// The name of a node; empty if there is no such node.
pub(crate) async fn name_of(control: &Control, id: NodeId) -> Result<String, ControlError> {
    Ok(control.store.node_get(id).await?.map(|node| node.name).unwrap_or_default())
}

/// Lists nodes, those that are retired only if asked for.
pub(crate) async fn list(
    control: &Control,
    service: Option<NodeService>,
    with_retired: bool,
    page: &PageRequest<NodeId>,
) -> Result<Page<NodeWithTasks>, ControlError> {
    let hide_retired = service.is_none() && !with_retired;
    let mut after = page.after;
    let wanted = usize::try_from(page.rows()).unwrap_or(usize::MAX);
    let filter = NodeFilter { service, online: None };
    let mut nodes = Vec::new();
    // Retired nodes are rare; leaving them out here keeps the query simple.
    loop {
        let found = control.store.node_list(&filter, after, page.rows()).await?;
        after = found.last().map(|node| node.id);
        let exhausted = found.len() < wanted;
        nodes.extend(found.into_iter().filter(|node| !(hide_retired && node.service == NodeService::Retired)));
        if exhausted || nodes.len() >= wanted {
            break;
        }
    }
    let nodes = page.cut(nodes, |node| node.id.to_string());
    let open = control.store.task_unfinished_counts().await?;
    let counted = |node: Node| NodeWithTasks { tasks_open: open.get(&node.id).copied().unwrap_or_default(), node };
    Ok(Page { items: nodes.items.into_iter().map(counted).collect(), next: nodes.next })
}

/// The node with this id or name.
pub(crate) async fn show(control: &Control, name: &str) -> Result<NodeWithTasks, ControlError> {
    with_tasks(control, find(control, name).await?).await
}

async fn with_tasks(control: &Control, node: Node) -> Result<NodeWithTasks, ControlError> {
    let tasks_open = control.store.task_unfinished_count(node.id).await?;
    Ok(NodeWithTasks { node, tasks_open })
}

/// Gives a node another name.
pub(crate) async fn rename(control: &Control, caller: &Caller, node: &str, name: &str) -> Result<NodeWithTasks, ControlError> {
    let (node, context) = (find(control, node).await?.id, caller.context());
    caller.transact(control, || async { Ok(((), node::rename(&get(control, node).await?, name, &context)?)) }).await?;
    with_tasks(control, get(control, node).await?).await
}

/// Takes a node out of service, or back in.
pub(crate) async fn operate(
    control: &Control,
    caller: &Caller,
    node: &str,
    operation: Operation,
    reason: &str,
) -> Result<NodeWithTasks, ControlError> {
    let (node, context) = (find(control, node).await?.id, caller.context());
    let operate = || async {
        let mut decision = node::operate(&get(control, node).await?, operation, reason, &context)?;
        if !decision.is_empty() {
            for allocation in allocations::on_node(control, node).await? {
                decision = decision.and(operators_act(&allocation, operation.into(), None, &context));
            }
        }
        Ok(((), decision))
    };
    caller.transact(control, operate).await?;
    with_tasks(control, get(control, node).await?).await
}

/// Ends a node. Whoever has something on it loses it, so that needs `force`.
pub(crate) async fn retire(
    control: &Control,
    caller: &Caller,
    node: &str,
    reason: &str,
    force: bool,
) -> Result<NodeWithTasks, ControlError> {
    const GONE: &str = "its node was retired; nothing on it can be reached any more";
    let (node, context) = (find(control, node).await?.id, caller.context());
    let retire = || async {
        let node = get(control, node).await?;
        let mut decision = node::operate(&node, Operation::Retire, reason, &context)?;
        if decision.is_empty() {
            return Ok(((), decision));
        }
        if !force {
            check_unused(control, &node).await?;
        }
        for open in control.store.task_open(node.id).await? {
            decision = decision.and(task::node_gone(&open, "its node was retired", &context));
        }
        decision = lease_settlement::node_gone(control, node.id, (OperatorAction::Retire, GONE), decision, &context).await?;
        decision = decision.and(control.budget.take(control, Scope::Operators, None, &context).await?);
        Ok(((), decision))
    };
    caller.transact(control, retire).await?;
    with_tasks(control, get(control, node).await?).await
}

/// Refuses if a tenant has something on the node.
async fn check_unused(control: &Control, node: &Node) -> Result<(), ControlError> {
    const SHOWN: usize = 5;
    let mut users: Vec<String> = allocations::on_node(control, node.id).await?.iter().map(|one| one.id.to_string()).collect();
    let slots = control.store.slot_of_node(node.id).await?;
    users.extend(slots.iter().filter_map(|slot| slot.allocation_id).map(|id| id.to_string()));
    users.sort_unstable();
    users.dedup();
    if users.is_empty() {
        return Ok(());
    }
    let more = if users.len() > SHOWN { format!(" and {} more", users.len() - SHOWN) } else { String::new() };
    users.truncate(SHOWN);
    let message = format!(
        "tenants have something on node {} ({}{more}); drain it and wait until they are gone, or force it: they lose what they have there",
        node.name,
        users.join(", ")
    );
    Err(Refusal::conflict("node_in_use", message).into())
}

/// What the fleet has, by model of GPU, as a whole and by node.
pub(crate) async fn capacity(control: &Control) -> Result<(Vec<CapacityRow>, Vec<NodeCapacity>), ControlError> {
    control.fleet.ask(control, |fleet| (fleet.capacity(), fleet.capacity_by_node())).await
}

/// What draining a node would mean.
pub(crate) struct DrainPreview {
    /// The node.
    pub(crate) node: Node,
    /// Who stays on it, with the names of their organizations.
    pub(crate) allocations: Vec<(Allocation, String)>,
    /// How many of its slots are free.
    pub(crate) slots_free: usize,
}

/// Says what draining a node would mean, and does nothing.
pub(crate) async fn drain_preview(control: &Control, node: &str) -> Result<DrainPreview, ControlError> {
    let node = find(control, node).await?;
    let mut names: BTreeMap<OrgId, String> = BTreeMap::new();
    let mut allocations = Vec::new();
    for allocation in allocations::on_node(control, node.id).await? {
        let organization = allocation.organization_id;
        let name = match names.get(&organization) {
            Some(name) => name.clone(),
            None => {
                let name = organizations::name_of(control, organization).await?;
                names.insert(organization, name.clone());
                name
            }
        };
        allocations.push((allocation, name));
    }
    let slots = control.store.slot_of_node(node.id).await?;
    let slots_free = slots.iter().filter(|slot| slot.state == SlotState::Available).count();
    Ok(DrainPreview { node, allocations, slots_free })
}
