//! The real server and the real agent on the slice host, driven through the command line as an operator would.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::cleanup::Cleanup;
use super::daemon::Daemon;
use super::machine::Machine;
use super::network::{BRIDGE, HOST};
use super::program::{read, run, text, wait_until, write};
use crate::cargo;

/// Port on which the agent receives the guests' telemetry.
const TELEMETRY_PORT: u16 = 9110;
/// Longest wait for anything. The slowest case is a guest that boots under emulation on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(900);

/// Environment variables of the caller that would change the lab's result.
const NOT_OURS: [&str; 6] =
    ["GPUAAS_TOKEN", "GPUAAS_PROJECT", "GPUAAS_PROFILE", "GPUAAS_SOCKET", "GPUAAS_CONFIG", "GPUAAS_CORRELATION_ID"];

/// On whose behalf a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// An operator of the platform.
    Operator,
    /// A member of one project, without other permissions.
    Tenant,
}

impl Caller {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Operator => "an operator",
            Self::Tenant => "a tenant",
        }
    }
}

/// A server with a single node, which is this machine.
pub(super) struct Cluster {
    folder: PathBuf,
    programs: PathBuf,
    api: String,
    agent: Option<Daemon>,
    /// Name of that node.
    pub(super) node: String,
}

impl Cluster {
    /// Starts the server, enrolls this machine as a node and starts its agent.
    pub(super) fn start(programs: PathBuf, machine: &mut Machine, images: &Path, image_source: &str) -> Result<Self, String> {
        let folder = machine.folder.join("cluster");
        std::fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let (api_port, link_port) = (free_port()?, free_port()?);
        let mut server = Command::new(programs.join("gpuaas"));
        server.arg("server").arg("--data-dir").arg(folder.join("server"));
        server.args(["--api-listen", &format!("127.0.0.1:{api_port}"), "--link-listen", &format!("127.0.0.1:{link_port}")]);
        let token = folder.join("server/admin-token");
        let mut daemon = Daemon::start("gpuaas-server", &mut server, &machine.folder, &mut machine.cleanup)?;
        daemon.wait_until(|| token.is_file() && std::net::TcpStream::connect(("127.0.0.1", api_port)).is_ok())?;

        let mut cluster =
            Self { folder, programs, api: format!("http://127.0.0.1:{api_port}"), agent: None, node: String::new() };
        cluster.write_agent_files(machine, images, image_source, link_port)?;
        let join = cluster.json(Caller::Operator, &["node", "token", "create"])?;
        let join = join["token"].as_str().ok_or("there is no join token")?.to_owned();
        let mut enroll = cluster.agent_command();
        run(enroll.arg("enroll").env("GPUAAS_JOIN_TOKEN", join))?;
        cluster.start_agent(machine)?;
        let nodes = cluster.json(Caller::Operator, &["node", "ls"])?;
        let name = nodes[0]["name"].as_str().or(nodes["items"][0]["name"].as_str());
        cluster.node = name.ok_or_else(|| format!("no node: {nodes}"))?.to_owned();
        Ok(cluster)
    }

