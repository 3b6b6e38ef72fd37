//! Undoes what is recorded, and nothing else. What was changed since belongs to someone else, and stays.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use gpuaas_host::private_file;
use gpuaas_host::{dnsmasq, ip, kernel, nft, ovs, systemd};

use super::files::{TABLE, Unit};
use super::observe::{self, DhcpFound, FileFound, LinkFound, PolicyFound};
use super::record::{Record, RecordItem, sha256};
use super::{Action, Plan, SetupError, Step, StepStatus, io};
use crate::config::Config;
use crate::error_chain::chain;
use crate::policy::{self, SlicePermissions};

/// The action of an undo step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UndoAction {
    item: RecordItem,
    effect: Effect,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Effect {
    /// Nothing to do: it is gone, or belongs to someone else now.
    Forget,
    /// Remove it.
    Remove,
    /// Write this content to the policy.
    RewritePolicy(String),
    /// Nothing, and it stays in the record: its state could not be read.
    Keep,
}

/// Refuses the undo while there are guests on the bridge, or leased slots.
pub(super) async fn refuse_with_guests(config: &Config, record: &Record) -> Result<(), SetupError> {
    let bridge = &record.bridge;
    match ovs::bridge_exists(bridge).await {
        Ok(true) => {
            let connected = ovs::connected(bridge).await?;
            if !connected.is_empty() {
                return Err(SetupError::GuestsRun { what: format!("{} is connected to {bridge}", connected.join(", ")) });
            }
        }
        Ok(false) => {}
        // A switch that does not answer may still connect guests: then the interface exists.
        Err(error) => {
            if ip::interfaces().await?.iter().any(|interface| interface.name == bridge.as_str()) {
                return Err(error.into());
            }
        }
    }
    // A guest that is off still has a lease.
    if config.state_dir.join("leases").exists() {
        let host = crate::open_host(config, None)
            .map_err(|error| SetupError::GuestsRun { what: format!("leases of slots cannot be read: {}", chain(&error)) })?;
        let leases = host.leases().await?;
        if let Some(lease) = leases.first() {
            let what = format!("{} holds {} of {} leased slots of this host", lease.allocation_id, lease.slot_id, leases.len());
            return Err(SetupError::GuestsRun { what });
        }
    }
    Ok(())
}

/// Plans the undo: the policy first, so that no new guest is created in the meantime, then everything in reverse order.
pub(super) async fn plan(record: &Record) -> Result<Plan, SetupError> {
    let is_policy = |item: &&RecordItem| matches!(item, RecordItem::Policy { .. });
    let services = |item: &&RecordItem| matches!(item, RecordItem::Units | RecordItem::Dhcp);
    let mut steps = Vec::new();
    let rest = |item: &&RecordItem| !is_policy(item) && !services(item);
    let ordered = record.items.iter().filter(is_policy).chain(record.items.iter().filter(services));
    for item in ordered.chain(record.items.iter().rev().filter(rest)) {
        steps.push(look(record, item).await?);
    }
    Ok(Plan { steps })
}

/// Runs the undo, and returns what stays. The record loses each entry after its step, so that an interrupted undo can continue.
pub(super) async fn apply(
    config: &Config,
    mut record: Record,
    on_step: &mut dyn FnMut(&Step, Option<&SetupError>),
) -> Result<Plan, SetupError> {
    let plan = plan(&record).await?;
    let mut asked_again = false;
    let mut left = Vec::new();
    for step in plan.steps {
        let Some(Action::Undo(UndoAction { item, effect })) = step.action.clone() else { continue };
        if !matches!(item, RecordItem::Policy { .. }) && !asked_again {
            // A task may have started before the policy was undone.
            refuse_with_guests(config, &record).await?;
            asked_again = true;
        }
        let result = match effect {
            Effect::Keep => {
                left.push(step);
                continue;
            }
            Effect::Forget => Ok(()),
            Effect::Remove => remove(&record, &item).await,
            Effect::RewritePolicy(content) => rewrite_policy(&item, &content),
        };
        if let Err(error) = result {
            on_step(&step, Some(&error));
            return Err(error);
        }
        record.items.retain(|known| *known != item);
        record.save(&config.state_dir)?;
        on_step(&step, None);
        if step.status == StepStatus::Cannot {
            left.push(step);
        }
    }
    if has_systemd(&record) {
        systemd::daemon_reload().await?;
    }
    Ok(Plan { steps: left })
}

