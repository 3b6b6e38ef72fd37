//! Tasks.
//!
//! Ended tasks stay in the table forever. Queries for pending work use the partial indexes of the schema. Their conditions are
//! repeated here word for word, because the planners match them by text.

use constcat::concat;
use std::collections::HashMap;
use std::time::Duration;

use gpuaas_contract::Digest;
use gpuaas_contract::id::{AllocationId, CorrelationId, NodeId, TaskId};
use gpuaas_contract::task::{Task, TaskType};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::task::{TaskRecord, TaskState, due_at};

use crate::db::{Arg, Columns, Reader, Select};
use crate::error::StoreError;
use crate::table::{Row, table};
use crate::{Result, Store};

table! {
    "tasks" as "tasks_row" {
        "id": Text,
        "version": Int,
        "node_id": Text,
        "node_epoch": Int,
        "task_type": Text,
        "params": Text,
        "state": Text,
        "requested_by": Text,
        "correlation_id": Text,
        "idempotency_key": Text,
        "intent": Text,
        "created_at": Int,
        "queue_until": Int,
        "timeout": Int,
        "dispatches": Int,
        "lease_until": Int,
        "envelope_start_by": Int,
        "cancel_requested_at": Int,
        "accepted_at": Int,
        "started_at": Int,
        "ended_at": Int,
        "code": Text,
        "message": Text,
        "receipt_digest": Text,
        "due_at": Int,
        "allocation_id": Text,
    }
}

/// After this many new tasks of a node, its unfinished tasks are counted again.
const RECOUNT: u32 = 64;
/// Maximum number of nodes whose count is remembered. Above that, the cache is cleared.
const MAX_COUNTED: usize = 4096;

/// Adds to the number of tasks in a state.
pub(crate) const COUNT_ON_CONFLICT: &str = "ON CONFLICT (state) DO UPDATE SET count = task_count.count + excluded.count";

pub(crate) const QUEUED: &str = concat!(
    "SELECT ",
    COLUMNS,
    " FROM tasks WHERE node_id = $1 AND state = 'queued' AND cancel_requested_at IS NULL ORDER BY id LIMIT $2"
);
pub(crate) const OUTSTANDING: &str =
    concat!("SELECT ", COLUMNS, " FROM tasks WHERE node_id = $1 AND ended_at IS NULL AND dispatches > 0 ORDER BY id");
pub(crate) const CANCELLATIONS: &str = concat!(
    "SELECT ",
    COLUMNS,
    " FROM tasks WHERE node_id = $1 AND ended_at IS NULL \
     AND cancel_requested_at IS NOT NULL AND dispatches > 0 ORDER BY id"
);
pub(crate) const OPEN: &str = concat!("SELECT ", COLUMNS, " FROM tasks WHERE node_id = $1 AND ended_at IS NULL ORDER BY id");
pub(crate) const OPEN_COUNTS: &str = "SELECT node_id AS id, COUNT(*) AS open FROM tasks WHERE ended_at IS NULL GROUP BY node_id";
pub(crate) const OPEN_COUNT: &str = "SELECT COUNT(*) AS open FROM tasks WHERE node_id = $1 AND ended_at IS NULL";
pub(crate) const DUE: &str =
    concat!("SELECT ", COLUMNS, " FROM tasks WHERE due_at IS NOT NULL AND due_at < $1 ORDER BY due_at, id LIMIT $2");
pub(crate) const NODES_WITH_QUEUED: &str = "SELECT id FROM nodes WHERE EXISTS \
     (SELECT 1 FROM tasks WHERE tasks.node_id = nodes.id AND tasks.state = 'queued') ORDER BY id";
pub(crate) const GONE_NODES_WITH_OPEN: &str = "SELECT id FROM nodes WHERE service IN ('locked', 'retired') AND EXISTS \
     (SELECT 1 FROM tasks WHERE tasks.node_id = nodes.id AND tasks.ended_at IS NULL) ORDER BY id";

pub(crate) const NEWEST_PROPOSAL: &str = concat!(
    "SELECT ",
    COLUMNS,
    " FROM tasks WHERE node_id = $1 AND task_type = 'slice.topology_discover' \
     AND state = 'succeeded' ORDER BY id DESC LIMIT 1"
);

