//! A cluster of real processes in a temporary folder.

use std::path::{Path, PathBuf};

use gpuaas_contract::task::TaskType;
use gpuaas_testkit::{Failpoints, Launch, NetNs, PATIENCE, PgDatabase, Program, TempDir, eventually, free_port, pg_database};
use serde_json::Value;

/// The database of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    Sqlite,
    Postgres,
}

/// The version of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// The version in this repository.
    This,
    /// The previous version, as built by `cargo xtask prove versions`.
    Previous,
}

impl Version {
    /// Prepares the start of a program of this version.
    fn launch(self, program: &str) -> Launch {
        match self {
            Self::This => Launch::new(program),
            Self::Previous => Launch::at(previous_programs().expect("a test asks for them first").join(program)),
        }
    }
}

/// Returns the folder with the programs of the previous version, if they were built.
pub(crate) fn previous_programs() -> Option<PathBuf> {
    std::env::var_os("GPUAAS_TEST_PREVIOUS").filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// Another server that ours works with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beside {
    Nats,
    Redis,
    Temporal,
}

impl Beside {
    /// Returns the environment variables that make our server use it, with a stream or queue that no other test uses.
    fn environment(self) -> Option<Vec<(&'static str, String)>> {
        let (url, told, own) = match self {
            Self::Nats => ("GPUAAS_TEST_NATS_URL", "GPUAAS_NATS_URL", "GPUAAS_NATS_STREAM"),
            Self::Redis => ("GPUAAS_TEST_REDIS_URL", "GPUAAS_REDIS_URL", ""),
            Self::Temporal => ("GPUAAS_TEST_TEMPORAL_URL", "GPUAAS_TEMPORAL_URL", "GPUAAS_TEMPORAL_QUEUE"),
        };
        let Some(address) = std::env::var(url).ok().filter(|address| !address.is_empty()) else {
            gpuaas_testkit::skip(
                &format!("a test with {self:?}"),
                &format!("{url} is not set; run `cargo xtask test`, which starts one"),
            );
            return None;
        };
        let mut told = vec![(told, address)];
        if !own.is_empty() {
            told.push((own, format!("test-{}-{}", std::process::id(), free_port())));
        }
        if self == Self::Temporal {
            told.push(("GPUAAS_WORKFLOW", "temporal".to_owned()));
            // A server that was killed does not answer, and Temporal should not wait long for it.
            told.push(("GPUAAS_TEMPORAL_STEP_TIMEOUT", "2".to_owned()));
        }
        Some(told)
    }
}

pub(crate) struct Cluster {
    pub(crate) dir: TempDir,
    pub(crate) failpoints: Failpoints,
    pub(crate) link: String,
    store_url: Option<String>,
    /// Additional environment variables of the server.
    environment: Vec<(&'static str, String)>,
    version: Version,
    // The database is declared after the server, so that it is dropped after it.
    server: Program,
    _pg: Option<PgDatabase>,
    api_port: u16,
    link_listen: String,
    /// Limit of the server's file descriptors. `None` for that of this test.
    open_files: Option<u32>,
}

/// The result of a run of the CLI.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.code, 0, "exit {}: {}", self.code, self.stderr);
        self.any_json()
    }

    /// Parses stdout as one JSON document, whatever the exit code.
    pub(crate) fn any_json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("stdout is not one JSON document ({e}): {self:?}"))
    }
}

impl Cluster {
    /// Starts a cluster. Returns `None`, and reports the skip, if the store is not available.
    pub(crate) fn start(store: Store) -> Option<Self> {
        Self::start_on(store, "127.0.0.1")
    }

    /// Starts a cluster that agents reach at this address.
    pub(crate) fn start_on(store: Store, address: &str) -> Option<Self> {
        Self::start_in(Version::This, store, address, Vec::new())
    }

