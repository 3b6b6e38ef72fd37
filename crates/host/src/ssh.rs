//! Queries a guest over SSH, with its own key and host key only.

use std::path::{Path, PathBuf};
use std::time::Duration;

use gpuaas_contract::task::slice_vm_provision::Performance;

use crate::HostError;
use crate::cloud_init::{MARKER, PROBE};
use crate::exec::{Exec, ExecError, Finished, first_installed, printable};
use crate::guests::{GuestAccess, GuestAnswer, InstanceFile};

const SSH: &[&str] = &["/usr/bin/ssh"];
/// Time limit of one query.
const ASK: Duration = Duration::from_secs(15);
/// The probe writes 64 MiB, which takes long in an emulated guest.
const MEASURE: Duration = Duration::from_secs(120);
/// Maximum size of output, in bytes: the tenant controls the guest.
const MOST_BYTES: usize = 4096;
/// The exit code of ssh without a connection.
const NO_CONNECTION: i32 = 255;

/// Asks a guest whether it is ready.
pub(crate) async fn ask(instances: &Path, guest: &GuestAccess) -> Result<GuestAnswer, HostError> {
    let exec = call(instances, guest)?.arg("test").arg("-e").arg(MARKER).deadline(ASK);
    match exec.run_with_code().await {
        Ok((code, finished)) => Ok(answer(guest, code, &finished)),
        Err(error @ ExecError::Start { .. }) => Err(missing(&error.to_string())),
        Err(error) => {
            tracing::debug!(allocation = %guest.allocation_id, %error, "the guest did not answer");
            Ok(GuestAnswer::default())
        }
    }
}

/// Measures what a ready guest sees and how fast its disk is.
pub(crate) async fn measure(instances: &Path, guest: &GuestAccess) -> Result<Performance, HostError> {
    let exec = call(instances, guest)?.arg(PROBE).deadline(MEASURE);
    let unmeasured = |reason: String| Ok(Performance { measured: false, reason, ..Performance::default() });
    match exec.run_with_code().await {
        Ok((Some(0), finished)) => Ok(performance(&finished.stdout)),
        Ok((code, finished)) => {
            let code = code.map_or_else(|| "a signal".to_owned(), |code| format!("code {code}"));
            unmeasured(format!("the probe in the guest ended with {code}: {}", printable(&finished.stderr)))
        }
        Err(error @ ExecError::Start { .. }) => Err(missing(&error.to_string())),
        Err(error) => unmeasured(error.to_string()),
    }
}

/// Returns the program with everything but the command. The host's own SSH configuration is not used.
fn call(instances: &Path, guest: &GuestAccess) -> Result<Exec, HostError> {
    let program = first_installed(SSH).ok_or_else(|| missing("install openssh-client"))?;
    Ok(arguments(instances, guest).into_iter().fold(Exec::new(program).stdout_cap(MOST_BYTES), Exec::arg))
}

fn arguments(instances: &Path, guest: &GuestAccess) -> Vec<String> {
    let folder = instances.join(guest.allocation_id.to_string());
    let path = |file: InstanceFile| folder.join(file.name());
    // ssh parses this option as a list of words, with its own escapes.
    let quoted = |path: PathBuf| format!("\"{}\"", path.display().to_string().replace('%', "%%").replace(['"', '\\'], "_"));
    let known_hosts = format!("UserKnownHostsFile={}", quoted(path(InstanceFile::KnownHosts)));
    let mut arguments: Vec<String> = ["-F", "/dev/null", "-T", "-x", "-a"].map(str::to_owned).to_vec();
    for option in [
        "BatchMode=yes",
        "StrictHostKeyChecking=yes",
        &known_hosts,
        "GlobalKnownHostsFile=/dev/null",
        "UpdateHostKeys=no",
        "HostKeyAlgorithms=ssh-ed25519",
        "VerifyHostKeyDNS=no",
        "IdentitiesOnly=yes",
        "IdentityAgent=none",
        "PreferredAuthentications=publickey",
        "PasswordAuthentication=no",
        "ConnectTimeout=5",
        "ServerAliveInterval=5",
        "ForwardAgent=no",
        "ClearAllForwardings=yes",
        "ProxyCommand=none",
        "ControlPath=none",
        "LogLevel=ERROR",
    ] {
        arguments.extend(["-o".to_owned(), option.to_owned()]);
    }
    let key = path(InstanceFile::TerminalKey).display().to_string().replace('%', "%%");
    arguments.extend(["-i".to_owned(), key, "-l".to_owned(), guest.user.to_string(), guest.address.to_string(), "--".to_owned()]);
    arguments
}

