//! `cargo xtask lab vfio`: the agent on an emulated host with an IOMMU, two NVMe drives and an AMD graphics card.
//!
//! Unit tests use folders that look like sysfs; this lab uses the sysfs of a real kernel. It checks that the agent finds the
//! devices, that devices move to vfio-pci and back, that they are reset, and that they return to vfio-pci after something took
//! them away. The agent's own commands (`gpuaas-agent topology` and `gpuaas-agent device`) do all of it, and a script compares
//! the result with the kernel.
//!
//! Three things are not real: the script creates the links that udev would create for drives, the fence names a guest that this
//! host never had, and a `virsh` that lists no guests replaces the hypervisor. The agent does not run as a service here, because
//! that needs an identity and a server. A running agent repairs every 30 seconds, with the same code, what `device reconcile` repairs once.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::cleanup::Cleanup;
use super::initrd::Initrd;
use super::kernel::Kernel;
use super::program::run as run_program;
use super::vfio_host::{DRIVES, VfioHost};
use super::{cache, requirements};
use crate::test::temporary_folder;

/// A host boots within seconds, or within a minute on a busy machine.
const DEADLINE: Duration = Duration::from_secs(180);

/// Commands of the host's owner need no permission, and the lab runs no tasks.
const POLICY: &str = "allowed_tasks = []\n";
const CONFIGURATION: &str = "log_level = \"warn\"\n";
/// A `virsh` that lists no guests, whatever its arguments.
const VIRSH: &str = "#!/bin/sh\nexit 0\n";

/// Blockers that a slot has because the emulated host is small.
const BLOCKERS_OF_A_SMALL_HOST: [&str; 2] = ["memory_short", "cpu_short"];
/// Blockers that appear if passthrough does not work.
const BLOCKERS_OF_PASSTHROUGH: [&str; 2] = ["iommu_off", "vfio_modules_missing"];

// Prefixes of the script's lines that this program parses.
const SYSFS: &str = "sysfs: ";
const LISTED: &str = "listed: ";
const TOPOLOGY: &str = "topology: ";
const DISCOVERED: &str = "discovered";

/// `check` prints what it found, and ends the script if that is wrong. `agent_says` does the same with the agent's output.
const SCRIPT: &str = r#"
fail() { echo "wrong: $1"; cat /tmp/errors; dmesg | tail -n 20; exit 1; }
check() { echo "check: $1: $2"; [ "$2" = "$3" ] || fail "expected $3"; }
agent() { gpuaas-agent "$@" 2> /tmp/errors; }
agent_says() {
    what=$1 status=$2 words=$3; shift 3
    said=$(agent "$@"); ended=$?
    [ "$ended" = 0 ] || said=$(cat /tmp/errors)
    echo "check: $what: $said"
    [ "$ended" = "$status" ] || fail "it ended with $ended, not $status"
    case $said in *"$words"*) ;; *) fail "it does not say: $words" ;; esac
}
nothing_to_repair() { said=$(agent device reconcile) || fail "no answer"; check "the agent finds to repair" "${reported:-nothing}" nothing; }
at() { echo "/sys/bus/pci/devices/$1"; }
driver() { [ -e "$(at $1)/driver" ] && basename "$(readlink "$(at $1)/driver")" || echo none; }
group() { basename "$(readlink "$(at $1)/iommu_group")"; }
others() { ls "$(at $1)/iommu_group/devices" | grep -v "$1" | tr '\n' ' '; }
pinned() { sed 's/^(null)$/nobody/' "$(at $1)/driver_override"; }
openable() { [ -c "/dev/vfio/$(group $1)" ] && echo yes || echo no; }
wait_for() { tries=100; until eval "$1" || [ "$tries" = 0 ]; do tries=$((tries - 1)); sleep 0.1; done; }

