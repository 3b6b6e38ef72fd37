//! DHCP reservations: one file per guest in the folder that dnsmasq watches.
//!
//! dnsmasq reads a new file by itself, but forgets a removed or changed one only at SIGHUP, so it gets one after every change. It
//! ignores files whose names begin with a dot, such as unfinished ones.

use std::path::Path;
use std::time::Duration;

use gpuaas_contract::id::AllocationId;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::HostError;
use crate::exec::{Exec, first_installed};
use crate::guests::{Layout, Reservation};
use crate::instance::on_thread;
use crate::openat2::{BeneathError, Folder};

/// Size limit of a file with reservations.
const MOST_BYTES: u64 = 64 * 1024;
/// dnsmasq drops root privileges and must still be able to read it.
const FOLDER_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;

const DNSMASQ: &[&str] = &["/usr/sbin/dnsmasq"];
/// How long dnsmasq may take to write its process id.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// How long dnsmasq may take to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// The state of the dnsmasq that a pid file names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    /// It is not running.
    Off,
    /// It is running with these arguments.
    Running(Vec<String>),
}

/// Returns the state of the dnsmasq whose process id is in this file. Blocks briefly.
pub fn server(pid_file: &Path) -> Result<Server, HostError> {
    let Some(_process) = process(pid_file)? else { return Ok(Server::Off) };
    // The process is held by a pidfd, so its id is still valid.
    let arguments = crate::sysfs::text(format!("/proc/{}/cmdline", crate::sysfs::text(pid_file)));
    Ok(Server::Running(arguments.split('\0').filter(|word| !word.is_empty()).map(str::to_owned).collect()))
}

/// Starts a dnsmasq with this configuration file in the background.
pub async fn start(settings: &Path) -> Result<(), HostError> {
    const FAILED: &str = "dnsmasq_not_started";
    let program = first_installed(DNSMASQ)
        .ok_or_else(|| HostError::new(FAILED, "dnsmasq is not installed; install the package dnsmasq-base"))?;
    // It leaves our process group when it goes to the background, so it outlives this call.
    let exec = Exec::new(program).arg(settings_argument(settings)).deadline(Duration::from_secs(20));
    let what = "dnsmasq does not start; if something else answers DNS on every address of this host, limit that to its own";
    exec.run().await.map(drop).map_err(|error| HostError::because(FAILED, what, &error))
}

/// Waits until the dnsmasq of this file is running: a service manager reports the start a moment earlier.
pub async fn wait_until_running(pid_file: &Path) -> Result<(), HostError> {
    let running = async {
        while !is_running(pid_file)? {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    };
    tokio::time::timeout(START_PATIENCE, running).await.unwrap_or_else(|_| Err(not_running(pid_file)))
}

/// Returns the argument for a configuration file.
pub fn settings_argument(settings: &Path) -> String {
    format!("--conf-file={}", settings.display())
}

/// Stops the dnsmasq whose process id is in this file, if it was started with this configuration file, and waits for its end.
pub async fn stop(pid_file: &Path, settings: &Path) -> Result<(), HostError> {
    const FAILED: &str = "dnsmasq_not_stopped";
    let ours = |found: Server| match found {
        Server::Off => false,
        Server::Running(arguments) => arguments.contains(&settings_argument(settings)),
    };
    let pid_path = pid_file.to_owned();
    let Some(process) = on_thread(move || process(&pid_path)).await? else { return Ok(()) };
    if !ours(server(pid_file)?) {
        return Ok(());
    }
    match rustix::process::pidfd_send_signal(&process, Signal::TERM) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(errno) => return Err(HostError::because(FAILED, "cannot end dnsmasq", &errno)),
    }
    let gone = async {
        while ours(server(pid_file)?) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    };
    let message = format!("dnsmasq did not end within {} s; see {}", STOP_PATIENCE.as_secs(), pid_file.display());
    tokio::time::timeout(STOP_PATIENCE, gone).await.unwrap_or_else(|_| Err(HostError::new(FAILED, message)))
}

