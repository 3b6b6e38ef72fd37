//! Which key of the policy controls which parameter of a task.
//!
//! [`check`] uses this table: every parameter has a row with the key that controls it, or with the reason why no key has to. A test
//! compares the rows with the schema of every kind of task, so a parameter that is added without a row fails the test.

use gpuaas_contract::guest::{DriverStrategy, GuestSpec};
use gpuaas_contract::slice::LeasedSlot;
use gpuaas_contract::task::{Task, TaskType};

use super::Rules;
use super::bare_metal::BareMetalRules;

pub(super) struct Parameter {
    /// Path in the task's `params`; `[]` stands for every item of a list.
    pub(super) path: &'static str,
    pub(super) decided: Decided,
}

/// What decides whether the value of a parameter is allowed.
pub(super) enum Decided {
    /// A key of the policy allows the value or refuses the task.
    By { key: &'static str, check: fn(&Rules, &Task) -> Result<(), String> },
    /// A key of the policy caps the value instead of refusing the task: a refusal would leave a guest running that has to be removed.
    Limited { key: &'static str },
    /// No key controls the parameter, for this reason.
    Exempt { reason: &'static str },
}

const fn by(path: &'static str, key: &'static str, check: fn(&Rules, &Task) -> Result<(), String>) -> Parameter {
    Parameter { path, decided: Decided::By { key, check } }
}

const fn exempt(path: &'static str, reason: &'static str) -> Parameter {
    Parameter { path, decided: Decided::Exempt { reason } }
}

/// The refusal if a row is listed under a kind of task that does not have the parameter.
const MISTAKEN: &str = "the policy's table takes this task for another one";
const OPERATOR: &str = "operators only, bounded by the contract, and nothing is changed by it";
const BOUNDED: &str = "a number that the contract bounds";
const APPROVED: &str = "part of the slot that an operator approved; tenants choose slots by product only";

/// The allocation that the task acts for.
const HOLDER: &[Parameter] = &[
    exempt("allocation_id", "an id; the host's own leases say what it holds"),
    exempt("lease_epoch", "a number; the host's own leases and fences refuse an old one"),
];

/// The slots that the task acts on.
const SLOTS: &[Parameter] = &[
    exempt("slots[].slot_id", "an id; the host's own leases say who holds it"),
    exempt("slots[].spec.slot_index", APPROVED),
    by("slots[].spec.pci_address", "slices.pci_addresses", pci_addresses),
    by("slots[].spec.companions[]", "slices.pci_addresses", pci_addresses),
    by("slots[].spec.fabric_device", "slices.pci_addresses", pci_addresses),
    exempt("slots[].spec.nvme_device", "the drive is the one with the serial number, whatever its path"),
    by("slots[].spec.nvme_serial", "slices.nvme_serials", nvme_serials),
    exempt("slots[].spec.numa_node", APPROVED),
    exempt("slots[].spec.vcpu_count", APPROVED),
    exempt("slots[].spec.memory_mib", APPROVED),
    exempt("slots[].spec.mac_address", APPROVED),
    exempt("slots[].spec.private_ip", APPROVED),
];

const PROVISION: &[Parameter] = &[
    exempt("guest.vm_name", "the name that the guest gives itself; on the host everything is named by the allocation"),
    by("guest.image.path", "slices.image_sources", |rules, task| {
        provision(task, |guest| match guest.image.path {
            Some(_) => allow(&rules.slices.image_sources, "file", "image_sources"),
            None => Ok(()),
        })
    }),
    by("guest.image.url", "slices.image_sources", |rules, task| {
        provision(task, |guest| match &guest.image.url {
            Some(url) if !gpuaas_host::image::is_below_any(url, &rules.slices.image_sources) => {
                Err(format!("image_sources does not allow {url}"))
            }
            Some(_) | None => Ok(()),
        })
    }),
    exempt("guest.image.sha256", "a digest; the image is checked against it"),
    by("guest.image.format", "slices.image_formats", |rules, task| {
        provision(task, |guest| match rules.slices.image_formats.contains(&guest.image.format) {
            true => Ok(()),
            false => Err(format!("image_formats does not list {}", word(&guest.image.format))),
        })
    }),
    exempt("guest.image.trusted", "no check is left out for it"),
    by("guest.driver_strategy", "slices.driver_strategies", |rules, task| {
        provision(task, |guest| match guest.driver_strategy {
            DriverStrategy::None => Ok(()),
            wanted @ (DriverStrategy::CloudInit | DriverStrategy::Preinstalled)
                if rules.slices.driver_strategies.contains(&wanted) =>
            {
                Ok(())
            }
            wanted @ (DriverStrategy::CloudInit | DriverStrategy::Preinstalled) => {
                Err(format!("driver_strategies does not list {}", word(&wanted)))
            }
        })
    }),
    by("guest.default_username", "slices.usernames", |rules, task| {
        provision(task, |guest| {
            let name = &guest.default_username;
            match rules.slices.usernames.iter().any(|pattern| pattern.matches(name.as_str())) {
                true => Ok(()),
                false => Err(format!("usernames of [slices] does not allow {name}")),
            }
        })
    }),
    exempt("guest.ssh_public_keys[]", "lets people into the guest, and nowhere else"),
    by("guest.ovs_bridge", "slices.bridges", |rules, task| {
        provision(task, |guest| rules.slices.bridge(guest.ovs_bridge.as_ref()).map(|_| ()))
    }),
    by("guest.graceful_timeout_seconds", "slices.max_shutdown_seconds", |rules, task| {
        provision(task, |guest| rules.slices.allows_shutdown_time(guest.shutdown_seconds()))
    }),
    by("guest.graphics", "slices.allow_graphics", |rules, task| {
        provision(task, |guest| match guest.graphics && !rules.slices.allow_graphics {
            true => Err("allow_graphics is false".to_owned()),
            false => Ok(()),
        })
    }),
];

const RELEASE: &[Parameter] = &[
    Parameter { path: "graceful_timeout_seconds", decided: Decided::Limited { key: "slices.max_shutdown_seconds" } },
    exempt("wipe", "without it the slot stays closed to everybody until it is wiped"),
    exempt("take_over", "the host's own leases decide: only a lease with a lower number is taken over"),
];

const POWER: &[Parameter] = &[
    exempt("action", "each of them is about the holder's own guest, and allowed_tasks decides about all of them"),
    Parameter { path: "graceful_timeout_seconds", decided: Decided::Limited { key: "slices.max_shutdown_seconds" } },
    exempt("answer_timeout_seconds", BOUNDED),
];

const CONSOLE: &[Parameter] = &[exempt("tail_bytes", BOUNDED), exempt("follow_seconds", BOUNDED)];

const PROVISION_USER: &[Parameter] = &[
    by("username", "bare_metal.usernames", tenant_username),
    exempt("ssh_public_keys[]", "lets people in as the user that `usernames` allows; options of keys reach nobody"),
    by("sudo", "bare_metal.allow_sudo", |rules, task| {
        let Task::AllocationProvisionUser(params) = task else { return Err(MISTAKEN.to_owned()) };
        if params.sudo && !rules.bare_metal.as_ref().is_some_and(BareMetalRules::allows_sudo) {
            return Err("allow_sudo of [bare_metal] is false".to_owned());
        }
        Ok(())
    }),
];

const DEPROVISION_USER: &[Parameter] = &[
    by("username", "bare_metal.usernames", tenant_username),
    exempt("take_over", "the host's own leases decide: only a lease with a lower number is taken over"),
];

const PING: &[Parameter] = &[exempt("message", OPERATOR), exempt("hold_ms", OPERATOR), exempt("log_lines", OPERATOR)];

const PACKAGES: &[Parameter] = &[exempt("name_contains", OPERATOR), exempt("limit", OPERATOR)];

const DISCOVER: &[Parameter] = &[
    exempt("ovs_bridge", OPERATOR),
    exempt("private_subnet", OPERATOR),
    exempt("vcpu_count", OPERATOR),
    exempt("memory_mib", OPERATOR),
];

/// The rows of a kind of task.
pub(super) const fn of(kind: TaskType) -> &'static [&'static [Parameter]] {
    match kind {
        TaskType::DiagPing => &[PING],
        TaskType::DiagHealthProbe => &[],
        TaskType::PackageList => &[PACKAGES],
        TaskType::SliceTopologyDiscover => &[DISCOVER],
        TaskType::SliceVmProvision => &[HOLDER, SLOTS, PROVISION],
        TaskType::SliceVmRelease => &[HOLDER, SLOTS, RELEASE],
        TaskType::SliceVmPower => &[HOLDER, SLOTS, POWER],
        TaskType::SliceConsoleRead => &[HOLDER, CONSOLE],
        TaskType::AllocationProvisionUser => &[HOLDER, PROVISION_USER],
        TaskType::AllocationDeprovisionUser => &[HOLDER, DEPROVISION_USER],
    }
}

/// One line per parameter of each kind of task, saying what controls it.
pub(super) fn lines() -> Vec<String> {
    let mut lines = Vec::new();
    for kind in TaskType::ALL {
        for Parameter { path, decided } in of(kind).iter().copied().flatten() {
            lines.push(match decided {
                Decided::By { key, .. } => format!("{kind}  {path}  {key}"),
                Decided::Limited { key } => format!("{kind}  {path}  limited by {key}"),
                Decided::Exempt { reason } => format!("{kind}  {path}  no key: {reason}"),
            });
        }
    }
    lines
}

/// Refuses the task unless the policy allows all of its parameters.
pub(super) fn check(rules: &Rules, task: &Task) -> Result<(), String> {
    for parameter in of(task.task_type()).iter().copied().flatten() {
        match parameter.decided {
            Decided::By { check, .. } => check(rules, task)?,
            Decided::Limited { .. } | Decided::Exempt { .. } => {}
        }
    }
    Ok(())
}

fn pci_addresses(rules: &Rules, task: &Task) -> Result<(), String> {
    let mut functions = task.slots().iter().flat_map(|slot: &LeasedSlot| slot.spec.functions());
    functions.try_for_each(|function| allow(&rules.slices.pci_addresses, function.as_str(), "pci_addresses"))
}

fn nvme_serials(rules: &Rules, task: &Task) -> Result<(), String> {
    let mut slots = task.slots().iter();
    slots.try_for_each(|slot| allow(&rules.slices.nvme_serials, &slot.spec.nvme_serial, "nvme_serials"))
}

fn provision(task: &Task, check: impl FnOnce(&GuestSpec) -> Result<(), String>) -> Result<(), String> {
    let Task::SliceVmProvision(params) = task else { return Err(MISTAKEN.to_owned()) };
    check(&params.guest)
}

fn tenant_username(rules: &Rules, task: &Task) -> Result<(), String> {
    let username = if let Task::AllocationProvisionUser(params) = task {
        &params.username
    } else if let Task::AllocationDeprovisionUser(params) = task {
        &params.username
    } else {
        return Err(MISTAKEN.to_owned());
    };
    super::bare_metal::check_username(rules.bare_metal.as_ref(), username)
}

fn allow(list: &[String], wanted: &str, name: &str) -> Result<(), String> {
    if list.iter().any(|entry| entry == "*" || entry == wanted) {
        return Ok(());
    }
    Err(format!("{name} does not list {wanted}"))
}

/// The value as it is spelled in policies and tasks.
fn word(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default().trim_matches('"').to_owned()
}

#[cfg(test)]
mod tests;