# From here on the console is ours.
dmesg -n 1
: > /tmp/errors
mkdir -p /dev/disk/by-id
for controller in /sys/class/nvme/nvme*; do
    address=$(basename "$(readlink "$controller/device")")
    serial=$(sed 's/ *$//' "$controller/serial")
    namespace=${controller##*/}n1
    wait_for "[ -e /dev/$namespace ]"
    ln -s "../../$namespace" "/dev/disk/by-id/nvme-$(sed 's/ *$//; s/ /_/g' "$controller/model")_$serial"
    case $serial in LAB0) in_use=/dev/$namespace ;; LAB1) drive=$address ;; esac
    echo "sysfs: $address nvme $(driver $address) $(group $address) $serial $(others $address)"
done
for path in /sys/bus/pci/devices/*; do
    case $(cat "$path/vendor"):$(cat "$path/class") in 0x1002:0x03*) gpu=${path##*/} ;; esac
done
echo "sysfs: $gpu gpu $(driver $gpu) $(group $gpu) - $(others $gpu)"
mkswap "$in_use" > /dev/null && swapon "$in_use" || fail "the host cannot use a drive itself"

agent topology > /tmp/answer || fail "no topology"
sed 's/^/topology: /' /tmp/answer
agent device ls > /tmp/answer || fail "no list of devices"
sed 's/^/listed: /' /tmp/answer
echo discovered

echo "==> the graphics card $gpu changes hands"
before=$(driver $gpu)
agent_says bind 0 "held by vfio-pci" device bind $gpu
check "its driver" "$(driver $gpu)" vfio-pci
check "its group can be opened" "$(openable $gpu)" yes
agent_says "bind once more" 0 "held by vfio-pci" device bind $gpu
check "its reset goes by way of" "$(cat "$(at $gpu)/reset_method")" bus
agent_says reset 0 "$gpu reset; it is held by vfio-pci" device reset $gpu
echo > "$(at $gpu)/reset_method"
agent_says "reset without a way" 1 "has no reset of its own" device reset $gpu
echo default > "$(at $gpu)/reset_method"
agent_says give-back 0 "given back" device give-back $gpu
check "its driver" "$(driver $gpu)" $before
check "it is pinned to" "$(pinned $gpu)" nobody
check "its group can be opened" "$(openable $gpu)" no

echo "==> the drive $drive that nobody uses changes hands"
check "its driver" "$(driver $drive)" nvme
agent_says bind 0 "held by vfio-pci" device bind $drive
check "its driver" "$(driver $drive)" vfio-pci
check "its group can be opened" "$(openable $drive)" yes
check "the host has disks of its serial number" "$(cat /sys/block/nvme*/device/serial | grep -c LAB1)" 0
check "its reset goes by way of" "$(cut -d ' ' -f 1 "$(at $drive)/reset_method")" flr
# Its register of configuration, with what the driver before wrote into it. It must be awake to be read.
echo on > "$(at $drive)/power/control"
configuration=$(($(head -n 1 "$(at $drive)/resource" | cut -d ' ' -f 1) + 0x14))
left=$(devmem $configuration 32)
echo "check: its configuration is left over from the driver before: $left"
case $left in 0x00000000 | 0xFFFFFFFF | "") fail "expected something" ;; esac
agent_says reset 0 "$drive reset; it is held by vfio-pci" device reset $drive
check "its configuration" "$(devmem $configuration 32)" 0x00000000
agent_says give-back 0 "held by nvme" device give-back $drive
check "its driver" "$(driver $drive)" nvme
check "it is pinned to" "$(pinned $drive)" nobody
check "its group can be opened" "$(openable $drive)" no
wait_for "grep -q LAB1 /sys/block/nvme*/device/serial 2> /dev/null"
check "the agent sees its disk again" "$(agent topology | grep -c '"serial": "LAB1"')" 1

echo "==> what cannot go to guests stays where it is"
port=$(basename "$(dirname "$(readlink -f "$(at $gpu)")")")
check "the driver of the bridge $port" "$(driver $port)" pcieport
agent_says "bind the bridge" 1 "did not go to vfio-pci" device bind $port
check "its driver" "$(driver $port)" pcieport
check "it is pinned to" "$(pinned $port)" nobody
agent_says "bind nobody" 1 "there is no 0000:7f:00.0 on this host's bus" device bind 0000:7f:00.0
agent_says "bind nonsense" 1 "error: " device bind ../../etc

