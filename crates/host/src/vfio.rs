//! PCI functions and the driver for guests, through sysfs.
//!
//! A function is pinned to a driver by name (`driver_override`), unbound from its current driver and probed again. The result is
//! always read back: a successful write is not a proof.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use gpuaas_contract::cleanup::{RESTING_DRIVER, Reset};
use gpuaas_contract::slice::PciAddress;

use crate::guests::FunctionState;
use crate::{HostError, pci, sysfs};

/// `IORESOURCE_MEM` in the kernel.
const IN_MEMORY: u64 = 0x200;
/// `IORESOURCE_UNSET`: it has a size but no address.
const UNSET: u64 = 0x2000_0000;

/// Writes a text to an attribute of sysfs.
type Put<'a> = &'a dyn Fn(&Path, &str) -> std::io::Result<()>;

/// Returns the state of a function and its driver.
pub(crate) fn state(sys: &Path, address: &PciAddress) -> Result<FunctionState, HostError> {
    let device = function(sys, address)?;
    let functions = pci::functions(sys);
    let Some(own) = functions.iter().find(|function| function.address == *address) else { return Err(missing(address)) };
    let in_group = |other: &&pci::PciFunction| {
        own.iommu_group.is_some() && other.iommu_group == own.iommu_group && other.address != *address && !other.is_bridge()
    };
    let bars = parse_bars(&sysfs::text(device.join("resource")));
    Ok(FunctionState {
        address: address.clone(),
        driver: own.driver.clone(),
        iommu_group: own.iommu_group,
        group_members: functions.iter().filter(in_group).map(|other| other.address.clone()).collect(),
        bar_bytes: bars.bytes,
        bars_assigned: bars.assigned,
        can_reset: can_reset(&device),
    })
}

/// Binds a function to the driver for guests, whatever driver had it.
pub(crate) fn bind(sys: &Path, address: &PciAddress) -> Result<(), HostError> {
    bind_with(sys, address, &put)
}

fn bind_with(sys: &Path, address: &PciAddress, put: Put<'_>) -> Result<(), HostError> {
    let device = function(sys, address)?;
    let before = driver(&device);
    if before == RESTING_DRIVER {
        return Ok(());
    }
    let steps = || -> Result<(), String> {
        let reported = |what: &str, error: std::io::Error| format!("{what}: {error}");
        put(&device.join("driver_override"), RESTING_DRIVER).map_err(|e| reported("driver_override", e))?;
        if !before.is_empty() {
            put(&device.join("driver/unbind"), address.as_str()).map_err(|e| reported("unbind", e))?;
        }
        put(&sys.join("bus/pci/drivers_probe"), address.as_str()).map_err(|e| reported("drivers_probe", e))
    };
    let reported = steps().err();
    if driver(&device) == RESTING_DRIVER {
        return Ok(());
    }
    // A pinned function would never get another driver. It gets its old driver back; one without a driver is not probed.
    let _ = put(&device.join("driver_override"), "\n");
    if !before.is_empty() && driver(&device).is_empty() {
        let _ = put(&sys.join("bus/pci/drivers_probe"), address.as_str());
    }
    let now = driver(&device);
    let now = if now.is_empty() { "no driver has it" } else { &now };
    let reported = reported.unwrap_or_else(|| "the kernel did not report why; check its log".to_owned());
    Err(HostError::new("function_not_bound", format!("{address} did not go to {RESTING_DRIVER} ({reported}); now: {now}")))
}

/// Returns a function to the host's default driver. One that is not bound to the guests' driver is left alone.
pub(crate) fn give_back(sys: &Path, address: &PciAddress) -> Result<(), HostError> {
    give_back_with(sys, address, &put)
}

fn give_back_with(sys: &Path, address: &PciAddress, put: Put<'_>) -> Result<(), HostError> {
    let device = function(sys, address)?;
    let kept = |what: &str, error: std::io::Error| {
        HostError::new("function_not_given_back", format!("{address} stays with {}: {what}: {error}", driver(&device)))
    };
    put(&device.join("driver_override"), "\n").map_err(|error| kept("driver_override", error))?;
    let before = driver(&device);
    if !before.is_empty() && before != RESTING_DRIVER {
        return Ok(());
    }
    if before == RESTING_DRIVER {
        put(&device.join("driver/unbind"), address.as_str()).map_err(|error| kept("unbind", error))?;
    }
    // A host without a driver for it is not an error, and neither is a driver that refuses it: it then has no driver.
    let probed = put(&sys.join("bus/pci/drivers_probe"), address.as_str());
    if driver(&device) == RESTING_DRIVER {
        let error = probed.err().unwrap_or_else(|| std::io::Error::other("the kernel gave it to the same driver again"));
        return Err(kept("drivers_probe", error));
    }
    Ok(())
}

