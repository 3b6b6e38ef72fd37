//! `doctor`: checks everything the agent needs and says what to do about problems.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use gpuaas_contract::envelope::CLOCK_SKEW;
use gpuaas_contract::time::Timestamp;

use crate::config::{Config, ConfigError, Loaded};
use crate::error_chain::chain;
use crate::identity::Identity;
use crate::journal::Journal;
use crate::link::dial::{Dialer, Protocol};
use crate::policy::Policy;
use crate::state::{StateError, StateLock};
use crate::{link, status};

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing to do.
    Ok,
    /// It works, but needs attention.
    Warn,
    /// It does not work.
    Fail,
}

impl Verdict {
    /// Returns its name for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The name of the check.
    pub check: &'static str,
    /// Its result.
    pub verdict: Verdict,
    /// What was found, and what to do about it.
    pub message: String,
}

fn finding(check: &'static str, verdict: Verdict, message: impl Into<String>) -> Finding {
    Finding { check, verdict, message: message.into() }
}

/// Runs all checks. Changes nothing.
pub async fn examine(loaded: Result<Loaded, ConfigError>) -> Vec<Finding> {
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(error) => return vec![finding("configuration", Verdict::Fail, chain(&error))],
    };
    let config = &loaded.config;
    let place = if loaded.found { loaded.path.display().to_string() } else { "defaults (no file)".to_owned() };
    let mut findings = vec![finding("configuration", Verdict::Ok, place)];
    findings.push(policy(config));
    findings.push(state_dir(config));
    findings.push(space(config));
    let running = status::read(&config.state_dir).filter(|status| is_alive(status.pid));
    match Identity::read(&config.state_dir) {
        Ok(identity) => {
            findings.push(certificate(&identity));
            findings.extend(reachability(config, identity).await);
        }
        Err(error) => findings.push(finding("identity", Verdict::Fail, chain(&error))),
    }
    findings.push(journal(config).await);
    findings.push(running_agent(running.as_ref()));
    findings.push(clock(running.as_ref()));
    findings
}

fn policy(config: &Config) -> Finding {
    match Policy::load(&config.policy_file) {
        Ok(policy) => {
            let allowed: Vec<_> = policy.allowed().iter().map(|kind| kind.as_str()).collect();
            if allowed.is_empty() {
                return finding("host policy", Verdict::Warn, "allows no task at all; add kinds to allowed_tasks");
            }
            finding("host policy", Verdict::Ok, format!("allows {}", allowed.join(", ")))
        }
        Err(error) => finding("host policy", Verdict::Fail, chain(&error)),
    }
}

fn state_dir(config: &Config) -> Finding {
    let path = &config.state_dir;
    match path.metadata() {
        Err(error) => {
            finding("state folder", Verdict::Fail, format!("{}: {error}; enroll first, or check state_dir", path.display()))
        }
        Ok(meta) if meta.mode() & 0o077 != 0 => finding(
            "state folder",
            Verdict::Warn,
            format!("{} can be entered by others; run: chmod 700 {}", path.display(), path.display()),
        ),
        Ok(_) => finding("state folder", Verdict::Ok, path.display().to_string()),
    }
}

fn space(config: &Config) -> Finding {
    let mut folder: &Path = &config.state_dir;
    while !folder.exists() {
        folder = folder.parent().unwrap_or(Path::new("/"));
    }
    let needed = config.log_buffer_bytes + if config.state_dir.join("journal").exists() { 0 } else { config.journal_bytes };
    match gpuaas_host::space(folder) {
        Ok(space) if space.available_bytes < needed => finding(
            "disk space",
            Verdict::Warn,
            format!(
                "{} MiB free, journal and log buffer may need {} MiB; free some or lower log_buffer_bytes",
                space.available_bytes >> 20,
                needed >> 20
            ),
        ),
        Ok(space) => finding("disk space", Verdict::Ok, format!("{} MiB free", space.available_bytes >> 20)),
        Err(error) => finding("disk space", Verdict::Warn, error.to_string()),
    }
}

fn certificate(identity: &Identity) -> Finding {
    let now = Timestamp::now();
    match identity.validity() {
        Err(error) => finding("certificate", Verdict::Fail, chain(&error)),
        Ok(validity) if now >= validity.until => finding(
            "certificate",
            Verdict::Warn,
            format!("expired at {}; the agent rejoins by itself when it runs", validity.until),
        ),
        Ok(validity) if now < validity.from => finding(
            "certificate",
            Verdict::Fail,
            format!("not valid before {}; check this host's clock (it shows {now})", validity.from),
        ),
        Ok(validity) if now >= validity.half_life().plus(Duration::from_secs(600)) => finding(
            "certificate",
            Verdict::Warn,
            format!("valid until {}, but renewal is overdue; is the agent running and connected?", validity.until),
        ),
        Ok(validity) => finding("certificate", Verdict::Ok, format!("{} until {}", identity.document.node_id, validity.until)),
    }
}

