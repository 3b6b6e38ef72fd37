//! `gpuaas machine`: nodes that are leased as a whole, for operators.

use clap::Subcommand;
use gpuaas_api::dto::{Machine, MachineListQuery, MachineOffer, Reason};
use gpuaas_contract::ssh_address::SshAddress;
use gpuaas_contract::state::MachineState;

use super::confirm::ConfirmArgs;
use super::{age, moment};
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::list::{Changes, List, ListArgs, when_empty};
use crate::output::{Details, Table, View};
use crate::pages::{self, MAX_ITEMS};
use crate::resolve;

/// Nodes that are leased as whole machines.
#[derive(Debug, Subcommand)]
pub(crate) enum MachineCommand {
    /// Offer a node as a whole machine. It must have no slots: a host is either sliced or leased as a whole.
    Offer {
        /// The node.
        node: String,
        /// SSH address for tenants, such as gpu7.example.com or 192.0.2.7:2222. Without it, they have to ask you for it.
        #[arg(long, value_name = "ADDRESS")]
        ssh_address: Option<SshAddress>,
    },
    /// Withdraw the offer of a node. Asks for its name first.
    Withdraw {
        /// The node.
        node: String,
        /// Reason, recorded in the audit log.
        #[arg(long, default_value = "")]
        reason: String,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
    /// List machines.
    #[command(alias = "list")]
    Ls {
        /// Only machines in this state: available, leased, releasing, cleanup_blocked, withdrawn.
        #[arg(long)]
        state: Option<MachineState>,
        #[command(flatten)]
        list: ListArgs,
    },
}

pub(super) async fn run(session: &CommandContext, command: MachineCommand) -> Result<Exit, CliError> {
    let client = session.client()?;
    let machine = match command {
        MachineCommand::Offer { node, ssh_address } => {
            let offered = client.node_machine_offer(&resolve::node(client, &node).await?, &MachineOffer { ssh_address }).await?;
            if offered.ssh_address.is_none() {
                session.output.hint(
                    "tenants do not see where to sign in; `gpuaas machine offer NODE --ssh-address ADDRESS` sets the address",
                );
            }
            offered
        }
        MachineCommand::Withdraw { node, reason, confirm } => {
            let id = resolve::node(client, &node).await?;
            confirm.ask_for_name(&format!("Withdraw the offer of {node} as a whole machine?"), &node)?;
            client.node_machine_withdraw(&id, &Reason { reason }).await?
        }
        MachineCommand::Ls { state, list: args } => {
            let fetch = async |after, limit| client.machines(&MachineListQuery { state, after, limit: Some(limit) }).await;
            let list = List {
                changes: Changes::Platform("machine"),
                time: |machine: &Machine| Some(machine.offered_at),
                limit: MAX_ITEMS,
                view: table,
                advice: when_empty("no node is offered as a whole; `gpuaas machine offer NODE` offers one"),
            };
            return list.run(session, args, async |limit| Ok(pages::collect(limit, &fetch).await?)).await;
        }
    };
    session.output.print(&machine, |machine| {
        View::Details(
            Details::default()
                .field("node", format!("{} ({})", machine.node_id, machine.node_name))
                .field("state", &machine.state)
                .field("reason", &machine.reason)
                .maybe("allocation", machine.allocation_id)
                .maybe("task", machine.lease_task)
                .field("offered by", &machine.offered_by)
                .field("offered", moment(machine.offered_at)),
        )
    })?;
    Ok(Exit::Done)
}

fn table(machines: &[Machine]) -> View {
    if machines.is_empty() {
        return View::Nothing;
    }
    let mut table = Table::new(["NODE", "STATE", "ALLOCATION", "OFFERED", "REASON"]);
    for machine in machines {
        table.row([
            machine.node_name.clone(),
            machine.state.to_string(),
            machine.allocation_id.map_or(String::new(), |id| id.to_string()),
            age(Some(machine.offered_at)),
            machine.reason.clone(),
        ]);
    }
    View::Table(table)
}