/// Resets a function.
pub(crate) fn reset(sys: &Path, address: &PciAddress) -> Result<Reset, HostError> {
    let device = function(sys, address)?;
    if !can_reset(&device) {
        return Ok(Reset::Unsupported);
    }
    Ok(match put(&device.join("reset"), "1") {
        Ok(()) => Reset::Done,
        Err(error) => {
            tracing::warn!(%address, %error, "a function was not reset");
            Reset::Failed
        }
    })
}

/// Returns the function's folder.
fn function(sys: &Path, address: &PciAddress) -> Result<PathBuf, HostError> {
    let device = sys.join("bus/pci/devices").join(address.as_str());
    if device.exists() { Ok(device) } else { Err(missing(address)) }
}

fn missing(address: &PciAddress) -> HostError {
    HostError::new("function_missing", format!("there is no {address} on this host's bus; it may have failed or been removed"))
}

fn driver(device: &Path) -> String {
    sysfs::link_name(device.join("driver"))
}

/// Returns whether the kernel can reset it. The file exists if there is a method; newer kernels also list the methods, and the
/// list may have been emptied.
fn can_reset(device: &Path) -> bool {
    let methods = device.join("reset_method");
    device.join("reset").exists() && (!methods.exists() || !sysfs::text(methods).is_empty())
}

/// Writes an attribute with one write, as sysfs requires. It never creates a file: a missing name is an error.
fn put(attribute: &Path, text: &str) -> std::io::Result<()> {
    std::fs::OpenOptions::new().write(true).truncate(true).open(attribute)?.write_all(text.as_bytes())
}

#[derive(Debug, PartialEq, Eq)]
struct Bars {
    bytes: u64,
    assigned: bool,
}

