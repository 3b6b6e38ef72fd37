//! One run: creates the cluster, executes the plan, and checks the promises after every step.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gpuaas_agent::config::Config as AgentConfig;
use gpuaas_agent::{Door, EnrollOptions, RunOptions};
use gpuaas_api::routes;
use gpuaas_control::{ApiTls, ServerConfig, process_roles};
use gpuaas_host::Profile;
use gpuaas_runtime::simulation::Host;
use gpuaas_store::StoreConfig;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::operator::{Operator, TaskOrder};
use crate::plan::{CHAOS_BEGINS, Cut, Event, NODES, Plan, Who};
use crate::promises::{Broken, Promises};
use crate::thief::{Loot, Thief};
use crate::{Report, Violation};

/// One step of simulated time. Messages arrive at the end of a step.
const STEP: Duration = Duration::from_millis(50);
/// How long everything may take to settle after all faults are repaired.
const SETTLES_WITHIN: Duration = Duration::from_secs(90);
/// Once everything has settled, the clocks jump ahead by this many microseconds, so that every timer expires.
const LAST_LEAP: i64 = 60 * 3_600_000_000;
/// How long every task may take to end after the jump.
const ENDS_WITHIN: Duration = Duration::from_secs(100);

const POLICY: &str = "allowed_tasks = [\"diag.ping\"]\n";
const SERVER: &str = "server";
const THIEF: &str = "thief";

fn node_name(node: usize) -> String {
    format!("node-{node}")
}

/// Runs one seed. `broken` names the promises that the programs break on purpose, to test that the simulation notices.
pub fn run(seed: u64, broken: &[&str]) -> Result<Report, Violation> {
    let plan = Plan::from_seed(seed);
    let mut run = match Run::new(seed, &plan, broken) {
        Ok(run) => run,
        Err(what) => return Err(Violation { seed, what, account: String::new() }),
    };
    match run.play(&plan) {
        Ok(()) => {
            let history = run.promises.as_ref().map(|promises| promises.history().to_vec()).unwrap_or_default();
            let effects = history.iter().filter(|line| line.contains("has its effect")).count();
            Ok(Report { seed, history, tasks: run.tasks.len(), effects })
        }
        Err(what) => {
            let history = run.promises.as_ref().map(|promises| promises.history().join("\n")).unwrap_or_default();
            let at = run.sim.elapsed().as_secs_f64();
            Err(Violation { seed, what, account: format!("the plan:\n{plan:?}\nwhat happened until {at:.2} s:\n{history}") })
        }
    }
}

/// A task that the operator requested.
struct Asked {
    order: usize,
    id: Option<String>,
}

struct Run {
    sim: turmoil::Sim<'static>,
    _folder: tempfile::TempDir,
    store: PathBuf,
    ping_logs: Vec<PathBuf>,
    server: Arc<Host>,
    nodes: Vec<Arc<Host>>,
    states: Vec<PathBuf>,
    thief: Arc<Thief>,
    thief_host: Arc<Host>,
    /// The node whose identity was copied, and whether the thief stays until the end.
    theft: Option<(usize, bool)>,
    operator: Arc<Operator>,
    promises: Option<Promises>,
    tasks: Vec<Asked>,
    retirements: Vec<(usize, usize)>,
    /// Requests for key rotations, whose old key will be revoked, and for revocations, with their key.
    rotations: Vec<usize>,
    revocations: Vec<(usize, String)>,
    /// Microseconds by which the clocks of all hosts have jumped ahead of the steps.
    leapt: i64,
    skews: [i64; NODES + 1],
    activity: u64,
}

