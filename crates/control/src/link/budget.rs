//! Budgets for what a node may cause the control plane to write: per task, and per node and hour.
//!
//! A broken or hostile node must not fill the store. What exceeds a budget is counted and dropped; the node gets the same answer
//! as if it had been stored, so that it does not send it again. Operators get one event per node and hour.
//!
//! The counts are in memory: a restarted server starts them again, and each of several has its own. The stored size of a task's
//! log is counted in the store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use gpuaas_contract::id::{CorrelationId, NodeId};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::decision::Context;
use gpuaas_domain::{Actor, node};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Control;
use crate::error::ControlError;
use crate::transact::transact;

/// Maximum number of stored bytes of one task's log.
pub(super) const LOG_BYTES_PER_TASK: u64 = 32 * 1024 * 1024;
/// The cost of a line beside its text.
pub(super) const LOG_LINE_COST: u64 = 64;
/// Maximum number of bytes of one node's log lines that are being written at once. All commits share transactions, so every
/// caller waits for what a flood has in progress.
const LOG_BYTES_UNDER_WAY: u32 = 4 * 1024 * 1024;
/// The same for all nodes together.
const LOG_BYTES_UNDER_WAY_IN_ALL: u32 = 16 * 1024 * 1024;
/// The counts are per hour.
const PERIOD_US: i64 = 3_600_000_000;

/// Something that a node can cause the control plane to write, or to send to other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BudgetKind {
    /// Bytes of log lines.
    LogBytes,
    /// Changed facts: a row, an event and an audit row each.
    Facts,
    /// Phases of running tasks: a notification to every server process each.
    Progress,
    /// Rejected envelopes and receipts: lines in the server's own log.
    Rejections,
    /// Links opened: two events and two audit rows each.
    Links,
    /// Certificates issued: a row, an event and an audit row each.
    Certificates,
}

impl BudgetKind {
    const COUNT: usize = 6;

    /// Returns the limit per hour.
    pub(super) const fn per_hour(self) -> u64 {
        match self {
            Self::LogBytes => 128 * 1024 * 1024,
            Self::Facts => 120,
            Self::Progress => 20_000,
            Self::Rejections => 1_000,
            Self::Links => 1_200,
            Self::Certificates => 60,
        }
    }

    /// Returns its name in metrics and events.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::LogBytes => "log_bytes",
            Self::Facts => "facts",
            Self::Progress => "progress",
            Self::Rejections => "rejections",
            Self::Links => "links",
            Self::Certificates => "certificates",
        }
    }

    const fn index(self) -> usize {
        match self {
            Self::LogBytes => 0,
            Self::Facts => 1,
            Self::Progress => 2,
            Self::Rejections => 3,
            Self::Links => 4,
            Self::Certificates => 5,
        }
    }
}

/// The use of every node's budgets in this hour, and the space for logs of all nodes.
#[derive(Debug)]
pub struct NodeBudgets {
    hours: Mutex<Hours>,
    log_room: Arc<Semaphore>,
}

impl Default for NodeBudgets {
    fn default() -> Self {
        Self { hours: Mutex::default(), log_room: Arc::new(Semaphore::new(LOG_BYTES_UNDER_WAY_IN_ALL as usize)) }
    }
}

/// Limits the log lines of one node that are being written.
#[derive(Debug)]
pub(super) struct LogRoom(Arc<Semaphore>);

impl Default for LogRoom {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LOG_BYTES_UNDER_WAY as usize)))
    }
}

impl LogRoom {
    /// Waits until this many bytes may be written: first within the node's own limit, so that a node waits only for itself.
    /// `None` would mean that the semaphore is closed, which never happens.
    pub(super) async fn take(&self, all: &NodeBudgets, bytes: usize) -> Option<[OwnedSemaphorePermit; 2]> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).clamp(1, LOG_BYTES_UNDER_WAY);
        let own = Arc::clone(&self.0).acquire_many_owned(bytes).await.ok()?;
        let shared = Arc::clone(&all.log_room).acquire_many_owned(bytes).await.ok()?;
        Some([own, shared])
    }
}

#[derive(Debug, Default)]
struct Hours {
    /// The latest hour with any use.
    number: i64,
    nodes: HashMap<NodeId, Hour>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Hour {
    number: i64,
    used: [u64; BudgetKind::COUNT],
    told: bool,
}

/// Whether something is within its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    Within,
    /// Beyond it; `first` in this hour of this node, for any kind.
    Beyond {
        first: bool,
    },
}

