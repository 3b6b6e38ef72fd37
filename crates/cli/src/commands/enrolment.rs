//! `gpuaas node requests|approve|reject`: hosts that ask to be enrolled.

use gpuaas_api::dto::{Enrolment, Reason};

use super::{age, moment};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Details, Table, View, text};
use crate::resolve;
use crate::session::Session;

pub(super) async fn list(session: &Session, all: bool) -> Result<Exit, Failure> {
    let requests = resolve::enrolments(session.client()?, if all { None } else { Some("pending") }).await?;
    session.output.print(&requests, |requests| table(requests))?;
    if requests.is_empty() {
        session.output.hint(
            "no host is waiting; on a host, `gpuaas-agent enroll` asks, or make a join token with `gpuaas node token create`",
        );
    } else if session.output.is_table() && !all {
        session
            .output
            .hint("compare the key with what the agent printed, then `gpuaas node approve ID` or `gpuaas node reject ID`");
    }
    Ok(Exit::Done)
}

pub(super) async fn decide(session: &Session, request: &str, approve: bool, reason: String) -> Result<Exit, Failure> {
    let client = session.client()?;
    let id = resolve::enrolment(client, request).await?;
    let reason = Reason { reason };
    let decided =
        if approve { client.enrolment_approve(&id, &reason).await? } else { client.enrolment_reject(&id, &reason).await? };
    session.output.print(&decided, |request| View::Details(details(request)))?;
    if approve {
        session.output.hint("the agent fetches its certificate within seconds; see `gpuaas node ls`");
    }
    Ok(Exit::Done)
}

fn details(request: &Enrolment) -> Details {
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
        .field("asked", moment(request.created_at))
        .field("expires", moment(request.expires_at))
}

fn table(requests: &[Enrolment]) -> View {
    if requests.is_empty() {
        return View::Nothing;
    }
    let ids = text::short_ids(&requests.iter().map(|request| request.id.to_string()).collect::<Vec<_>>());
    let mut table = Table::new(["ID", "STATE", "HOST", "ASKED BY", "GPUS", "RECEIPT KEY", "AGE"]);
    for (request, id) in requests.iter().zip(ids) {
        table.row([
            id,
            request.state.clone(),
            request.facts.hostname.clone(),
            request.email.clone(),
            super::node::gpus_of(&request.facts),
            request.receipt_key.id().to_string(),
            age(Some(request.created_at)),
        ]);
    }
    View::Table(table)
}