pub(crate) const OF_ALLOCATION: &str = concat!(
    "SELECT ",
    COLUMNS,
    " FROM tasks WHERE allocation_id IS NOT NULL AND allocation_id = $1 \
     ORDER BY id DESC LIMIT $2"
);
pub(crate) const FIRST_OF_ALLOCATION: &str = concat!(
    "SELECT ",
    COLUMNS,
    " FROM tasks WHERE allocation_id IS NOT NULL AND allocation_id = $1 \
     ORDER BY id LIMIT 1"
);

const WITH_ENVELOPES: &str = "SELECT tasks.*, \
     (SELECT string_agg(digest, ',') FROM envelopes WHERE task_id = tasks.id) AS envelope_digests FROM tasks WHERE id = $1";

pub(crate) fn to_row(task: &TaskRecord) -> Row {
    let TaskRecord { id, version, node_id, node_epoch, task_type, params, state, requested_by, correlation_id, .. } = task;
    let TaskRecord { idempotency_key, intent, created_at, queue_until, timeout, dispatches, lease_until, .. } = task;
    let TaskRecord { envelope_start_by, cancel_requested_at, accepted_at, started_at, ended_at, .. } = task;
    let TaskRecord { code, message, receipt_digest, .. } = task;
    vec![
        Arg::id(id),
        Arg::Int(Some(*version)),
        Arg::id(node_id),
        Arg::count(*node_epoch),
        Arg::text(task_type.as_str()),
        Arg::text(params),
        Arg::text(state.as_str()),
        Arg::text(requested_by),
        Arg::id(correlation_id),
        idempotency_key.as_ref().map_or(Arg::Text(None), Arg::text),
        Arg::text(intent),
        Arg::time(*created_at),
        Arg::time(*queue_until),
        Arg::count(u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX)),
        Arg::count(u64::from(*dispatches)),
        Arg::opt_time(*lease_until),
        Arg::opt_time(*envelope_start_by),
        Arg::opt_time(*cancel_requested_at),
        Arg::opt_time(*accepted_at),
        Arg::opt_time(*started_at),
        Arg::opt_time(*ended_at),
        Arg::text(code),
        Arg::text(message),
        Arg::opt_id(receipt_digest.as_ref()),
        Arg::opt_time(due_at(task)),
        Arg::opt_id(allocation_of(task)),
    ]
}

/// Returns the allocation on whose slots a task acts. It has its own column, so that the tasks of an allocation can be found.
fn allocation_of(task: &TaskRecord) -> Option<AllocationId> {
    if !task.task_type.needs_lease() {
        return None;
    }
    Some(Task::parse(task.task_type, &task.params).ok()?.holder()?.allocation_id)
}

pub(crate) fn from_row(row: &dyn Columns) -> Result<TaskRecord> {
    let row = Reader::new(TABLE.name, row);
    Ok(TaskRecord {
        id: row.parsed("id")?,
        version: row.int("version")?,
        node_id: row.parsed("node_id")?,
        node_epoch: row.count("node_epoch")?,
        task_type: row.named("task_type", TaskType::parse)?,
        params: row.text("params")?,
        state: row.named("state", TaskState::parse)?,
        requested_by: row.text("requested_by")?,
        correlation_id: row.parsed("correlation_id")?,
        idempotency_key: row.opt_text("idempotency_key")?,
        intent: row.text("intent")?,
        created_at: row.time("created_at")?,
        queue_until: row.time("queue_until")?,
        timeout: Duration::from_micros(row.count("timeout")?),
        dispatches: row.count("dispatches")?,
        lease_until: row.opt_time("lease_until")?,
        envelope_start_by: row.opt_time("envelope_start_by")?,
        cancel_requested_at: row.opt_time("cancel_requested_at")?,
        accepted_at: row.opt_time("accepted_at")?,
        started_at: row.opt_time("started_at")?,
        ended_at: row.opt_time("ended_at")?,
        code: row.text("code")?,
        message: row.text("message")?,
        receipt_digest: row.opt_parsed("receipt_digest")?,
    })
}

/// Which tasks to list.
#[derive(Clone, Debug, Default)]
pub struct TaskFilter {
    /// Only tasks of this node.
    pub node: Option<NodeId>,
    /// Only tasks in this state.
    pub state: Option<TaskState>,
    /// Only tasks that have not ended.
    pub open_only: bool,
    /// Only tasks of this request.
    pub correlation_id: Option<CorrelationId>,
}