impl NodeBudgets {
    fn take(&self, node: NodeId, kind: BudgetKind, amount: u64, now: Timestamp) -> Taken {
        let number = now.0.div_euclid(PERIOD_US);
        let mut hours = self.hours.lock().unwrap_or_else(PoisonError::into_inner);
        if number > hours.number {
            // A new hour: the earlier counts are no longer needed.
            hours.number = number;
            hours.nodes.clear();
        }
        let hour = hours.nodes.entry(node).or_default();
        if hour.number != number {
            *hour = Hour { number, ..Hour::default() };
        }
        let Some(used) = hour.used.get_mut(kind.index()) else { return Taken::Within };
        match used.checked_add(amount).filter(|used| *used <= kind.per_hour()) {
            Some(next) => {
                *used = next;
                Taken::Within
            }
            None => Taken::Beyond { first: !std::mem::replace(&mut hour.told, true) },
        }
    }
}

/// Takes something from a node's budget. Returns `false` if it is exceeded: then it is counted, and operators get an event if it
/// is the first time in this hour.
pub(super) async fn take(control: &Control, node: NodeId, kind: BudgetKind, amount: u64) -> Result<bool, ControlError> {
    let now = Timestamp::now();
    match control.budgets.take(node, kind, amount, now) {
        Taken::Within => Ok(true),
        Taken::Beyond { first } => {
            control.metrics.budget_exceeded(kind.as_str(), 1);
            if first {
                tracing::warn!(%node, kind = kind.as_str(), limit = kind.per_hour(), "the node has exceeded its budget for this hour; dropping the rest");
                let context = Context { now, actor: Actor::Node(node), correlation_id: CorrelationId::generate() };
                let decision = node::budget_exceeded(node, kind.as_str(), kind.per_hour(), &context);
                transact(control, || async { Ok(((), decision.clone())) }).await?;
            }
            Ok(false)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_of_one_node_one_kind_and_one_hour_and_is_told_once() {
        let (budgets, node, now) = (NodeBudgets::default(), NodeId::generate(), Timestamp(7 * PERIOD_US + 5));
        let limit = BudgetKind::Facts.per_hour();
        assert_eq!(budgets.take(node, BudgetKind::Facts, limit, now), Taken::Within);
        assert_eq!(budgets.take(node, BudgetKind::Facts, 1, now), Taken::Beyond { first: true });
        assert_eq!(budgets.take(node, BudgetKind::Facts, 1, now), Taken::Beyond { first: false });
        assert_eq!(budgets.take(node, BudgetKind::Links, 1, now), Taken::Within, "another kind");
        assert_eq!(budgets.take(node, BudgetKind::Links, u64::MAX, now), Taken::Beyond { first: false }, "told already");
        assert_eq!(budgets.take(NodeId::generate(), BudgetKind::Facts, 1, now), Taken::Within, "another node");
        let later = Timestamp(8 * PERIOD_US);
        assert_eq!(budgets.take(node, BudgetKind::Facts, 1, later), Taken::Within, "another hour");
        assert_eq!(budgets.take(node, BudgetKind::Facts, limit, later), Taken::Beyond { first: true });
    }

    #[tokio::test]
    async fn a_node_that_floods_waits_for_itself_and_others_do_not() {
        let (budgets, flooding, quiet) = (NodeBudgets::default(), LogRoom::default(), LogRoom::default());
        let whole = LOG_BYTES_UNDER_WAY as usize;
        let held = flooding.take(&budgets, whole * 10).await.expect("more than a node may have counts as all of it");
        let more = flooding.take(&budgets, 1);
        tokio::pin!(more);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(more.as_mut().poll(&mut context).is_pending(), "the node's own room is taken");
        drop(quiet.take(&budgets, whole).await.expect("another node has room"));
        drop(held);
        assert!(more.poll(&mut context).is_ready());
    }

    #[test]
    fn nodes_that_were_quiet_take_no_memory() {
        let budgets = NodeBudgets::default();
        for hour in 0..4 {
            for _ in 0..100 {
                budgets.take(NodeId::generate(), BudgetKind::Links, 1, Timestamp(hour * PERIOD_US));
            }
        }
        assert!(budgets.hours.lock().unwrap_or_else(PoisonError::into_inner).nodes.len() <= 100);
    }
}
