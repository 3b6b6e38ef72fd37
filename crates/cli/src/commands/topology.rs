//! `gpuaas node topology`: what a node has discovered about itself, and the approval that turns candidates into slots.

use std::time::Duration;

use clap::Subcommand;
use gpuaas_api::dto::{Slot, TaskCreate, Topology, TopologyApprove};
use gpuaas_contract::state::{SlotState, TaskState};
use gpuaas_contract::task::TaskType;
use gpuaas_contract::task::slice_topology_discover::CandidateSlot;

use super::{moment, slot};
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::{self, Exit};
use crate::follow::{self, Waited};
use crate::output::{Details, Table, View};
use crate::{params, resolve};

/// Time limit for a topology discovery.
const PATIENCE: Duration = Duration::from_secs(120);

/// Candidate slots of a node, and the slots created from them.
#[derive(Debug, Subcommand)]
pub(crate) enum TopologyCommand {
    /// Inspect a node (`slice.topology_discover`) and show the candidate slots. Changes nothing on the node.
    Discover {
        /// The node.
        node: String,
        /// One parameter of the task, such as vcpu_count=16; repeatable.
        #[arg(short, long = "param", value_name = "NAME=VALUE")]
        param: Vec<String>,
    },
    /// Show the result of the last inspection: candidate slots and what blocks them.
    #[command(alias = "get")]
    Show {
        /// The node.
        node: String,
    },
    /// Create slots from the candidates: all usable ones, or those named.
    Approve {
        /// The node.
        node: String,
        /// Index of a slot; repeatable [default: all usable ones].
        #[arg(long = "slot", value_name = "INDEX")]
        slots: Vec<u32>,
        /// Task of the inspection that you reviewed; refused if there is a newer one [default: the newest].
        #[arg(long, value_name = "TASK")]
        task: Option<String>,
    },
}

pub(super) async fn run(session: &CommandContext, command: TopologyCommand) -> Result<Exit, CliError> {
    let client = session.client()?;
    match command {
        TopologyCommand::Discover { node, param } => {
            let kind = TaskType::SliceTopologyDiscover.as_str();
            let node = resolve::node(client, &node).await?;
            let create = TaskCreate {
                node: node.clone(),
                task_type: kind.to_owned(),
                params: params::collect(kind, None, &param)?,
                queue_seconds: Some(PATIENCE.as_secs()),
                timeout_seconds: Some(PATIENCE.as_secs()),
            };
            let task = client.task_create(&create, None).await?;
            match follow::wait(client, &task.id.to_string(), false, None).await? {
                Waited::Ended(task) if task.state == TaskState::Succeeded => show(session, &node).await,
                Waited::Ended(task) => {
                    session.output.print(&task, |task| View::Details(super::task::details(task)))?;
                    Ok(exit::of_task(&task.state))
                }
                Waited::GaveUp => Ok(Exit::Timeout),
            }
        }
        TopologyCommand::Show { node } => show(session, &resolve::node(client, &node).await?).await,
        TopologyCommand::Approve { node, slots, task } => {
            let node = resolve::node(client, &node).await?;
            let task_id = match task {
                Some(task) => resolve::task(client, &task).await?.parse().map_err(|_| unknown(&node))?,
                None => client.node_topology(&node).await?.proposal.ok_or_else(|| unknown(&node))?.task_id,
            };
            let approve = TopologyApprove { task_id, slots: (!slots.is_empty()).then_some(slots) };
            let slots = client.node_topology_approve(&node, &approve).await?.items;
            session.output.print(&slots, |slots: &Vec<Slot>| slot::table(slots))?;
            Ok(Exit::Done)
        }
    }
}

fn unknown(node: &str) -> CliError {
    let message = format!("{node} has not been inspected yet, so there is nothing to approve");
    CliError::new(Exit::NotFound, "no_proposal", message).hint(format!("`gpuaas node topology discover {node}` inspects it"))
}

async fn show(session: &CommandContext, node: &str) -> Result<Exit, CliError> {
    let topology = session.client()?.node_topology(node).await?;
    session.output.print(&topology, view)?;
    match &topology.proposal {
        None => session
            .output
            .hint(&format!("the node has not been inspected yet; `gpuaas node topology discover {node}` inspects it")),
        Some(proposal) => {
            let new = proposal
                .found
                .candidate_slots
                .iter()
                .filter(|candidate| candidate.schedulable && state_of(&topology, candidate) == "proposed");
            if new.count() > 0 {
                session.output.hint(&format!("`gpuaas node topology approve {node}` creates slots from the usable candidates"));
            }
        }
    }
    Ok(Exit::Done)
}

fn view(topology: &Topology) -> View {
    let Some(proposal) = &topology.proposal else { return View::Nothing };
    let found = &proposal.found;
    let blockers = found.candidate_summary.blockers.iter().map(|blocker| format!("{}: {}", blocker.code, blocker.message));
    let own = found.candidate_slots.iter().flat_map(|slot| {
        slot.blockers.iter().map(move |blocker| format!("slot {}: {}: {}", slot.slot_index, blocker.code, blocker.message))
    });
    let reasons: Vec<String> = blockers.chain(own).collect();
    let details = Details::default()
        .field("node", topology.node_id)
        .field("inspected", moment(proposal.found_at))
        .field("by", proposal.task_id)
        .field("simulated", if found.simulated { "yes: nothing on it is real hardware" } else { "" })
        .field("usable", format!("{} of {} slots", found.candidate_summary.schedulable, found.candidate_summary.slots))
        .field("blocked by", reasons.join("\n"))
        .maybe("host policy", denied(topology));
    let mut table = Table::new(["SLOT", "STATE", "GPU", "NUMA", "DRIVE", "FABRIC", "ADDRESS", "VCPUS", "MEMORY"]);
    for candidate in &found.candidate_slots {
        table.row([
            candidate.slot_index.to_string(),
            state_of(topology, candidate),
            candidate.pci_address.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string),
            candidate.numa_node.to_string(),
            candidate.nvme_serial.clone().unwrap_or_else(|| "none".to_owned()),
            candidate.fabric_device.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string),
            candidate.private_ip.map_or_else(|| "none".to_owned(), |ip| ip.to_string()),
            candidate.vcpu_count.to_string(),
            format!("{} MiB", candidate.memory_mib),
        ]);
    }
    View::DetailsAndTable(details, table)
}

/// Returns which tasks the host's owner would have to allow.
fn denied(topology: &Topology) -> Option<String> {
    let tasks = &topology.host_policy_denies;
    (!tasks.is_empty()).then(|| format!("does not allow {}: no slot is leased here", tasks.join(", ")))
}

/// Returns the state of a candidate: that of its slot, or whether it could become one.
fn state_of(topology: &Topology, candidate: &CandidateSlot) -> String {
    let slot = topology.slots.iter().find(|slot| slot.spec.slot_index == candidate.slot_index);
    match slot {
        Some(slot) if slot.state != SlotState::Withdrawn && Some(&slot.spec) != candidate.spec().as_ref() => {
            format!("{}, changed", slot.state)
        }
        Some(slot) if slot.state != SlotState::Withdrawn => slot.state.to_string(),
        Some(_) | None => if candidate.schedulable { "proposed" } else { "blocked" }.to_owned(),
    }
}