    /// Starts a cluster that uses other servers. Returns `None`, and reports the skip, if one of them is missing.
    pub(crate) fn start_beside(store: Store, beside: &[Beside]) -> Option<Self> {
        let environment: Option<Vec<_>> = beside.iter().map(|beside| beside.environment()).collect();
        Self::start_in(Version::This, store, "127.0.0.1", environment?.concat())
    }

    /// Starts a cluster with a server of this version.
    pub(crate) fn start_version(store: Store, version: Version) -> Option<Self> {
        Self::start_in(version, store, "127.0.0.1", Vec::new())
    }

    /// Starts a cluster on SQLite, with these environment variables for the server.
    pub(crate) fn start_told(environment: Vec<(&'static str, String)>) -> Self {
        Self::start_of(Version::This, None, None, "127.0.0.1", environment, None)
    }

    fn start_in(version: Version, store: Store, address: &str, environment: Vec<(&'static str, String)>) -> Option<Self> {
        let pg = match store {
            Store::Sqlite => None,
            Store::Postgres => Some(pg_database()?),
        };
        let store_url = pg.as_ref().map(|pg| pg.url().to_owned());
        Some(Self::start_of(version, store_url, pg, address, environment, None))
    }

    /// Starts a cluster on the database at this URL, which the caller manages.
    pub(crate) fn start_with(store_url: &str) -> Self {
        Self::start_of(Version::This, Some(store_url.to_owned()), None, "127.0.0.1", Vec::new(), None)
    }

    /// Starts a cluster on SQLite, with this limit of the server's file descriptors.
    pub(crate) fn start_with_open_files(open_files: u32) -> Self {
        Self::start_of(Version::This, None, None, "127.0.0.1", Vec::new(), Some(open_files))
    }

    fn start_of(
        version: Version,
        store_url: Option<String>,
        pg: Option<PgDatabase>,
        address: &str,
        environment: Vec<(&'static str, String)>,
        open_files: Option<u32>,
    ) -> Self {
        let dir = TempDir::new();
        let failpoints = Failpoints::new(dir.join("server-failpoints"));
        let (api_port, link_port) = (free_port(), free_port());
        let link_listen = format!("{address}:{link_port}");
        let launch = Self::launch(version, &dir, &failpoints, store_url.as_deref(), &environment, api_port, &link_listen);
        let server = limited(launch, open_files).start(dir.path());
        let link = link_listen.clone();
        let mut cluster =
            Self { dir, failpoints, link, store_url, environment, version, server, _pg: pg, api_port, link_listen, open_files };
        cluster.wait_ready();
        cluster
    }

    fn launch(
        version: Version,
        dir: &TempDir,
        failpoints: &Failpoints,
        store_url: Option<&str>,
        environment: &[(&'static str, String)],
        api_port: u16,
        link_listen: &str,
    ) -> Launch {
        let mut launch = version
            .launch("gpuaas")
            .args(["server", "--data-dir"])
            .arg(dir.join("server"))
            .args(["--api-listen", &format!("127.0.0.1:{api_port}"), "--link-listen", link_listen])
            .env("GPUAAS_LOG", "info,gpuaas_control=debug")
            .failpoints(failpoints);
        for (name, value) in environment {
            launch = launch.env(name, value);
        }
        match store_url {
            Some(url) => launch.env("GPUAAS_STORE", url),
            None => launch,
        }
    }

    fn relaunch(&self, api_port: u16, link_listen: &str) -> Launch {
        let (store_url, environment) = (self.store_url.as_deref(), &self.environment);
        Self::launch(self.version, &self.dir, &self.failpoints, store_url, environment, api_port, link_listen)
    }

    fn wait_ready(&mut self) {
        self.server.wait_for_line("link ready", PATIENCE);
    }

    /// Starts another server process on the same database and keys, with these roles and a REST address of its own.
    pub(crate) fn another_server(&self, roles: &str) -> (Program, String) {
        let api_port = free_port();
        let link_listen = format!("127.0.0.1:{}", free_port());
        let launch = self.relaunch(api_port, &link_listen);
        let mut program = launch.args(["--roles", roles]).start(self.dir.path());
        program.wait_for_line("REST ready", PATIENCE);
        (program, format!("http://127.0.0.1:{api_port}"))
    }

    /// Starts one more server of this version, on the same database and keys, as a cluster with addresses of its own.
    pub(crate) fn beside(&self, version: Version) -> Self {
        let (api_port, link_port) = (free_port(), free_port());
        let link_listen = format!("127.0.0.1:{link_port}");
        let (store_url, environment) = (self.store_url.clone(), self.environment.clone());
        // A folder of its own for logs and hosts, with the keys of the first cluster.
        let dir = TempDir::new();
        std::os::unix::fs::symlink(self.dir.join("server"), dir.join("server")).unwrap();
        let failpoints = Failpoints::new(dir.join("server-failpoints"));
        let launch = Self::launch(version, &dir, &failpoints, store_url.as_deref(), &environment, api_port, &link_listen);
        let server = launch.start(dir.path());
        let link = link_listen.clone();
        let mut cluster = Self {
            dir,
            failpoints,
            link,
            store_url,
            environment,
            version,
            server,
            _pg: None,
            api_port,
            link_listen,
            open_files: None,
        };
        cluster.wait_ready();
        cluster
    }

    /// Replaces the server with one of this version, with the same folder and ports.
    pub(crate) fn change_version(&mut self, version: Version) {
        self.stop_server();
        self.version = version;
        self.start_server();
    }

    pub(crate) fn kill_server(&mut self) {
        self.server.sigkill();
    }

    pub(crate) fn stop_server(&mut self) {
        self.server.sigterm();
        assert!(self.server.wait(PATIENCE).success(), "the server does not end in good order");
    }

    /// Restarts the server with the same folder and ports.
    pub(crate) fn start_server(&mut self) {
        let launch = self.relaunch(self.api_port, &self.link_listen);
        self.server = limited(launch, self.open_files).start(self.dir.path());
        self.wait_ready();
    }

    /// Returns the id of the server's process.
    pub(crate) fn server_id(&self) -> u32 {
        self.server.id()
    }

    pub(crate) fn server_log(&self) -> String {
        self.server.stderr()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.api_port)
    }

    pub(crate) fn admin_token_file(&self) -> PathBuf {
        self.dir.join("server/admin-token")
    }

    /// Prepares a run of the CLI with this cluster's URL and token.
    pub(crate) fn cli_launch(&self, arguments: &[&str]) -> Launch {
        // Of the server's version: a CLI that is newer than its server may send what the server does not know.
        self.version
            .launch("gpuaas")
            .args(arguments)
            .env("GPUAAS_URL", self.url())
            .env("GPUAAS_TOKEN_FILE", self.admin_token_file())
    }

    /// Runs the CLI.
    pub(crate) fn cli(&self, arguments: &[&str]) -> Ran {
        let (status, stdout, stderr) = self.cli_launch(arguments).run(self.dir.path(), PATIENCE * 2);
        Ran { code: status.code().unwrap_or(-1), stdout, stderr }
    }

    /// Runs the CLI, which must succeed, and parses its output.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let mut all = arguments.to_vec();
        all.extend(["-o", "json"]);
        self.cli(&all).json()
    }

    pub(crate) fn join_token(&self) -> String {
        self.json(&["node", "token", "create"])["token"].as_str().unwrap().to_owned()
    }

    pub(crate) fn ca_pin(&self) -> String {
        self.json(&["cluster", "info"])["ca_sha256"].as_str().unwrap().to_owned()
    }

    pub(crate) fn task(&self, id: &str) -> Value {
        self.json(&["task", "show", id])
    }

    /// Waits until the task is in this state.
    pub(crate) fn wait_state(&self, id: &str, state: &str) -> Value {
        eventually(PATIENCE, &format!("{id} becomes {state}"), || {
            let task = self.task(id);
            (task["state"] == state).then_some(task)
        })
    }

    /// Waits until the node is online, or offline.
    pub(crate) fn wait_online(&self, node: &str, online: bool) -> Value {
        eventually(PATIENCE, &format!("{node} online is {online}"), || {
            let ran = self.cli(&["node", "show", node, "-o", "json"]);
            let node = (ran.code == 0).then(|| ran.json())?;
            (node["online"] == online).then_some(node)
        })
    }

    /// Creates a ping task without waiting for it.
    pub(crate) fn ping(&self, node: &str, more: &[&str]) -> String {
        let mut arguments = vec!["task", "run", node, "diag.ping", "--param", "message=hello"];
        arguments.extend(more);
        self.json(&arguments)["id"].as_str().unwrap().to_owned()
    }

    /// Checks that the audit chain is intact from the first row to the last.
    pub(crate) fn verify_audit(&self) {
        let ran = self.cli(&["audit", "verify", "-o", "json"]);
        assert_eq!(ran.code, 0, "{ran:?}");
    }
}

fn limited(launch: Launch, open_files: Option<u32>) -> Launch {
    match open_files {
        Some(files) => launch.with_limits(&[&format!("--nofile={files}:{files}")]),
        None => launch,
    }
}

pub(crate) struct AgentHost {
    pub(crate) folder: PathBuf,
    pub(crate) failpoints: Failpoints,
    namespace: Option<String>,
    program: Option<Program>,
    launch: Launch,
}

/// The transport of the agent's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    Stream,
    Poll,
    Auto,
}

impl Carrier {
    fn as_str(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Poll => "poll",
            Self::Auto => "auto",
        }
    }
}

impl AgentHost {
    /// Creates a simulated host that is enrolled with a join token, but not running yet.
    pub(crate) fn enrolled(cluster: &Cluster, name: &str, carrier: Carrier) -> Self {
        let host = Self::new(cluster, name, carrier, Some("h100"), None);
        host.enroll(cluster);
        host
    }