    fn write_agent_files(&self, machine: &Machine, images: &Path, image_source: &str, link_port: u16) -> Result<(), String> {
        let lines = [
            format!("server = [\"127.0.0.1:{link_port}\"]"),
            format!("state_dir = \"{}\"", text(&self.folder.join("agent"))?),
            format!("policy_file = \"{}\"", text(&self.folder.join("policy.toml"))?),
            format!("slices_dir = \"{}\"", text(&machine.instances)?),
            format!("images_dir = \"{}\"", text(&self.folder.join("images"))?),
            format!("image_folders = [\"{}\"]", text(images)?),
            format!("dhcp_hosts_dir = \"{}\"", text(&machine.dhcp.reservations)?),
            format!("dnsmasq_pid_file = \"{}\"", text(&machine.dhcp.pid_file)?),
            format!("guest_telemetry_listen = \"{HOST}:{TELEMETRY_PORT}\""),
            "metrics_interval = \"2s\"".to_owned(),
        ];
        write(&self.folder.join("config.toml"), lines.join("\n") + "\n")?;
        let policy = format!(
            "allowed_tasks = [\"diag.health_probe\", \"slice.topology_discover\", \"slice.vm_provision\", \"slice.vm_release\", \
             \"slice.vm_power\", \"slice.console_read\"]\n[slices]\nnvme_serials = [\"*\"]\nimage_sources = [\"{image_source}\", \"file\"]\n\
             bridges = [\"{BRIDGE}\"]\nimage_formats = [\"qcow2\", \"raw\"]\nusernames = [\"*\"]\nimage_private_networks = [\"127.0.0.0/8\", \"::1\"]\n\
             emulation = \"always\"\ndrives_without_gpu = [\"{}\"]\n",
            text(&machine.drive.stable)?
        );
        let path = self.folder.join("policy.toml");
        write(&path, policy)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))
            .map_err(|error| format!("{}: {error}", path.display()))
    }

    fn agent_command(&self) -> Command {
        let mut command = Command::new(self.programs.join("gpuaas-agent"));
        command.arg("--config").arg(self.folder.join("config.toml"));
        command
    }

    /// Starts the agent and waits until the server reports it as connected.
    pub(super) fn start_agent(&mut self, machine: &mut Machine) -> Result<(), String> {
        let mut command = self.agent_command();
        self.agent = Some(Daemon::start("gpuaas-agent", command.arg("run"), &machine.folder, &mut machine.cleanup)?);
        wait_until("the node comes online", Duration::from_secs(60), || {
            self.json(Caller::Operator, &["node", "ls"]).is_ok_and(|nodes| nodes.to_string().contains("\"online\":true"))
        })
    }

    /// Kills the agent with SIGKILL.
    pub(super) fn kill_agent(&mut self) -> Result<(), String> {
        self.agent.take().ok_or("there is no agent")?.kill()
    }

    /// Returns the path of the file with the caller's token.
    pub(super) fn token_file(&self, caller: Caller) -> PathBuf {
        self.folder.join(match caller {
            Caller::Operator => "server/admin-token",
            Caller::Tenant => "tenant-token",
        })
    }

    /// Returns a `gpuaas` command that acts as the caller, not yet started.
    pub(super) fn command(&self, caller: Caller, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.programs.join("gpuaas"));
        command.args(arguments).env("GPUAAS_URL", &self.api).env("GPUAAS_TOKEN_FILE", self.token_file(caller));
        for variable in NOT_OURS {
            command.env_remove(variable);
        }
        command
    }

    /// Runs a `gpuaas` command as the caller and returns its output.
    pub(super) fn cli(&self, caller: Caller, arguments: &[&str]) -> Result<String, String> {
        run(&mut self.command(caller, arguments))
    }

    /// Runs a `gpuaas` command as the caller and returns its output as JSON.
    pub(super) fn json(&self, caller: Caller, arguments: &[&str]) -> Result<Value, String> {
        let printed = self.cli(caller, &[arguments, &["-o", "json"]].concat())?;
        serde_json::from_str(&printed).map_err(|error| format!("gpuaas {}: {error}: {printed}", arguments.join(" ")))
    }

    /// Discovers the node's topology, and approves a slot that uses the lab's drive.
    pub(super) fn approve(&self) -> Result<(), String> {
        let params = [format!("ovs_bridge={BRIDGE}"), "private_subnet=10.77.99.0/24".to_owned()];
        let mut discover = vec!["node", "topology", "discover", &self.node];
        discover.extend(["-p", &params[0], "-p", &params[1], "-p", "vcpu_count=2", "-p", "memory_mib=1024"]);
        self.cli(Caller::Operator, &discover)?;
        let approved = self.cli(Caller::Operator, &["node", "topology", "approve", &self.node]);
        approved.map(|_| ()).map_err(|error| {
            let found = self.cli(Caller::Operator, &["node", "topology", "show", &self.node]).unwrap_or_default();
            format!("{error}\n{found}")
        })
    }

    /// Returns a task as the API shows it.
    pub(super) fn task(&self, id: &str) -> Result<Value, String> {
        self.json(Caller::Operator, &["task", "show", id])
    }

    /// Waits until the task has reached the phase.
    pub(super) fn wait_for_phase(&self, id: &str, phase: &str) -> Result<(), String> {
        let mut seen = String::new();
        wait_until(&format!("{id} reaches {phase}"), PATIENCE, || {
            let Ok(task) = self.task(id) else { return false };
            seen = task["progress"]["phase"].as_str().unwrap_or_default().to_owned();
            seen == phase || task["ended_at"].is_string()
        })?;
        if seen == phase { Ok(()) } else { Err(format!("{id} was past {phase} before it could be stopped there")) }
    }

    /// Waits until the task has ended, and fails unless it succeeded.
    pub(super) fn wait_for_success(&self, id: &str) -> Result<Value, String> {
        let mut last = Value::Null;
        wait_until(&format!("{id} ends"), PATIENCE, || {
            last = self.task(id).unwrap_or(Value::Null);
            last["ended_at"].is_string()
        })?;
        if last["state"] == "succeeded" {
            return Ok(last);
        }
        let logs = self.cli(Caller::Operator, &["task", "logs", id]).unwrap_or_default();
        Err(format!("{id}: {} {} {}\n{logs}", last["state"], last["code"], last["message"]))
    }

    /// Returns the number of lease files in the agent's state folder.
    pub(super) fn leases(&self) -> usize {
        let entries = std::fs::read_dir(self.folder.join("agent/leases")).into_iter().flatten().flatten();
        entries.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "json")).count()
    }

    /// Returns the folder for the cluster's files.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the last lines of the agent's log.
    pub(super) fn agent_log(&self, machine: &Machine) -> String {
        let log = read(&machine.folder.join("gpuaas-agent.log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).into_owned();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

/// Returns the folder with the programs.
pub(super) fn programs(build: bool) -> Result<PathBuf, String> {
    if build {
        let features = crate::test::features(&cargo::test_features()?);
        let features: Vec<&str> = features.iter().map(String::as_str).collect();
        cargo::build_all(&features)?;
    }
    Ok(cargo::target().join("debug"))
}

fn free_port() -> Result<u16, String> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).map_err(|error| format!("no port is free: {error}"))?;
    listener.local_addr().map(|address| address.port()).map_err(|error| format!("no port is free: {error}"))
}

impl Cluster {
    /// Creates an SSH key pair for the tenant. Returns the paths of the private and the public key.
    pub(super) fn key_pair(&self, cleanup: &mut Cleanup) -> Result<(PathBuf, PathBuf), String> {
        let key = self.folder.join("tenant_ed25519");
        run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key))?;
        cleanup.remove(&key)?;
        Ok((key.clone(), key.with_extension("pub")))
    }
}
