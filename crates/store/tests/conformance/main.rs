//! Requirements for both engines, row by row and guarantee by guarantee.

mod commits;
mod queries;
mod relay;
mod resources;
mod rows;
#[path = "../support/mod.rs"]
mod support;

use gpuaas_contract::id::TaskId;
use gpuaas_domain::Decision;
use gpuaas_domain::audit_chain::Head;
use gpuaas_domain::decision::TaskLogLine;
use gpuaas_domain::task::TaskState;
use gpuaas_store::{AuditFilter, AuditRow, CommitError, Store};

use crate::support::later;

pub(crate) fn line(task_id: TaskId, sequence: u64, text: &str) -> TaskLogLine {
    TaskLogLine { task_id, sequence, at: later(sequence), stream: "stdout".to_owned(), text: text.to_owned(), dropped: 3 }
}

/// Returns everything that a decision could leave behind.
pub(crate) async fn traces(store: &Store) -> (Head, usize, Vec<(TaskState, u64)>) {
    let head = store.audit_head().await.expect("reads");
    (head, store.outbox_list(0, 1000).await.expect("reads").len(), store.task_counts().await.expect("counts"))
}

/// Commits all decisions at once, so that they share transactions, and returns the results in order.
pub(crate) async fn all_at_once(store: &Store, decisions: Vec<Decision>) -> Vec<Result<(), CommitError>> {
    let mut running = Vec::new();
    for decision in decisions {
        let store = store.clone();
        running.push(tokio::spawn(async move { store.commit(decision).await }));
    }
    let mut results = Vec::new();
    for task in running {
        results.push(task.await.expect("the committing task lives"));
    }
    results
}

pub(crate) async fn whole_audit(store: &Store) -> Vec<AuditRow> {
    let mut rows: Vec<AuditRow> = Vec::new();
    loop {
        let after = rows.last().map_or(0, |row| row.seq);
        let page = store.audit_list(after, 100, &AuditFilter::default()).await.expect("lists");
        if page.is_empty() {
            return rows;
        }
        rows.extend(page);
    }
}
