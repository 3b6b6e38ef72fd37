//! Nodes.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use gpuaas_api::dto::{self, NodeChange, NodeListQuery, NodeRetire, NodeSession, Page, Reason};
use gpuaas_contract::event::OperatorAction;
use gpuaas_domain::allocation::operators_act;
use gpuaas_domain::budget::Scope;
use gpuaas_domain::node::{self, Node, NodeService, Operation};
use gpuaas_domain::{Refusal, task};
use gpuaas_store::NodeFilter;

use super::caller::Caller;
use super::problem::{JsonBody, Params, Rejected, Segments};
use super::{fleet, node_name, page, page_limit, parse_opt};
use crate::error::ControlError;
use crate::transact::transact;
use crate::{Control, lease_settlement};

type Shared = State<Arc<Control>>;

pub(super) async fn list(
    State(control): Shared,
    Params(query): Params<NodeListQuery>,
) -> Result<Json<Page<dto::Node>>, Rejected> {
    let limit = page_limit(query.limit)?;
    let service = query.service;
    let hide_retired = service.is_none() && query.all != Some(true);
    let mut after = parse_opt(query.after.as_deref())?;
    let wanted = usize::try_from(limit).unwrap_or(usize::MAX).saturating_add(1);
    let filter = NodeFilter { service, online: None };
    let mut nodes = Vec::new();
    // Retired nodes are rare; leaving them out here keeps the query simple.
    loop {
        let found = control.store.node_list(&filter, after, limit.saturating_add(1)).await?;
        after = found.last().map(|node| node.id);
        let exhausted = found.len() < wanted;
        nodes.extend(found.into_iter().filter(|node| !(hide_retired && node.service == NodeService::Retired)));
        if exhausted || nodes.len() >= wanted {
            break;
        }
    }
    let nodes = page(nodes, limit, |node| node.id.to_string());
    let open = control.store.task_unfinished_counts().await?;
    let of = |node: &Node| open.get(&node.id).copied().unwrap_or_default();
    let items = nodes.items.into_iter().map(|node| to_dto(&control, of(&node), node)).collect();
    Ok(Json(Page { items, next: nodes.next }))
}

pub(super) async fn show(State(control): Shared, Segments(name): Segments<String>) -> Result<Json<dto::Node>, Rejected> {
    one(&control, &name).await
}

async fn one(control: &Control, name: &str) -> Result<Json<dto::Node>, Rejected> {
    let node = node_name::find(control, name).await?;
    let tasks_open = control.store.task_unfinished_count(node.id).await?;
    Ok(Json(to_dto(control, tasks_open, node)))
}

fn to_dto(control: &Control, tasks_open: u64, node: Node) -> dto::Node {
    let link = control.hub.get(node.id);
    dto::Node {
        id: node.id,
        name: node.name,
        epoch: node.epoch,
        fingerprint: node.fingerprint,
        receipt_key: node.receipt_key,
        service: node.service.into(),
        service_reason: node.service_reason,
        online: node.session.is_some(),
        last_seen_at: link.as_ref().map(|link| link.last_heard(gpuaas_contract::time::Timestamp::now())).max(node.last_seen_at),
        certificate_not_after: link.as_ref().map(|link| link.peer.not_after),
        session: node.session.map(|live| NodeSession {
            id: live.id,
            transport: live.transport.into(),
            since: live.since,
            agent_instance_id: live.agent_instance_id,
            boot_id: live.boot_id,
        }),
        metrics: link.and_then(|link| link.metrics()).map(Into::into),
        simulated: node.facts.simulated,
        facts: node.facts,
        rejoins: node.rejoins,
        enrolled_at: node.enrolled_at,
        created_at: node.created_at,
        tasks_open,
    }
}

/// Gives a node another name.
pub(super) async fn change(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(name): Segments<String>,
    JsonBody(change): JsonBody<NodeChange>,
) -> Result<Json<dto::Node>, Rejected> {
    let id = node_name::find(&control, &name).await?.id;
    let context = caller.context();
    transact(&control, || async {
        let node = node_name::find(&control, &id.to_string()).await?;
        Ok(((), node::rename(&node, &change.name, &context)?))
    })
    .await?;
    one(&control, &id.to_string()).await
}

operations! { dto::Node;
    drain => Operation::Drain;
    undrain => Operation::Undrain;
    quarantine => Operation::Quarantine;
    unquarantine => Operation::Unquarantine;
}

/// Ends a node. Whoever has something on it loses it, so that needs a word of its own.
pub(super) async fn retire(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(name): Segments<String>,
    JsonBody(NodeRetire { reason, force }): JsonBody<NodeRetire>,
) -> Result<Json<dto::Node>, Rejected> {
    const GONE: &str = "its node was retired; nothing on it can be reached any more";
    let id = node_name::find(&control, &name).await?.id;
    let context = caller.context();
    transact(&control, || async {
        let node = node_name::find(&control, &id.to_string()).await?;
        let mut decision = node::operate(&node, Operation::Retire, &reason, &context)?;
        if decision.is_empty() {
            return Ok(((), decision));
        }
        if !force {
            check_unused(&control, &node).await?;
        }
        for open in control.store.task_open(node.id).await? {
            decision = decision.and(task::node_gone(&open, "its node was retired", &context));
        }
        decision = lease_settlement::node_gone(&control, node.id, (OperatorAction::Retire, GONE), decision, &context).await?;
        decision = decision.and(control.budget.take(&control, Scope::Operators, None, &context).await?);
        Ok(((), decision))
    })
    .await?;
    one(&control, &id.to_string()).await
}

/// Refuses if a tenant has something on the node.
async fn check_unused(control: &Control, node: &Node) -> Result<(), ControlError> {
    let mut users: Vec<String> = fleet::on_node(control, node.id).await?.iter().map(|one| one.id.to_string()).collect();
    let slots = control.store.slot_of_node(node.id).await?;
    users.extend(slots.iter().filter_map(|slot| slot.allocation_id).map(|id| id.to_string()));
    users.sort_unstable();
    users.dedup();
    if users.is_empty() {
        return Ok(());
    }
    const SHOWN: usize = 5;
    let more = if users.len() > SHOWN { format!(" and {} more", users.len() - SHOWN) } else { String::new() };
    users.truncate(SHOWN);
    let message = format!(
        "tenants have something on node {} ({}{more}); drain it and wait until they are gone, or force it: they lose what they have there",
        node.name,
        users.join(", ")
    );
    Err(Refusal::conflict("node_in_use", message).into())
}

async fn operate(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(name): Segments<String>,
    JsonBody(Reason { reason }): JsonBody<Reason>,
    operation: Operation,
) -> Result<Json<dto::Node>, Rejected> {
    let id = node_name::find(&control, &name).await?.id;
    let context = caller.context();
    transact(&control, || async {
        let node = node_name::find(&control, &id.to_string()).await?;
        let mut decision = node::operate(&node, operation, &reason, &context)?;
        if !decision.is_empty() {
            for allocation in fleet::on_node(&control, id).await? {
                decision = decision.and(operators_act(&allocation, operation.into(), None, &context));
            }
        }
        Ok(((), decision))
    })
    .await?;
    one(&control, &id.to_string()).await
}
