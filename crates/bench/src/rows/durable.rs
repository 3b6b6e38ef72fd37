//! Durable tasks: enqueue, claim and receipt, as the server decides and writes them, against bare SQL and a job queue.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, try_join_all};
use gpuaas_contract::Digest;
use gpuaas_contract::id::{AgentInstanceId, ClusterId, CorrelationId, NodeId, TaskId};
use gpuaas_contract::key::SigningKey;
use gpuaas_contract::receipt::{self, Outcome};
use gpuaas_contract::task::{Task, TaskType, diag_ping};
use gpuaas_contract::telemetry::HostFacts;
use gpuaas_contract::time::Timestamp;
use gpuaas_control::pki::KeyRing;
use gpuaas_domain::decision::Context;
use gpuaas_domain::node::{Node, NodeService};
use gpuaas_domain::task::{self, DEFAULT_QUEUE_TIME, MAX_UNFINISHED_PER_NODE, NewTask, ReceiptHead, TaskRecord, TaskState};
use gpuaas_domain::{Actor, Change, Decision};
use gpuaas_store::{Store, StoreConfig};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::child::{self, Companion};
use crate::measure::{Effort, Goal, Round, Row, Side, count, interleave, number};
use crate::{Result, Setup};

/// Number of concurrent callers when each waits for its own task, like the clients of pgbench.
const CALLERS: usize = 8;
/// Number of concurrent callers when several may share a transaction.
const MANY_CALLERS: usize = 256;

/// A store with everything that a decision needs, and one node per caller.
pub(crate) struct Tasks {
    pub(crate) store: Store,
    pub(crate) keys: Arc<KeyRing>,
    pub(crate) cluster: ClusterId,
    pub(crate) callers: Vec<Caller>,
    _keys_folder: tempfile::TempDir,
}

/// One caller and its node.
pub(crate) struct Caller {
    pub(crate) node: Node,
    key: SigningKey,
    instance: AgentInstanceId,
    head: ReceiptHead,
}

impl Tasks {
    pub(crate) async fn open(config: &StoreConfig, callers: usize) -> Result<Self> {
        let store = Store::open(config).await?;
        let cluster = store.cluster_id().await?;
        let keys_folder = tempfile::tempdir()?;
        let keys = Arc::new(KeyRing::open(keys_folder.path(), cluster, Timestamp::now())?);
        let mut made = Vec::with_capacity(callers);
        for number in 0..callers {
            let caller = Caller::new(number, NodeId::generate());
            store.commit(Decision::default().change(Change::NodeInsert(Box::new(caller.node.clone())))).await?;
            made.push(caller);
        }
        Ok(Self { store, keys, cluster, callers: made, _keys_folder: keys_folder })
    }

    /// Returns how many tasks in the store have succeeded.
    pub(crate) async fn succeeded(&self) -> Result<u64> {
        let counts = self.store.task_counts().await?;
        Ok(counts.into_iter().find(|(state, _)| *state == TaskState::Succeeded).map_or(0, |(_, count)| count))
    }
}

impl Caller {
    fn new(number: usize, id: NodeId) -> Self {
        let mut seed = [9; 32];
        seed[..8].copy_from_slice(&u64::try_from(number).unwrap_or(0).to_le_bytes());
        let key = SigningKey::from_seed(&seed);
        let now = Timestamp::now();
        let node = Node {
            id,
            version: 0,
            name: format!("bench-{number}"),
            fingerprint: Digest::of(id.to_string().as_bytes()).to_string(),
            epoch: 1,
            receipt_key: key.verifying_key(),
            tls_key_digest: Digest::of(b"bench"),
            record: Vec::new(),
            service: NodeService::InService,
            service_reason: String::new(),
            session: None,
            last_seen_at: None,
            facts: HostFacts::default(),
            rejoins: 0,
            created_at: now,
            enrolled_at: now,
        };
        Self { node, key, instance: AgentInstanceId::generate(), head: ReceiptHead::default() }
    }