    /// Creates the files of a host that is not enrolled.
    pub(crate) fn new(
        cluster: &Cluster,
        name: &str,
        carrier: Carrier,
        simulate: Option<&str>,
        namespace: Option<&NetNs>,
    ) -> Self {
        let folder = cluster.dir.join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let path = |file: &str| folder.join(file).display().to_string();
        let config = format!(
            "server = [\"{}\"]\nstate_dir = \"{}\"\npolicy_file = \"{}\"\ntransport = \"{}\"\nsimulate = \"{}\"\nmetrics_interval = \"1s\"\n",
            cluster.link,
            path("state"),
            path("policy.toml"),
            carrier.as_str(),
            simulate.unwrap_or("none"),
        );
        std::fs::write(folder.join("config.toml"), config).unwrap();
        write_private(
            &folder.join("policy.toml"),
            &format!(
                "allowed_tasks = {}\n\
             [slices]\npci_addresses = [\"*\"]\nnvme_serials = [\"*\"]\nimage_sources = [\"https://images.example/\"]\n\
             bridges = [\"br-slices\"]\nimage_formats = [\"qcow2\", \"raw\"]\nusernames = [\"*\"]\ndriver_strategies = [\"cloud-init\", \"preinstalled\"]\n",
                TaskType::list(TaskType::ALL),
            ),
        );
        let failpoints = Failpoints::new(folder.join("failpoints"));
        let mut launch =
            Launch::new("gpuaas-agent").env("GPUAAS_AGENT_CONFIG", folder.join("config.toml")).failpoints(&failpoints);
        if let Some(namespace) = namespace {
            launch = launch.in_namespace(namespace);
        }
        Self { folder, failpoints, namespace: namespace.map(|n| n.name().to_owned()), program: None, launch }
    }