async fn look(record: &Record, item: &RecordItem) -> Result<Step, SetupError> {
    let bridge = &record.bridge;
    let (gateway, prefix) = (record.network.gateway(), record.network.parts().1);
    Ok(match item {
        RecordItem::Folder { path } => {
            let how = path.display().to_string();
            match std::fs::read_dir(path) {
                Ok(_) => remove_step("folder", "remove the folder, if it is empty by then", &how, item),
                Err(_) => gone("folder", "the folder is gone", &how, item),
            }
        }
        RecordItem::Opened { path, mode } => {
            let how = format!("chmod {mode:04o} {}", path.display());
            match path.metadata() {
                Ok(meta) if meta.mode() & 0o7777 == mode | 0o001 => {
                    remove_step("folder", "close the folder to others again", &how, item)
                }
                Ok(_) => left("folder", "the folder's mode was changed since; it stays", &how, item),
                Err(_) => gone("folder", "the folder is gone", &how, item),
            }
        }
        RecordItem::File { path, .. } => {
            let how = path.display().to_string();
            match observe::file_at(path) {
                FileFound::Absent => gone("file", "the file is gone", &how, item),
                FileFound::Content(bytes) if record.wrote(path, &bytes) => remove_step("file", "remove the file", &how, item),
                FileFound::Content(_) | FileFound::Unusable => left(
                    "file",
                    "the file was changed since it was written; it stays, remove it by hand if you do not need it",
                    &how,
                    item,
                ),
            }
        }
        RecordItem::Link { path, target } => {
            let how = path.display().to_string();
            match observe::link_at(path) {
                LinkFound::Absent => gone("boot", "the link is gone", &how, item),
                LinkFound::To(found) if found == *target => remove_step("boot", "no longer start the unit at boot", &how, item),
                LinkFound::To(_) | LinkFound::Unusable => left("boot", "the link was changed since; it stays", &how, item),
            }
        }
        RecordItem::Bridge { awaited_since_boot } => {
            let how = format!("ovs-vsctl del-br {bridge}");
            let never_made = awaited_since_boot.as_ref().is_some_and(|boot| *boot == kernel::boot_id(Path::new("/proc")));
            match ovs::bridge_exists(bridge).await {
                Ok(true) => remove_step("bridge", &format!("remove the bridge {bridge}"), &how, item),
                Ok(false) => gone("bridge", "the bridge is gone", &how, item),
                Err(_) if never_made => gone("bridge", "the bridge was never created", &how, item),
                Err(error) => keep("bridge", &format!("{}; start Open vSwitch and run this again", chain(&error)), &how, item),
            }
        }
        RecordItem::Address => {
            let how = format!("ip address delete {gateway}/{prefix} dev {bridge}");
            let interfaces = ip::interfaces().await?;
            let interface = interfaces.iter().find(|interface| interface.name == bridge.as_str());
            if interface.is_some_and(|interface| interface.addresses.contains(&(gateway, prefix))) {
                remove_step("address", &format!("remove the address from {bridge}"), &how, item)
            } else {
                gone("address", "the address is gone", &how, item)
            }
        }
        RecordItem::Table => {
            let how = format!("nft delete table inet {TABLE}");
            match nft::ruleset().await {
                Ok(rules) if rules.count(TABLE).is_some() => {
                    remove_step("rules", "remove our table of the packet filter", &how, item)
                }
                Ok(_) => gone("rules", "our table of the packet filter is gone", &how, item),
                Err(error) => keep("rules", &format!("{}; install nftables and run this again", chain(&error)), &how, item),
            }
        }
        RecordItem::Forwarding => forwarding(item).await,
        RecordItem::Dhcp => {
            let how = format!("stop the dnsmasq of {}", record.dnsmasq_pid.display());
            match observe::dhcp(&record.dnsmasq_pid, &record.dhcp_settings())? {
                DhcpFound::Ours => remove_step("dhcp", "stop DHCP and DNS for guests", &how, item),
                DhcpFound::Off => gone("dhcp", "DHCP for guests does not run", &how, item),
                DhcpFound::Foreign => left("dhcp", "another dnsmasq runs; it stays", &how, item),
            }
        }
        RecordItem::Units => {
            let how = format!("systemctl stop {} {}", Unit::Dhcp.name(), Unit::Network.name());
            if active_units(record).await?.is_empty() {
                gone("services", "neither service runs", &how, item)
            } else {
                remove_step("services", "stop both services", &how, item)
            }
        }
        RecordItem::Policy { path, created, sha256: written, added } => policy_step(item, path, *created, written, added),
    })
}

/// Returns whether systemd must be notified.
fn has_systemd(record: &Record) -> bool {
    record.root == Path::new("/") && systemd::is_running()
}

async fn active_units(record: &Record) -> Result<Vec<Unit>, SetupError> {
    let mut active = Vec::new();
    if has_systemd(record) {
        for unit in Unit::ALL {
            if observe::is_active(unit).await? {
                active.push(unit);
            }
        }
    }
    Ok(active)
}