    /// Creates a task for an offline node, which queues it.
    pub(crate) async fn enqueue(&self, store: &Store, keys: &KeyRing) -> Result<TaskId> {
        let room = store.task_unfinished_below(self.node.id, MAX_UNFINISHED_PER_NODE).await?;
        let unfinished = room.err().unwrap_or(0);
        let intent = |task: &TaskRecord| keys.intent_mac(&task::intent_text(task));
        let (record, decision) =
            task::create(&self.node, ping()?, unfinished, &context(), intent).map_err(|refusal| refusal.message)?;
        store.commit(decision).await?;
        Ok(record.id)
    }

    /// Creates a task for a connected node, which queues and claims it in one commit.
    async fn enqueue_and_claim(&self, store: &Store, keys: &KeyRing) -> Result<(TaskRecord, Digest)> {
        let node = store.node_get(self.node.id).await?.ok_or("the node is gone")?;
        let intent = |task: &TaskRecord| keys.intent_mac(&task::intent_text(task));
        let context = context();
        let sign = |task: &TaskRecord| keys.outgoing(task, &node, context.now);
        let (record, outgoing, decision) =
            task::create_sent(&node, ping()?, 0, &context, intent, sign).map_err(|refusal| refusal.message)?;
        store.commit(decision).await?;
        Ok((record, outgoing.signed.digest))
    }

    /// Claims the oldest queued task: finds it, signs its envelope, and writes both.
    pub(crate) async fn claim(&self, store: &Store, keys: &KeyRing) -> Result<(TaskRecord, Digest)> {
        let queued = store.task_queued(self.node.id, 1).await?.pop().ok_or("nothing is queued")?;
        if !keys.intent_matches(&task::intent_text(&queued), &queued.intent) {
            return Err("the intent does not match".into());
        }
        let context = context();
        let outgoing = keys.outgoing(&queued, &self.node, context.now).map_err(|refusal| refusal.message)?;
        let (sent, decision) = task::dispatch(&queued, &self.node, &outgoing, &context).map_err(|refusal| refusal.message)?;
        store.commit(decision).await?;
        Ok((TaskRecord { version: sent.version + 1, ..sent }, outgoing.signed.digest))
    }

    /// Signs a receipt as the node does, and verifies and stores it as the server does.
    pub(crate) async fn settle(&mut self, store: &Store, cluster: ClusterId, sent: &TaskRecord, digest: Digest) -> Result<()> {
        let id = sent.id;
        let now = Timestamp::now();
        let output = diag_ping::Output { message: "m".repeat(64), host_time: now, recovered: false };
        let payload = receipt::Payload {
            cluster_id: cluster,
            node_id: self.node.id,
            node_epoch: self.node.epoch,
            task_id: id,
            task_type: TaskType::DiagPing.as_str().to_owned(),
            task_digest: digest.clone(),
            agent_instance_id: self.instance,
            boot_id: "bench".to_owned(),
            attempt: 1,
            started_at: Some(now),
            finished_at: now,
            outcome: Outcome::Succeeded,
            code: "ok".to_owned(),
            message: String::new(),
            output: Some(serde_json::value::to_raw_value(&output)?),
            phases: Vec::new(),
            cleanup_proof: None,
            sequence: self.head.sequence + 1,
            previous_receipt: self.head.digest.clone(),
        };
        let signed = payload.sign(&self.key);

        let expect = receipt::Expectation {
            key: &self.node.receipt_key,
            cluster_id: cluster,
            node_id: self.node.id,
            node_epoch: self.node.epoch,
            task_id: id,
            task_type: TaskType::DiagPing,
            envelope_digests: &[digest],
        };
        let verified = receipt::verify(&signed.receipt, &expect)?;
        let decision = task::receipt(sent, &self.head, &verified, &signed.receipt, &context())
            .map_err(|refusal| refusal.message)?
            .ok_or("the receipt was believed before")?;
        store.commit(decision).await?;
        self.head = ReceiptHead { sequence: payload.sequence, digest: Some(signed.digest) };
        Ok(())
    }
}

