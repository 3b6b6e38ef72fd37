//! Guests, through `virsh`.
//!
//! A guest counts as absent only if libvirt has listed all its guests and this one is not among them. An error proves nothing
//! about a guest, whatever its text.

use std::path::Path;
use std::time::Duration;

use gpuaas_contract::id::AllocationId;

use crate::HostError;
use crate::domain_xml::{NAME_PREFIX, domain_xml, name, shared_node, uuid};
use crate::exec::{Exec, Finished, first_installed, printable};
use crate::guests::{DomainSpec, DomainState, Layout};
use crate::instance::{self, on_thread};
use crate::sysfs;

const VIRSH: &[&str] = &["/usr/bin/virsh"];
const CONNECTION: &str = "qemu:///system";
/// Time limit for queries; libvirt answers them at once, unless it hangs.
const ASK: Duration = Duration::from_secs(20);
/// Time limit for actions. Pinning and freeing hundreds of gigabytes for passed-through devices takes long.
const ACT: Duration = Duration::from_secs(300);
/// The file with the document while libvirt reads it.
const DOCUMENT: &str = "domain.xml";
/// Size limit of the kernel's processor list of a node.
const MOST_CPULIST: usize = 4096;

/// Defines a guest in the hypervisor.
pub(crate) async fn define(layout: &Layout, domain: &DomainSpec) -> Result<(), HostError> {
    let cpuset = shared_node(&domain.slots).and_then(|node| cpuset(Path::new("/sys"), node));
    let document = domain_xml(domain, layout, cpuset.as_deref());
    let (instances, id) = (layout.instances.clone(), domain.allocation_id);
    let path = on_thread(move || {
        let folder = instance::open(&instances, id)?;
        folder.write(DOCUMENT, document.as_bytes(), 0o600).map_err(instance::failed)?;
        Ok(folder.path().join(DOCUMENT))
    })
    .await?;
    let defined = virsh(ACT, &["define", &path.to_string_lossy()]).await;
    let instances = layout.instances.clone();
    on_thread(move || instance::open(&instances, id)?.remove_file(DOCUMENT).map_err(instance::failed)).await?;
    match defined? {
        Report::Yes(_) => Ok(()),
        Report::No(why) => Err(HostError::new("domain_define_failed", format!("libvirt does not accept {}: {why}", name(id)))),
    }
}

/// Starts a defined guest.
pub(crate) async fn start(id: AllocationId) -> Result<(), HostError> {
    let Report::No(why) = virsh(ACT, &["start", &uuid(id)]).await? else { return Ok(()) };
    match state(id).await? {
        DomainState::Running => Ok(()),
        DomainState::Off => Err(HostError::new("domain_start_failed", format!("{} does not start: {why}", name(id)))),
        DomainState::Absent => Err(HostError::new("domain_missing", format!("libvirt does not know {}", name(id)))),
    }
}

/// Asks a guest to shut down.
pub(crate) async fn shutdown(id: AllocationId) -> Result<(), HostError> {
    let Report::No(why) = virsh(ASK, &["shutdown", &uuid(id), "--mode", "acpi"]).await? else { return Ok(()) };
    if state(id).await? != DomainState::Running {
        return Ok(());
    }
    Err(HostError::new("domain_shutdown_failed", format!("{} cannot be asked to shut down: {why}", name(id))))
}

/// Powers a guest off.
pub(crate) async fn destroy(id: AllocationId) -> Result<(), HostError> {
    let Report::No(why) = virsh(ACT, &["destroy", &uuid(id)]).await? else { return Ok(()) };
    if state(id).await? != DomainState::Running {
        return Ok(());
    }
    Err(HostError::new("domain_destroy_failed", format!("{} cannot be stopped: {why}", name(id))))
}

/// Removes a guest from the hypervisor.
pub(crate) async fn undefine(id: AllocationId) -> Result<(), HostError> {
    let failed = |why: &str| HostError::new("domain_undefine_failed", format!("libvirt does not forget {}: {why}", name(id)));
    match state(id).await? {
        DomainState::Absent => return Ok(()),
        // libvirt would succeed and keep running it, without a definition that could be listed.
        DomainState::Running => return Err(failed("it runs; stop it first")),
        DomainState::Off => {}
    }
    let uuid = uuid(id);
    let everything = ["undefine", &uuid, "--nvram", "--managed-save", "--snapshots-metadata", "--checkpoints-metadata"];
    let mut why = "it is still there".to_owned();
    for words in [everything.get(..2), Some(everything.as_slice())].into_iter().flatten() {
        if let Report::No(reported) = virsh(ASK, words).await? {
            why = reported;
        }
        if state(id).await? == DomainState::Absent {
            return Ok(());
        }
    }
    Err(failed(&why))
}

