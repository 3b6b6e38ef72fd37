//! A private libvirtd behind the usual socket.
//!
//! The agent calls `virsh` without options and with an empty environment, so the socket must be where everybody looks for it. What libvirtd
//! reads and keeps need not be: it runs in a mount namespace in which its folders are empty ones of ours. The settings and guests of
//! the machine's own libvirt are not touched.

use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use super::cleanup::Cleanup;
use super::daemon::Daemon;
use super::program::{run, text, write};

const RUN: &str = "/run/libvirt";
const KVM: &str = "/dev/kvm";
/// What libvirt reads and keeps.
const FOLDERS: [&str; 4] = ["etc/libvirt", "var/lib/libvirt", "var/cache/libvirt", "var/log/libvirt"];

/// `$1` is the folder with ours, laid out like the machine's; then follows the program.
const IN_NAMESPACE: &str = r#"
ours=$1
shift
for folder in "$ours"/etc/libvirt "$ours"/var/*/libvirt; do
    mount --bind "$folder" "${folder#"$ours"}" || exit 1
done
exec "$@"
"#;

/// A machine as small as CI's has no security module, and nobody who would remove the control groups that libvirt leaves behind.
const QEMU_CONF: &str = "\
security_driver = \"none\"
cgroup_controllers = [ ]
";

/// Starts virtlogd and libvirtd, unless somebody did already. In the end, guests that were not there before are gone.
pub(super) fn start(folder: &Path, cleanup: &mut Cleanup) -> Result<(), String> {
    if answers("libvirt-sock") {
        println!("    libvirtd is running already; the lab uses it as it is set up");
    } else {
        let ours = folder.join("libvirt");
        prepare(&ours, cleanup)?;
        lend_kvm(cleanup)?;
        // libvirtd hands the guests' consoles to it.
        let mut virtlogd = Daemon::start("virtlogd", &mut in_namespace(&ours, "virtlogd")?, folder, cleanup)?;
        virtlogd.wait_until(|| answers("virtlogd-sock"))?;
        let mut libvirtd = Daemon::start("libvirtd", &mut in_namespace(&ours, "libvirtd")?, folder, cleanup)?;
        libvirtd.wait_until(|| answers("libvirt-sock"))?;
        // It asks QEMU for its abilities when it first needs them, which takes seconds; so that is now.
        run(Command::new("virsh").args(["--quiet", "domcapabilities", "--virttype", "qemu"]))?;
    }
    let before = run(Command::new("virsh").args(["--quiet", "list", "--all", "--uuid"]))?;
    let before: Vec<&str> = before.split_whitespace().collect();
    cleanup.shell(&format!(
        "for guest in $(virsh --quiet list --all --uuid); do case ' {} ' in *\" $guest \"*) ;; \
         *) virsh destroy \"$guest\"; virsh undefine --nvram \"$guest\" ;; esac; done >/dev/null 2>&1",
        before.join(" ")
    ))
}

/// Whether somebody listens at this socket. One that is left over from a process that was killed does not answer.
fn answers(socket: &str) -> bool {
    UnixStream::connect(Path::new(RUN).join(socket)).is_ok()
}

/// Makes the empty folders and our settings.
fn prepare(ours: &Path, cleanup: &mut Cleanup) -> Result<(), String> {
    cleanup.make_folder(Path::new(RUN))?;
    for folder in FOLDERS.map(|folder| ours.join(folder)) {
        std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    write(&ours.join("etc/libvirt/qemu.conf"), QEMU_CONF)?;
    // Warnings; the rest is about hardware that is not there.
    write(&ours.join("etc/libvirt/libvirtd.conf"), "log_outputs = \"3:stderr\"\n")
}

/// Gives `/dev/kvm` to QEMU's user, as udev would. The lab's guests are emulated, but where KVM is there and not for that user, libvirtd
/// does not believe what it knows about QEMU and asks again each time: a single `virsh define` takes two minutes.
fn lend_kvm(cleanup: &mut Cleanup) -> Result<(), String> {
    let Ok(before) = std::fs::metadata(KVM) else { return Ok(()) };
    cleanup.call("chmod", [&format!("{:o}", before.mode() & 0o7777), KVM])?;
    cleanup.call("chown", [&format!("{}:{}", before.uid(), before.gid()), KVM])?;
    run(Command::new("chgrp").args(["kvm", KVM]))?;
    run(Command::new("chmod").args(["660", KVM]))?;
    Ok(())
}

fn in_namespace(ours: &Path, program: &str) -> Result<Command, String> {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--", "/bin/sh", "-c", IN_NAMESPACE, "lab", text(ours)?, program]);
    Ok(command)
}