fn ping() -> Result<NewTask> {
    let task = Task::parse(TaskType::DiagPing, &format!("{{\"message\":\"{}\"}}", "m".repeat(64)))?;
    let (queue_time, timeout) = (DEFAULT_QUEUE_TIME, task.timeout());
    Ok(NewTask { id: TaskId::generate(), task, queue_time, timeout, idempotency_key: None })
}

pub(crate) fn context() -> Context {
    Context { now: Timestamp::now(), actor: Actor::System, correlation_id: CorrelationId::generate() }
}

struct Ours {
    name: String,
    tasks: Tasks,
    way: WriteMode,
}

/// How a task reaches its node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteMode {
    /// The node is connected and idle: the task is queued and claimed in one commit.
    Direct,
    /// The node is offline or busy: the task is queued, and claimed later.
    Queue,
}

impl WriteMode {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "node connected",
            Self::Queue => "through the queue",
        }
    }
}

impl Side for Ours {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn round(&mut self, time: Duration) -> BoxFuture<'_, Result<Round>> {
        Box::pin(async move {
            let before = self.tasks.succeeded().await?;
            let Tasks { store, keys, cluster, callers, .. } = &mut self.tasks;
            let (store, keys, cluster, way) = (&*store, &**keys, *cluster, self.way);
            let started = Instant::now();
            let done = try_join_all(callers.iter_mut().map(|caller| async move {
                let mut done = 0_usize;
                while started.elapsed() < time {
                    let (claimed, digest) = match way {
                        WriteMode::Direct => caller.enqueue_and_claim(store, keys).await?,
                        WriteMode::Queue => {
                            let asked = caller.enqueue(store, keys).await?;
                            let claimed = caller.claim(store, keys).await?;
                            if claimed.0.id != asked {
                                return Result::Err("another task was claimed".into());
                            }
                            claimed
                        }
                    };
                    caller.settle(store, cluster, &claimed, digest).await?;
                    done += 1;
                }
                Result::<usize>::Ok(done)
            }))
            .await?;
            let seconds = started.elapsed().as_secs_f64();
            let done: usize = done.into_iter().sum();
            let counted = self.tasks.succeeded().await? - before;
            if counted != u64::try_from(done)? {
                return Err(format!("{done} tasks were done but the store counts {counted}").into());
            }
            Ok(Round::value(count(done) / seconds))
        })
    }
}

/// pgbench with one of our scripts, on our own schema.
struct PgBench {
    name: &'static str,
    program: PathBuf,
    script: PathBuf,
    url: String,
    home: PathBuf,
}

impl PgBench {
    async fn prepare(setup: &Setup, server: &str, name: &'static str, script: &str) -> Result<Self> {
        let program = child::find_program("pgbench", &setup.postgres_programs).ok_or("pgbench is not installed")?;
        let url = create_database(server, &script.replace(['-', '.'], "_")).await?;
        // Opening the store creates the tables.
        let store = Store::open(&StoreConfig::parse(&url)?).await?;
        for number in 0..CALLERS {
            let mut id = [0x01, 0x9b, 0x76, 0xda, 0xa8, 0x00, 0x70, 0x00, 0x80, 0, 0, 0, 0, 0, 0, 0];
            id[15] = u8::try_from(number)?;
            let node = Caller::new(number, NodeId::from_bytes(id)).node;
            store.commit(Decision::default().change(Change::NodeInsert(Box::new(node)))).await?;
        }
        store.close().await;
        let mut connection = PgConnection::connect(&url).await?;
        for sequence in ["bench_task", "bench_event", "bench_audit"] {
            sqlx::query(AssertSqlSafe(format!("CREATE SEQUENCE {sequence} CACHE 100"))).execute(&mut connection).await?;
        }
        connection.close().await?;
        Ok(Self { name, program, script: setup.scripts.join(script), url, home: setup.folder.clone() })
    }

    async fn ended(&self) -> Result<i64> {
        let mut connection = PgConnection::connect(&self.url).await?;
        let ended =
            sqlx::query_scalar("SELECT COUNT(*) FROM tasks WHERE ended_at IS NOT NULL").fetch_one(&mut connection).await?;
        connection.close().await?;
        Ok(ended)
    }
}

