//! The time from an API call until the handler runs on a host, with a real server process, real agent processes and simulated hosts.
//!
//! All processes share one clock: the handler of `diag.ping` writes its start time into the receipt, which is read after the round. Calls
//! are made at fixed times, whatever the result of earlier ones (open loop). Only Salt's client cannot do that and waits for each answer,
//! which favors Salt.

use std::path::Path;
use std::time::Duration;

use futures::future::{BoxFuture, try_join_all};
use gpuaas_api::Client;
use gpuaas_api::dto::{NodeListQuery, TaskCreate};
use gpuaas_contract::id::TaskId;
use gpuaas_contract::time::Timestamp;

use crate::child::{self, Companion, Server};
use crate::cluster::Cluster;
use crate::measure::{Effort, Goal, Quantile, Round, Row, Side, interleave};
use crate::report::progress;
use crate::rows::durable::{create_database, or_absent, start_graphile};
use crate::salt::Salt;
use crate::times::{Schedule, TimeUnit, Times};
use crate::{Result, Setup};

/// Calls per second, far below the capacity of either side.
const PER_SECOND: u32 = 40;
/// Number of hosts in the fan-out.
const MANY_HOSTS: usize = 8;
/// The policy of a simulated host, which allows what the rows need.
const POLICY: &str = "allowed_tasks = [\"diag.ping\", \"slice.topology_discover\", \"slice.vm_provision\", \"slice.vm_release\"]\n\n\
     [slices]\npci_addresses = [\"*\"]\nnvme_serials = [\"*\"]\nimage_sources = [\"*\"]\n\
     bridges = [\"br-slices\"]\nimage_formats = [\"qcow2\", \"raw\"]\nusernames = [\"*\"]\ndestroys_per_hour = 1000000\n";

/// A cluster with running agents.
struct Agents {
    cluster: Cluster,
    _agents: Vec<Server>,
    nodes: Vec<String>,
}

