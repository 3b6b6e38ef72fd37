//! Machines: whole hosts that an operator offers for lease. The counterpart of slots for bare metal, with the same rule: one holder at a
//! time, and the next one only after the node has reported that nothing of the previous one is left.

use gpuaas_contract::event::{Event, MachineMoved};
use gpuaas_contract::id::{AllocationId, NodeId, TaskId};
use gpuaas_contract::receipt::Outcome;
use gpuaas_contract::slice::{SshPublicKey, UserName};
use gpuaas_contract::ssh_address::SshAddress;
use gpuaas_contract::task::{Task, TaskType, allocation_deprovision_user, allocation_provision_user};
use gpuaas_contract::time::Timestamp;

pub use gpuaas_contract::state::MachineState;

use crate::decision::{Change, Context, Decision};
use crate::node::Node;
use crate::refusal::Refusal;
use crate::resource::{Keys, resource};
use crate::slice::{Ending, TaskEnd};
use crate::slot::{Slot, SlotState};
use crate::task::{TaskRecord, TaskState};

/// A whole host that is offered for lease.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Machine {
    /// `machine:` and the id of its node.
    pub id: String,
    /// Row version.
    #[serde(skip)]
    pub version: i64,
    /// The node that is offered.
    pub node_id: NodeId,
    /// Who holds it, and whether it is clean.
    pub state: MachineState,
    /// Why it is in this state, for people; empty while available.
    pub reason: String,
    /// The allocation that holds it, or that left something on it. Set exactly while it is not clean.
    pub allocation_id: Option<AllocationId>,
    /// The highest lease epoch ever assigned to it. Never decreases.
    pub lease_epoch: u64,
    /// The most recent task that creates or removes a user. Its end decides the next state.
    pub lease_task: Option<TaskId>,
    /// Where tenants connect with SSH, if the operator set it.
    #[serde(default)]
    pub ssh_address: Option<SshAddress>,
    /// The actor who offered it.
    pub offered_by: String,
    /// When it was offered.
    pub offered_at: Timestamp,
}

resource!(Machine, Machine);

/// Id of a node's machine.
pub fn machine_id(node: NodeId) -> String {
    format!("machine:{node}")
}

impl Machine {
    fn found_by(&self) -> Keys {
        Keys {
            lookup: self.lease_task.map(|task| task.to_string()),
            owner: self.allocation_id.map(|allocation| allocation.to_string()),
            state: self.state.as_str(),
            ..Keys::default()
        }
    }
}

/// Offers a whole host, or changes where its tenants connect. `slots` are the slots of the node: a host is sliced or leased as a whole,
/// never both.
pub fn offer(
    node: &Node,
    slots: &[Slot],
    known: Option<&Machine>,
    ssh_address: Option<SshAddress>,
    context: &Context,
) -> Result<(Machine, Decision), Refusal> {
    if let Some(slot) = slots.iter().find(|slot| slot.state != SlotState::Withdrawn) {
        let message = format!(
            "node {} has slots (slot {} is {}); withdraw all of them first: a host is sliced or leased as a whole, never both",
            node.name,
            slot.spec.slot_index,
            slot.state.as_str()
        );
        return Err(Refusal::conflict("node_is_sliced", message));
    }
    let next = match known {
        Some(machine) if machine.state != MachineState::Withdrawn => {
            let next = Machine { ssh_address: ssh_address.or_else(|| machine.ssh_address.clone()), ..machine.clone() };
            if next == *machine {
                return Ok((next, Decision::default()));
            }
            let decision = Decision::default().update(&next);
            return Ok((next.clone(), recorded(decision, &next, Event::MachineOffered, "", context)));
        }
        Some(machine) => Machine {
            state: MachineState::Available,
            reason: String::new(),
            ssh_address: ssh_address.or_else(|| machine.ssh_address.clone()),
            offered_by: context.actor.to_string(),
            offered_at: context.now,
            ..machine.clone()
        },
        None => Machine {
            id: machine_id(node.id),
            version: 0,
            node_id: node.id,
            state: MachineState::Available,
            reason: String::new(),
            allocation_id: None,
            lease_epoch: 0,
            lease_task: None,
            ssh_address,
            offered_by: context.actor.to_string(),
            offered_at: context.now,
        },
    };
    let decision = if known.is_some() { Decision::default().update(&next) } else { Decision::default().insert(&next) };
    // Also writes the node, unchanged, as the approval of slots does: if both happen at the same time, one is a conflict.
    let decision = decision.change(Change::NodeUpdate(Box::new(node.clone())));
    let decision = recorded(decision, &next, Event::MachineOffered, "", context);
    Ok((next, decision))
}