/// Creates the folder of reservations, which dnsmasq reads as an unprivileged user.
pub fn make_folder(hosts: &Path) -> Result<(), HostError> {
    Folder::make(hosts, FOLDER_MODE).map(drop).map_err(failed)
}

/// Reserves an address for a guest.
pub(crate) async fn add(layout: &Layout, reservation: &Reservation) -> Result<(), HostError> {
    let (layout, reservation) = (layout.clone(), reservation.clone());
    on_thread(move || {
        if !is_running(&layout.dnsmasq_pid)? {
            return Err(not_running(&layout.dnsmasq_pid));
        }
        put(&layout.dhcp_hosts, &reservation)?;
        if reload(&layout.dnsmasq_pid)? { Ok(()) } else { Err(not_running(&layout.dnsmasq_pid)) }
    })
    .await
}

/// Removes a guest's reservation.
pub(crate) async fn remove(layout: &Layout, id: AllocationId) -> Result<(), HostError> {
    let layout = layout.clone();
    on_thread(move || {
        if let Some(folder) = Folder::open(&layout.dhcp_hosts).map_err(failed)? {
            folder.remove_file(&id.to_string()).map_err(failed)?;
        }
        // Also if it was already removed: the earlier removal may have stopped before the reload. A dnsmasq that is not running
        // has nothing to forget.
        reload(&layout.dnsmasq_pid).map(|_| ())
    })
    .await
}

/// Lists the guests with a reservation.
pub(crate) fn list(layout: &Layout) -> Result<Vec<AllocationId>, HostError> {
    let Some(folder) = Folder::open(&layout.dhcp_hosts).map_err(failed)? else { return Ok(Vec::new()) };
    Ok(folder.names().map_err(failed)?.iter().filter_map(|name| name.parse().ok()).collect())
}

fn put(hosts: &Path, reservation: &Reservation) -> Result<(), HostError> {
    let folder = Folder::make(hosts, FOLDER_MODE).map_err(failed)?;
    let _lock = folder.lock().map_err(failed)?;
    let own = reservation.allocation_id.to_string();
    let address = reservation.private_ip.to_string();
    for name in folder.names().map_err(failed)? {
        // Reservations by the host's owner count too. Files that dnsmasq ignores do not.
        if name == own || name.starts_with('.') || name.ends_with('~') {
            continue;
        }
        let bytes = folder.read(&name, MOST_BYTES).map_err(failed)?.unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let taken = |word: &str| word.eq_ignore_ascii_case(&reservation.mac_address) || word == address;
        let mut words = text.lines().filter(|line| !line.starts_with('#')).flat_map(|line| line.split(',')).map(str::trim);
        if let Some(word) = words.find(|word| taken(word)) {
            let message = format!("{word} is reserved for {name}; one address belongs to one guest");
            return Err(HostError::new("address_reserved", message));
        }
    }
    folder.write(&own, line(reservation).as_bytes(), FILE_MODE).map_err(failed)
}

/// Returns the reservation in dnsmasq's format.
///
/// It has no tag (`set:…`): with one, dnsmasq 2.90 crashes with a double free when it reloads its reservations while the guest
/// has its address.
fn line(reservation: &Reservation) -> String {
    let Reservation { mac_address, private_ip, vm_name, .. } = reservation;
    match vm_name.as_str() {
        // These words have another meaning in dnsmasq.
        "ignore" | "infinite" => format!("{mac_address},{private_ip}\n"),
        name => format!("{mac_address},{private_ip},{name}\n"),
    }
}

fn is_running(pid_file: &Path) -> Result<bool, HostError> {
    process(pid_file).map(|process| process.is_some())
}

/// Makes dnsmasq reload everything. Returns false if it is not running.
fn reload(pid_file: &Path) -> Result<bool, HostError> {
    let Some(process) = process(pid_file)? else { return Ok(false) };
    match rustix::process::pidfd_send_signal(&process, Signal::HUP) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::SRCH) => Ok(false),
        Err(errno) => Err(HostError::because("reservation_io", "cannot tell dnsmasq to read its reservations", &errno)),
    }
}