impl Side for PgBench {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn round(&mut self, time: Duration) -> BoxFuture<'_, Result<Round>> {
        Box::pin(async move {
            let before = self.ended().await?;
            let mut command = child::command(&self.program, &self.home);
            let clients = CALLERS.to_string();
            command.args(["-n", "-c", &clients, "-j", "2", "-M", "prepared", "-T", &time.as_secs().max(1).to_string()]);
            command.arg("-f").arg(&self.script).arg(&self.url);
            let reported = child::output_of(command, "pgbench").await?;
            let field = |start: &str| {
                let line = reported.lines().find_map(|line| line.strip_prefix(start));
                line.and_then(|rest| rest.split_whitespace().next()?.split('/').next()?.parse::<f64>().ok())
                    .ok_or_else(|| format!("pgbench does not say `{start}`: {reported}"))
            };
            let done = field("number of transactions actually processed: ")?;
            #[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
            let counted = (self.ended().await? - before) as f64;
            if (done - counted).abs() > 0.5 {
                return Err(format!("pgbench did {done} tasks but {counted} ended").into());
            }
            Ok(Round::value(field("tps = ")?))
        })
    }
}

/// graphile-worker in one of its two modes.
struct Graphile {
    name: &'static str,
    mode: &'static str,
    in_flight: usize,
    worker: Companion,
}

impl Graphile {
    async fn prepare(setup: &Setup, server: &str, name: &'static str, mode: &'static str, in_flight: usize) -> Result<Self> {
        let url = create_database(server, &format!("graphile_{mode}")).await?;
        Ok(Self { name, mode, in_flight, worker: start_graphile(setup, &url, &format!("graphile {mode}")).await? })
    }
}

/// Starts graphile-worker and waits until it is ready.
pub(crate) async fn start_graphile(setup: &Setup, url: &str, name: &str) -> Result<Companion> {
    let modules = setup.node_modules()?;
    let node = child::find_program("node", &[]).ok_or("node is not installed")?;
    let mut command = child::command(node, &setup.folder);
    command.arg(setup.scripts.join("graphile-worker.mjs")).arg(modules).arg(url);
    let mut worker = Companion::start(name, command, &setup.folder)?;
    worker.hear().await?;
    Ok(worker)
}

impl Side for Graphile {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn round(&mut self, time: Duration) -> BoxFuture<'_, Result<Round>> {
        Box::pin(async move {
            let request = serde_json::json!({
                "do": "throughput", "mode": self.mode, "ms": u64::try_from(time.as_millis())?, "in_flight": self.in_flight,
            });
            let answer = self.worker.ask(&request.to_string()).await?;
            Ok(Round::value(answer["per_second"].as_f64().ok_or("graphile-worker gave no rate")?))
        })
    }
}

/// Creates an empty database on the server and returns its URL.
pub(crate) async fn create_database(server: &str, name: &str) -> Result<String> {
    let name = format!("bench_{}", name.replace(' ', "_"));
    let mut connection = PgConnection::connect(server).await?;
    sqlx::query(AssertSqlSafe(format!("DROP DATABASE IF EXISTS {name}"))).execute(&mut connection).await?;
    sqlx::query(AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&mut connection).await?;
    connection.close().await?;
    let (before, _) = server.rsplit_once('/').ok_or("the address of PostgreSQL has no database")?;
    Ok(format!("{before}/{name}"))
}

/// A side that could not be prepared. It fails in its first round, and its rows show why.
struct Absent {
    name: &'static str,
    why: String,
}

impl Side for Absent {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn round(&mut self, _: Duration) -> BoxFuture<'_, Result<Round>> {
        Box::pin(async { Err(self.why.clone().into()) })
    }
}

/// Returns the side, or one that reports why it is missing.
pub(crate) fn or_absent<S: Side + 'static>(name: &'static str, side: Result<S>) -> Box<dyn Side> {
    match side {
        Ok(side) => Box::new(side),
        Err(error) => Box::new(Absent { name, why: error.to_string() }),
    }
}

