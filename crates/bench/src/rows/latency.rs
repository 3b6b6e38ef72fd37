//! From an API call until the handler runs on a host: real server process, real agent processes, simulated hosts.
//!
//! All clocks are one clock: the handler of `diag.ping` notes the time of its start in the receipt, and the receipt is read after the
//! round. Calls come at fixed times, whatever became of the ones before (open loop).

use std::path::Path;
use std::time::Duration;

use futures::future::{BoxFuture, try_join_all};
use gpuaas_api::Client;
use gpuaas_api::dto::{NodeListQuery, TaskCreate};
use gpuaas_contract::id::TaskId;
use gpuaas_contract::time::Timestamp;

use crate::child::{self, Companion, Server};
use crate::cluster::Cluster;
use crate::measure::{Effort, Goal, Row, Side, interleave, percentile};
use crate::rows::durable::{create_database, or_absent, start_graphile};
use crate::salt::{Salt, numbers};
use crate::{Result, Setup};

/// Calls per second, far below what either side can do.
const PER_SECOND: u32 = 20;
/// Hosts of the fan-out.
const MANY_HOSTS: usize = 8;

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

/// Enrols a simulated host and starts its agent.
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
    std::fs::write(&policy, "allowed_tasks = [\"diag.ping\"]\n")?;
    std::fs::set_permissions(&policy, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    let program = programs.join("gpuaas-agent");
    let token = cluster.client.join_token_create(&Default::default()).await?.token;
    let mut enrol = child::command(&program, folder);
    enrol.env("GPUAAS_AGENT_CONFIG", &config).args(["enroll", "--server", &cluster.link.to_string(), "--token", &token]);
    child::output_of(enrol, "gpuaas-agent enroll").await?;
    let mut command = child::command(&program, folder);
    command.env("GPUAAS_AGENT_CONFIG", &config).arg("run");
    Server::start(name, command, &setup.folder, "").await
}

/// Asks for a ping and returns its id.
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

/// When the handler of a ping ran and when its receipt was stored. Waits for both.
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

fn milliseconds(from: Timestamp, to: Timestamp) -> f64 {
    to.since(from).as_secs_f64() * 1e3
}

/// One call at a time to one host, or one call to each host at the same time.
struct Calls {
    name: &'static str,
    agents: Agents,
}

impl Side for Calls {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn round(&mut self, time: Duration) -> BoxFuture<'_, Result<Vec<f64>>> {
        Box::pin(async move {
            let agents = &self.agents;
            let client = &agents.cluster.client;
            // A fan-out makes as many calls as there are hosts, and comes as much less often.
            let period = Duration::from_secs(1) / PER_SECOND * u32::try_from(agents.nodes.len())?;
            let rounds = u32::try_from(time.as_millis() / period.as_millis())?.max(1);
            let started = tokio::time::Instant::now();
            let calls = try_join_all((0..rounds).map(|number| async move {
                tokio::time::sleep_until(started + period * number).await;
                let asked = Timestamp::now();
                let ids = try_join_all(agents.nodes.iter().map(|node| ask_for_ping(client, node))).await?;
                Result::<_>::Ok((asked, ids))
            }))
            .await?;
            let (mut ran, mut ended) = (Vec::new(), Vec::new());
            for (asked, ids) in calls {
                let times = try_join_all(ids.into_iter().map(|id| times_of(client, id))).await?;
                // The last host decides.
                ran.push(times.iter().map(|(at, _)| milliseconds(asked, *at)).fold(0.0, f64::max));
                ended.push(times.iter().map(|(_, at)| milliseconds(asked, *at)).fold(0.0, f64::max));
            }
            Ok(vec![percentile(&mut ran, 0.5), percentile(&mut ended, 0.5), percentile(&mut ran, 0.99)])
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

    fn round(&mut self, time: Duration) -> BoxFuture<'_, Result<Vec<f64>>> {
        Box::pin(async move {
            let request =
                serde_json::json!({ "do": "latency", "ms": u64::try_from(time.as_millis())?, "per_second": PER_SECOND });
            let answer = self.0.ask(&request.to_string()).await?;
            let mut times = numbers(&answer["us"])?;
            let (p50, p99) = (percentile(&mut times, 0.5) / 1e3, percentile(&mut times, 0.99) / 1e3);
            Ok(vec![p50, p50, p99])
        })
    }
}

pub(crate) async fn run(setup: &Setup, effort: Effort) -> Result<Vec<Row>> {
    let effort = Effort { round_ms: effort.round_ms * 2, ..effort };
    let store = match &setup.postgres_disk {
        Some(server) => Some(create_database(server, "latency").await?),
        None => None,
    };
    let mut rows = one_host(setup, effort, store.as_deref()).await?;
    rows.extend(many_hosts(setup, effort).await?);
    Ok(rows)
}

async fn one_host(setup: &Setup, effort: Effort, store: Option<&str>) -> Result<Vec<Row>> {
    let agents = Agents::start(setup, "latency", store, 1).await?;
    let jobs = match &setup.postgres_disk {
        Some(server) => Jobs::start(setup, server).await,
        None => Err("there is no PostgreSQL".into()),
    };
    let mut sides: Vec<Box<dyn Side>> = vec![
        Box::new(Calls { name: "gpuaas", agents }),
        or_absent("graphile-worker", jobs),
        or_absent("salt test.ping", Salt::start(setup, "salt test.ping", 1).await),
    ];
    let measured = interleave(&mut sides, effort).await;
    let start = "API call → handler started, 1 agent";
    Ok(vec![
        measured.row(&format!("{start}, p50"), "ms", 0, 1, 0, Goal::AtMost(0.5)),
        measured.row(&format!("{start}, p99"), "ms", 0, 1, 2, Goal::Open),
        measured.row("API call → receipt stored, 1 agent, p50", "ms", 0, 2, 1, Goal::AtMost(0.05)),
    ])
}

async fn many_hosts(setup: &Setup, effort: Effort) -> Result<Vec<Row>> {
    let agents = Agents::start(setup, "fan-out", None, MANY_HOSTS).await?;
    let path = "API calls → receipts of all 8 agents, p50";
    let salt = if setup.quick {
        Err("8 minions take minutes to start: only without --quick".into())
    } else {
        Salt::start(setup, "salt, 8 minions", MANY_HOSTS).await
    };
    let mut sides: Vec<Box<dyn Side>> = vec![Box::new(Calls { name: "gpuaas", agents }), or_absent("salt, 8 minions", salt)];
    let measured = interleave(&mut sides, effort).await;
    let goal = Goal::AtMost(0.02);
    let own = measured.row("API calls → 8 handlers started, p50", "ms", 0, 0, 0, Goal::Open);
    let alone = Row::alone(&own.path, "ms", own.ours.unwrap_or(f64::NAN), Goal::Open, String::new());
    Ok(vec![alone, measured.row(path, "ms", 0, 1, 1, goal)])
}
