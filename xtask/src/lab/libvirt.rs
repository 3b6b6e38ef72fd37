//! A private libvirtd that listens on the usual socket.
//!
//! The agent calls `virsh` without options and with an empty environment, so the socket must be at its usual path. libvirtd's
//! files need not be: it runs in a mount namespace in which its folders are replaced by empty ones of the lab. The settings and
//! guests of the machine's own libvirt are not touched.

use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use super::cleanup::Cleanup;
use super::daemon::Daemon;
use super::program::{run, text, write};

const RUN: &str = "/run/libvirt";
const KVM: &str = "/dev/kvm";
/// The folders that libvirt uses, relative to the root.
const FOLDERS: [&str; 4] = ["etc/libvirt", "var/lib/libvirt", "var/cache/libvirt", "var/log/libvirt"];

/// Runs a program in the namespace. `$1` is the lab's folder, laid out like the machine's root; the program and its arguments follow.
const IN_NAMESPACE: &str = r#"
ours=$1
shift
for folder in "$ours"/etc/libvirt "$ours"/var/*/libvirt; do
    mount --bind "$folder" "${folder#"$ours"}" || exit 1
done
exec "$@"
"#;

/// A small machine, such as one of CI, has no security module, and nothing that would remove the control groups that libvirt leaves behind.
const QEMU_CONF: &str = "\
security_driver = \"none\"
cgroup_controllers = [ ]
";

/// Starts virtlogd and libvirtd unless they are already running. The cleanup removes guests that were created since.
pub(super) fn start(folder: &Path, cleanup: &mut Cleanup) -> Result<(), String> {
    if answers("libvirt-sock") {
        println!("    libvirtd is running already; the lab uses it as it is set up");
    } else {
        let ours = folder.join("libvirt");
        prepare(&ours, cleanup)?;
        lend_kvm(cleanup)?;
        // libvirtd sends the guests' console output to virtlogd.
        let mut virtlogd = Daemon::start("virtlogd", &mut in_namespace(&ours, "virtlogd")?, folder, cleanup)?;
        virtlogd.wait_until(|| answers("virtlogd-sock"))?;
        let mut libvirtd = Daemon::start("libvirtd", &mut in_namespace(&ours, "libvirtd")?, folder, cleanup)?;
        libvirtd.wait_until(|| answers("libvirt-sock"))?;
        // libvirtd queries QEMU for its capabilities when it first needs them, which takes seconds, so trigger that now.
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

/// Returns whether a process listens on this socket. The socket file of a killed process may still exist.
fn answers(socket: &str) -> bool {
    UnixStream::connect(Path::new(RUN).join(socket)).is_ok()
}

/// Creates the empty folders and the lab's settings.
fn prepare(ours: &Path, cleanup: &mut Cleanup) -> Result<(), String> {
    cleanup.make_folder(Path::new(RUN))?;
    for folder in FOLDERS.map(|folder| ours.join(folder)) {
        std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    write(&ours.join("etc/libvirt/qemu.conf"), QEMU_CONF)?;
    // Log only warnings and errors: everything below is about missing hardware.
    write(&ours.join("etc/libvirt/libvirtd.conf"), "log_outputs = \"3:stderr\"\n")
}

/// Gives `/dev/kvm` to QEMU's user, as udev would. The lab's guests are emulated, but if KVM exists and that user cannot open it,
/// libvirtd distrusts its cached capabilities of QEMU and queries them every time: a single `virsh define` then takes two
/// minutes.
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