fn answer(guest: &GuestAccess, code: Option<i32>, finished: &Finished) -> GuestAnswer {
    match code {
        Some(0) => GuestAnswer { ssh: true, marker: true },
        Some(code) if code != NO_CONNECTION => GuestAnswer { ssh: true, marker: false },
        Some(_) | None => {
            let reported = printable(&finished.stderr);
            if is_somebody_else(&reported) {
                tracing::warn!(
                    allocation = %guest.allocation_id,
                    address = %guest.address,
                    %reported,
                    "the host at the guest's address does not have the guest's host key; its answer is ignored"
                );
            }
            GuestAnswer::default()
        }
    }
}

fn is_somebody_else(reported: &str) -> bool {
    ["Host key verification failed", "HOST IDENTIFICATION HAS CHANGED", "no matching host key type"]
        .iter()
        .any(|words| reported.contains(words))
}

/// Parses the probe's output: one line in a fixed format. A tenant can forge it, so it is shown and nothing is decided by it.
fn performance(printed: &[u8]) -> Performance {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Probe {
        cpus: u32,
        memory_mib: u64,
        gpus: u32,
        boot_ms: u64,
        disk_write_mib_per_s: u64,
    }
    match serde_json::from_slice::<Probe>(printed) {
        Ok(Probe { cpus, memory_mib, gpus, boot_ms, disk_write_mib_per_s }) => {
            Performance { measured: true, reason: String::new(), cpus, memory_mib, gpus, boot_ms, disk_write_mib_per_s }
        }
        Err(error) => {
            let reason = format!("the probe in the guest printed something else: {error}");
            Performance { measured: false, reason, ..Performance::default() }
        }
    }
}

fn missing(why: &str) -> HostError {
    HostError::new("ssh_missing", format!("guests cannot be asked without ssh: {why}"))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use gpuaas_contract::id::AllocationId;

    use super::*;

    fn guest() -> GuestAccess {
        GuestAccess {
            allocation_id: AllocationId::generate(),
            address: Ipv4Addr::new(10, 77, 0, 2),
            user: "ubuntu".parse().expect("a user"),
        }
    }

    fn ended(code: Option<i32>, stderr: &str) -> GuestAnswer {
        answer(&guest(), code, &Finished { stdout: Vec::new(), stderr: stderr.as_bytes().to_vec() })
    }

    #[test]
    fn an_exit_code_is_an_answer() {
        assert_eq!(ended(Some(0), ""), GuestAnswer { ssh: true, marker: true });
        assert_eq!(ended(Some(1), ""), GuestAnswer { ssh: true, marker: false });
        assert_eq!(ended(Some(255), "Host key verification failed."), GuestAnswer::default());
        assert_eq!(ended(None, ""), GuestAnswer::default());
    }

    #[test]
    fn a_wrong_host_key_is_told_from_no_answer() {
        for words in [
            "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @",
            "No ED25519 host key is known for 10.77.0.2 and you have requested strict checking. Host key verification failed.",
        ] {
            assert!(is_somebody_else(words), "{words}");
        }
        assert!(!is_somebody_else("ssh: connect to host 10.77.0.2 port 22: Connection refused"));
    }

    #[test]
    fn every_option_stands_before_the_address_and_the_command_after_the_dashes() {
        let words = arguments(Path::new("/var/lib/gp uaas/%h"), &guest());
        assert_eq!(words[words.len() - 2..], ["10.77.0.2", "--"]);
        assert!(words.iter().any(|word| word.starts_with("UserKnownHostsFile=\"/var/lib/gp uaas/%%h/alloc_")), "{words:?}");
        assert!(words.windows(2).any(|pair| pair == ["-o", "StrictHostKeyChecking=yes"]));
    }

    #[test]
    fn what_the_guest_measured_is_taken_only_as_agreed() {
        let good = br#"{"cpus":4,"memory_mib":7953,"gpus":1,"boot_ms":21040,"disk_write_mib_per_s":812}"#;
        let expected = Performance {
            measured: true,
            reason: String::new(),
            cpus: 4,
            memory_mib: 7953,
            gpus: 1,
            boot_ms: 21_040,
            disk_write_mib_per_s: 812,
        };
        assert_eq!(performance(good), expected);
        assert_eq!(performance(&[good.as_slice(), b"\n"].concat()), expected);
        for bad in [b"".as_slice(), b"{}", br#"{"cpus":-1}"#, &[good.as_slice(), good].concat(), b"Welcome!"] {
            let performance = performance(bad);
            assert!(!performance.measured && !performance.reason.is_empty());
        }
    }

    #[tokio::test]
    async fn a_guest_that_is_not_there_is_an_answer() {
        if first_installed(SSH).is_none() {
            return;
        }
        let root = tempfile::tempdir().expect("folder");
        // No machine that runs tests listens there, and the host key would be unknown.
        let nobody = GuestAccess { address: Ipv4Addr::new(127, 255, 255, 254), ..guest() };
        assert_eq!(ask(root.path(), &nobody).await.expect("an answer"), GuestAnswer::default());
        let performance = measure(root.path(), &nobody).await.expect("an answer");
        assert!(!performance.measured && performance.reason.contains("255"), "{performance:?}");
    }
}