impl Store {
    /// Returns the task with this id.
    pub async fn task_get(&self, id: TaskId) -> Result<Option<TaskRecord>> {
        let sql = concat!("SELECT ", COLUMNS, " FROM tasks WHERE id = $1");
        self.db().fetch_one("read a task", sql, vec![Arg::id(id)], from_row).await
    }

    /// Returns the task with this id and the digests of all envelopes signed for it.
    pub async fn task_with_envelopes(&self, id: TaskId) -> Result<Option<(TaskRecord, Vec<Digest>)>> {
        let read = |row: &dyn Columns| {
            let digests = Reader::new(TABLE.name, row).opt_text("envelope_digests")?.unwrap_or_default();
            let digests = digests.split(',').filter(|digest| !digest.is_empty()).map(|digest| {
                let corrupt = |what| StoreError::Corrupt { table: "envelopes", column: "digest", what };
                Digest::try_from(digest.to_owned()).map_err(|error| corrupt(error.to_string()))
            });
            Ok::<_, StoreError>((from_row(row)?, digests.collect::<Result<_>>()?))
        };
        self.db().fetch_one("read a task", WITH_ENVELOPES, vec![Arg::id(id)], read).await
    }

    /// Returns the node's newest successful proposal task.
    pub async fn task_newest_proposal(&self, node: NodeId) -> Result<Option<TaskRecord>> {
        self.db().fetch_one("read a task", NEWEST_PROPOSAL, vec![Arg::id(node)], from_row).await
    }

    /// Lists tasks that act on the slots of an allocation, newest first.
    pub async fn task_of_allocation(&self, allocation: AllocationId, limit: u32) -> Result<Vec<TaskRecord>> {
        let args = vec![Arg::id(allocation), Arg::count(u64::from(limit.min(crate::MAX_PAGE)))];
        self.db().fetch("list tasks", OF_ALLOCATION, args, from_row).await
    }

    /// Returns the oldest task on the slots of an allocation: the one that created it.
    pub async fn task_first_of_allocation(&self, allocation: AllocationId) -> Result<Option<TaskRecord>> {
        self.db().fetch_one("read a task", FIRST_OF_ALLOCATION, vec![Arg::id(allocation)], from_row).await
    }

    /// Lists tasks, newest first, that were requested before `before` (the last task of the previous page).
    pub async fn task_list(&self, filter: &TaskFilter, before: Option<TaskId>, limit: u32) -> Result<Vec<TaskRecord>> {
        task_list_query(filter, before, limit).fetch(self.db(), "list tasks", from_row).await
    }

    /// Counts the node's tasks that have not ended.
    pub async fn task_unfinished_count(&self, node: NodeId) -> Result<u64> {
        let read = |row: &dyn Columns| Reader::new(TABLE.name, row).count("open");
        Ok(self.db().fetch_one("count tasks", OPEN_COUNT, vec![Arg::id(node)], read).await?.unwrap_or_default())
    }

    /// Returns whether the node has room for one more task below `limit`, and if not, how many of its tasks have not ended.
    ///
    /// A count reads an entry per task, so it would get slower with every pending task. Therefore tasks are counted again only
    /// after every [`RECOUNT`] calls; in between, every call counts as a created task. Before the method returns a no, it counts.
    /// Several processes together may exceed the limit by what each of them adds between two counts.
    pub async fn task_unfinished_below(&self, node: NodeId, limit: u64) -> Result<std::result::Result<(), u64>> {
        {
            let mut known = self.counted();
            if let Some((count, questions)) = known.get_mut(&node)
                && *questions < RECOUNT
                && count.saturating_add(u64::from(*questions)) < limit
            {
                *questions += 1;
                return Ok(Ok(()));
            }
        }
        let count = self.task_unfinished_count(node).await?;
        let mut known = self.counted();
        if known.len() >= MAX_COUNTED {
            known.clear();
        }
        known.insert(node, (count, 1));
        Ok(if count < limit { Ok(()) } else { Err(count) })
    }

