//! The invariants of the system, checked after every step by comparing the store with what the hosts really did.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpuaas_contract::Digest;
use gpuaas_contract::id::{ClusterId, NodeId, TaskId};
use gpuaas_contract::key::VerifyingKey;
use gpuaas_contract::receipt::{self, Expectation};
use gpuaas_contract::task::TaskType;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::audit_chain::{self, AuditRow, Head};
use gpuaas_domain::task::TaskState;
use gpuaas_runtime::simulation::wait;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteRow};
use sqlx::{ConnectOptions as _, Row as _};

/// A broken promise, as a sentence that begins with the promise's name.
pub(crate) type Broken = String;

/// A row of the table `tasks`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Task {
    node: String,
    version: i64,
    state: TaskState,
    receipt: Option<String>,
    dispatches: i64,
}

/// Events older than this may be missing: the relay deletes them 90 days after publication, and clocks differ a little.
const EVENTS_KEPT: Duration = Duration::from_secs(89 * 24 * 3600);

/// The promises and the state observed so far.
pub(crate) struct Promises {
    store: SqliteConnection,
    ping_logs: Vec<PathBuf>,
    tasks: BTreeMap<String, Task>,
    effects: BTreeMap<String, usize>,
    /// Ids that were returned to the operator.
    acknowledged: BTreeSet<String>,
    /// Nodes whose retirement was acknowledged, and how many envelopes they had received by then.
    retired: BTreeMap<String, i64>,
    /// Signing keys whose revocation was acknowledged, and how many envelopes they had signed by then.
    revoked: BTreeMap<String, i64>,
    /// Nodes whose identity was copied. Until the thief is noticed, it can report anything about its node.
    stolen: BTreeSet<String>,
    /// Everything that changed, in order. Two runs of one seed must have the same history.
    history: Vec<String>,
}

fn text(row: &SqliteRow, column: &str) -> String {
    row.get(column)
}

impl Promises {
    pub(crate) fn open(store: &Path, ping_logs: Vec<PathBuf>) -> Result<Self, Broken> {
        let options = SqliteConnectOptions::new().filename(store).pragma("query_only", "ON").disable_statement_logging();
        let store = wait(options.connect()).map_err(|error| format!("harness: cannot open the store: {error}"))?;
        Ok(Self {
            store,
            ping_logs,
            tasks: BTreeMap::new(),
            effects: BTreeMap::new(),
            acknowledged: BTreeSet::new(),
            retired: BTreeMap::new(),
            revoked: BTreeMap::new(),
            stolen: BTreeSet::new(),
            history: Vec::new(),
        })
    }

    pub(crate) fn history(&self) -> &[String] {
        &self.history
    }

    pub(crate) fn note(&mut self, at: Duration, what: impl std::fmt::Display) {
        self.history.push(format!("{:>9.2} s  {what}", at.as_secs_f64()));
    }

    /// Records that the operator received the id of this task.
    pub(crate) fn acknowledge(&mut self, id: &str) {
        self.acknowledged.insert(id.to_owned());
    }

    /// Records that the retirement of this node was acknowledged.
    pub(crate) fn retire(&mut self, node: &str) -> Result<(), Broken> {
        let sent = self.envelopes_of(node)?;
        self.retired.insert(node.to_owned(), sent);
        Ok(())
    }

    /// Records that the identity of this node was copied. Returns the public instance id of its agent.
    pub(crate) fn stolen(&mut self, name: &str) -> Result<String, Broken> {
        let sql = "SELECT id, session_instance FROM nodes WHERE name = $1";
        let row = wait(sqlx::query(sql).bind(name).fetch_one(&mut self.store)).map_err(unreadable)?;
        self.stolen.insert(text(&row, "id"));
        // The node was online before but is offline now, so any instance id will do.
        let instance = row.get::<Option<String>, _>("session_instance");
        Ok(instance.unwrap_or_else(|| gpuaas_contract::id::AgentInstanceId::generate().to_string()))
    }