async fn ours(config: &StoreConfig, callers: usize, way: WriteMode, name: &str) -> Result<Ours> {
    Ok(Ours { name: name.to_owned(), tasks: Tasks::open(config, callers).await?, way })
}

/// Runs our side without a peer.
pub(crate) async fn alone(store: &str, callers: usize, way: WriteMode, rounds: usize) -> Result<()> {
    let mut ours = ours(&StoreConfig::parse(store)?, callers, way, "gpuaas").await?;
    for _ in 0..rounds {
        let rate = ours.round(Duration::from_secs(1)).await?;
        println!("{} tasks/s", number(rate.values.first().copied().unwrap_or_default()));
    }
    ours.tasks.store.close().await;
    Ok(())
}

async fn on_postgres(setup: &Setup, server: &str, medium: &str, effort: Effort) -> Result<Vec<Row>> {
    let mut sides: Vec<Box<dyn Side>> = vec![
        or_absent("pgbench -c8, same rows", PgBench::prepare(setup, server, "pgbench -c8, same rows", "pgbench-rows.sql").await),
        or_absent(
            "pgbench -c8, queue only",
            PgBench::prepare(setup, server, "pgbench -c8, queue only", "pgbench-queue.sql").await,
        ),
        or_absent("graphile unbatched", Graphile::prepare(setup, server, "graphile unbatched", "unbatched", CALLERS).await),
        or_absent("graphile batched", Graphile::prepare(setup, server, "graphile batched", "batched", 1000).await),
    ];
    let (same_rows, queue_only, unbatched, batched) = (0, 1, 2, 3);
    // Each row, with the indexes of its peers.
    let mut plan: Vec<(usize, String, Vec<usize>)> = Vec::new();
    for (number, (callers, way, against)) in [
        (CALLERS, WriteMode::Direct, vec![same_rows, queue_only, unbatched]),
        (CALLERS, WriteMode::Queue, vec![same_rows, unbatched]),
        (MANY_CALLERS, WriteMode::Direct, vec![same_rows, queue_only, batched]),
        (MANY_CALLERS, WriteMode::Queue, vec![same_rows, batched]),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("durable task, PostgreSQL on {medium}, {callers} callers, {}", way.as_str());
        plan.push((sides.len(), name, against));
        let config = StoreConfig::parse(&create_database(server, &format!("ours_{number}")).await?)?;
        sides.push(or_absent("gpuaas", ours(&config, callers, way, "gpuaas").await));
    }
    // There is no SQLite server to compare with, so the peer of SQLite is the usual approach on the same disk.
    let folders = [tempfile::tempdir_in(&setup.disk)?, tempfile::tempdir_in(&setup.disk)?];
    if medium == "disk" {
        for (folder, way) in folders.iter().zip([WriteMode::Direct, WriteMode::Queue]) {
            let config = StoreConfig::Sqlite { path: folder.path().join("bench.db") };
            plan.push((
                sides.len(),
                format!("durable task, SQLite on disk, {CALLERS} callers, {}", way.as_str()),
                vec![same_rows],
            ));
            sides.push(or_absent("gpuaas on SQLite", ours(&config, CALLERS, way, "gpuaas on SQLite").await));
        }
    }
    let measured = interleave(&mut sides, effort).await;
    let row = |(side, name, against): &(usize, String, Vec<usize>)| -> Vec<Row> {
        against.iter().map(|peer| measured.row(name, "1/s", *side, *peer, 0, Goal::AtLeast(1.0))).collect()
    };
    Ok(plan.iter().flat_map(row).collect())
}

pub(crate) async fn run(setup: &Setup, effort: Effort) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (server, medium) in [(&setup.postgres_disk, "disk"), (&setup.postgres_tmpfs, "tmpfs")] {
        let path = format!("durable task, PostgreSQL on {medium}");
        match server {
            Some(server) => rows.extend(on_postgres(setup, server, medium, effort).await?),
            None => rows.push(Row::skipped(&path, "pgbench, graphile", Goal::AtLeast(1.0), "there is no PostgreSQL")),
        }
    }
    Ok(rows)
}
