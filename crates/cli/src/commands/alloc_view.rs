//! How an allocation is shown to a person, with advice on what to do next.

use gpuaas_api::dto::{Allocation, Product};
use gpuaas_contract::names::Open;
use gpuaas_contract::state::{AllocationState, AllocationStep, GuestState, ProductKind};
use gpuaas_contract::task::slice_vm_power::PowerAction;
use gpuaas_contract::time::Timestamp;

use super::moment;
use crate::context::CommandContext;
use crate::error::CliError;
use crate::output::{Details, View, text};
use crate::price;

pub(super) fn show(session: &CommandContext, allocation: &Allocation) -> Result<(), CliError> {
    session.output.print(allocation, |allocation| View::Details(details(allocation)))
}

/// Returns the state, such as `active`, or `stopping` while the host stops the guest.
pub(crate) fn state(allocation: &Allocation) -> String {
    match allocation.pending_power_action.as_ref().and_then(Open::known) {
        Some(PowerAction::Stop) => "stopping".to_owned(),
        Some(PowerAction::Start) => "starting".to_owned(),
        Some(PowerAction::Reboot) => "rebooting".to_owned(),
        None => allocation.state.to_string(),
    }
}

/// Returns whether a host is working on the allocation, in which case its phase is meaningful.
pub(crate) fn is_worked_on(allocation: &Allocation) -> bool {
    match allocation.step.known() {
        Some(AllocationStep::AwaitProvision | AllocationStep::AwaitPower | AllocationStep::AwaitRelease) => true,
        Some(AllocationStep::Place | AllocationStep::Serve | AllocationStep::Release | AllocationStep::Done) | None => false,
    }
}

/// Returns the state of the guest in plain words.
fn guest(guest: &Open<GuestState>) -> String {
    match guest.known() {
        Some(GuestState::Off) => "off".to_owned(),
        Some(GuestState::Booting) => "booting".to_owned(),
        Some(GuestState::Answering) => "answers".to_owned(),
        Some(GuestState::NotAnswering) => "runs, and does not answer".to_owned(),
        None => guest.to_string(),
    }
}

/// Returns the host and port to sign in to, once there is something to sign in to.
pub(super) fn address(allocation: &Allocation) -> Option<(String, u16)> {
    let host = allocation.ssh_host.clone().or_else(|| allocation.private_ip.map(|ip| ip.to_string()));
    host.filter(|_| allocation.state == AllocationState::Active).map(|host| (host, allocation.ssh_port.unwrap_or(22)))
}

fn sign_in(allocation: &Allocation) -> Option<String> {
    let (host, port) = address(allocation)?;
    let port = if port == 22 { String::new() } else { format!(" -p {port}") };
    Some(format!("ssh {}@{host}{port}", allocation.username))
}

/// Returns the size of a product, such as `1 slot, NVIDIA H100` or `whole machine`.
pub(super) fn size(product: &Product, gpu_model: Option<&str>) -> String {
    let size = match (product.kind.known(), product.slots) {
        (Some(ProductKind::BareMetal), _) => "whole machine".to_owned(),
        (Some(ProductKind::Slice), 1) => "1 slot".to_owned(),
        (Some(ProductKind::Slice), slots) => format!("{slots} slots"),
        (None, _) => product.kind.to_string(),
    };
    match gpu_model {
        Some(model) => format!("{size}, {model}"),
        None => size,
    }
}

/// Returns when the lease ends, such as `in 5h`; empty if it has no end.
pub(super) fn ends(at: Option<Timestamp>) -> String {
    let now = Timestamp::now();
    match at {
        Some(at) if at > now => format!("in {}", text::age(now, at)),
        Some(at) => format!("{} ago", text::age(at, now)),
        None => String::new(),
    }
}

fn details(allocation: &Allocation) -> Details {
    let tags: Vec<String> = allocation.tags.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let phase = allocation
        .phase
        .as_ref()
        .map(|phase| if phase.message.is_empty() { phase.phase.clone() } else { format!("{}: {}", phase.phase, phase.message) });
    let maintenance: Vec<String> = allocation
        .maintenance
        .iter()
        .map(|window| format!("{} to {}: {}", moment(window.starts_at), window.ends_at, window.summary))
        .collect();
    let waits = allocation
        .place_until
        .filter(|_| matches!(allocation.state.known(), Some(AllocationState::Requested | AllocationState::Placing)));
    Details::default()
        .field("id", allocation.id)
        .field("name", &allocation.name)
        .field("state", state(allocation))
        .maybe("phase", phase)
        .maybe("guest", allocation.guest.as_ref().map(guest))
        .maybe("reason", allocation.reason.as_deref())
        .maybe("code", allocation.code.as_deref())
        .maybe("detail", allocation.detail.as_deref())
        .maybe("sign in", sign_in(allocation))
        .maybe("address", allocation.private_ip)
        .field("product", format!("{} ({})", allocation.sku, size(&allocation.product, allocation.gpu_model.as_deref())))
        .field("price", price::per_hour(allocation.price_per_hour))
        .maybe("image", allocation.image.as_deref())
        .field("SSH keys", keys(&allocation.ssh_public_keys).join("\n"))
        .field("tags", tags.join("\n"))
        .maybe("lease ends", allocation.expires_at.filter(|_| !allocation.is_terminal()).map(moment))
        .maybe("waits until", waits.map(moment))
        .field("maintenance", maintenance.join("\n"))
        .maybe("node", allocation.node_name.as_deref())
        .field("project", allocation.project_id)
        .maybe("task", allocation.task)
        .field("requested by", &allocation.requested_by)
        .field("requested", moment(allocation.created_at))
        .maybe("active since", allocation.active_at.map(moment))
        .maybe("ended", allocation.ended_at.map(moment))
}

/// Returns keys in a form that people recognize: the type, the last characters of the key, and the comment if there is one.
fn keys(keys: &[String]) -> Vec<String> {
    let shown = |key: &String| {
        let mut words = key.splitn(3, ' ');
        let (kind, blob, comment) = (words.next().unwrap_or_default(), words.next().unwrap_or_default(), words.next());
        let tail: String = blob.chars().skip(blob.chars().count().saturating_sub(12)).collect();
        comment.map_or_else(|| format!("{kind} …{tail}"), |comment| format!("{kind} …{tail} {comment}"))
    };
    keys.iter().map(shown).collect()
}

/// Prints a hint on what to do next with an allocation in this state.
pub(super) fn advise(session: &CommandContext, allocation: &Allocation) {
    let name = &allocation.name;
    let advice = match allocation.state.known() {
        Some(AllocationState::Stopped) => format!("`gpuaas alloc start {name}` starts it again"),
        Some(AllocationState::Active) if allocation.guest.as_ref().is_some_and(|guest| *guest == GuestState::NotAnswering) => {
            format!("`gpuaas alloc console {name}` shows what it does; `gpuaas alloc reboot {name}` tries again")
        }
        Some(AllocationState::Active) if address(allocation).is_some() => {
            format!("`gpuaas alloc ssh-config {name} --write` enables `ssh {name}`")
        }
        Some(AllocationState::Failed) => format!("nothing is reserved; `gpuaas alloc retry {name}` retries it"),
        Some(AllocationState::ReleaseBlocked) => {
            format!("it is no longer billed; operators clean up its host, then `gpuaas alloc retry {name}` ends it")
        }
        Some(
            AllocationState::Requested
            | AllocationState::Placing
            | AllocationState::Provisioning
            | AllocationState::Active
            | AllocationState::Releasing
            | AllocationState::Released,
        )
        | None => return,
    };
    session.output.hint(&advice);
}
