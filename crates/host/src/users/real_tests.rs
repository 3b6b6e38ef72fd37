//! A real user on this machine, from its first key to the proof that nothing is left. Needs root.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpuaas_contract::id::AllocationId;
use gpuaas_contract::slice::{SshPublicKey, UserName};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{NewUser, SystemUser, Traces};
use crate::exec::{Exec, ExecError, Finished, first_installed};
use crate::guests::Layout;
use crate::{Host, RealHost};

const SETPRIV: &str = "/usr/bin/setpriv";

/// Returns why this machine cannot run the test.
fn reason_to_skip() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root can make users");
    }
    if first_installed(&["/usr/sbin/useradd"]).is_none() || first_installed(&[SETPRIV]).is_none() {
        return Some("useradd or setpriv is not installed");
    }
    if !crate::skip::root_is_a_mount() {
        return Some("`/` is not a mount here, as in a chroot");
    }
    Path::new(super::HOST_ROOT).join("home").metadata().err().map(|_| "the root of the first process cannot be reached")
}

fn host(folder: &Path) -> Host {
    let inside = |name: &str| folder.join(name);
    let layout = Layout {
        leases: inside("leases"),
        instances: inside("instances"),
        images: inside("images"),
        image_folders: Vec::new(),
        image_cache_bytes: 1,
        dhcp_hosts: inside("dhcp-hosts"),
        dnsmasq_pid: inside("dnsmasq.pid"),
        console_bytes: 1,
        huge_pages: false,
    };
    Host::Real(RealHost::new(folder, layout))
}

fn quiet(_: u64, _: u64) {}

fn key(number: u8) -> SshPublicKey {
    use base64::Engine as _;
    let mut bytes = b"\0\0\0\x0bssh-ed25519\0\0\0\x20".to_vec();
    bytes.extend([number; 32]);
    format!("ssh-ed25519 {}", base64::engine::general_purpose::STANDARD.encode(bytes)).parse().expect("a key")
}

/// Starts a process of the user that ignores SIGTERM.
fn stubborn(user: &SystemUser) -> JoinHandle<Result<Finished, ExecError>> {
    let exec = Exec::new(SETPRIV).arg("--reuid").arg(user.uid.to_string()).arg("--regid").arg(user.gid.to_string());
    let exec = exec.arg("--clear-groups").arg("--").arg("/bin/sh").arg("-c");
    let exec = exec.arg("trap '' TERM; while :; do sleep 1; done").deadline(Duration::from_secs(600));
    tokio::spawn(exec.run())
}

fn give(path: &Path, user: &SystemUser) {
    std::os::unix::fs::lchown(path, Some(user.uid), Some(user.gid)).expect("given");
}

/// What the tenant leaves: files in three places, a folder with a file of another user, and a link to a file of another user.
struct Mess {
    mine: Vec<PathBuf>,
    shared: PathBuf,
    others: PathBuf,
}

fn mess(user: &SystemUser) -> Mess {
    let (name, home) = (&user.name, Path::new(&user.home));
    let shared = PathBuf::from(format!("/var/tmp/{name}-shared"));
    let mine = vec![
        PathBuf::from(format!("/var/tmp/{name}-file")),
        PathBuf::from(format!("/tmp/{name} with\nlines")),
        PathBuf::from(format!("/dev/shm/{name}")),
        shared.join("mine"),
        home.join("deep/er"),
    ];
    let others = shared.join("others");
    std::fs::create_dir(&shared).expect("made");
    std::fs::create_dir_all(home.join("deep")).expect("made");
    for path in mine.iter().chain([&others]) {
        std::fs::write(path, b"x").expect("written");
    }
    mine.iter().chain([&shared]).for_each(|path| give(path, user));
    let link = home.join("link");
    std::os::unix::fs::symlink(&others, &link).expect("link");
    give(&link, user);
    Mess { mine, shared, others }
}

/// Removes everything of a user, whatever its state.
async fn end(host: &Host, traces: &Traces) -> (super::Ended, super::Removed) {
    let stop = CancellationToken::new();
    host.user_sudo(&traces.name, false).await.expect("no rule");
    host.user_close(&traces.name).await.expect("closed");
    host.user_jobs_end(traces).await.expect("no jobs");
    let uid = traces.uid.expect("a number");
    let ended = host.user_processes_end(uid).await.expect("ended");
    let removed = host.user_files_remove(traces, &quiet, &stop).await.expect("removed");
    host.user_remove(traces).await.expect("forgotten");
    (ended, removed)
}

