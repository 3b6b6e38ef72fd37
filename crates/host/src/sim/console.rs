//! The serial console output of simulated guests.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use super::Profile;
use super::machine::Domain;
use crate::guests::InstanceFile;

/// Returns the output of a boot, as Ubuntu prints it.
pub(super) fn boot(profile: Profile, domain: &Domain) -> String {
    let (kernel, name) = ("5.15.0-105-generic", &domain.vm_name);
    let cpus: u32 = domain.slots.iter().map(|slot| slot.vcpu_count).sum();
    let memory = domain.memory_mib();
    let hypervisor = if domain.kvm { "KVM" } else { "none" };
    let mut text = format!(
        "\r\nBdsDxe: starting Boot0001 \"UEFI Misc Device\"\r\n\
         [    0.000000] Linux version {kernel} (buildd@lcy02-amd64-007) #115-Ubuntu SMP\r\n\
         [    0.000000] Command line: BOOT_IMAGE=/vmlinuz-{kernel} root=LABEL=cloudimg-rootfs ro console=tty1 console=ttyS0\r\n\
         [    0.000000] DMI: QEMU Standard PC (Q35 + ICH9, 2009), simulated\r\n\
         [    0.000000] Hypervisor detected: {hypervisor}\r\n\
         [    0.214880] smpboot: Allowing {cpus} CPUs, 0 hotplug CPUs\r\n\
         [    0.431007] Memory: {available}K/{total}K available\r\n",
        available = memory.saturating_sub(memory / 64).saturating_mul(1024),
        total = memory.saturating_mul(1024),
    );
    let (driver, gpu) = match profile {
        Profile::H100 => ("nvidia", "10de:2330"),
        Profile::Mi300x => ("amdgpu", "1002:74a1"),
    };
    let mut seconds = 2_u32;
    for (slot, place) in domain.slots.iter().zip(0_u32..) {
        let letter = char::from(b'a' + u8::try_from(place % 26).unwrap_or(0));
        let partitions = if place == 0 { " vda1 vda14 vda15" } else { "" };
        // Writing to a string cannot fail.
        let _ = write!(text, "[    {seconds}.118302]  vd{letter}:{partitions}\r\n");
        if slot.pci_address.is_some() {
            let _ = write!(text, "[    {seconds}.602114] pci 0000:{:02x}:00.0: [{gpu}] BAR 2: assigned\r\n", place + 5);
        }
        if slot.fabric_device.is_some() {
            let _ =
                write!(text, "[    {seconds}.884920] mlx5_core 0000:{:02x}:00.0: firmware version: 28.39.2048\r\n", place + 32);
        }
        seconds = (seconds + 1).min(9);
    }
    let _ = write!(
        text,
        "[    9.750211] EXT4-fs (vda1): mounted filesystem with ordered data mode\r\n\
         [   10.201977] systemd[1]: Detected virtualization kvm.\r\n\
         [   10.202001] systemd[1]: Hostname set to <{name}>.\r\n\
         [   11.930554] {driver}: module loaded\r\n\
         [  OK  ] Reached target Network is Online.\r\n\
         [  OK  ] Started OpenBSD Secure Shell server.\r\n\
         [   16.488120] cloud-init[912]: Cloud-init v. 23.4.4 running 'modules:final'\r\n\
         [   18.020417] cloud-init[912]: Cloud-init v. 23.4.4 finished. Datasource DataSourceNoCloud [seed=/dev/sr0]\r\n\
         \r\nUbuntu 22.04.4 LTS {name} ttyS0\r\n\r\n{name} login: "
    );
    text
}

/// The output of a guest that shuts down.
pub(super) const SHUTDOWN: &str = "\r\n[  OK  ] Stopped OpenBSD Secure Shell server.\r\n\
     [  OK  ] Reached target System Power Off.\r\n\
     [ 4711.120044] reboot: Power down\r\n";

/// Appends to a console, like the hypervisor.
pub(super) fn append(instance: &Path, text: &str) -> std::io::Result<()> {
    let path = instance.join(InstanceFile::Console.name());
    std::fs::OpenOptions::new().create(true).append(true).open(path)?.write_all(text.as_bytes())
}