/// Withdraws an offer. Refused unless the machine is clean: its allocation must be released first.
pub fn withdraw(machine: &Machine, reason: &str, context: &Context) -> Result<(Machine, Decision), Refusal> {
    match machine.state {
        MachineState::Withdrawn => return Ok((machine.clone(), Decision::default())),
        MachineState::Available => {}
        MachineState::Leased | MachineState::Releasing | MachineState::CleanupBlocked => {
            let message = format!("the machine is {}; release its allocation first", machine.state.as_str());
            return Err(Refusal::conflict("machine_in_use", message));
        }
    }
    let next = Machine { state: MachineState::Withdrawn, reason: reason.to_owned(), ..machine.clone() };
    let decision = Decision::default().update(&next);
    let decision = recorded(decision, &next, Event::MachineWithdrawn, reason, context);
    Ok((next, decision))
}

/// The node of this machine got other keys or was retired; see [`crate::slot::node_gone`]. A free machine must be offered again; any other
/// comes back by the node's own proof. `None` if nothing changes.
pub fn node_gone(machine: &Machine, reason: &str, context: &Context) -> Option<(Machine, Decision)> {
    let (state, event): (_, fn(MachineMoved) -> Event) = match machine.state {
        MachineState::Available => (MachineState::Withdrawn, Event::MachineWithdrawn),
        MachineState::Leased | MachineState::Releasing => (MachineState::CleanupBlocked, Event::MachineCleanupBlocked),
        MachineState::CleanupBlocked | MachineState::Withdrawn => return None,
    };
    let next = Machine { state, reason: reason.to_owned(), ..machine.clone() };
    let decision = recorded(Decision::default().update(&next), &next, event, reason, context);
    Some((next, decision))
}

/// The user for a tenant on a whole host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// User name to create.
    pub username: UserName,
    /// Keys of that user.
    pub ssh_public_keys: Vec<SshPublicKey>,
    /// Whether that user may become root. The host's owner must allow it as well.
    pub sudo: bool,
}

/// Leases a free machine under a new lease epoch, and orders the node to create the user.
pub fn provision(
    machine: &Machine,
    tenant: &Tenant,
    ids: (AllocationId, TaskId),
    context: &Context,
) -> Result<(Task, Decision), Refusal> {
    let (allocation_id, task_id) = ids;
    if machine.state != MachineState::Available {
        let message = format!("the machine of {} is {}", machine.node_id, machine.state.as_str());
        return Err(Refusal::conflict("machine_not_available", message));
    }
    let lease_epoch = next_epoch(machine)?;
    let task = checked(Task::AllocationProvisionUser(allocation_provision_user::Params {
        allocation_id,
        lease_epoch,
        username: tenant.username.clone(),
        ssh_public_keys: tenant.ssh_public_keys.clone(),
        sudo: tenant.sudo,
    }))?;
    let next = Machine {
        state: MachineState::Leased,
        allocation_id: Some(allocation_id),
        lease_epoch,
        lease_task: Some(task_id),
        reason: String::new(),
        ..machine.clone()
    };
    let decision = Decision::default().update(&next);
    Ok((task, recorded(decision, &next, Event::MachineLeased, "", context)))
}