    /// Replaces the agent with one of this version. It must not be running.
    pub(crate) fn change_version(&mut self, version: Version) {
        assert!(self.program.is_none(), "stop it first");
        self.launch = version
            .launch("gpuaas-agent")
            .env("GPUAAS_AGENT_CONFIG", self.folder.join("config.toml"))
            .failpoints(&self.failpoints);
    }

    /// Appends lines to the agent's configuration.
    pub(crate) fn configure(&self, lines: &str) {
        let path = self.folder.join("config.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, format!("{text}{lines}\n")).unwrap();
    }

    /// Enrolls the host with a join token.
    pub(crate) fn enroll(&self, cluster: &Cluster) {
        let ran = self.agent(&["enroll", "--server", &cluster.link, "--token", &cluster.join_token()]);
        assert_eq!(ran.code, 0, "{ran:?}");
    }

    /// Runs a command of the agent.
    pub(crate) fn agent(&self, arguments: &[&str]) -> Ran {
        let (status, stdout, stderr) = self.launch.clone().args(arguments).run(&self.folder, PATIENCE);
        Ran { code: status.code().unwrap_or(-1), stdout, stderr }
    }

    /// Starts a command of the agent and leaves it running.
    pub(crate) fn agent_in_background(&self, arguments: &[&str]) -> Program {
        self.launch.clone().args(arguments).start(&self.folder)
    }

    pub(crate) fn start(&mut self) {
        self.program = Some(self.launch.clone().arg("run").start(&self.folder));
    }

    /// Starts the agent with a fault in its system calls on one of its state files (see [`Launch::with_fault`]). Returns the log
    /// of the injected faults.
    pub(crate) fn start_with_fault(&mut self, rule: &str, on: &str) -> Option<PathBuf> {
        let log = self.folder.join("injected.log");
        let _ = std::fs::remove_file(&log);
        self.program =
            Some(self.launch.clone().arg("run").with_fault(rule, &self.folder.join("state").join(on), &log)?.start(&self.folder));
        Some(log)
    }

    /// Returns whether the agent is running.
    pub(crate) fn is_running(&mut self) -> bool {
        self.program.as_mut().is_some_and(Program::is_running)
    }

    /// Waits until the agent ends by itself, which must not be with success. Returns what it printed.
    pub(crate) fn fails(&mut self) -> String {
        let mut program = self.program.take().expect("running");
        let status = program.wait(PATIENCE);
        assert_eq!(status.code(), Some(1), "{}", program.stderr());
        program.stderr()
    }

    pub(crate) fn kill(&mut self) {
        self.program.take().expect("running").sigkill();
    }

    pub(crate) fn stop(&mut self) {
        let mut program = self.program.take().expect("running");
        program.sigterm();
        assert!(program.wait(PATIENCE).success(), "the agent does not end in good order: {}", program.stderr());
    }

    pub(crate) fn log(&self) -> String {
        self.program.as_ref().map(Program::stderr).unwrap_or_default()
    }

    pub(crate) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Returns the node's id, from the agent's own files.
    pub(crate) fn node_id(&self) -> String {
        let text = std::fs::read_to_string(self.folder.join("state/identity/identity.json")).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["node_id"].as_str().unwrap().to_owned()
    }

    /// Returns how often the task took effect on the host, counted independently of the agent.
    pub(crate) fn effects(&self, task: &str) -> usize {
        self.effect_lines().iter().filter(|line| line.contains(task)).count()
    }

    /// Returns every effect on the host, one line each.
    pub(crate) fn effect_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut folders = vec![self.folder.join("state")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                if entry.path().is_dir() {
                    folders.push(entry.path());
                } else if entry.file_name().to_string_lossy().starts_with("ping.log") {
                    // A line without an end is an effect that did not happen. The host removes it.
                    let text = std::fs::read_to_string(entry.path()).unwrap();
                    lines.extend(text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(str::to_owned));
                }
            }
        }
        lines
    }
}

pub(crate) fn write_private(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}