/// Returns whether the hypervisor knows a guest, and whether it runs.
pub(crate) async fn state(id: AllocationId) -> Result<DomainState, HostError> {
    let uuid = uuid(id);
    let why = match virsh(ASK, &["domstate", &uuid]).await? {
        Report::Yes(printed) => return state_of(&printed),
        Report::No(why) => why,
    };
    match virsh(ASK, &["list", "--all", "--uuid"]).await? {
        Report::Yes(printed) if !lines(&printed).any(|line| line == uuid) => Ok(DomainState::Absent),
        Report::Yes(_) => Err(unreachable(&format!("it knows {} and does not report its state: {why}", name(id)))),
        Report::No(why) => Err(unreachable(&why)),
    }
}

/// Lists our guests in the hypervisor.
pub(crate) async fn list() -> Result<Vec<(AllocationId, DomainState)>, HostError> {
    let printed = match virsh(ASK, &["list", "--all", "--name"]).await? {
        Report::Yes(printed) => printed,
        Report::No(why) => return Err(unreachable(&why)),
    };
    let mut guests = Vec::new();
    for id in ours(&printed) {
        match state(id).await? {
            // It disappeared between the two queries.
            DomainState::Absent => {}
            known @ (DomainState::Off | DomainState::Running) => guests.push((id, known)),
        }
    }
    Ok(guests)
}

/// The result of a command that reached libvirt.
#[derive(Debug, PartialEq, Eq)]
enum Report {
    /// It succeeded, with this output.
    Yes(String),
    /// It failed, for this reason.
    No(String),
}

async fn virsh(deadline: Duration, words: &[&str]) -> Result<Report, HostError> {
    let program = first_installed(VIRSH).ok_or_else(|| unreachable("virsh is not installed; install libvirt-clients"))?;
    let mut exec = Exec::new(program).arg("-c").arg(CONNECTION).arg("--quiet").deadline(deadline);
    for word in words {
        exec = exec.arg(word);
    }
    let ended = exec.run_with_code().await;
    let (code, finished) = ended.map_err(|error| HostError::because("libvirt_unreachable", "libvirt does not answer", &error))?;
    judge(code, &finished)
}

/// Distinguishes an answer from a missing one.
fn judge(code: Option<i32>, finished: &Finished) -> Result<Report, HostError> {
    if code == Some(0) {
        return Ok(Report::Yes(String::from_utf8_lossy(&finished.stdout).into_owned()));
    }
    let reported = String::from_utf8_lossy(&finished.stderr);
    let lost = ["failed to connect to the hypervisor", "Cannot recv data", "Cannot write data", "End of file while reading data"];
    // Ended by a signal, or the connection failed: the outcome of the command is unknown.
    if code.is_none() || lost.iter().any(|words| reported.contains(words)) {
        return Err(unreachable(&printable(&finished.stderr)));
    }
    Ok(Report::No(printable(&finished.stderr)))
}

/// Parses the output of `domstate`. A guest has its devices until it is off.
fn state_of(printed: &str) -> Result<DomainState, HostError> {
    match lines(printed).next() {
        Some("shut off" | "crashed") => Ok(DomainState::Off),
        Some(_) => Ok(DomainState::Running),
        None => Err(unreachable("it printed nothing when asked for the state of a guest")),
    }
}

/// Returns our guests in the output of `list --name`.
fn ours(printed: &str) -> Vec<AllocationId> {
    lines(printed).filter_map(|line| line.strip_prefix(NAME_PREFIX)?.parse().ok()).collect()
}

fn lines(printed: &str) -> impl Iterator<Item = &str> {
    printed.lines().map(str::trim).filter(|line| !line.is_empty())
}

fn unreachable(why: &str) -> HostError {
    HostError::new("libvirt_unreachable", format!("libvirt does not answer: {why}"))
}