impl Run {
    fn new(seed: u64, plan: &Plan, broken: &[&str]) -> Result<Self, Broken> {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let folder = folder.map_err(|error| format!("harness: no folder: {error}"))?;
        let mut sim = turmoil::Builder::new()
            .rng_seed(seed)
            .tick_duration(STEP)
            .simulation_duration(Duration::from_secs(100_000))
            .min_message_latency(Duration::from_millis(1))
            .max_message_latency(plan.latency)
            .tcp_capacity(1 << 16)
            .build();
        let host =
            |number: u64| Host::new(seed.wrapping_mul(31).wrapping_add(number), broken.iter().map(|name| (*name).to_owned()));
        let operator = Arc::new(Operator::default());
        let server_dir = folder.path().join(SERVER);
        make_folder(&server_dir)?;
        let server = host(0);
        {
            let (server, operator, server_dir) = (Arc::clone(&server), Arc::clone(&operator), server_dir.clone());
            sim.host(SERVER, move || serve(Arc::clone(&server), Arc::clone(&operator), server_dir.clone()));
        }
        let (thief, thief_host) = (Arc::new(Thief::default()), host(100));
        {
            let (thief, host) = (Arc::clone(&thief), Arc::clone(&thief_host));
            sim.host(THIEF, move || Arc::clone(&thief).run(Arc::clone(&host), format!("{SERVER}:8443")));
        }
        let mut nodes = Vec::new();
        let mut states = Vec::new();
        let mut ping_logs = Vec::new();
        for (node, transport) in plan.transports.into_iter().enumerate() {
            let name = node_name(node);
            let state_dir = folder.path().join(&name).join("state");
            make_folder(&folder.path().join(&name))?;
            let policy_file = folder.path().join(&name).join("policy.toml");
            gpuaas_control::pki::write_private(&policy_file, POLICY.as_bytes()).map_err(|error| format!("harness: {error}"))?;
            ping_logs.push(state_dir.join("host/ping.log"));
            states.push(state_dir.clone());
            let config = AgentConfig {
                server: vec![format!("{SERVER}:8443")],
                state_dir,
                policy_file,
                transport,
                max_tasks: 2,
                metrics_interval: Duration::from_secs(60),
                journal_bytes: 8 * 1024 * 1024,
                log_buffer_bytes: 1024 * 1024,
                simulate: Some(Profile::H100),
                ..AgentConfig::default()
            };
            let this = host(1 + u64::try_from(node).unwrap_or(0));
            nodes.push(Arc::clone(&this));
            let order = operator.ask(TaskOrder {
                path: routes::JOIN_TOKENS.to_owned(),
                body: json!({ "note": name }),
                idempotency_key: None,
            });
            let operator = Arc::clone(&operator);
            sim.host(name.clone(), move || live(Arc::clone(&this), config.clone(), name.clone(), Arc::clone(&operator), order));
        }
        Ok(Self {
            sim,
            store: server_dir.join("gpuaas.db"),
            _folder: folder,
            ping_logs,
            server,
            nodes,
            states,
            thief,
            thief_host,
            theft: None,
            operator,
            promises: None,
            tasks: Vec::new(),
            retirements: Vec::new(),
            rotations: Vec::new(),
            revocations: Vec::new(),
            leapt: 0,
            skews: [0; NODES + 1],
            activity: 0,
        })
    }

    fn play(&mut self, plan: &Plan) -> Result<(), Broken> {
        self.step_until(CHAOS_BEGINS)?;
        let mut promises = Promises::open(&self.store, self.ping_logs.clone())?;
        let known = promises.nodes()?;
        if known.len() != NODES {
            return Err(format!("harness: {} nodes are enrolled instead of {NODES}", known.len()));
        }
        self.promises = Some(promises);
        for host in self.nodes.iter().chain([&self.server]) {
            host.arm();
        }
        for (at, event) in &plan.events {
            self.step_until(*at)?;
            self.happen(*event);
        }
        self.step_until(plan.chaos_ends.max(self.sim.elapsed()))?;
        self.mend(plan);
        self.step_until(self.sim.elapsed() + SETTLES_WITHIN)?;
        self.check_theft()?;
        self.leapt += LAST_LEAP;
        self.set_clocks();
        self.step_until(self.sim.elapsed() + ENDS_WITHIN)?;
        if let Some(open) = self.tasks.iter().position(|task| self.operator.answer(task.order).is_none()) {
            return Err(format!("recovery: the operator has no answer about task {open} after everything was mended"));
        }
        match &mut self.promises {
            Some(promises) => promises.check_end(Duration::from_micros(self.leapt.unsigned_abs())),
            None => Ok(()),
        }
    }

