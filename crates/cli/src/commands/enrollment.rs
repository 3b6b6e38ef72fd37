//! `gpuaas node requests|approve|reject`: hosts that ask to be enrolled.

use gpuaas_api::dto::{Enrollment, EnrollmentApprove, Reason};
use gpuaas_contract::state::EnrollmentState;

use super::{age, moment};
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::{Details, Table, View, text};
use crate::resolve;

pub(super) async fn list(session: &CommandContext, all: bool) -> Result<Exit, CliError> {
    let requests = resolve::enrollments(session.client()?, if all { None } else { Some(EnrollmentState::Pending) }).await?;
    session.output.print(&requests, |requests| table(requests))?;
    if requests.is_empty() {
        session.output.hint(
            "no host is waiting; on a host, `gpuaas-agent enroll` asks, or make a join token with `gpuaas node token create`",
        );
    } else if session.output.is_table() && !all {
        session
            .output
            .hint("compare the key with what the agent printed, then `gpuaas node approve ID` or `gpuaas node reject ID`");
        if requests.iter().any(|request| request.existing_node.as_ref().is_some_and(|node| node.needs_replace)) {
            session.output.hint(
                "approving a host that is a node already ends that node's identity: `--replace-node NODE` says that it shall",
            );
        }
    }
    Ok(Exit::Done)
}

pub(super) async fn approve(
    session: &CommandContext,
    request: &str,
    reason: String,
    replace_node: Option<String>,
) -> Result<Exit, CliError> {
    let client = session.client()?;
    let id = resolve::enrollment(client, request).await?;
    let replace_node = resolve::node_to_replace(client, replace_node.as_deref()).await?;
    let approved = client.enrollment_approve(&id, &EnrollmentApprove { reason, replace_node }).await?;
    session.output.print(&approved, |request| View::Details(details(request)))?;
    session.output.hint("the agent fetches its certificate within seconds; see `gpuaas node ls`");
    if replace_node.is_some() {
        session.output.hint(
            "its slots are not used before they are proven: release what was leased, then `gpuaas node topology discover` and `approve`",
        );
    }
    Ok(Exit::Done)
}

pub(super) async fn reject(session: &CommandContext, request: &str, reason: String) -> Result<Exit, CliError> {
    let client = session.client()?;
    let id = resolve::enrollment(client, request).await?;
    let rejected = client.enrollment_reject(&id, &Reason { reason }).await?;
    session.output.print(&rejected, |request| View::Details(details(request)))?;
    Ok(Exit::Done)
}

/// The node that a host is already, in one line.
fn existing(request: &Enrollment) -> Option<String> {
    let node = request.existing_node.as_ref()?;
    let online = if node.online { "online" } else { "offline" };
    let keys = if node.keys_differ { "other keys" } else { "same keys" };
    Some(format!("{} ({}, {}, {online}, {keys})", node.id, node.name, node.service))
}

fn details(request: &Enrollment) -> Details {
    let facts = &request.facts;
    Details::default()
        .field("id", request.id)
        .field("state", &request.state)
        .field("reason", &request.reason)
        .field("asked by", &request.email)
        .field("host", &facts.hostname)
        .field("simulated", if facts.simulated { "yes" } else { "" })
        .field("system", super::node::system_of(facts))
        .field("GPUs", super::node::gpus_of(facts))
        .field("fingerprint", &request.fingerprint)
        .field("receipt key", request.receipt_key.id())
        .maybe("node", request.node_id)
        .maybe("is already", existing(request))
        .maybe("replaces", request.replace_node)
        .field("asked", moment(request.created_at))
        .field("expires", moment(request.expires_at))
}

fn table(requests: &[Enrollment]) -> View {
    if requests.is_empty() {
        return View::Nothing;
    }
    let ids = text::short_ids(&requests.iter().map(|request| request.id.to_string()).collect::<Vec<_>>());
    let mut table = Table::new(["ID", "STATE", "HOST", "ASKED BY", "GPUS", "RECEIPT KEY", "IS ALREADY", "AGE"]);
    for (request, id) in requests.iter().zip(ids) {
        table.row([
            id,
            request.state.to_string(),
            request.facts.hostname.clone(),
            request.email.clone(),
            super::node::gpus_of(&request.facts),
            request.receipt_key.id().to_string(),
            existing(request).unwrap_or_default(),
            age(Some(request.created_at)),
        ]);
    }
    View::Table(table)
}