/// Releases a machine: the node removes the user and everything that belongs to the user. With `take_over`, an operator orders the cleanup
/// under a new lease epoch, regardless of which lease the node thinks is current.
pub fn release(
    machine: &Machine,
    last: Option<&TaskRecord>,
    username: &UserName,
    take_over: bool,
    task_id: TaskId,
    context: &Context,
) -> Result<(Task, Decision), Refusal> {
    let Some(allocation_id) = machine.allocation_id else {
        return Err(Refusal::conflict("machine_clean", "nobody has the machine; there is nothing to clean up"));
    };
    if let Some(task) = last.filter(|task| !task.state.ended()) {
        let message = format!("{} ({}) is {}; wait for its end or cancel it", task.id, task.task_type, task.state.as_str());
        return Err(Refusal::conflict("machine_busy", message));
    }
    let made = last.is_some_and(|task| task.state == TaskState::Succeeded);
    if take_over && made && machine.state == MachineState::Leased {
        let message = "a tenant has the machine; release its allocation instead";
        return Err(Refusal::conflict("machine_in_use", message));
    }
    let lease_epoch = if take_over { next_epoch(machine)? } else { machine.lease_epoch };
    let task = checked(Task::AllocationDeprovisionUser(allocation_deprovision_user::Params {
        allocation_id,
        lease_epoch,
        username: username.clone(),
        take_over,
    }))?;
    let next = Machine {
        state: MachineState::Releasing,
        lease_epoch,
        lease_task: Some(task_id),
        reason: String::new(),
        ..machine.clone()
    };
    let decision = Decision::default().update(&next);
    Ok((task, recorded(decision, &next, Event::MachineReleasing, "", context)))
}

/// The effect of a task's end on the machine, if the task is its [`Machine::lease_task`]. `genuine` says whether the control plane itself
/// wrote the task's row; otherwise nothing in it is trusted.
pub fn settle(machine: &Machine, ending: &Ending, genuine: bool, context: &Context) -> Decision {
    let Ending { task, end } = ending;
    if machine.lease_task != Some(task.id) || machine.node_id != task.node_id || machine.allocation_id.is_none() {
        return Decision::default();
    }
    let provision = task.task_type == TaskType::AllocationProvisionUser;
    let because = if task.message.is_empty() { task.code.clone() } else { format!("{} ({})", task.message, task.code) };
    let clean = match end {
        _ if !genuine => Err(format!("the row of {} was changed outside the control plane", task.id)),
        TaskEnd::NeverRan if provision => Ok(true),
        TaskEnd::NeverRan => Err(format!("the release did not run: {because}")),
        TaskEnd::MayHaveRun => Err(format!("{} was lost: {because}", task.task_type)),
        TaskEnd::Receipt { outcome: Outcome::Succeeded, .. } => Ok(!provision),
        TaskEnd::Receipt { outcome: Outcome::Refused, .. }
        | TaskEnd::Receipt { outcome: Outcome::Cancelled, started: false, .. }
            if provision =>
        {
            Ok(true)
        }
        TaskEnd::Receipt { .. } => Err(because),
    };
    let (next, event): (_, fn(MachineMoved) -> Event) = match clean {
        Ok(true) => {
            let free = Machine { state: MachineState::Available, allocation_id: None, reason: String::new(), ..machine.clone() };
            (free, Event::MachineFreed)
        }
        Ok(false) => {
            let used = Machine { state: MachineState::Leased, reason: String::new(), ..machine.clone() };
            (used, Event::MachineInUse)
        }
        Err(reason) => {
            let reason: String = reason.chars().take(1000).collect();
            let blocked = Machine { state: MachineState::CleanupBlocked, reason, ..machine.clone() };
            (blocked, Event::MachineCleanupBlocked)
        }
    };
    if next == *machine {
        return Decision::default();
    }
    let reason = next.reason.clone();
    recorded(Decision::default().update(&next), &next, event, &reason, context)
}

fn next_epoch(machine: &Machine) -> Result<u64, Refusal> {
    let next = machine.lease_epoch.checked_add(1).filter(|next| i64::try_from(*next).is_ok());
    next.ok_or_else(|| Refusal::conflict("lease_epochs_used_up", "the machine's lease numbers are used up"))
}

fn checked(task: Task) -> Result<Task, Refusal> {
    match Task::parse(task.task_type(), task.params_json().get()) {
        Ok(_) => Ok(task),
        Err(error) => Err(Refusal::invalid("params_invalid", error.to_string())),
    }
}

fn recorded(
    decision: Decision,
    machine: &Machine,
    event: fn(MachineMoved) -> Event,
    reason: &str,
    context: &Context,
) -> Decision {
    let data = MachineMoved {
        node_id: machine.node_id,
        state: machine.state.into(),
        allocation_id: machine.allocation_id,
        lease_epoch: machine.lease_epoch,
        task_id: machine.lease_task,
        reason: reason.to_owned(),
    };
    decision.record(context, &machine.id, event(data))
}