    fn step_until(&mut self, at: Duration) -> Result<(), Broken> {
        while self.sim.elapsed() < at {
            self.sim.step().map_err(|error| format!("runs: a program ended: {error}"))?;
            self.look()?;
        }
        Ok(())
    }

    /// Checks that the control plane noticed the copied identity. Only for a thief that stays: then it and the real agent were
    /// both connected for a while.
    fn check_theft(&mut self) -> Result<(), Broken> {
        let (Some((node, true)), Some(promises)) = (self.theft, &mut self.promises) else { return Ok(()) };
        let got = self.thief.got();
        let service = promises.service(&node_name(node))?;
        if service == "locked" {
            return Ok(());
        }
        Err(format!(
            "copies: a copy of {} got {} links and {} offers, and the node is {service}",
            node_name(node),
            got.welcomes,
            got.offers
        ))
    }

    /// Checks the promises if anything may have changed.
    fn look(&mut self) -> Result<(), Broken> {
        let activity = self.nodes.iter().chain([&self.server]).map(|host| host.activity()).sum();
        if activity == self.activity {
            return Ok(());
        }
        self.activity = activity;
        let at = self.sim.elapsed();
        let Some(promises) = &mut self.promises else { return Ok(()) };
        for task in self.tasks.iter_mut().filter(|task| task.id.is_none()) {
            let Some(answer) = self.operator.answer(task.order) else { continue };
            // A rejected request has no id: a node that is retired or drained for good rejects tasks.
            if let Some(id) = answer.body.get("id").and_then(|id| id.as_str()).filter(|_| answer.status < 300) {
                promises.acknowledge(id);
                promises.note(at, format_args!("the operator knows {id}"));
                task.id = Some(id.to_owned());
            }
        }
        promises.check(at)?;
        let (mut old_keys, mut revoked) = (Vec::new(), Vec::new());
        self.rotations.retain(|order| match self.operator.answer(*order) {
            Some(answer) => {
                let keys = answer.body["items"].as_array().cloned().unwrap_or_default();
                let old = keys.iter().find(|key| key["state"] == "grace").and_then(|key| key["key_id"].as_str());
                old_keys.extend(old.map(str::to_owned));
                false
            }
            None => true,
        });
        self.revocations.retain(|(order, key)| match self.operator.answer(*order) {
            Some(answer) => {
                revoked.extend((answer.status < 300).then(|| key.clone()));
                false
            }
            None => true,
        });
        for key in revoked {
            promises.note(at, format_args!("the operator knows that {key} is revoked"));
            promises.revoke(&key)?;
        }
        for key in old_keys {
            let path = routes::fill(routes::SIGNING_KEY_REVOKE, &[&key]).unwrap_or_default();
            let body = json!({ "reason": "the simulation wants it" });
            let order = self.operator.ask(TaskOrder { path, body, idempotency_key: None });
            self.revocations.push((order, key));
        }
        let nodes = if self.retirements.is_empty() { Default::default() } else { promises.nodes()? };
        let operator = &self.operator;
        let mut done = Vec::new();
        self.retirements.retain(|(node, order)| match operator.answer(*order) {
            Some(answer) => {
                if answer.status < 300 {
                    done.push(*node);
                }
                false
            }
            None => true,
        });
        for node in done {
            if let Some(id) = nodes.get(&node_name(node)) {
                promises.note(at, format_args!("the operator knows that {} is retired", node_name(node)));
                promises.retire(id)?;
            }
        }
        Ok(())
    }

    fn ask(&self, path: &str, body: serde_json::Value) -> usize {
        self.operator.ask(TaskOrder { path: path.to_owned(), body, idempotency_key: None })
    }