    /// Returns the service state of a node.
    pub(crate) fn service(&mut self, name: &str) -> Result<String, Broken> {
        let sql = "SELECT service FROM nodes WHERE name = $1";
        let row = wait(sqlx::query(sql).bind(name).fetch_one(&mut self.store)).map_err(unreadable)?;
        Ok(text(&row, "service"))
    }

    /// Records that the revocation of this signing key was acknowledged.
    pub(crate) fn revoke(&mut self, key: &str) -> Result<(), Broken> {
        let signed = self.signed_by(key)?;
        self.revoked.insert(key.to_owned(), signed);
        Ok(())
    }

    fn signed_by(&mut self, key: &str) -> Result<i64, Broken> {
        let sql = "SELECT COUNT(*) AS n FROM envelopes WHERE key_id = $1";
        let row = wait(sqlx::query(sql).bind(key).fetch_one(&mut self.store)).map_err(unreadable)?;
        Ok(row.get("n"))
    }

    fn envelopes_of(&mut self, node: &str) -> Result<i64, Broken> {
        let sql = "SELECT COUNT(*) AS n FROM envelopes JOIN tasks ON tasks.id = envelopes.task_id WHERE tasks.node_id = $1";
        let row = wait(sqlx::query(sql).bind(node).fetch_one(&mut self.store)).map_err(unreadable)?;
        Ok(row.get("n"))
    }

    fn rows(&mut self, sql: &'static str) -> Result<Vec<SqliteRow>, Broken> {
        wait(sqlx::query(sql).fetch_all(&mut self.store)).map_err(unreadable)
    }

    /// Returns node ids by name.
    pub(crate) fn nodes(&mut self) -> Result<BTreeMap<String, String>, Broken> {
        let rows = self.rows("SELECT id, name FROM nodes")?;
        Ok(rows.iter().map(|row| (text(row, "name"), text(row, "id"))).collect())
    }

    /// Checks everything that may have changed.
    pub(crate) fn check(&mut self, at: Duration) -> Result<(), Broken> {
        self.read_effects(at)?;
        let rows = self.rows("SELECT id, node_id, version, state, receipt_digest, dispatches FROM tasks ORDER BY id")?;
        let mut now = BTreeMap::new();
        for row in &rows {
            let state = text(row, "state");
            let state = TaskState::parse(&state).ok_or_else(|| format!("states: `{state}` is not known"))?;
            let task = Task {
                node: text(row, "node_id"),
                version: row.get("version"),
                state,
                receipt: row.get("receipt_digest"),
                dispatches: row.get("dispatches"),
            };
            now.insert(text(row, "id"), task);
        }
        for (id, task) in &now {
            self.check_task(id, task, at)?;
        }
        if let Some(id) = self.tasks.keys().chain(&self.acknowledged).find(|id| !now.contains_key(*id)) {
            return Err(format!("acknowledged: {id} is gone"));
        }
        self.tasks = now;
        for (node, sent) in self.retired.clone() {
            if self.envelopes_of(&node)? != sent {
                return Err(format!("revocation: an envelope was signed for {node} after it was retired"));
            }
        }
        for (key, signed) in self.revoked.clone() {
            if self.signed_by(&key)? != signed {
                return Err(format!("revocation: {key} signed an envelope after it was revoked"));
            }
        }
        Ok(())
    }

    fn read_effects(&mut self, at: Duration) -> Result<(), Broken> {
        let mut effects: BTreeMap<String, usize> = BTreeMap::new();
        for (node, path) in self.ping_logs.iter().enumerate() {
            let lines = std::fs::read_to_string(path).unwrap_or_default();
            for id in lines.lines().filter_map(|line| line.split_once(' ').map(|(id, _)| id)) {
                if effects.insert(id.to_owned(), node).is_some() {
                    return Err(format!("once: {id} ran twice"));
                }
            }
        }
        for (id, node) in &effects {
            if !self.effects.contains_key(id) {
                self.history.push(format!("{:>9.2} s  {id} has its effect on node {node}", at.as_secs_f64()));
            }
        }
        if let Some(id) = self.effects.keys().find(|id| !effects.contains_key(*id)) {
            return Err(format!("harness: the effect of {id} is gone"));
        }
        self.effects = effects;
        Ok(())
    }