async fn life_of_a_user(host: &Host, allocation_id: AllocationId, traces: &Traces) {
    let stop = CancellationToken::new();
    let (name, uid) = (traces.name.clone(), traces.uid.expect("a number"));
    let by_name = Traces { uid: None, ..traces.clone() };
    assert_eq!(host.user_leftovers(&by_name, &quiet, &stop).await.expect("looked"), [""; 0]);
    let wanted = NewUser { name: name.clone(), allocation_id, uid };
    let user = host.user_create(&wanted).await.expect("made");
    assert_eq!(host.user_create(&wanted).await.expect("made once"), user);
    assert_eq!((user.uid, user.allocation()), (uid, Some(allocation_id)));
    let other = NewUser { allocation_id: AllocationId::generate(), ..wanted };
    assert_eq!(host.user_create(&other).await.expect_err("another's").code, "user_exists");
    let subordinates = std::fs::read_to_string("/etc/subuid").unwrap_or_default();
    assert!(!subordinates.lines().any(|line| line.starts_with(&format!("{name}:"))), "everything of it has its own number");

    assert_eq!(host.user_keys(&user, &[key(1), key(2), key(1)]).await.expect("written"), 2);
    let keys = PathBuf::from(&user.home).join(".ssh/authorized_keys");
    assert_eq!(std::fs::read_to_string(&keys).expect("there"), format!("{}\n{}\n", key(1), key(2)));
    let meta = keys.metadata().expect("there");
    assert_eq!((meta.uid(), meta.permissions().mode() & 0o7777), (uid, 0o600));
    let rule = PathBuf::from(super::sudo::path_of(&name));
    match host.user_sudo(&name, true).await {
        Ok(()) => assert_eq!(rule.metadata().expect("there").permissions().mode() & 0o7777, 0o440),
        Err(error) => assert_eq!(error.code, "command_missing", "{error}"),
    }

    let process = stubborn(&user);
    let mess = mess(&user);
    let until = tokio::time::Instant::now() + Duration::from_secs(60);
    while super::processes::list(Path::new("/proc"), uid).expect("listed").is_empty() {
        assert!(tokio::time::Instant::now() < until, "the process runs");
        tokio::task::yield_now().await;
    }
    let left = host.user_leftovers(traces, &quiet, &stop).await.expect("looked").join("\n");
    for trace in [&format!("the user {name}"), &user.home, "process ", "/var/tmp/", "/dev/shm/"] {
        assert!(left.contains(trace), "{trace}: {left}");
    }
    assert_eq!(
        host.user_remove(&Traces { uid: Some(uid + 1), ..traces.clone() }).await.expect_err("another").code,
        "user_differs"
    );

    let (ended, removed) = end(host, traces).await;
    assert!(ended.processes >= 1 && removed.home && removed.files >= 7, "{ended:?} {removed:?}");
    process.await.expect("no panic").expect_err("it was killed");
    let (ended, removed) = end(host, traces).await;
    assert_eq!((ended, removed), Default::default(), "twice is once");
    assert_eq!(host.user_leftovers(traces, &quiet, &stop).await.expect("looked"), [""; 0]);
    assert_eq!(host.user_find(&name).await.expect("asked"), None);
    for path in mess.mine.iter().chain([&PathBuf::from(&user.home), &rule]) {
        assert!(path.symlink_metadata().is_err(), "{}", path.display());
    }
    // A file of another user in the tenant's folder stays, and the folder now belongs to root.
    assert_eq!(std::fs::read(&mess.others).expect("there"), b"x");
    let shared = mess.shared.metadata().expect("there");
    assert_eq!((shared.uid(), shared.permissions().mode() & 0o7777), (0, 0o700));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_user_comes_works_and_goes_without_a_trace() {
    if let Some(reason) = reason_to_skip() {
        return crate::skip::skipped(reason);
    }
    let folder = tempfile::tempdir().expect("folder");
    let host = host(folder.path());
    let name: UserName = format!("gpuaas-t-{}", std::process::id()).parse().expect("a name");
    // Away from the numbers of tests that run at the same time.
    let after = 30_000 + std::process::id() % 20_000;
    let uid = host.user_number(Some(after), &quiet, &CancellationToken::new()).await.expect("a free number");
    assert!(super::TENANT_UIDS.contains(&uid));
    let traces = Traces { name: name.clone(), uid: Some(uid) };
    let life = {
        let (host, traces) = (host.clone(), traces.clone());
        tokio::spawn(async move { life_of_a_user(&host, AllocationId::generate(), &traces).await }).await
    };
    // Cleans up whatever went wrong.
    end(&host, &traces).await;
    let _ = std::fs::remove_dir_all(format!("/var/tmp/{name}-shared"));
    assert_eq!(host.user_leftovers(&traces, &quiet, &CancellationToken::new()).await.expect("looked"), [""; 0]);
    life.expect("the life of a user went as it should");
}

#[tokio::test]
async fn the_systems_own_are_never_touched() {
    let folder = tempfile::tempdir().expect("folder");
    let host = host(folder.path());
    let stop = CancellationToken::new();
    let traces = Traces { name: "nobody-here".parse().expect("a name"), uid: Some(0) };
    assert_eq!(host.user_processes_end(0).await.expect_err("refused").code, "user_not_ours");
    assert_eq!(host.user_processes_end(999).await.expect_err("refused").code, "user_not_ours");
    assert_eq!(host.user_files_remove(&traces, &quiet, &stop).await.expect_err("refused").code, "user_not_ours");
    let wanted = NewUser { name: "daemon".parse().expect("a name"), allocation_id: AllocationId::generate(), uid: 20_000 };
    let refused = host.user_create(&wanted).await.map(|user| user.name);
    // Without the tools nothing can be created either.
    assert!(matches!(refused.expect_err("refused").code, "user_exists" | "command_missing"));
}
