//! Finding a node by what people call it.

use gpuaas_contract::id::NodeId;
use gpuaas_domain::Refusal;
use gpuaas_domain::node::{Node, NodeService};
use gpuaas_store::NodeFilter;

use crate::Control;
use crate::error::ControlError;

/// The node that a body names at `/node`.
pub(super) async fn in_body(control: &Control, name: &str) -> Result<Node, ControlError> {
    find(control, name)
        .await
        .map_err(|error| if let ControlError::Refused(refusal) = error { refusal.in_body("/node").into() } else { error })
}

/// Nodes looked at in one query.
const PAGE: u32 = 1000;

/// The node with this id, or with this name if only one node that is not retired has it.
pub(super) async fn find(control: &Control, name: &str) -> Result<Node, ControlError> {
    let unknown = || Refusal::not_found("node_unknown", format!("there is no node `{name}`"));
    if let Ok(id) = name.parse::<NodeId>() {
        return Ok(control.store.node_get(id).await?.ok_or_else(unknown)?);
    }
    let mut found: Vec<Node> = Vec::new();
    let mut after = None;
    loop {
        let page = control.store.node_list(&NodeFilter::default(), after, PAGE).await?;
        after = page.last().map(|node| node.id);
        let full = page.len() >= usize::try_from(PAGE).unwrap_or(usize::MAX);
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