    fn check_task(&mut self, id: &str, task: &Task, at: Duration) -> Result<(), Broken> {
        let state = task.state.as_str();
        let before = self.tasks.get(id);
        if before != Some(task) {
            self.history.push(format!(
                "{:>9.2} s  {id} {state} (version {}, sent {})",
                at.as_secs_f64(),
                task.version,
                task.dispatches
            ));
        }
        if let Some(before) = before.filter(|before| *before != task) {
            if task.version <= before.version {
                return Err(format!("versions: {id} changed from {before:?} to {task:?} under the same version"));
            }
            if before.receipt.is_some() && (before.receipt != task.receipt || before.state != task.state) {
                return Err(format!("final: {id} ended by a receipt and changed from {before:?} to {task:?}"));
            }
            if before.state.ended() && task.receipt.is_none() && before.state != task.state {
                return Err(format!("final: {id} had ended and changed without a receipt from {before:?} to {task:?}"));
            }
        }
        let by_receipt =
            matches!(task.state, TaskState::Succeeded | TaskState::Failed | TaskState::Interrupted | TaskState::Refused);
        if by_receipt && task.receipt.is_none() {
            return Err(format!("receipts: {id} is {state} without a receipt"));
        }
        let effect = self.effects.contains_key(id);
        match task.state {
            TaskState::Succeeded if !effect => Err(format!("truth: {id} succeeded without its effect")),
            TaskState::Cancelled | TaskState::Interrupted | TaskState::Refused | TaskState::Expired
                if effect && !self.stolen.contains(&task.node) =>
            {
                Err(format!("truth: {id} is {state} and has its effect"))
            }
            _ => Ok(()),
        }
    }

    /// Checks what must hold once all faults are repaired and everything has had time to finish.
    pub(crate) fn check_end(&mut self, leapt: Duration) -> Result<(), Broken> {
        for (id, task) in &self.tasks {
            if !task.state.ended() {
                return Err(format!("ends: {id} is still {} after everything was mended", task.state.as_str()));
            }
            let believed = !self.retired.contains_key(&task.node) && !self.stolen.contains(&task.node);
            if self.effects.contains_key(id) && task.state != TaskState::Succeeded && believed {
                return Err(format!("truth: {id} has its effect and ended as {}", task.state.as_str()));
            }
        }
        if let Some(id) = self.effects.keys().find(|id| !self.tasks.contains_key(*id)) {
            return Err(format!("authority: {id} had an effect and nobody asked for it"));
        }
        self.check_presence()?;
        self.check_receipts()?;
        self.check_records(leapt >= EVENTS_KEPT)?;
        self.check_audit()
    }

    fn check_presence(&mut self) -> Result<(), Broken> {
        let rows = self.rows("SELECT id, name, service, session_id FROM nodes")?;
        for row in &rows {
            let online = row.get::<Option<String>, _>("session_id").is_some();
            let (name, service) = (text(row, "name"), text(row, "service"));
            if self.retired.contains_key(&text(row, "id")) {
                if online {
                    return Err(format!("revocation: {name} is retired and online"));
                }
            } else if service == "locked" {
                if online || !self.stolen.contains(&text(row, "id")) {
                    return Err(format!("copies: {name} is locked and online, or nobody copied its identity"));
                }
            } else if !online {
                return Err(format!("recovery: {name} ({service}) did not come back after everything was mended"));
            }
        }
        Ok(())
    }

