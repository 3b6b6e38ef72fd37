//! An emulated host with an IOMMU, two NVMe drives and an AMD graphics card, for device passthrough, which a developer's machine cannot do.
//!
//! The root file system is in memory: busybox, the VFIO modules and what the lab adds. The host runs one script and powers off.

use std::io::{BufRead as _, BufReader};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use super::cleanup::Cleanup;
use super::initrd::Initrd;
use super::kernel::Kernel;
use super::program::text;
use crate::requirements::in_path;

/// In load order, without their dependencies. The NVMe driver is built into the kernel.
const MODULES: [&str; 2] = ["vfio-pci", "vfio_iommu_type1"];
const MEMORY_MIB: u32 = 1024;
/// The machine id in the host's firmware, by which the agent identifies a machine.
const MACHINE: &str = "67707561-6173-4c61-8000-766669000001";
/// `no_timer_check`: on a busy machine the timer ticks too late for the check, and the kernel would panic.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 loglevel=4 intel_iommu=on no_timer_check panic=-1";
const NO_STATUS: &str = "the host did not say how its script ended";
/// Start of the last line of a run. The exit status of the script follows.
const ENDED: &str = "lab: the script ended with ";

/// Serial numbers of the drives.
pub(super) const DRIVES: [&str; 2] = ["LAB0", "LAB1"];
const DRIVE_SIZE: u64 = 64 * 1024 * 1024;

/// The init process. Hides kernel messages that are not errors.
const INIT: &str = r#"#!/bin/sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mount -t tmpfs none /run
mount -t tmpfs none /tmp
while read -r module; do insmod "$module" || echo "lab: cannot load $module"; done < /lab/modules
sh /lab/script
echo "lab: the script ended with $?"
poweroff -f
"#;

/// A running emulated host. It is powered off when this value is dropped, and when this process ends.
pub(super) struct VfioHost {
    process: Child,
    lines: Receiver<String>,
    _cleanup: Cleanup,
}

impl VfioHost {
    /// Boots a host that runs `script` with busybox. `initrd` has whatever else the script needs. The drives are created in `folder`.
    pub(super) fn boot(kernel: &Kernel, mut initrd: Initrd, script: &str, folder: &Path) -> Result<Self, String> {
        let busybox = in_path("busybox").ok_or("busybox is not installed")?;
        initrd.program(&busybox, "/bin/busybox")?;
        initrd.link("/bin/sh", "busybox");
        ["/proc", "/sys", "/dev", "/run", "/tmp"].into_iter().for_each(|at| initrd.folder(at));
        initrd.script("/init", INIT);
        initrd.file("/lab/script", script);
        let modules = kernel.add_modules(&MODULES, &mut initrd)?;
        initrd.file("/lab/modules", modules.join("\n") + "\n");
        let archive = folder.join("initrd");
        initrd.write(&archive)?;

        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args(arguments(kernel, &archive, folder)?);
        qemu.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut cleanup = Cleanup::start()?;
        let mut process = qemu.spawn().map_err(|error| format!("QEMU cannot be started: {error}"))?;
        cleanup.end(&process)?;
        let console = process.stdout.take().ok_or("QEMU has no console")?;
        // If the channel is full, the host waits, which is harmless.
        let (sender, lines) = sync_channel(1024);
        std::thread::spawn(move || {
            let mut console = BufReader::new(console);
            let mut line = Vec::new();
            // Console output is not necessarily UTF-8.
            while console.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
                if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                    break;
                }
                line.clear();
            }
        });
        Ok(Self { process, lines, _cleanup: cleanup })
    }

    /// Passes every line of the console to `each` until the script ends, and returns the script's exit status. Returns `None` if
    /// `each` breaks off early.
    pub(super) fn follow(
        &mut self,
        deadline: Duration,
        mut each: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Option<i32>, String> {
        let until = Instant::now() + deadline;
        loop {
            let line = match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => return Err(format!("the host was not done after {} s", deadline.as_secs())),
                Err(RecvTimeoutError::Disconnected) => return Err(NO_STATUS.to_owned()),
            };
            if let Some(status) = line.strip_prefix(ENDED) {
                return status.parse().map(Some).map_err(|_| NO_STATUS.to_owned());
            }
            if each(&line).is_break() {
                return Ok(None);
            }
        }
    }
}

impl Drop for VfioHost {
    fn drop(&mut self) {
        // The host has no state worth keeping.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns QEMU's arguments. Each device is behind a port of its own, and therefore in an IOMMU group of its own, like GPUs in a server.
fn arguments(kernel: &Kernel, archive: &Path, folder: &Path) -> Result<Vec<String>, String> {
    let mut words: Vec<String> =
        ["-machine", "q35,kernel-irqchip=split", "-accel", "tcg", "-cpu", "max", "-smp", "2"].map(str::to_owned).into();
    words.extend(["-m".to_owned(), MEMORY_MIB.to_string()]);
    words.extend(["-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio"].map(str::to_owned));
    words.extend(["-uuid", MACHINE].map(str::to_owned));
    words.extend(["-kernel", text(&kernel.image)?, "-initrd", text(archive)?].map(str::to_owned));
    words.extend(["-append", KERNEL_ARGUMENTS].map(str::to_owned));
    let mut device = |device: String| words.extend(["-device".to_owned(), device]);
    device("intel-iommu,intremap=on,caching-mode=on".to_owned());
    for port in 0..=DRIVES.len() {
        device(format!("pcie-root-port,id=port{port},chassis={port}"));
    }
    for (port, serial) in DRIVES.iter().enumerate() {
        device(format!("nvme,bus=port{port},serial={serial},drive={serial}"));
    }
    device(format!("ati-vga,bus=port{}", DRIVES.len()));
    for serial in DRIVES {
        let path = folder.join(format!("{serial}.raw"));
        let file = std::fs::File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        file.set_len(DRIVE_SIZE).map_err(|error| format!("{}: {error}", path.display()))?;
        words.extend(["-drive".to_owned(), format!("if=none,id={serial},format=raw,cache=unsafe,file={}", text(&path)?)]);
    }
    Ok(words)
}