echo "==> somebody takes away what this host has given to guests before"
slot=slot_0192f0c1a2b37c4d8e5f60718293a4b5
mkdir -p /var/lib/gpuaas/agent/leases/fences
cat > /var/lib/gpuaas/agent/leases/fences/$slot.json << END
{"slot_id":"$slot","lease_epoch":1,"allocation_id":"alloc_0192f0c1a2b37c4d8e5f60718293a4b6","functions":["$gpu"],"over":true}
END
agent_says bind 0 "held by vfio-pci" device bind $gpu
nothing_to_repair
echo $gpu > /sys/bus/pci/drivers/vfio-pci/unbind
check "its driver after an unbind from outside" "$(driver $gpu)" none
agent_says reconcile 0 "repaired function_off_vfio" device reconcile
check "its driver" "$(driver $gpu)" vfio-pci
check "its group can be opened" "$(openable $gpu)" yes
nothing_to_repair
"#;

/// Boots the host and runs the script in it. Returns true if the script succeeded.
pub(super) fn run() -> Result<bool, String> {
    requirements::ensure(&requirements::FOR_VFIO)?;
    let kernel = Kernel::ensure(&cache()?)?;
    let agent = super::cluster::programs(true)?.join("gpuaas-agent");
    let started = Instant::now();
    let mut cleanup = Cleanup::start()?;
    let folder = temporary_folder(Path::new("/tmp"))?;
    cleanup.remove(&folder)?;
    println!("==> booting the emulated host");
    let mut host = VfioHost::boot(&kernel, with_agent(&agent, &folder)?, SCRIPT, &folder)?;
    let mut discovery = Discovery::default();
    let mut checks = 0;
    let mut wrong = None;
    let status = host.follow(DEADLINE, |line| {
        if discovery.takes(line) {
            return ControlFlow::Continue(());
        }
        if line != DISCOVERED {
            checks += u32::from(line.starts_with("check: "));
            println!("{}{line}", if line.starts_with("==>") { "" } else { "    " });
            return ControlFlow::Continue(());
        }
        println!("==> the agent finds what is there");
        match discovery.check(|check| println!("    check: {check}")) {
            Ok(count) => {
                checks += count;
                ControlFlow::Continue(())
            }
            Err(error) => {
                wrong = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    if let Some(error) = wrong {
        return Err(format!("what the agent found is not what is there: {error}"));
    }
    let seconds = started.elapsed().as_secs_f32();
    if status == Some(0) {
        println!("the agent found, bound, reset, gave back and repaired devices as it should: {checks} checks in {seconds:.0} s");
    } else {
        println!("the last check failed, after {checks} checks in {seconds:.0} s");
    }
    Ok(status == Some(0))
}

/// Adds the agent to the host's file system, without debug information, which would be most of the program.
fn with_agent(agent: &Path, folder: &Path) -> Result<Initrd, String> {
    let stripped = folder.join("gpuaas-agent");
    run_program(Command::new("strip").arg("--strip-all").arg("-o").args([&stripped, agent]))?;
    let mut initrd = Initrd::default();
    initrd.program(&stripped, "/bin/gpuaas-agent")?;
    initrd.file("/etc/gpuaas-agent/config.toml", CONFIGURATION);
    initrd.file("/etc/gpuaas-agent/policy.toml", POLICY);
    initrd.script("/usr/bin/virsh", VIRSH);
    Ok(initrd)
}

/// What the script found in sysfs, and what the agent reports about the same host.
#[derive(Default)]
struct Discovery {
    sysfs: Vec<Device>,
    listed: Vec<Device>,
    topology: String,
}

/// A PCI device, with its kind, its driver and its IOMMU group.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Device {
    address: String,
    kind: String,
    driver: String,
    group: String,
    /// Not part of the agent's list: the serial number of a drive, and the other devices in the IOMMU group.
    serial: String,
    others: Vec<String>,
}

impl Device {
    /// Parses a device from a line of the script.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace().map(str::to_owned);
        let (address, kind, driver) = (words.next()?, words.next()?, words.next()?);
        Some(Self { address, kind, driver, group: words.next()?, serial: words.next()?, others: words.collect() })
    }

    /// Parses a device from a line of `gpuaas-agent device ls`.
    fn parse_listed(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [address, kind, _, "driver", driver, "group", group, ..] = words[..] else { return None };
        let driver = if driver == "-" { "none" } else { driver };
        let [address, kind, driver, group] = [address, kind, driver, group].map(str::to_owned);
        Some(Self { address, kind, driver, group, serial: String::new(), others: vec![] })
    }

    fn as_listed(&self) -> Self {
        Self { serial: String::new(), others: vec![], ..self.clone() }
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} with {} in group {}", self.address, self.kind, self.driver, self.group)
    }
}

impl Discovery {
    /// Takes a line of the script's output. Returns false if the line is not about the discovery.
    fn takes(&mut self, line: &str) -> bool {
        if let Some(line) = line.strip_prefix(SYSFS) {
            self.sysfs.extend(Device::parse(line));
        } else if let Some(line) = line.strip_prefix(LISTED) {
            self.listed.extend(Device::parse_listed(line));
        } else if let Some(line) = line.strip_prefix(TOPOLOGY) {
            self.topology.push_str(line);
        } else {
            return false;
        }
        true
    }

    /// Passes every comparison that holds to `each`, and returns how many there are. The error describes the first that does not hold.
    fn check(&self, mut each: impl FnMut(&str)) -> Result<u32, String> {
        let topology: Value = serde_json::from_str(&self.topology).map_err(|error| format!("the topology: {error}"))?;
        let (gpus, drives): (Vec<&Device>, Vec<&Device>) = self.sysfs.iter().partition(|device| device.kind == "gpu");
        let [gpu] = gpus[..] else { return Err(format!("sysfs has {} GPUs, expected 1", gpus.len())) };
        let mut count = 0;
        let mut same = |what: &str, found: Value, expected: Value| {
            if found != expected {
                return Err(format!("{what}: {found}, expected {expected}"));
            }
            count += 1;
            each(&format!("{what}: {found}"));
            Ok(())
        };

        let serials: Vec<&str> = drives.iter().map(|drive| drive.serial.as_str()).collect();
        same("the drives in sysfs", json!(serials), json!(DRIVES))?;
        let groups: BTreeSet<&str> = self.sysfs.iter().map(|device| device.group.as_str()).collect();
        let alone = self.sysfs.iter().all(|device| device.others.is_empty());
        same("devices that have a group of their own", json!(if alone { groups.len() } else { 0 }), json!(DRIVES.len() + 1))?;

        let fields = ["pci_address", "vendor_id", "iommu_group", "iommu_group_members", "driver"];
        let group: u32 = gpu.group.parse().map_err(|_| format!("{} has the group {}", gpu.address, gpu.group))?;
        let driver = if gpu.driver == "none" { "" } else { &gpu.driver };
        let expected = json!([[gpu.address, "1002", group, gpu.others, driver]]);
        same("the GPU by address, vendor, group, others in it, driver", columns(&topology["gpu_devices"], &fields), expected)?;

        let fields = ["serial", "pci_address", "used_by"];
        let used_by = |drive: &Device| if drive.serial == DRIVES[0] { vec!["swap"] } else { vec![] };
        let expected: Vec<Value> = drives.iter().map(|drive| json!([drive.serial, drive.address, used_by(drive)])).collect();
        same("the drives by serial number, address, use", columns(&topology["nvme_devices"], &fields), json!(expected))?;

        let mut expected: Vec<Device> = self.sysfs.iter().map(Device::as_listed).collect();
        expected.sort_by(|one, other| one.address.cmp(&other.address));
        let shown = |devices: &[Device]| json!(devices.iter().map(ToString::to_string).collect::<Vec<_>>());
        same("device ls", shown(&self.listed), shown(&expected))?;

        let fields = ["pci_address", "companions", "nvme_serial", "nvme_device"];
        let path = format!("/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_{}", DRIVES[1]);
        let slots = &topology["candidate_slots"];
        same("the slot of GPU and free drive", columns(slots, &fields), json!([[gpu.address, [], DRIVES[1], path]]))?;
        same("what stands in its way", json!(codes(&slots[0]["blockers"])), json!(BLOCKERS_OF_A_SMALL_HOST))?;
        let of_host = codes(&topology["candidate_summary"]["blockers"]);
        let in_the_way: Vec<_> = of_host.iter().filter(|code| BLOCKERS_OF_PASSTHROUGH.contains(code)).collect();
        same("what keeps devices of this host from guests", json!(in_the_way), json!([]))?;
        Ok(count)
    }
}

/// Returns the given fields of every object in a list.
fn columns(list: &Value, fields: &[&str]) -> Value {
    let row = |object: &Value| -> Value { fields.iter().map(|field| object[field].clone()).collect() };
    list.as_array().into_iter().flatten().map(row).collect()
}

/// Returns the codes of a list of blockers.
fn codes(blockers: &Value) -> Vec<&str> {
    blockers.as_array().into_iter().flatten().filter_map(|blocker| blocker["code"].as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of a run, abridged.
    const LINES: &str = r#"sysfs: 0000:01:00.0 nvme nvme 5 LAB0
sysfs: 0000:02:00.0 nvme nvme 6 LAB1
sysfs: 0000:03:00.0 gpu none 7 -
topology: {"gpu_devices": [{"pci_address": "0000:03:00.0", "vendor_id": "1002", "device_id": "5046", "driver": "",
topology: "iommu_group": 7, "iommu_group_members": []}],
topology: "nvme_devices": [{"serial": "LAB0", "pci_address": "0000:01:00.0", "used_by": ["swap"]},
topology: {"serial": "LAB1", "pci_address": "0000:02:00.0", "used_by": []}],
topology: "candidate_slots": [{"pci_address": "0000:03:00.0", "companions": [], "nvme_serial": "LAB1",
topology: "nvme_device": "/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_LAB1", "blockers": [{"code": "memory_short"}, {"code": "cpu_short"}]}],
topology: "candidate_summary": {"blockers": [{"code": "kvm_missing"}]}}
listed: 0000:01:00.0  nvme    1b36:0010 driver nvme         group 5    numa -1
listed: 0000:02:00.0  nvme    1b36:0010 driver nvme         group 6    numa -1
listed: 0000:03:00.0  gpu     1002:5046 driver -            group 7    numa -1"#;

    fn check(lines: &str) -> Result<u32, String> {
        let mut discovery = Discovery::default();
        for line in lines.lines() {
            assert!(discovery.takes(line), "{line}");
        }
        discovery.check(|_| {})
    }

    #[test]
    fn a_discovery_that_is_true_passes_and_any_that_is_not_fails() {
        assert_eq!(check(LINES), Ok(8));
        for (from, to, complaint) in [
            ("\"iommu_group\": 7", "\"iommu_group\": 6", "the GPU"),
            ("\"1002\"", "\"10de\"", "the GPU"),
            ("[\"swap\"]", "[]", "the drives by"),
            ("gpu none 7", "gpu none 6", "a group of their own"),
            ("6 LAB1", "6 LAB1 0000:00:02.0", "a group of their own"),
            ("nvme 6 LAB1", "nvme 6 LAB2", "the drives in sysfs"),
            ("group 6", "group 9", "device ls"),
            ("\"nvme_serial\": \"LAB1\"", "\"nvme_serial\": \"LAB0\"", "the slot"),
            ("memory_short", "nvme_missing", "in its way"),
            ("kvm_missing", "iommu_off", "from guests"),
        ] {
            let error = check(&LINES.replacen(from, to, 1)).expect_err(to);
            assert!(error.contains(complaint), "{to}: {error}");
        }
    }

    #[test]
    fn other_lines_are_for_people() {
        assert!(!Discovery::default().takes("check: its driver: vfio-pci"));
        assert!(!Discovery::default().takes(DISCOVERED));
    }
}
