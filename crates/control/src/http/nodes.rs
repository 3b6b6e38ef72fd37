//! Nodes.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use gpuaas_api::dto::{self, NodeChange, NodeListQuery, NodeRetire, NodeSession, Page, Reason};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::node::Operation;

use super::page_request;
use super::problem::{JsonBody, Params, Rejected, Segments};
use crate::Control;
use crate::app::Caller;
use crate::app::nodes::{self, NodeWithTasks};

type Shared = State<Arc<Control>>;

pub(super) async fn list(
    State(control): Shared,
    Params(query): Params<NodeListQuery>,
) -> Result<Json<Page<dto::Node>>, Rejected> {
    let page = page_request(query.after.as_deref(), query.limit)?;
    let found = nodes::list(&control, query.service, query.all == Some(true), &page).await?;
    let to_dto = |node| to_dto(&control, node);
    Ok(Json(Page { items: found.items.into_iter().map(to_dto).collect(), next: found.next }))
}

pub(super) async fn show(State(control): Shared, Segments(name): Segments<String>) -> Result<Json<dto::Node>, Rejected> {
    Ok(Json(to_dto(&control, nodes::show(&control, &name).await?)))
}

fn to_dto(control: &Control, NodeWithTasks { node, tasks_open }: NodeWithTasks) -> dto::Node {
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
        last_seen_at: link.as_ref().map(|link| link.last_heard(Timestamp::now())).max(node.last_seen_at),
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

/// Renames a node.
pub(super) async fn change(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(name): Segments<String>,
    JsonBody(change): JsonBody<NodeChange>,
) -> Result<Json<dto::Node>, Rejected> {
    let node = nodes::rename(&control, &caller, &name, &change.name).await?;
    Ok(Json(to_dto(&control, node)))
}

operations! { String, dto::Node;
    drain => Operation::Drain;
    undrain => Operation::Undrain;
    quarantine => Operation::Quarantine;
    unquarantine => Operation::Unquarantine;
}

pub(super) async fn retire(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(name): Segments<String>,
    JsonBody(NodeRetire { reason, force }): JsonBody<NodeRetire>,
) -> Result<Json<dto::Node>, Rejected> {
    let node = nodes::retire(&control, &caller, &name, &reason, force).await?;
    Ok(Json(to_dto(&control, node)))
}

async fn operate(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    Segments(name): Segments<String>,
    JsonBody(Reason { reason }): JsonBody<Reason>,
    operation: Operation,
) -> Result<Json<dto::Node>, Rejected> {
    let node = nodes::operate(&control, &caller, &name, operation, &reason).await?;
    Ok(Json(to_dto(&control, node)))
}
