//! `gpuaas maintenance`: maintenance windows of nodes, announced to the tenants who have allocations there.

use clap::Subcommand;
use gpuaas_api::dto::{MaintenanceCreate, MaintenanceListQuery, MaintenanceWindow};
use gpuaas_contract::time::Timestamp;

use super::alloc_view::ends;
use super::moment;
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::list::{Changes, List, ListArgs, when_empty};
use crate::output::{Details, Table, View, text};
use crate::pages::{self, MAX_ITEMS};
use crate::{duration, resolve, tenants, time};

/// Maintenance windows.
#[derive(Debug, Subcommand)]
pub(crate) enum MaintenanceCommand {
    /// Announce maintenance of nodes. Tenants with allocations there see it and get an event.
    ///
    /// For example: gpuaas maintenance announce rack-1 rack-2 --from +24h --for 2h --summary "new fans"
    Announce {
        /// The nodes.
        #[arg(value_name = "NODE", required = true)]
        nodes: Vec<String>,
        /// Summary that tenants read.
        #[arg(long)]
        summary: String,
        /// Start: `+24h` from now, or UTC such as 2027-03-01T08:00Z.
        #[arg(long, value_name = "WHEN", value_parser = time::parse)]
        from: Timestamp,
        /// Duration, such as `2h`.
        #[arg(long = "for", value_name = "TIME", value_parser = duration::parse)]
        how_long: std::time::Duration,
    },
    /// List windows that are announced or running.
    #[command(alias = "list")]
    Ls {
        /// Only windows of this node.
        #[arg(long)]
        node: Option<String>,
        /// Include windows that have ended or were canceled.
        #[arg(short, long)]
        all: bool,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Cancel a window.
    Cancel {
        /// Window: its id or a unique prefix of it.
        window: String,
    },
}

pub(super) async fn run(session: &CommandContext, command: MaintenanceCommand) -> Result<Exit, CliError> {
    let client = session.client()?;
    let window = match command {
        MaintenanceCommand::Announce { nodes, summary, from, how_long } => {
            let mut ids = Vec::with_capacity(nodes.len());
            for node in &nodes {
                ids.push(resolve::node(client, node).await?);
            }
            let create = MaintenanceCreate { summary, nodes: ids, starts_at: from, ends_at: from.plus(how_long) };
            let made = client.maintenance_announce(&create, None).await?;
            session.output.hint("`gpuaas node drain NODE --preview` shows what is still on a node");
            made
        }
        MaintenanceCommand::Ls { node, all, list: args } => {
            let node = match node {
                Some(node) => Some(resolve::node(client, &node).await?),
                None => None,
            };
            let fetch = async |after, limit| {
                let query = MaintenanceListQuery { node: node.clone(), all: Some(all), after, limit: Some(limit) };
                client.maintenance_windows(&query).await
            };
            let list = List {
                changes: Changes::Platform("maintenance"),
                time: |window: &MaintenanceWindow| Some(window.created_at),
                limit: MAX_ITEMS,
                view: table,
                advice: when_empty("no maintenance is announced; `gpuaas maintenance announce` announces it"),
            };
            return list.run(session, args, async |limit| Ok(pages::collect(limit, &fetch).await?)).await;
        }
        MaintenanceCommand::Cancel { window } => client.maintenance_cancel(&tenants::maintenance(client, &window).await?).await?,
    };
    session.output.print(&window, |window| {
        let nodes: Vec<String> = window.nodes.iter().map(ToString::to_string).collect();
        View::Details(
            Details::default()
                .field("id", window.id)
                .field("summary", &window.summary)
                .field("state", &window.state)
                .field("from", moment(window.starts_at))
                .field("to", moment(window.ends_at))
                .field("nodes", nodes.join("\n"))
                .field("announced by", &window.created_by)
                .field("announced", moment(window.created_at))
                .maybe("cancelled", window.cancelled_at.map(moment)),
        )
    })?;
    Ok(Exit::Done)
}

fn table(windows: &[MaintenanceWindow]) -> View {
    if windows.is_empty() {
        return View::Nothing;
    }
    let ids = text::short_ids(&windows.iter().map(|window| window.id.to_string()).collect::<Vec<_>>());
    let mut table = Table::new(["ID", "STATE", "STARTS", "ENDS", "NODES", "SUMMARY"]);
    for (window, id) in windows.iter().zip(ids) {
        table.row([
            id,
            window.state.to_string(),
            ends(Some(window.starts_at)),
            ends(Some(window.ends_at)),
            window.nodes.len().to_string(),
            window.summary.clone(),
        ]);
    }
    View::Table(table)
}