/// Parses the BARs of a `resource` file: first, last and flags in hex, one line each. The first six are the function's own; then
/// come its ROM, and windows of bridges or of virtual functions.
fn parse_bars(text: &str) -> Bars {
    let mut bars = Bars { bytes: 0, assigned: !text.is_empty() };
    for line in text.lines().take(6) {
        let mut fields = line.split_whitespace().map(|field| u64::from_str_radix(field.trim_start_matches("0x"), 16).ok());
        let (Some(Some(first)), Some(Some(last)), Some(Some(flags))) = (fields.next(), fields.next(), fields.next()) else {
            bars.assigned = false;
            continue;
        };
        if flags & IN_MEMORY == 0 || last < first {
            continue;
        }
        bars.bytes = bars.bytes.saturating_add((last - first).saturating_add(1));
        bars.assigned &= first != 0 && flags & UNSET == 0;
    }
    bars
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::Mutex;

    use super::*;
    use crate::pci::tests::device;

    const GPU: &str = "0000:18:00.0";

    fn address(text: &str) -> PciAddress {
        text.parse().expect("address")
    }

    /// Creates a bus with a GPU that is bound to `driver`, its audio function and a bridge, all in one group.
    fn bus(driver: &str) -> tempfile::TempDir {
        let sys = tempfile::tempdir().expect("folder");
        let mut gpu = vec![
            ("vendor", "0x10de"),
            ("class", "0x030200"),
            ("iommu_group", "17"),
            ("driver_override", "(null)"),
            ("reset", ""),
            ("resource", include_str!("../testdata/pci-resource-gpu").trim_end()),
        ];
        if !driver.is_empty() {
            gpu.push(("driver", driver));
        }
        device(sys.path(), "pci0000:16/0000:16:01.0", GPU, &gpu);
        device(sys.path(), "pci0000:16/0000:16:01.0", "0000:18:00.1", &[("class", "0x040300"), ("iommu_group", "17")]);
        device(sys.path(), "pci0000:16", "0000:16:01.0", &[("class", "0x060400"), ("iommu_group", "17")]);
        device(sys.path(), "pci0000:16", "0000:16:02.0", &[("class", "0x020000"), ("iommu_group", "18")]);
        std::fs::write(sys.path().join("bus/pci/drivers_probe"), "").expect("written");
        sys
    }

    /// Simulates the kernel: records every write, unbinds, and on a probe binds the function to `chooses` or, if it is pinned, to
    /// that driver.
    fn kernel<'a>(
        sys: &'a Path,
        chooses: &'a str,
        written: &'a Mutex<Vec<(String, String)>>,
    ) -> impl Fn(&Path, &str) -> std::io::Result<()> + 'a {
        move |path, text| {
            put_or_remember(path, text)?;
            let name = sysfs::name(path);
            written.lock().expect("written").push((name.clone(), text.to_owned()));
            let link = sys.join("bus/pci/devices").join(GPU).join("driver");
            if name == "unbind" {
                std::fs::remove_file(&link)?;
            }
            if name == "drivers_probe" {
                let pinned = sysfs::text(sys.join("bus/pci/devices").join(GPU).join("driver_override"));
                let driver = if pinned.is_empty() { chooses } else { &pinned };
                if !driver.is_empty() {
                    symlink(sys.join("targets/driver").join(driver), link)?;
                }
            }
            Ok(())
        }
    }

    fn put_or_remember(path: &Path, text: &str) -> std::io::Result<()> {
        if path.ends_with("driver/unbind") { std::fs::write(path, text) } else { put(path, text) }
    }

    fn steps(written: &Mutex<Vec<(String, String)>>) -> Vec<String> {
        written.lock().expect("written").iter().map(|(name, text)| format!("{name}={}", text.trim())).collect()
    }

    #[test]
    fn a_function_has_a_driver_a_group_without_bridges_and_windows() {
        let sys = bus("nvidia");
        let state = state(sys.path(), &address(GPU)).expect("state");
        assert_eq!((state.driver.as_str(), state.iommu_group), ("nvidia", Some(17)));
        assert_eq!(state.group_members, [address("0000:18:00.1")]);
        assert_eq!(state.bar_bytes, (16 << 20) + (128 << 30) + (32 << 20));
        assert!(state.bars_assigned && state.can_reset);
    }

    // The file of the virtio function is captured; those of the GPU are written by hand in the kernel's format.
    #[test]
    fn windows_without_an_address_are_noticed() {
        let whole = include_str!("../testdata/pci-resource-gpu");
        assert!(parse_bars(whole).assigned);
        let unset = include_str!("../testdata/pci-resource-unassigned");
        assert_eq!(parse_bars(unset), Bars { bytes: (16 << 20) + (128 << 30) + (32 << 20), assigned: false });
        for nothing in ["", "nonsense", "0x10 0x20"] {
            assert_eq!(parse_bars(nothing), Bars { bytes: 0, assigned: false }, "{nothing}");
        }
        assert_eq!(parse_bars(include_str!("../testdata/pci-resource-virtio")), Bars { bytes: 512 << 10, assigned: true });
    }

    #[test]
    fn binding_pins_unbinds_and_probes_in_this_order_and_twice_is_as_good_as_once() {
        let (sys, written) = (bus("nvidia"), Mutex::new(Vec::new()));
        let kernel = kernel(sys.path(), "nvidia", &written);
        bind_with(sys.path(), &address(GPU), &kernel).expect("bound");
        let expected = ["driver_override=vfio-pci", "unbind=0000:18:00.0", "drivers_probe=0000:18:00.0"];
        assert_eq!(steps(&written), expected);
        bind_with(sys.path(), &address(GPU), &kernel).expect("bound");
        assert_eq!(steps(&written), expected, "nothing more was done");
    }

    #[test]
    fn a_function_without_a_driver_is_bound_without_unbinding() {
        let (sys, written) = (bus(""), Mutex::new(Vec::new()));
        bind_with(sys.path(), &address(GPU), &kernel(sys.path(), "", &written)).expect("bound");
        assert_eq!(steps(&written), ["driver_override=vfio-pci", "drivers_probe=0000:18:00.0"]);
    }

    #[test]
    fn what_the_kernel_did_not_bind_is_told_and_not_left_pinned() {
        let sys = bus("");
        // These files do not react.
        let error = bind(sys.path(), &address(GPU)).expect_err("not bound");
        assert_eq!(error.code, "function_not_bound");
        let pinned = sys.path().join("bus/pci/devices").join(GPU).join("driver_override");
        assert_eq!(std::fs::read_to_string(&pinned).expect("read"), "\n");
        std::fs::remove_file(sys.path().join("bus/pci/drivers_probe")).expect("removed");
        let error = bind(sys.path(), &address(GPU)).expect_err("not bound");
        assert!(error.message.contains("drivers_probe: No such file"), "{error}");
    }

    /// As the kernel does with a bridge: the driver for guests refuses it, and the caller gets no error.
    #[test]
    fn what_the_driver_for_guests_does_not_want_is_given_back_to_the_driver_that_had_it() {
        for (before, after) in [("pcieport", "pcieport"), ("", "no driver has it")] {
            let (sys, written) = (bus(before), Mutex::new(Vec::new()));
            let willing = kernel(sys.path(), "pcieport", &written);
            let pinned = sys.path().join("bus/pci/devices").join(GPU).join("driver_override");
            let unwilling = |path: &Path, text: &str| {
                let refused = sysfs::name(path) == "drivers_probe" && sysfs::text(&pinned) == RESTING_DRIVER;
                if refused { Ok(()) } else { willing(path, text) }
            };
            let error = bind_with(sys.path(), &address(GPU), &unwilling).expect_err("not bound");
            assert_eq!(error.code, "function_not_bound");
            assert!(error.message.ends_with(&format!("now: {after}")), "{error}");
            assert_eq!(state(sys.path(), &address(GPU)).expect("state").driver, before);
            assert_eq!(sysfs::text(&pinned), "");
        }
    }

    #[test]
    fn a_function_goes_back_to_the_host_and_the_hosts_own_is_left_alone() {
        for chooses in ["nvidia", ""] {
            let (sys, written) = (bus(RESTING_DRIVER), Mutex::new(Vec::new()));
            let kernel = kernel(sys.path(), chooses, &written);
            give_back_with(sys.path(), &address(GPU), &kernel).expect("given back");
            assert_eq!(steps(&written), ["driver_override=", "unbind=0000:18:00.0", "drivers_probe=0000:18:00.0"]);
            assert_eq!(state(sys.path(), &address(GPU)).expect("state").driver, chooses);
        }
        let (sys, written) = (bus("nvidia"), Mutex::new(Vec::new()));
        give_back_with(sys.path(), &address(GPU), &kernel(sys.path(), "nvidia", &written)).expect("nothing to do");
        assert_eq!(steps(&written), ["driver_override="]);
        let sys = bus(RESTING_DRIVER);
        std::fs::write(sys.path().join("targets/driver").join(RESTING_DRIVER).join("unbind"), "").expect("written");
        assert_eq!(give_back(sys.path(), &address(GPU)).expect_err("the kernel kept it").code, "function_not_given_back");
    }

    #[test]
    fn a_reset_is_done_impossible_or_failed() {
        let sys = bus(RESTING_DRIVER);
        let gpu = sys.path().join("bus/pci/devices").join(GPU);
        assert_eq!(reset(sys.path(), &address(GPU)), Ok(Reset::Done));
        assert_eq!(std::fs::read_to_string(gpu.join("reset")).expect("read"), "1");
        std::fs::write(gpu.join("reset_method"), "\n").expect("written");
        assert_eq!(reset(sys.path(), &address(GPU)), Ok(Reset::Unsupported), "every way was turned off");
        std::fs::write(gpu.join("reset_method"), "flr bus\n").expect("written");
        assert_eq!(reset(sys.path(), &address(GPU)), Ok(Reset::Done));
        std::fs::remove_file(gpu.join("reset")).expect("removed");
        assert_eq!(reset(sys.path(), &address(GPU)), Ok(Reset::Unsupported));
        // Opening a folder for writing fails, like a failed reset.
        std::fs::create_dir(gpu.join("reset")).expect("folder");
        assert_eq!(reset(sys.path(), &address(GPU)), Ok(Reset::Failed));
    }

    #[test]
    fn a_function_that_is_not_there_is_never_touched() {
        let sys = bus("nvidia");
        let gone = address("0000:99:00.0");
        let codes = [
            state(sys.path(), &gone).expect_err("gone").code,
            bind(sys.path(), &gone).expect_err("gone").code,
            give_back(sys.path(), &gone).expect_err("gone").code,
            reset(sys.path(), &gone).expect_err("gone").code,
        ];
        assert_eq!(codes, ["function_missing"; 4]);
    }

    #[test]
    fn every_function_of_this_machine_has_a_state() {
        for function in pci::functions(Path::new("/sys")) {
            let state = state(Path::new("/sys"), &function.address).expect("state");
            assert_eq!(state.driver, function.driver);
        }
    }
}