/// Plans to turn forwarding off, unless others need it by now, such as for source NAT.
async fn forwarding(item: &RecordItem) -> Step {
    let how = "sysctl net.ipv4.ip_forward=0";
    let needed = match nft::ruleset().await {
        Ok(rules) => rules.has_source_nat_besides(TABLE),
        Err(_) => true,
    };
    if !kernel::forwards_ipv4() {
        gone("forwarding", "the kernel does not forward packets", how, item)
    } else if needed {
        left("forwarding", "other programs on this host may need forwarding by now; it stays on until the next boot", how, item)
    } else {
        remove_step("forwarding", "switch forwarding off, as it was", how, item)
    }
}

fn policy_step(item: &RecordItem, path: &Path, created: bool, written: &str, added: &SlicePermissions) -> Step {
    let how = path.display().to_string();
    let broken = |why: &str| left("policy", &format!("the host policy stays as it is: {why}"), &how, item);
    let text = match observe::policy_at(path) {
        PolicyFound::Absent => return gone("policy", "the host policy is gone", &how, item),
        PolicyFound::Unusable(why) => return broken(&why),
        PolicyFound::Text(text) => text,
    };
    if created && sha256(text.as_bytes()) == written {
        return remove_step("policy", "remove the host policy that was written", &how, item);
    }
    match policy::retracted(&text, added) {
        Ok(content) if content == text => gone("policy", "the host policy does not allow it any more", &how, item),
        Ok(content) => {
            let what = "remove the permissions that were added to the host policy";
            step("policy", StepStatus::ToDo, what, &how, item, Effect::RewritePolicy(content))
        }
        Err(error) => broken(&error.to_string()),
    }
}

async fn remove(record: &Record, item: &RecordItem) -> Result<(), SetupError> {
    match item {
        RecordItem::Folder { path } => match std::fs::remove_dir(path) {
            // It contains other files.
            Err(error) if error.kind() != std::io::ErrorKind::DirectoryNotEmpty => gone_is_fine(Err(error), path),
            Ok(()) | Err(_) => Ok(()),
        },
        RecordItem::Opened { path, mode } => {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(*mode)).map_err(io("chmod", path))
        }
        RecordItem::File { path, .. } | RecordItem::Link { path, .. } | RecordItem::Policy { path, .. } => {
            gone_is_fine(std::fs::remove_file(path), path)
        }
        RecordItem::Bridge { .. } => Ok(ovs::remove_bridge(&record.bridge).await?),
        RecordItem::Address => {
            let (gateway, prefix) = (record.network.gateway(), record.network.parts().1);
            Ok(ip::remove_address(&record.bridge, gateway, prefix).await?)
        }
        RecordItem::Table => Ok(nft::remove_table(TABLE).await?),
        RecordItem::Forwarding => Ok(kernel::set_ipv4_forwarding(false)?),
        RecordItem::Dhcp => {
            if active_units(record).await?.contains(&Unit::Dhcp) {
                systemd::stop(Unit::Dhcp.name()).await?;
            }
            dnsmasq::stop(&record.dnsmasq_pid, &record.dhcp_settings()).await?;
            // Files that dnsmasq leaves behind.
            for path in [&record.dhcp_leases, &record.dnsmasq_pid] {
                gone_is_fine(std::fs::remove_file(path), path)?;
            }
            Ok(())
        }
        RecordItem::Units => {
            for unit in active_units(record).await? {
                systemd::stop(unit.name()).await?;
            }
            Ok(())
        }
    }
}

fn gone_is_fine(result: std::io::Result<()>, path: &Path) -> Result<(), SetupError> {
    match result {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io("remove", path)(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn rewrite_policy(item: &RecordItem, content: &str) -> Result<(), SetupError> {
    let RecordItem::Policy { path, .. } = item else { return Ok(()) };
    Ok(private_file::rewrite_trusted(path, content.as_bytes())?)
}

fn step(name: &'static str, status: StepStatus, what: &str, how: &str, item: &RecordItem, effect: Effect) -> Step {
    let action = Action::Undo(UndoAction { item: item.clone(), effect });
    Step { name, status, what: what.to_owned(), how: how.to_owned(), action: Some(action) }
}

fn remove_step(name: &'static str, what: &str, how: &str, item: &RecordItem) -> Step {
    step(name, StepStatus::ToDo, what, how, item, Effect::Remove)
}

fn gone(name: &'static str, what: &str, how: &str, item: &RecordItem) -> Step {
    step(name, StepStatus::Done, what, how, item, Effect::Forget)
}

fn left(name: &'static str, what: &str, how: &str, item: &RecordItem) -> Step {
    step(name, StepStatus::Cannot, what, how, item, Effect::Forget)
}

fn keep(name: &'static str, what: &str, how: &str, item: &RecordItem) -> Step {
    step(name, StepStatus::Cannot, what, how, item, Effect::Keep)
}
