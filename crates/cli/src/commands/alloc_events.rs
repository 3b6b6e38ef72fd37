//! `gpuaas alloc events`: the history of an allocation, followed by new events.

use futures::StreamExt as _;
use gpuaas_api::Client;
use gpuaas_api::client::HeardEvent;
use gpuaas_api::dto::{EventRow, EventsQuery, PageQuery};
use gpuaas_contract::event::short_kind;
use gpuaas_contract::time::Timestamp;

use super::events::facts;
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::text::printable;
use crate::pages::{self, MAX_ITEMS};

/// Fields that every event of an allocation has, and that its reader knows already.
const KNOWN: [&str; 7] = ["allocation_id", "project_id", "organization_id", "name", "from", "to", "step"];

pub(super) async fn run(session: &CommandContext, id: &str, follow: bool, since: Option<Timestamp>) -> Result<Exit, CliError> {
    let client = session.client()?;
    if !follow {
        for row in after(client, id, None).await? {
            print(session, &row, since)?;
        }
        return Ok(Exit::Done);
    }
    let project = client.allocation(id).await?.project_id.to_string();
    let query = EventsQuery { after: None, kinds: Some("allocation".to_owned()) };
    let mut heard = client.project_events(&project, &query).boxed();
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    let mut position = None;
    loop {
        // Checked before reading: an event that arrives in between is read in the next round.
        let is_over = client.allocation(id).await?.is_terminal();
        for row in after(client, id, position).await? {
            position = Some(row.position);
            print(session, &row, since)?;
        }
        if is_over {
            return Ok(Exit::Done);
        }
        // An event only signals that there is something to read; its content is not used.
        loop {
            let event = tokio::select! {
                biased;
                _ = &mut interrupted => return Ok(Exit::Done),
                event = heard.next() => event,
                () = tokio::time::sleep(std::time::Duration::from_secs(10)) => break,
            };
            match event.transpose()? {
                Some(HeardEvent::Event(event)) if event.subject != id => {}
                Some(HeardEvent::Event(_) | HeardEvent::Reconnecting) => break,
                None => return Ok(Exit::Done),
            }
        }
    }
}

/// Returns the rows after this position.
async fn after(client: &Client, id: &str, position: Option<i64>) -> Result<Vec<EventRow>, CliError> {
    let start = position.map(|position| position.to_string());
    let fetch = async |after: Option<String>, limit| {
        let after = after.or_else(|| start.clone());
        client.allocation_events(id, &PageQuery { after, limit: Some(limit) }).await
    };
    Ok(pages::collect(MAX_ITEMS, fetch).await?.items)
}

fn print(session: &CommandContext, row: &EventRow, since: Option<Timestamp>) -> Result<(), CliError> {
    if since.is_some_and(|since| row.at < since) {
        return Ok(());
    }
    session.output.print_item(row, |row| {
        let line = format!("{} {} {}", row.at, short_kind(row.kind.as_str()), facts(&row.data, &KNOWN));
        printable(line.trim_end())
    })
}
