//! How an allocation looks to a person, and what they can do next.

use gpuaas_api::dto::{Allocation, Product};
use gpuaas_contract::time::Timestamp;

use super::moment;
use crate::context::CommandContext;
use crate::error::CliError;
use crate::output::{Details, View, text};
use crate::price;

/// Prints one allocation.
pub(super) fn show(session: &CommandContext, allocation: &Allocation) -> Result<(), CliError> {
    session.output.print(allocation, |allocation| View::Details(details(allocation)))
}

/// Such as `active`, or for an active one `stopped` or `stopping`.
pub(crate) fn state(allocation: &Allocation) -> String {
    if allocation.state != "active" {
        return allocation.state.clone();
    }
    match (allocation.pending_power_action.as_deref(), allocation.stopped) {
        (Some("stop"), _) => "stopping".to_owned(),
        (Some("start"), _) => "starting".to_owned(),
        (Some("reboot"), _) => "rebooting".to_owned(),
        (Some(_) | None, true) => "stopped".to_owned(),
        (Some(_) | None, false) => allocation.state.clone(),
    }
}

/// Whether a host works on it now, so that its phase says something.
pub(crate) fn is_worked_on(allocation: &Allocation) -> bool {
    allocation.step.starts_with("await_")
}

/// Where to sign in: host and port, as soon as there is something to sign in to.
pub(super) fn address(allocation: &Allocation) -> Option<(String, u16)> {
    let host = allocation.ssh_host.clone().or_else(|| allocation.private_ip.map(|ip| ip.to_string()));
    host.filter(|_| allocation.state == "active").map(|host| (host, allocation.ssh_port.unwrap_or(22)))
}

fn sign_in(allocation: &Allocation) -> Option<String> {
    let (host, port) = address(allocation).filter(|_| !allocation.stopped)?;
    let port = if port == 22 { String::new() } else { format!(" -p {port}") };
    Some(format!("ssh {}@{host}{port}", allocation.username))
}

/// Such as `1 slot, NVIDIA H100` or `whole machine`.
pub(super) fn size(product: &Product, gpu_model: Option<&str>) -> String {
    let size = match (product.kind.as_str(), product.slots) {
        ("bare_metal", _) => "whole machine".to_owned(),
        (_, 1) => "1 slot".to_owned(),
        (_, slots) => format!("{slots} slots"),
    };
    match gpu_model {
        Some(model) => format!("{size}, {model}"),
        None => size,
    }
}

/// Such as `in 5h`; empty without an end.
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
    let waits = allocation.place_until.filter(|_| matches!(allocation.state.as_str(), "requested" | "placing"));
    Details::default()
        .field("id", allocation.id)
        .field("name", &allocation.name)
        .field("state", state(allocation))
        .maybe("phase", phase)
        .maybe("reason", allocation.reason.as_deref())
        .maybe("code", allocation.code.as_deref())
        .maybe("detail", allocation.detail.as_deref())
        .maybe("sign in", sign_in(allocation))
        .maybe("address", allocation.private_ip)
        .field("product", format!("{} ({})", allocation.sku, size(&allocation.product, allocation.gpu_model.as_deref())))
        .field("price", price::per_hour(allocation.price_per_hour))
        .maybe("image", allocation.image.as_deref())
        .field("tags", tags.join("\n"))
        .maybe("lease ends", allocation.expires_at.filter(|_| !allocation.is_terminal()).map(moment))
        .maybe("waits until", waits.map(moment))
        .field("maintenance", maintenance.join("\n"))
        .maybe("node", allocation.node_name.as_deref())
        .field("project", allocation.project_id)
        .maybe("task", allocation.task)
        .field("asked for by", &allocation.requested_by)
        .field("asked for", moment(allocation.created_at))
        .maybe("active since", allocation.active_at.map(moment))
        .maybe("over since", allocation.ended_at.map(moment))
}

/// What to do next with an allocation in this state.
pub(super) fn advise(session: &CommandContext, allocation: &Allocation) {
    let name = &allocation.name;
    let advice = match allocation.state.as_str() {
        "active" if allocation.stopped => format!("`gpuaas alloc start {name}` starts it again"),
        "active" if address(allocation).is_some() => {
            format!("`gpuaas alloc ssh-config {name} --write` lets you say `ssh {name}`")
        }
        "failed" => format!("nothing is held; `gpuaas alloc retry {name}` tries again"),
        "release_blocked" => {
            format!("it costs you nothing any more; operators clean its host up, then `gpuaas alloc retry {name}` ends it")
        }
        _ => return,
    };
    session.output.hint(&advice);
}