    /// Counts the tasks that have not ended, for every node that has some.
    pub async fn task_unfinished_counts(&self) -> Result<HashMap<NodeId, u64>> {
        let read = |row: &dyn Columns| {
            let row = Reader::new(TABLE.name, row);
            Ok::<_, StoreError>((row.parsed("id")?, row.count("open")?))
        };
        Ok(self.db().fetch("count tasks", OPEN_COUNTS, Vec::new(), read).await?.into_iter().collect())
    }

    /// Lists queued tasks of the node without a cancel request, oldest first.
    pub async fn task_queued(&self, node: NodeId, limit: u32) -> Result<Vec<TaskRecord>> {
        let args = vec![Arg::id(node), Arg::count(u64::from(limit.min(crate::MAX_PAGE)))];
        self.db().fetch("list queued tasks", QUEUED, args, from_row).await
    }

    /// Lists tasks of the node that were sent at least once and have not ended, oldest first: the node may be running them.
    pub async fn task_outstanding(&self, node: NodeId) -> Result<Vec<TaskRecord>> {
        self.db().fetch("list outstanding tasks", OUTSTANDING, vec![Arg::id(node)], from_row).await
    }

    /// Lists outstanding tasks of the node with a cancel request.
    pub async fn task_cancellations(&self, node: NodeId) -> Result<Vec<TaskRecord>> {
        self.db().fetch("list cancellations", CANCELLATIONS, vec![Arg::id(node)], from_row).await
    }

    /// Lists every task of the node that has not ended, oldest first.
    pub async fn task_open(&self, node: NodeId) -> Result<Vec<TaskRecord>> {
        self.db().fetch("list open tasks", OPEN, vec![Arg::id(node)], from_row).await
    }

    /// Lists tasks that [`gpuaas_domain::task::tick`] changes at `now`, the longest overdue first.
    pub async fn task_due(&self, now: Timestamp, limit: u32) -> Result<Vec<TaskRecord>> {
        let args = vec![Arg::time(now), Arg::count(u64::from(limit.min(crate::MAX_PAGE)))];
        self.db().fetch("list due tasks", DUE, args, from_row).await
    }

    /// Lists nodes with queued tasks.
    pub async fn nodes_with_queued_tasks(&self) -> Result<Vec<NodeId>> {
        let read = |row: &dyn Columns| Reader::new("nodes", row).parsed("id");
        self.db().fetch("list nodes with work", NODES_WITH_QUEUED, Vec::new(), read).await
    }

    /// Lists nodes that may never connect again and have tasks that have not ended.
    pub async fn gone_nodes_with_open_tasks(&self) -> Result<Vec<NodeId>> {
        let read = |row: &dyn Columns| Reader::new("nodes", row).parsed("id");
        self.db().fetch("list gone nodes with work", GONE_NODES_WITH_OPEN, Vec::new(), read).await
    }

    /// Counts the tasks in each state; every state is listed.
    pub async fn task_counts(&self) -> Result<Vec<(TaskState, u64)>> {
        let sql = "SELECT state, count FROM task_count";
        let counted = self.db().fetch("count tasks", sql, Vec::new(), |row| {
            let row = Reader::new("task_count", row);
            Ok::<(TaskState, u64), StoreError>((row.named("state", TaskState::parse)?, row.count("count")?))
        });
        let counted = counted.await?;
        let of = |state| counted.iter().find(|(other, _)| *other == state).map_or(0, |(_, count)| *count);
        Ok(TaskState::ALL.map(|state| (state, of(state))).to_vec())
    }
}

pub(crate) fn task_list_query(filter: &TaskFilter, before: Option<TaskId>, limit: u32) -> Select {
    let mut select = Select::new(concat!("SELECT ", COLUMNS, " FROM tasks WHERE TRUE"));
    // Redundant, but the planners use the partial indexes only if their condition is spelled out.
    if filter.open_only || filter.state.is_some_and(|state| !state.ended()) {
        select = select.push(" AND ended_at IS NULL");
    } else if filter.state.is_some() {
        select = select.push(" AND ended_at IS NOT NULL");
    }
    select
        .and_if("node_id =", filter.node.map(Arg::id))
        .and_if("state =", filter.state.map(|state| Arg::text(state.as_str())))
        .and_if("correlation_id =", filter.correlation_id.as_ref().map(Arg::id))
        .and_if("id <", before.map(Arg::id))
        .page("id DESC", limit)
}