    fn node_wish(&self, route: &str, node: usize) -> usize {
        let path = routes::fill(route, &[&node_name(node)]).unwrap_or_default();
        self.ask(&path, json!({ "reason": "the simulation wants it" }))
    }

    fn happen(&mut self, event: Event) {
        let at = self.sim.elapsed();
        if let Some(promises) = &mut self.promises {
            promises.note(at, format_args!("{event:?}"));
        }
        match event {
            Event::Task { number, node, hold_ms, log_lines, queue_seconds, timeout_seconds } => {
                let mut body = json!({
                    "node": node_name(node), "task_type": "diag.ping",
                    "params": { "message": format!("task {number}"), "hold_ms": hold_ms, "log_lines": log_lines },
                });
                if let Some(seconds) = queue_seconds {
                    body["queue_seconds"] = seconds.into();
                }
                if let Some(seconds) = timeout_seconds {
                    body["timeout_seconds"] = seconds.into();
                }
                let key = Some(format!("task-{number}"));
                let order = self.operator.ask(TaskOrder { path: routes::TASKS.to_owned(), body, idempotency_key: key });
                self.tasks.push(Asked { order, id: None });
            }
            Event::Cancel { number } => {
                // The number is an index into the plan, not into the tasks known so far; any task will do.
                let known: Vec<&String> = self.tasks.iter().filter_map(|task| task.id.as_ref()).collect();
                if !known.is_empty() {
                    let path = routes::fill(routes::TASK_CANCEL, &[known[number % known.len()]]).unwrap_or_default();
                    self.ask(&path, json!({ "reason": "changed my mind" }));
                }
            }
            Event::Drain { node } => drop(self.node_wish(routes::NODE_DRAIN, node)),
            Event::Undrain { node } => drop(self.node_wish(routes::NODE_UNDRAIN, node)),
            Event::Retire { node } => {
                let order = self.node_wish(routes::NODE_RETIRE, node);
                self.retirements.push((node, order));
            }
            Event::RotateKey => drop(self.ask(routes::SIGNING_KEYS_ROTATE, serde_json::Value::Null)),
            Event::RevokeKey => {
                let order = self.ask(routes::SIGNING_KEYS_ROTATE, serde_json::Value::Null);
                self.rotations.push(order);
            }
            Event::CutLink { node, cut } => match cut {
                Cut::Both => self.sim.partition(SERVER, node_name(node)),
                Cut::ToServer => self.sim.partition_oneway(node_name(node), SERVER),
                Cut::FromServer => self.sim.partition_oneway(SERVER, node_name(node)),
            },
            Event::MendLink { node } => self.sim.repair(SERVER, node_name(node)),
            Event::Silence { node } => self.sim.hold(SERVER, node_name(node)),
            Event::Release { node } => self.sim.release(SERVER, node_name(node)),
            Event::Crash(who) => self.crash(who),
            Event::Restart(who) => self.restart(who),
            Event::SlowDisk(who, slowest) => self.host(who).set_slowest_disk(slowest),
            Event::SlowLink { node, latency } => self.sim.set_link_max_message_latency(SERVER, node_name(node), latency),
            Event::Skew(who, micros) => {
                let place = match who {
                    Who::Server => NODES,
                    Who::Node(node) => node,
                };
                self.skews[place] = micros;
                self.set_clocks();
            }
            Event::TimePasses(micros) => {
                self.leapt += micros;
                self.set_clocks();
            }
            Event::Theft { node, stays } => {
                let name = node_name(node);
                let instance = self.promises.as_mut().and_then(|promises| promises.stolen(&name).ok()).unwrap_or_default();
                if let Some(loot) = Loot::copy(&self.states[node], instance) {
                    self.thief.take(loot, stays);
                    self.theft = Some((node, stays));
                }
            }
            Event::Duplicates(percent) => {
                for host in self.nodes.iter().chain([&self.server]) {
                    host.set_duplicates(percent);
                }
            }
        }
    }

    fn host(&self, who: Who) -> &Host {
        match who {
            Who::Server => &self.server,
            Who::Node(node) => &self.nodes[node],
        }
    }

