//! `gpuaas node requests|approve|reject`: hosts that ask to be enrolled.

use gpuaas_api::dto::{Enrollment, EnrollmentApprove, Reason};
use gpuaas_contract::state::EnrollmentState;

use super::{age, moment};
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::list::{Changes, List, ListArgs};
use crate::output::{Details, Table, View, text};
use crate::pages::MAX_ITEMS;
use crate::resolve;

pub(super) async fn list(session: &CommandContext, all: bool, args: ListArgs) -> Result<Exit, CliError> {
    let client = session.client()?;
    let state = if all { None } else { Some(EnrollmentState::Pending) };
    let is_table = session.output.is_table();
    let list = List {
        changes: Changes::Platform("enrollment"),
        time: |request: &Enrollment| Some(request.created_at),
        limit: MAX_ITEMS,
        view: table,
        advice: |requests: &[Enrollment]| {
            match requests {
            [] => vec![
                "no host is waiting; `gpuaas-agent enroll` on a host requests it, or `gpuaas node token create` creates a join token"
                    .to_owned(),
            ],
            waiting if is_table && !all => advice(waiting),
            _ => Vec::new(),
        }
        },
    };
    list.run(session, args, async |limit| resolve::enrollments(client, state, limit).await).await
}

/// Returns hints for the operator about hosts that wait for approval.
fn advice(requests: &[Enrollment]) -> Vec<String> {
    let mut advice =
        vec!["compare the key with what the agent printed, then `gpuaas node approve ID` or `gpuaas node reject ID`".to_owned()];
    if requests.iter().any(|request| request.existing_node.as_ref().is_some_and(|node| node.needs_replace)) {
        advice.push(
            "approving a host that is already a node ends that node's identity; `--replace-node NODE` confirms it".to_owned(),
        );
    }
    advice
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
            "its slots stay blocked until they are proven clean: release what was leased, then run `gpuaas node topology discover` and `approve`",
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

/// Describes, in one line, the existing node that has the same fingerprint as the host.
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
        .field("requested by", &request.email)
        .field("host", &facts.hostname)
        .field("simulated", if facts.simulated { "yes" } else { "" })
        .field("system", super::node::system_of(facts))
        .field("GPUs", super::node::gpus_of(facts))
        .field("fingerprint", &request.fingerprint)
        .field("receipt key", request.receipt_key.id())
        .maybe("node", request.node_id)
        .maybe("existing node", existing(request))
        .maybe("replaces", request.replace_node)
        .field("requested", moment(request.created_at))
        .field("expires", moment(request.expires_at))
}

fn table(requests: &[Enrollment]) -> View {
    if requests.is_empty() {
        return View::Nothing;
    }
    let ids = text::short_ids(&requests.iter().map(|request| request.id.to_string()).collect::<Vec<_>>());
    let mut table = Table::new(["ID", "STATE", "HOST", "REQUESTED BY", "GPUS", "RECEIPT KEY", "EXISTING NODE", "AGE"]);
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
