//! `gpuaas slot`.

use clap::Subcommand;
use gpuaas_api::dto::{Reason, Slot, SlotListQuery};
use gpuaas_contract::state::SlotState;

use super::confirm::ConfirmArgs;
use super::moment;
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::list::{Changes, List, ListArgs, when_empty};
use crate::output::{Details, Table, View, text};
use crate::pages::{self, MAX_ITEMS};
use crate::resolve;

/// Slots. A slot is named by its id, a unique prefix of it, or its node and index: NODE-NAME/INDEX.
#[derive(Debug, Subcommand)]
pub(crate) enum SlotCommand {
    /// List slots.
    #[command(alias = "list")]
    Ls {
        /// Only slots of this node.
        #[arg(long)]
        node: Option<String>,
        /// Only slots in this state: available, leased, releasing, cleanup_blocked, needs_wipe, quarantined, withdrawn.
        #[arg(long)]
        state: Option<SlotState>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Show a slot: its devices and who approved it.
    #[command(alias = "get")]
    Show {
        /// The slot.
        slot: String,
    },
    /// Quarantine a suspect slot; the rest of its node is not affected.
    Quarantine(Operation),
    /// End the quarantine of a slot.
    Unquarantine(Operation),
    /// Clean up what is left of a slice on a blocked slot, and wait for the host's proof. Asks for the slot's name first.
    ///
    /// The slots of one guest are cleaned up together, and their drives are wiped. A slot is free again only if the host proves that
    /// nothing is left; otherwise it stays blocked, with a reason.
    ForceCleanup {
        /// The slot.
        slot: String,
        /// Reason, recorded in the audit log.
        #[arg(long, default_value = "")]
        reason: String,
        #[command(flatten)]
        confirm: ConfirmArgs,
        #[command(flatten)]
        wait: super::slice::WaitArgs,
    },
    /// Withdraw a slot. Approving it again (`gpuaas node topology approve`) brings it back. Asks for its id first.
    Withdraw {
        #[command(flatten)]
        operation: Operation,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
}

/// A slot and a reason.
#[derive(Debug, clap::Args)]
pub(crate) struct Operation {
    /// The slot.
    slot: String,
    /// Reason, shown with the slot and recorded in the audit log.
    #[arg(long, default_value = "")]
    reason: String,
}

pub(super) async fn run(session: &CommandContext, command: SlotCommand) -> Result<Exit, CliError> {
    let client = session.client()?;
    let shown = match command {
        SlotCommand::Ls { node, state, list: args } => {
            let node = match node {
                Some(node) => Some(resolve::node(client, &node).await?),
                None => None,
            };
            let fetch =
                async |after, limit| client.slots(&SlotListQuery { node: node.clone(), state, after, limit: Some(limit) }).await;
            let list = List {
                changes: Changes::Platform("slot"),
                time: |slot: &Slot| Some(slot.approved_at),
                limit: MAX_ITEMS,
                view: table,
                advice: when_empty("no slot matches; `gpuaas node topology discover NODE` shows what can become slots"),
            };
            return list.run(session, args, async |limit| Ok(pages::collect(limit, &fetch).await?)).await;
        }
        SlotCommand::Show { slot } => client.slot(&resolve::slot(client, &slot).await?).await?,
        SlotCommand::ForceCleanup { slot, reason, confirm, wait } => {
            return super::slice::force_cleanup(session, &slot, reason, confirm, &wait).await;
        }
        SlotCommand::Quarantine(Operation { slot, reason }) => {
            client.slot_quarantine(&resolve::slot(client, &slot).await?, &Reason { reason }).await?
        }
        SlotCommand::Unquarantine(Operation { slot, reason }) => {
            client.slot_unquarantine(&resolve::slot(client, &slot).await?, &Reason { reason }).await?
        }
        SlotCommand::Withdraw { operation: Operation { slot, reason }, confirm } => {
            let id = resolve::slot(client, &slot).await?;
            confirm.ask_for_name(&format!("Withdraw the slot {id}? Nobody can lease it until it is approved again."), &id)?;
            client.slot_withdraw(&id, &Reason { reason }).await?
        }
    };
    session.output.print(&shown, |slot| View::Details(details(slot)))?;
    Ok(Exit::Done)
}

fn details(slot: &Slot) -> Details {
    let spec = &slot.spec;
    let companions: Vec<&str> = spec.companions.iter().map(|function| function.as_str()).collect();
    Details::default()
        .field("id", slot.id)
        .field("node", format!("{} ({})", slot.node_id, slot.node_name))
        .field("index", spec.slot_index)
        .field("state", &slot.state)
        .field("reason", &slot.reason)
        .maybe("quarantined", slot.quarantine.as_ref().map(|reason| if reason.is_empty() { "yes" } else { reason }))
        .maybe("slice", slot.allocation_id)
        .maybe("last task", slot.lease_task)
        .field("GPU", gpu(slot))
        .field("companions", companions.join(", "))
        .maybe("fabric", spec.fabric_device.as_ref())
        .field("drive", format!("{} ({})", spec.nvme_serial, spec.nvme_device))
        .field("NUMA node", spec.numa_node)
        .field("size", format!("{} vCPUs, {} MiB", spec.vcpu_count, spec.memory_mib))
        .field("address", format!("{} ({})", spec.private_ip, spec.mac_address))
        .field("proposed by", slot.proposed_by)
        .field("approved by", &slot.approved_by)
        .field("approved", moment(slot.approved_at))
        .field("first approved", moment(slot.created_at))
}

/// Returns the state, and whether the slot stays quarantined once it is clean.
pub(super) fn state(slot: &Slot) -> String {
    let held = slot.quarantine.is_some() && slot.state != SlotState::Quarantined;
    if held { format!("{}, quarantined", slot.state) } else { slot.state.to_string() }
}

pub(super) fn gpu(slot: &Slot) -> String {
    slot.spec.pci_address.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string)
}

pub(super) fn fabric(slot: &Slot) -> String {
    slot.spec.fabric_device.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string)
}

pub(super) fn table(slots: &[Slot]) -> View {
    if slots.is_empty() {
        return View::Nothing;
    }
    let ids = text::short_ids(&slots.iter().map(|slot| slot.id.to_string()).collect::<Vec<_>>());
    let mut table = Table::new(["ID", "NODE", "SLOT", "STATE", "SLICE", "GPU", "DRIVE", "FABRIC", "ADDRESS", "REASON"]);
    for (slot, id) in slots.iter().zip(ids) {
        table.row([
            id,
            slot.node_name.clone(),
            slot.spec.slot_index.to_string(),
            state(slot),
            slot.allocation_id.map_or_else(String::new, |id| id.to_string()),
            gpu(slot),
            slot.spec.nvme_serial.clone(),
            fabric(slot),
            slot.spec.private_ip.to_string(),
            slot.reason.clone(),
        ]);
    }
    View::Table(table)
}