    /// Checks that every receipt is signed by its node and refers to an envelope that was signed for that task.
    fn check_receipts(&mut self) -> Result<(), Broken> {
        let cluster = self.rows("SELECT value FROM meta WHERE name = 'cluster_id'")?;
        let cluster: ClusterId = cluster.first().map(|row| text(row, "value")).unwrap_or_default().parse().map_err(odd)?;
        let mut signed: BTreeMap<String, Vec<Digest>> = BTreeMap::new();
        for row in &self.rows("SELECT task_id, digest FROM envelopes")? {
            signed.entry(text(row, "task_id")).or_default().push(text(row, "digest").try_into().map_err(odd)?);
        }
        let sql = "SELECT tasks.id, tasks.task_type, tasks.node_id, tasks.node_epoch, receipts.receipt, receipts.digest, nodes.receipt_key \
                   FROM receipts JOIN tasks ON tasks.id = receipts.task_id JOIN nodes ON nodes.id = tasks.node_id";
        for row in &self.rows(sql)? {
            let id = text(row, "id");
            let task_id: TaskId = id.parse().map_err(odd)?;
            let node_id: NodeId = text(row, "node_id").parse().map_err(odd)?;
            let key = VerifyingKey::from_bytes(&row.get::<Vec<u8>, _>("receipt_key")).map_err(odd)?;
            let task_type =
                TaskType::parse(&text(row, "task_type")).ok_or_else(|| format!("states: {id} has an unknown kind"))?;
            let expectation = Expectation {
                key: &key,
                cluster_id: cluster,
                node_id,
                node_epoch: u64::try_from(row.get::<i64, _>("node_epoch")).unwrap_or(0),
                task_id,
                task_type,
                envelope_digests: signed.get(&id).map_or(&[], Vec::as_slice),
            };
            let believed = receipt::verify(&row.get::<Vec<u8>, _>("receipt"), &expectation);
            let believed = believed.map_err(|error| format!("receipts: that of {id} cannot be believed: {error}"))?;
            if believed.digest().to_string() != text(row, "digest") {
                return Err(format!("receipts: {id} is filed under another digest"));
            }
        }
        Ok(())
    }

    /// Checks that every change of a task left its event and its audit row. If `forgotten`, the relay may have deleted old events.
    fn check_records(&mut self, forgotten: bool) -> Result<(), Broken> {
        let sql = "SELECT tasks.id, tasks.version, \
                   (SELECT COUNT(*) FROM outbox WHERE outbox.subject = tasks.id) AS events, \
                   (SELECT COUNT(*) FROM audit WHERE audit.target = tasks.id) AS entries FROM tasks";
        for row in &self.rows(sql)? {
            let (version, events, entries) =
                (row.get::<i64, _>("version"), row.get::<i64, _>("events"), row.get::<i64, _>("entries"));
            let all = events == version + 1 || (forgotten && events <= version);
            if !all || entries != version + 1 {
                let id = text(row, "id");
                return Err(format!("records: {id} has version {version}, {events} events and {entries} audit rows"));
            }
        }
        Ok(())
    }

    fn check_audit(&mut self) -> Result<(), Broken> {
        let sql = "SELECT seq, at, actor, action, target, correlation_id, body, prev_hash, hash FROM audit ORDER BY seq";
        let rows: Vec<AuditRow> = self
            .rows(sql)?
            .iter()
            .map(|row| AuditRow {
                seq: u64::try_from(row.get::<i64, _>("seq")).unwrap_or(0),
                at: Timestamp(row.get("at")),
                actor: text(row, "actor"),
                action: text(row, "action"),
                target: text(row, "target"),
                correlation_id: text(row, "correlation_id"),
                body: text(row, "body"),
                prev_hash: text(row, "prev_hash"),
                hash: text(row, "hash"),
            })
            .collect();
        let end = audit_chain::verify(&Head::genesis(), &rows).map_err(|error| format!("audit: {error}"))?;
        let head = self.rows("SELECT seq, hash FROM audit_head")?;
        match head.first() {
            Some(head) if text(head, "hash") == end.hash => Ok(()),
            _ => Err("audit: the head is not the end of the chain".to_owned()),
        }
    }
}

fn unreadable(error: sqlx::Error) -> Broken {
    format!("harness: cannot read the store: {error}")
}

fn odd(error: impl std::fmt::Display) -> Broken {
    format!("states: {error}")
}
