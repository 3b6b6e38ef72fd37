//! `gpuaas capacity`: total, healthy and free capacity.

use gpuaas_api::dto::{Capacity, CapacityRow};

use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::list::{self, Changes, WatchArgs};
use crate::output::{Table, View};

/// How much to show.
#[derive(Debug, clap::Args)]
pub(crate) struct CapacityArgs {
    /// Show a row per node instead of per model.
    #[arg(long)]
    nodes: bool,
    #[command(flatten)]
    watch: WatchArgs,
}

pub(super) async fn run(session: &CommandContext, args: CapacityArgs) -> Result<Exit, CliError> {
    let client = session.client()?;
    let view = |capacity: &Capacity| if args.nodes { by_node(capacity) } else { by_model(capacity) };
    let advise = |capacity: &Capacity| {
        if capacity.models.is_empty() {
            session.output.hint("there are no slots yet; `gpuaas node topology discover NODE` and `approve` create some");
        } else if !args.nodes {
            for sku in &capacity.skus {
                session.output.hint(&format!("{} × {} can be leased now", sku.available, sku.sku));
            }
        }
        for node in capacity.nodes.iter().filter(|node| !node.host_policy_denies.is_empty()) {
            let denied = node.host_policy_denies.join(", ");
            session.output.hint(&format!("the host policy of {} does not allow {denied}", node.node_name));
        }
    };
    let changes = Changes::Platform("allocation,machine,node,slot,sku");
    list::document(session, args.watch, changes, async || Ok(client.capacity().await?), view, advise).await
}

fn by_model(capacity: &Capacity) -> View {
    if capacity.models.is_empty() {
        return View::Nothing;
    }
    let mut table = Table::new(["MODEL", "NAME", "NODES", "SLOTS", "HEALTHY", "UNHEALTHY", "ALLOCATED", "FREE", "LARGEST FREE"]);
    for row in &capacity.models {
        let [slots, healthy, unhealthy, allocated, free, largest] = numbers(row);
        let nodes = row.nodes.to_string();
        table.row([row.model.clone(), row.name.clone(), nodes, slots, healthy, unhealthy, allocated, free, largest]);
    }
    View::Table(table)
}

fn by_node(capacity: &Capacity) -> View {
    if capacity.nodes.is_empty() {
        return View::Nothing;
    }
    let mut table = Table::new(["NODE", "MODEL", "SLOTS", "HEALTHY", "UNHEALTHY", "ALLOCATED", "FREE"]);
    for node in &capacity.nodes {
        for row in &node.rows {
            let [slots, healthy, unhealthy, allocated, free, _] = numbers(row);
            table.row([node.node_name.clone(), row.model.clone(), slots, healthy, unhealthy, allocated, free]);
        }
        if node.rows.is_empty() {
            let none = || "0".to_owned();
            table.row([node.node_name.clone(), String::new(), none(), none(), none(), none(), none()]);
        }
    }
    View::Table(table)
}

fn numbers(row: &CapacityRow) -> [String; 6] {
    [row.delivered, row.healthy, row.unhealthy, row.allocated, row.free, row.largest_free_on_one_node]
        .map(|number| number.to_string())
}