impl Agents {
    async fn start(setup: &Setup, name: &str, store: Option<&str>, agents: usize) -> Result<Self> {
        let cluster = Cluster::start(setup, name, store).await?;
        let mut running = Vec::new();
        for number in 0..agents {
            let folder = cluster.folder.join(format!("host-{number}"));
            running.push(start_agent(setup, &setup.programs, &cluster, &folder, &format!("agent {name} {number}")).await?);
        }
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        loop {
            let page = cluster.client.nodes(&NodeListQuery::default()).await?;
            let online: Vec<String> = page.items.iter().filter(|node| node.online).map(|node| node.id.to_string()).collect();
            if online.len() == agents {
                return Ok(Self { cluster, _agents: running, nodes: online });
            }
            if tokio::time::Instant::now() > deadline {
                return Err(format!("{} of {agents} agents are online after a minute", online.len()).into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Enrolls a simulated host and starts its agent.
pub(crate) async fn start_agent(setup: &Setup, programs: &Path, cluster: &Cluster, folder: &Path, name: &str) -> Result<Server> {
    std::fs::create_dir_all(folder)?;
    let (config, policy) = (folder.join("config.toml"), folder.join("policy.toml"));
    let text = format!(
        "server = [\"{}\"]\nstate_dir = \"{}\"\npolicy_file = \"{}\"\ntransport = \"stream\"\nsimulate = \"h100\"\n",
        cluster.link,
        folder.join("state").display(),
        policy.display(),
    );
    std::fs::write(&config, text)?;
    std::fs::write(&policy, POLICY)?;
    std::fs::set_permissions(&policy, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    let program = programs.join("gpuaas-agent");
    let token = cluster.client.join_token_create(&Default::default(), None).await?.token;
    let mut enroll = child::command(&program, folder);
    enroll.env("GPUAAS_AGENT_CONFIG", &config).args(["enroll", "--server", &cluster.link.to_string(), "--token", &token]);
    child::output_of(enroll, "gpuaas-agent enroll").await?;
    let mut command = child::command(&program, folder);
    command.env("GPUAAS_AGENT_CONFIG", &config).arg("run");
    Server::start(name, command, &setup.folder, "").await
}

/// Requests a ping and returns the id of its task.
pub(crate) async fn ask_for_ping(client: &Client, node: &str) -> Result<TaskId> {
    let wanted = TaskCreate {
        node: node.to_owned(),
        task_type: "diag.ping".to_owned(),
        params: serde_json::json!({ "message": "bench" }),
        queue_seconds: None,
        timeout_seconds: None,
    };
    Ok(client.task_create(&wanted, None).await?.id)
}

/// Returns when the handler of a ping ran and when its receipt was stored. Waits for both.
async fn times_of(client: &Client, id: TaskId) -> Result<(Timestamp, Timestamp)> {
    for _ in 0..2000 {
        let task = client.task(&id.to_string()).await?;
        if let Some(ended) = task.ended_at {
            let ran = task.output.as_ref().and_then(|output| output["host_time"].as_i64()).map(Timestamp);
            return match (ran, task.state.as_str()) {
                (Some(ran), "succeeded") => Ok((ran, ended)),
                (_, state) => Err(format!("task {id} ended as {state} ({})", task.code).into()),
            };
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Err(format!("task {id} did not end").into())
}

/// Calls one host at a time, or all hosts at the same time.
struct Calls {
    name: &'static str,
    agents: Agents,
}

impl Side for Calls {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn round(&mut self, time: Duration) -> BoxFuture<'_, Result<Round>> {
        Box::pin(async move {
            let agents = &self.agents;
            let client = &agents.cluster.client;
            // A fan-out makes one call per host, so its period is longer by that factor.
            let period = Duration::from_secs(1) / PER_SECOND * u32::try_from(agents.nodes.len())?;
            let schedule = Schedule::new(period, time)?;
            let calls = try_join_all((0..schedule.calls()).map(|number| async move {
                let begin = schedule.wait(number).await;
                let ids = try_join_all(agents.nodes.iter().map(|node| ask_for_ping(client, node))).await?;
                Result::<_>::Ok((begin.wall, ids))
            }))
            .await?;
            let (mut ran, mut ended) = (Times::new()?, Times::new()?);
            for (asked, ids) in calls {
                let times = try_join_all(ids.into_iter().map(|id| times_of(client, id))).await?;
                // The last host counts.
                ran.record(times.iter().map(|(at, _)| at.since(asked)).max().unwrap_or_default())?;
                ended.record(times.iter().map(|(_, at)| at.since(asked)).max().unwrap_or_default())?;
            }
            Ok(Round::times(vec![ran, ended]))
        })
    }
}

/// graphile-worker: from the call that adds a job until its function is entered.
struct Jobs(Companion);

impl Jobs {
    async fn start(setup: &Setup, server: &str) -> Result<Self> {
        let url = create_database(server, "graphile_latency").await?;
        Ok(Self(start_graphile(setup, &url, "graphile latency").await?))
    }
}

impl Side for Jobs {
    fn name(&self) -> String {
        "graphile-worker".to_owned()
    }

    fn round(&mut self, time: Duration) -> BoxFuture<'_, Result<Round>> {
        Box::pin(async move {
            let request =
                serde_json::json!({ "do": "latency", "ms": u64::try_from(time.as_millis())?, "per_second": PER_SECOND });
            let answer = self.0.ask(&request.to_string()).await?;
            let times = Times::from_microseconds(&answer["us"])?;
            Ok(Round::times(vec![times.clone(), times]))
        })
    }
}

/// Metric: the time until the last handler runs.
const STARTED: usize = 0;
/// Metric: the time until the last receipt is stored.
const STORED: usize = 1;

const fn quantile(metric: usize, share: f64) -> Quantile {
    Quantile { metric, share, unit: TimeUnit::Milliseconds }
}

pub(crate) async fn one_host(setup: &Setup, effort: Effort) -> Result<Vec<Row>> {
    let store = match &setup.postgres_disk {
        Some(server) => Some(create_database(server, "latency").await?),
        None => None,
    };
    let agents = Agents::start(setup, "latency", store.as_deref(), 1).await?;
    let jobs = match &setup.postgres_disk {
        Some(server) => Jobs::start(setup, server).await,
        None => Err("there is no PostgreSQL".into()),
    };
    let mut sides: Vec<Box<dyn Side>> = vec![
        Box::new(Calls { name: "gpuaas", agents }),
        or_absent("graphile-worker", jobs),
        or_absent("salt test.ping", Salt::start(setup, "salt test.ping", 1).await),
    ];
    let measured = interleave(&mut sides, longer(effort)).await;
    let (started, stored) = ("API call → handler started, 1 agent", "API call → receipt stored, 1 agent");
    let salt_goal = Goal::AtMost(0.05);
    Ok(vec![
        measured.time_row(&format!("{started}, p50"), 0, 1, quantile(STARTED, 0.5), Goal::AtMost(0.5)),
        measured.time_row(&format!("{started}, p99"), 0, 1, quantile(STARTED, 0.99), Goal::Open),
        measured.time_row(&format!("{started}, p50"), 0, 2, quantile(STARTED, 0.5), salt_goal),
        measured.time_row(&format!("{started}, p99"), 0, 2, quantile(STARTED, 0.99), salt_goal),
        measured.time_row(&format!("{stored}, p50"), 0, 2, quantile(STORED, 0.5), salt_goal),
    ])
}

pub(crate) async fn many_hosts(setup: &Setup, effort: Effort) -> Result<Vec<Row>> {
    let store = match &setup.postgres_disk {
        Some(server) => Some(create_database(server, "fan_out").await?),
        None => None,
    };
    let agents = Agents::start(setup, "fan-out", store.as_deref(), MANY_HOSTS).await?;
    progress("starting Salt with 8 minions");
    let salt = Salt::start(setup, "salt, 8 minions", MANY_HOSTS).await;
    let mut sides: Vec<Box<dyn Side>> = vec![Box::new(Calls { name: "gpuaas", agents }), or_absent("salt, 8 minions", salt)];
    let measured = interleave(&mut sides, longer(effort)).await;
    let (started, stored) = ("API calls → 8 handlers started", "API calls → receipts of all 8 agents");
    let goal = Goal::AtMost(0.02);
    let mut rows = vec![
        measured.time_row(&format!("{started}, p50"), 0, 1, quantile(STARTED, 0.5), goal),
        measured.time_row(&format!("{stored}, p50"), 0, 1, quantile(STORED, 0.5), goal),
    ];
    if rows.iter().any(|row| row.ours.is_none()) {
        rows.push(measured.own_time_row(&format!("{started}, p50"), 0, quantile(STARTED, 0.5), Goal::Open));
    }
    Ok(rows)
}

/// Makes rounds longer: Salt answers only a few times per second, so a short round would have too few values.
fn longer(effort: Effort) -> Effort {
    Effort { round_ms: effort.round_ms.clamp(2000, 5000), ..effort }
}