/// Returns the processors of a NUMA node, if the kernel lists them.
fn cpuset(sys: &Path, node: u32) -> Option<String> {
    let list = sysfs::text(sys.join(format!("devices/system/node/node{node}/cpulist")));
    let plain = list.len() <= MOST_CPULIST && list.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'-' | b','));
    (plain && !list.is_empty()).then_some(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(code: i32, stdout: &[u8], stderr: &[u8]) -> Result<Report, HostError> {
        judge(Some(code), &Finished { stdout: stdout.to_vec(), stderr: stderr.to_vec() })
    }

    #[test]
    fn a_refusal_is_an_answer_and_a_lost_connection_is_none() {
        for refusal in [
            include_bytes!("../testdata/virsh-missing.txt").as_slice(),
            include_bytes!("../testdata/virsh-destroy-shut-off.txt"),
            include_bytes!("../testdata/virsh-shutdown-shut-off.txt"),
            include_bytes!("../testdata/virsh-start-running.txt"),
            include_bytes!("../testdata/virsh-start-folder-closed.txt"),
            include_bytes!("../testdata/virsh-undefine-needs-nvram.txt"),
            include_bytes!("../testdata/virsh-define-malformed.txt"),
            include_bytes!("../testdata/virsh-define-name-taken.txt"),
        ] {
            assert!(matches!(printed(1, b"", refusal), Ok(Report::No(why)) if !why.contains('\n')));
        }
        for silence in [
            include_bytes!("../testdata/virsh-no-libvirtd.txt").as_slice(),
            b"error: failed to get domain 'x'\nerror: Cannot recv data: Connection reset by peer\n",
            b"error: Disconnected from qemu:///system due to end of file\nerror: End of file while reading data: Input/output error\n",
        ] {
            assert_eq!(printed(1, b"", silence).expect_err("no answer").code, "libvirt_unreachable");
        }
        let killed = Finished { stdout: Vec::new(), stderr: b"error: failed to get domain 'x'".to_vec() };
        assert_eq!(judge(None, &killed).expect_err("no answer").code, "libvirt_unreachable");
    }

    #[test]
    fn only_what_is_off_is_off() {
        let off = include_str!("../testdata/virsh-domstate-shut-off.txt");
        assert_eq!(state_of(off).expect("a state"), DomainState::Off);
        assert_eq!(state_of("crashed\n\n").expect("a state"), DomainState::Off);
        for on in [
            include_str!("../testdata/virsh-domstate-running.txt"),
            include_str!("../testdata/virsh-domstate-paused.txt"),
            "in shutdown\n",
            "pmsuspended\n",
            "idle\n",
            "no state\n",
            "something new\n",
        ] {
            assert_eq!(state_of(on).expect("a state"), DomainState::Running, "{on}");
        }
        assert_eq!(state_of("\n").expect_err("nothing").code, "libvirt_unreachable");
    }

    #[test]
    fn only_names_with_a_whole_id_are_ours() {
        let id = AllocationId::generate();
        let list = format!("{}\nwindows\ngpuaas-alloc_12\n{}x\n{id}\n\n", name(id), name(id));
        assert_eq!(ours(&list), [id]);
        assert_eq!(ours(include_str!("../testdata/virsh-list-name.txt")), []);
    }

    #[test]
    fn a_list_of_numbers_is_compared_line_by_line() {
        let all = include_str!("../testdata/virsh-list-uuid.txt");
        assert!(lines(all).any(|line| line == "0190aaaa-0000-7000-8000-000000000002"));
        assert!(!lines(all).any(|line| line == "0190aaaa-0000-7000-8000-00000000000"));
        assert_eq!(lines(include_str!("../testdata/virsh-list-uuid-empty.txt")).count(), 0);
    }

    #[test]
    fn processors_come_from_the_kernel_and_are_plain() {
        let root = tempfile::tempdir().expect("folder");
        let node = root.path().join("devices/system/node/node3");
        std::fs::create_dir_all(&node).expect("made");
        for (content, expected) in [("48-63,112-127\n", Some("48-63,112-127")), ("\n", None), ("1'/><x", None)] {
            std::fs::write(node.join("cpulist"), content).expect("written");
            assert_eq!(cpuset(root.path(), 3).as_deref(), expected);
        }
        assert_eq!(cpuset(root.path(), 4), None);
    }
}