async fn reachability(config: &Config, identity: Identity) -> Vec<Finding> {
    let servers = if config.server.is_empty() { identity.document.server.clone() } else { config.server.clone() };
    let tls = match identity.chain().map_err(|error| chain(&error)).and_then(|certificates| {
        link::dial::enrolled_config(&identity.ca, Some((certificates, identity.keys.tls_der()))).map_err(|e| chain(&e))
    }) {
        Ok(tls) => tls,
        Err(error) => return vec![finding("control plane", Verdict::Fail, error)],
    };
    let mut findings = Vec::new();
    for server in servers {
        let dialer = Dialer::new(vec![server.clone()], tls.clone(), config.request_timeout);
        findings.push(match dialer.dial(Protocol::Http2).await {
            Ok(_) => finding("control plane", Verdict::Ok, format!("{server} answers with a certificate of the pinned CA")),
            Err(error) => finding("control plane", Verdict::Fail, chain(&error)),
        });
    }
    if findings.is_empty() {
        findings.push(finding("control plane", Verdict::Fail, "no address; run: gpuaas-agent config set server host:port"));
    }
    findings
}

/// Checks the journal. Opening the journal repairs it, so it is inspected only while no agent has it open; repairs are left to
/// the agent.
async fn journal(config: &Config) -> Finding {
    let folder = config.state_dir.clone();
    if let Err(error) = Journal::check_birth(&crate::identity::folder(&folder), &folder) {
        return finding("journal", Verdict::Fail, chain(&error));
    }
    if !folder.join("journal").exists() {
        return finding("journal", Verdict::Ok, "none yet; it is created at the first start");
    }
    let examined = tokio::task::spawn_blocking(move || match StateLock::take(&folder) {
        Err(StateError::InUse { .. }) => finding("journal", Verdict::Ok, "in use by the running agent"),
        Err(error) => finding("journal", Verdict::Fail, chain(&error)),
        Ok(_lock) => match Journal::inspect(&folder) {
            Ok(summary) if summary.damaged => finding(
                "journal",
                Verdict::Warn,
                "has damaged bytes; the agent repairs it at its next start and keeps a copy of them",
            ),
            Ok(summary) => finding(
                "journal",
                Verdict::Ok,
                format!(
                    "{} % used, {} tasks unfinished, {} receipts unreported",
                    summary.used_percent, summary.in_flight, summary.unreported
                ),
            ),
            Err(error) => finding("journal", Verdict::Fail, chain(&error)),
        },
    });
    examined.await.unwrap_or_else(|error| finding("journal", Verdict::Fail, error.to_string()))
}

fn running_agent(status: Option<&status::AgentStatus>) -> Finding {
    match status {
        None => finding("agent", Verdict::Warn, "is not running; start it with: gpuaas-agent start"),
        Some(status) if status.link.connected => {
            finding("agent", Verdict::Ok, format!("runs as process {}, connected by {}", status.pid, status.link.transport))
        }
        Some(status) => finding("agent", Verdict::Warn, format!("runs but is not connected: {}", status.link.last_error)),
    }
}

fn clock(status: Option<&status::AgentStatus>) -> Finding {
    let Some(status) = status.filter(|status| status.link.sessions > 0) else {
        return finding("clock", Verdict::Ok, "not compared yet: that happens with every connection");
    };
    let offset = Duration::from_micros(status.link.clock_offset_us.unsigned_abs());
    let text = format!("{}.{:03} s from the control plane's", offset.as_secs(), offset.subsec_millis());
    if offset > CLOCK_SKEW {
        return finding("clock", Verdict::Fail, format!("{text}; tasks are refused beyond 60 s: set up NTP on this host"));
    }
    if offset > Duration::from_secs(5) {
        return finding("clock", Verdict::Warn, format!("{text}; set up NTP on this host"));
    }
    finding("clock", Verdict::Ok, text)
}

/// Returns whether a process with this id exists.
pub fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_host_that_was_never_set_up_is_told_what_to_do() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("config.toml");
        let text = format!("state_dir = \"{0}/state\"\npolicy_file = \"{0}/policy.toml\"\n", folder.path().display());
        gpuaas_host::private_file::write_with_mode(&path, text.as_bytes(), 0o644).expect("written");
        let findings = examine(Config::load(&path, true, std::iter::empty())).await;
        let failed: Vec<_> = findings.iter().filter(|f| f.verdict == Verdict::Fail).map(|f| f.check).collect();
        assert_eq!(failed, ["host policy", "state folder", "identity"]);
        assert!(findings.iter().any(|f| f.message.contains("gpuaas-agent enroll")));
    }

    #[tokio::test]
    async fn a_broken_configuration_is_the_first_thing_to_fix() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("config.toml");
        gpuaas_host::private_file::write_with_mode(&path, b"nonsense = 1\n", 0o644).expect("written");
        let findings = examine(Config::load(&path, true, std::iter::empty())).await;
        assert_eq!(findings.len(), 1);
        assert!(findings[0].verdict == Verdict::Fail && findings[0].message.contains("`nonsense`"), "{findings:?}");
    }
}