    fn name(who: Who) -> String {
        match who {
            Who::Server => SERVER.to_owned(),
            Who::Node(node) => node_name(node),
        }
    }

    fn crash(&mut self, who: Who) {
        let name = Self::name(who);
        if self.sim.is_host_running(name.clone()) {
            self.sim.crash(name);
        }
    }

    fn restart(&mut self, who: Who) {
        let name = Self::name(who);
        if !self.sim.is_host_running(name.clone()) {
            self.sim.bounce(name);
        }
    }

    fn set_clocks(&self) {
        for (host, skew) in self.nodes.iter().chain([&self.server]).zip(self.skews) {
            host.set_clock_offset(self.leapt + skew);
        }
        self.thief_host.set_clock_offset(self.leapt);
    }

    /// Repairs all faults.
    fn mend(&mut self, plan: &Plan) {
        for node in 0..NODES {
            self.sim.release(SERVER, node_name(node));
            self.sim.repair(SERVER, node_name(node));
            self.sim.set_link_max_message_latency(SERVER, node_name(node), plan.latency);
        }
        for who in (0..NODES).map(Who::Node).chain([Who::Server]) {
            self.host(who).set_slowest_disk(Duration::ZERO);
            self.host(who).set_duplicates(0);
            self.restart(who);
        }
        self.skews = [0; NODES + 1];
        self.set_clocks();
        for node in 0..NODES {
            if !self.retirements.iter().any(|(retired, _)| *retired == node) {
                self.node_wish(routes::NODE_UNDRAIN, node);
            }
        }
    }
}

fn make_folder(path: &Path) -> Result<(), Broken> {
    gpuaas_host::private_file::make_folder(path).map_err(|error| format!("harness: {error}"))
}

async fn serve(host: Arc<Host>, operator: Arc<Operator>, data_dir: PathBuf) -> turmoil::Result {
    let _settled = host.settle();
    let config = ServerConfig {
        store: StoreConfig::Sqlite { path: data_dir.join("gpuaas.db") },
        data_dir,
        roles: process_roles::Role::ALL.into(),
        api_listen: crate::operator::API.parse()?,
        api_tls: ApiTls::Off,
        link_listen: SocketAddr::from(([0, 0, 0, 0], 8443)),
        link_advertise: Some(format!("{SERVER}:8443")),
        ca: Default::default(),
        identity: gpuaas_control::identity::IdentityConfig::default(),
        policies: Vec::new(),
        backends: Default::default(),
        driver: std::sync::Arc::new(gpuaas_control::workflow::Embedded),
        trusted_proxies: Vec::new(),
        cors_origins: Vec::new(),
        limits: None,
        webhooks_to_private: false,
        destructive_budget: gpuaas_domain::budget::DEFAULT_PER_HOUR,
    };
    let server = gpuaas_control::start(config).await.map_err(|error| format!("the server does not start: {error:?}"))?;
    let token = std::fs::read_to_string(&server.admin_token_file)?;
    operator.serve(token.trim().to_owned()).await;
    server.stop().await;
    Ok(())
}

/// Runs a host: enrolls once, then runs the agent.
async fn live(host: Arc<Host>, config: AgentConfig, name: String, operator: Arc<Operator>, token: usize) -> turmoil::Result {
    let _settled = host.settle();
    if !gpuaas_agent::is_enrolled(&config.state_dir) {
        let answer = loop {
            if let Some(answer) = operator.answer(token) {
                break answer;
            }
            tokio::time::sleep(STEP).await;
        };
        let token = answer.body["token"].as_str().ok_or("no join token")?.to_owned();
        let options =
            EnrollOptions { config: config.clone(), door: Door::Token(token), replace: false, simulated_hostname: Some(name) };
        gpuaas_agent::enroll(options, |_| {}, CancellationToken::new()).await?;
    }
    gpuaas_agent::run(RunOptions::new(config), CancellationToken::new()).await?;
    Ok(())
}