/// Returns the process as a pidfd, so that its id cannot be reused.
fn process(pid_file: &Path) -> Result<Option<rustix::fd::OwnedFd>, HostError> {
    let number = crate::sysfs::text(pid_file).parse::<i32>().ok().filter(|number| *number > 1);
    let Some(pid) = number.and_then(Pid::from_raw) else { return Ok(None) };
    let process = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(rustix::io::Errno::SRCH | rustix::io::Errno::INVAL) => return Ok(None),
        Err(errno) => return Err(HostError::because("reservation_io", "cannot read the state of dnsmasq", &errno)),
    };
    // A stale file may name any process. Checked after the process is held, because before that it could change.
    let called = crate::sysfs::text(format!("/proc/{}/comm", pid.as_raw_nonzero()));
    // A zombie still has its name.
    let is_dead = crate::sysfs::text(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).is_empty();
    Ok((called == "dnsmasq" && !is_dead).then_some(process))
}

fn not_running(pid_file: &Path) -> HostError {
    let message = format!("dnsmasq does not run, by {}; guests would get no address", pid_file.display());
    HostError::new("dnsmasq_not_running", message)
}

fn failed(error: BeneathError) -> HostError {
    HostError::because("reservation_io", "the reservations of dnsmasq", &error)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn layout(root: &Path) -> Layout {
        Layout {
            leases: root.join("leases"),
            instances: root.join("instances"),
            images: root.join("images"),
            image_folders: Vec::new(),
            image_cache_bytes: 0,
            dhcp_hosts: root.join("hosts"),
            dnsmasq_pid: root.join("dnsmasq.pid"),
            console_bytes: 0,
            huge_pages: false,
        }
    }

    fn reservation(number: u8, name: &str) -> Reservation {
        Reservation {
            allocation_id: AllocationId::generate(),
            mac_address: format!("02:00:5e:10:00:{number:02x}"),
            private_ip: Ipv4Addr::new(10, 77, 0, number),
            vm_name: name.parse().expect("a name"),
        }
    }

    #[test]
    fn a_name_that_dnsmasq_takes_for_an_option_is_left_out() {
        assert_eq!(line(&reservation(2, "vm")), "02:00:5e:10:00:02,10.77.0.2,vm\n");
        for word in ["ignore", "infinite"] {
            assert_eq!(line(&reservation(2, word)), "02:00:5e:10:00:02,10.77.0.2\n");
        }
    }

    #[test]
    fn an_address_belongs_to_one_guest() {
        let root = tempfile::tempdir().expect("folder");
        let layout = layout(root.path());
        let first = reservation(2, "vm");
        for _ in 0..2 {
            put(&layout.dhcp_hosts, &first).expect("free, or its own");
        }
        let path = layout.dhcp_hosts.join(first.allocation_id.to_string());
        assert_eq!(path.metadata().expect("meta").mode() & 0o7777, 0o644);
        for same in [
            Reservation { mac_address: first.mac_address.to_uppercase(), ..reservation(3, "vm") },
            Reservation { private_ip: first.private_ip, ..reservation(3, "vm") },
        ] {
            let error = put(&layout.dhcp_hosts, &same).expect_err("taken");
            assert_eq!(error.code, "address_reserved");
            assert!(error.message.contains(&first.allocation_id.to_string()), "{error}");
        }
        std::fs::write(layout.dhcp_hosts.join("printer"), "# 10.77.0.4\n52:54:00:00:00:01, 10.77.0.5, printer\n")
            .expect("written");
        put(&layout.dhcp_hosts, &reservation(4, "vm")).expect("only a comment has it");
        assert_eq!(put(&layout.dhcp_hosts, &reservation(5, "vm")).expect_err("taken").code, "address_reserved");
        assert_eq!(list(&layout).expect("listed").len(), 2);
    }

    #[tokio::test]
    async fn without_dnsmasq_nothing_is_reserved_and_everything_can_be_removed() {
        let root = tempfile::tempdir().expect("folder");
        let layout = layout(root.path());
        let wanted = reservation(2, "vm");
        remove(&layout, wanted.allocation_id).await.expect("nothing there");
        // No file, an invalid file, and a process that is not dnsmasq: this one.
        for content in [None, Some("dnsmasq".to_owned()), Some("-1".to_owned()), Some(std::process::id().to_string())] {
            if let Some(content) = content {
                std::fs::write(&layout.dnsmasq_pid, content).expect("written");
            }
            assert_eq!(add(&layout, &wanted).await.expect_err("not running").code, "dnsmasq_not_running");
            assert!(list(&layout).expect("listed").is_empty());
            put(&layout.dhcp_hosts, &wanted).expect("free");
            remove(&layout, wanted.allocation_id).await.expect("removed");
            assert!(list(&layout).expect("listed").is_empty());
        }
    }

    /// A network namespace separates this dnsmasq from others.
    #[tokio::test]
    async fn the_real_dnsmasq_learns_and_forgets() {
        let (Some(unshare), Some(dnsmasq)) = (first_installed(&["/usr/bin/unshare"]), first_installed(&["/usr/sbin/dnsmasq"]))
        else {
            return crate::skip::skipped("dnsmasq is not installed (Debian package dnsmasq-base)");
        };
        if !rustix::process::geteuid().is_root() {
            return crate::skip::skipped("a network namespace needs root");
        }
        let root = tempfile::tempdir().expect("folder");
        let layout = layout(root.path());
        std::fs::create_dir(&layout.dhcp_hosts).expect("made");
        let log = root.path().join("log");
        let told = |option: &str, path: &Path| format!("--{option}={}", path.display());
        let exec = Exec::new(unshare)
            .arg("--net")
            .arg(dnsmasq)
            .arg("--keep-in-foreground")
            .arg("--conf-file=/dev/null")
            .arg("--user=root")
            .arg("--port=0")
            .arg("--dhcp-range=10.77.0.0,static")
            .arg(told("dhcp-hostsdir", &layout.dhcp_hosts))
            .arg(told("dhcp-leasefile", &root.path().join("leases")))
            .arg(told("pid-file", &layout.dnsmasq_pid))
            .arg(told("log-facility", &log))
            .deadline(Duration::from_secs(60));
        let running = tokio::spawn(exec.run());
        let text = || std::fs::read_to_string(&log).unwrap_or_default();
        let until = async |what: &str, seen: &dyn Fn() -> bool| {
            for _ in 0..400 {
                if seen() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(25)).await;
            }
            panic!("{what}: {}", text());
        };
        until("it starts", &|| is_running(&layout.dnsmasq_pid).expect("looked") && text().contains("static leases only")).await;

        let first = reservation(2, "vm");
        let path = layout.dhcp_hosts.join(first.allocation_id.to_string());
        add(&layout, &first).await.expect("reserved");
        // Once because it is new, and once because of SIGHUP.
        let read = format!("read {}", path.display());
        until("it reads the file", &|| text().matches(&read).count() >= 2).await;
        remove(&layout, first.allocation_id).await.expect("removed");
        until("it looks again", &|| text().contains("removed")).await;
        assert!(!text().contains("/.alloc_"), "unfinished files are not read: {}", text());

        // The same address for the next guest: if the first were still known, this would be a duplicate, before and after SIGHUP.
        let before = text().matches("duplicate").count();
        let next = Reservation { allocation_id: AllocationId::generate(), ..first };
        let read = format!("read {}", layout.dhcp_hosts.join(next.allocation_id.to_string()).display());
        add(&layout, &next).await.expect("reserved");
        until("it reads the file", &|| text().matches(&read).count() >= 2).await;
        assert!(text().matches("duplicate").count() - before <= 1, "{}", text());
        assert!(!running.is_finished());
        running.abort();
    }
}
