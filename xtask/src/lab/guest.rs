//! A guest of the lab, and the commands that control it: those of an operator (`gpuaas slice`) or of a tenant (`gpuaas alloc`).

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::cleanup::Cleanup;
use super::cluster::{Caller, Cluster, PATIENCE};
use super::network::BRIDGE;
use super::program::{text, wait_until};
use super::slice::expect;
use super::tenant::{self, Wanted};

/// How long placement may take. It either succeeds immediately or never.
const PLACING: Duration = Duration::from_secs(60);

pub(super) struct Guest {
    caller: Caller,
    /// The allocation's id.
    pub(super) allocation: String,
    /// The task that creates the guest.
    pub(super) task: String,
    /// The tenant's `alloc create`, which runs until the tenant can sign in. `None` for an operator's guest.
    waiting: Option<Child>,
}

impl Guest {
    /// Requests a guest, and returns as soon as its task is known.
    pub(super) fn ask(
        caller: Caller,
        name: &str,
        wanted: &Wanted<'_>,
        cluster: &Cluster,
        cleanup: &mut Cleanup,
    ) -> Result<Self, String> {
        match caller {
            Caller::Operator => {
                let Wanted { url, digest, user, public_key } = wanted;
                let mut order = vec!["slice", "create", &cluster.node, "--slot", "0", "--name", name, "--image-url", url];
                order.extend(["--image-sha256", digest, "--ssh-key", text(public_key)?, "--user", user]);
                order.extend(["--bridge", BRIDGE, "--no-wait"]);
                let order = cluster.json(caller, &order)?;
                let (task, allocation) = (word(&order["task"]["id"], &order)?, word(&order["allocation_id"], &order)?);
                Ok(Self { caller, allocation, task, waiting: None })
            }
            Caller::Tenant => {
                let mut command = tenant::lease(cluster, name);
                // A process group of its own keeps Ctrl-C from reaching it, so that the cleanup decides the order in which things stop.
                command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
                let mut waiting = command.spawn().map_err(|error| format!("gpuaas cannot be started: {error}"))?;
                cleanup.end(&waiting)?;
                let mut leased = Value::Null;
                wait_until("the allocation gets a place", PLACING, || {
                    leased = cluster.json(caller, &["alloc", "show", name]).unwrap_or_default();
                    leased["task"].is_string() || waiting.try_wait().is_ok_and(|ended| ended.is_some())
                })?;
                if !leased["task"].is_string() {
                    return Err(ended(waiting)?.1);
                }
                let (task, allocation) = (word(&leased["task"], &leased)?, word(&leased["id"], &leased)?);
                Ok(Self { caller, allocation, task, waiting: Some(waiting) })
            }
        }
    }

    /// Returns a `Host` block for OpenSSH with which the requester can sign in.
    pub(super) fn way_in(&mut self, made: &Value, wanted: &Wanted<'_>, cluster: &Cluster) -> Result<String, String> {
        let Some(mut waiting) = self.waiting.take() else {
            let address = word(&made["output"]["private_ip"], made)?;
            // The host key is stored under the allocation's id, because addresses are reused.
            let (user, alias) = (wanted.user, &self.allocation);
            return Ok(format!(
                "Host {alias}\n    HostName {address}\n    User {user}\n    HostKeyAlias {alias}\n    StrictHostKeyChecking accept-new\n"
            ));
        };
        wait_until("the tenant's command ends", PATIENCE, || waiting.try_wait().is_ok_and(|ended| ended.is_some()))?;
        let (printed, reported) = ended(waiting)?;
        let leased: Value =
            serde_json::from_str(&printed).map_err(|error| format!("gpuaas alloc create: {error}: {reported}"))?;
        if leased["state"] != "active" {
            return Err(format!("the allocation is {}: {} {}", leased["state"], leased["code"], leased["reason"]));
        }
        expect(reported.contains("phase readiness"), "the tenant was told how it goes, and that it is active")?;
        tenant::expect_leased(cluster)?;
        cluster.cli(self.caller, &["alloc", "ssh-config", &self.allocation])
    }

    /// Returns the guest's console output.
    pub(super) fn console(&self, cluster: &Cluster) -> Result<String, String> {
        cluster.cli(self.caller, &[self.noun(), "console", &self.allocation])
    }

    /// Stops, starts or reboots the guest, and waits for the result.
    pub(super) fn power(&self, action: &str, cluster: &Cluster) -> Result<(), String> {
        cluster.cli(self.caller, &[self.noun(), action, &self.allocation]).map(|_| ())
    }

    /// Requests the guest's release, and returns the id of the release task.
    pub(super) fn release(&self, cluster: &Cluster) -> Result<String, String> {
        let order = cluster.json(self.caller, &[self.noun(), "release", &self.allocation, "--yes", "--no-wait"])?;
        match self.caller {
            Caller::Operator => word(&order["task"]["id"], &order),
            Caller::Tenant => {
                let mut leased = Value::Null;
                wait_until("the release is ordered", PLACING, || {
                    leased = self.leased(cluster).unwrap_or_default();
                    leased["step"] == "await_release" || leased["ended_at"].is_string()
                })?;
                word(&leased["task"], &leased)
            }
        }
    }

    /// Checks what the control plane shows after the release task has succeeded.
    pub(super) fn expect_over(&self, cluster: &Cluster) -> Result<(), String> {
        match self.caller {
            Caller::Operator => Ok(()),
            Caller::Tenant => {
                let is_over = || self.leased(cluster).is_ok_and(|leased| leased["state"] == "released");
                wait_until("the allocation is released", PLACING, is_over)?;
                tenant::expect_free(cluster)?;
                tenant::expect_history(cluster, &self.allocation)
            }
        }
    }

    fn leased(&self, cluster: &Cluster) -> Result<Value, String> {
        cluster.json(self.caller, &["alloc", "show", &self.allocation])
    }

    fn noun(&self) -> &'static str {
        match self.caller {
            Caller::Operator => "slice",
            Caller::Tenant => "alloc",
        }
    }
}

/// Waits for a command, which must succeed. Returns its standard output and standard error.
fn ended(command: Child) -> Result<(String, String), String> {
    let output = command.wait_with_output().map_err(|error| format!("waiting for gpuaas: {error}"))?;
    let [printed, reported] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    if output.status.success() {
        Ok((printed, reported))
    } else {
        Err(format!("gpuaas ended with {}: {reported}", output.status))
    }
}

/// Returns a string that `document` must contain.
fn word(value: &Value, document: &Value) -> Result<String, String> {
    value.as_str().map(str::to_owned).ok_or_else(|| format!("something is missing in {document}"))
}
