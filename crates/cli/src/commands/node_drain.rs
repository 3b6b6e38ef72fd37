//! `gpuaas node drain`: shows what is still on a node before draining it.

use gpuaas_api::dto::DrainPreview;

use super::alloc_view::ends;
use super::confirm;
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::{Details, Table, View, text};

/// Shows what has to end before the node is empty.
pub(super) async fn preview(session: &CommandContext, node: &str) -> Result<Exit, CliError> {
    let preview = session.client()?.node_drain_preview(node).await?;
    session.output.print(&preview, view)?;
    if preview.allocations.is_empty() {
        session.output.hint("nothing is on the node");
    }
    Ok(Exit::Done)
}

/// Shows what is still on the node and asks for confirmation, unless `yes` is set or there is no terminal.
pub(super) async fn confirmed(session: &CommandContext, node: &str, yes: bool) -> Result<(), CliError> {
    if yes || !confirm::somebody_is_there() {
        return Ok(());
    }
    let preview = session.client()?.node_drain_preview(node).await?;
    for allocation in &preview.allocations {
        let end = if allocation.expires_at.is_some() { ends(allocation.expires_at) } else { "no end".to_owned() };
        session.output.hint(&format!(
            "  {} of {} ({}): {end}; {}",
            allocation.name, allocation.organization, allocation.state, allocation.why
        ));
    }
    if !preview.note.is_empty() {
        session.output.hint(&preview.note);
    }
    let question = format!(
        "Drain {}? {} allocations stay on it until they end, {} free slots are taken out of service at once.",
        preview.node_name,
        preview.allocations.len(),
        preview.slots_free
    );
    confirm::ask(&question)
}

fn view(preview: &DrainPreview) -> View {
    let details = Details::default()
        .field("node", format!("{} ({})", preview.node_id, preview.node_name))
        .field("free slots", preview.slots_free)
        .field("allocations", preview.allocations.len())
        .field("note", &preview.note);
    if preview.allocations.is_empty() {
        return View::Details(details);
    }
    let ids = text::short_ids(&preview.allocations.iter().map(|allocation| allocation.id.to_string()).collect::<Vec<_>>());
    let mut table = Table::new(["ALLOCATION", "NAME", "ORGANIZATION", "STATE", "ENDS", "WHY"]);
    for (allocation, id) in preview.allocations.iter().zip(ids) {
        table.row([
            id,
            allocation.name.clone(),
            allocation.organization.clone(),
            allocation.state.to_string(),
            ends(allocation.expires_at),
            allocation.why.clone(),
        ]);
    }
    View::DetailsAndTable(details, table)
}
