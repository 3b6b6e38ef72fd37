//! A fixed rate of tasks, spread over many simulated nodes.

use std::collections::HashMap;
use std::time::Duration;

use futures::future::try_join_all;
use gpuaas_contract::id::TaskId;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::Result;
use crate::cluster::{Cluster, Host};
use crate::measure::count;
use crate::rows::latency::ask_for_ping;
use crate::times::{Schedule, Times};
use crate::worker::Done;

/// Maximum wait for the last task.
const PATIENCE: Duration = Duration::from_secs(60);
/// Number of tasks whose end is also checked in the store.
const LOOKED_UP: usize = 10;
/// The index distance between two consecutively used nodes: a prime, so that all nodes are used and consecutive ones are not neighbors in
/// the store.
const STRIDE: usize = 7919;

pub(super) struct Loaded {
    pub(super) tasks: usize,
    /// Receipts stored per second.
    pub(super) per_second: f64,
    /// From when a call was due until its task would have started on the node.
    pub(super) started: Times,
}

/// Requests `per_second` tasks per second, open loop, and waits until each of them has a stored receipt.
pub(super) async fn offer(
    cluster: &Cluster,
    hosts: &[Host],
    per_second: u32,
    time: Duration,
    done: &mut UnboundedReceiver<Done>,
) -> Result<Loaded> {
    let schedule = Schedule::new(Duration::from_secs(1) / per_second, time)?;
    // Every round starts with a different node.
    let first = usize::try_from(schedule.started_at().0.unsigned_abs() % 1_000_003)?;
    let asked = try_join_all((0..schedule.calls()).zip(first..).map(|(number, turn)| async move {
        let begin = schedule.wait(number).await;
        let host = &hosts[turn.wrapping_mul(STRIDE) % hosts.len()];
        let id = ask_for_ping(&cluster.client, &host.grant.node_id.to_string()).await?;
        Result::<_>::Ok((id, begin.at))
    }))
    .await?;
    let mut ended: HashMap<TaskId, Done> = HashMap::new();
    while ended.len() < asked.len() {
        let next = tokio::time::timeout(PATIENCE, done.recv()).await;
        let next = next.map_err(|_| format!("{} of {} tasks have a receipt after a minute", ended.len(), asked.len()))?;
        let next = next.ok_or("all links are gone")?;
        if ended.insert(next.task, next).is_some() {
            return Err(format!("task {} was done twice", next.task).into());
        }
    }
    let mut started = Times::new()?;
    for (id, begin) in &asked {
        let end = ended.get(id).ok_or_else(|| format!("task {id} was never offered to its node"))?;
        started.record(end.started.duration_since(*begin))?;
    }
    let last = ended.values().map(|end| end.stored).max().ok_or("no tasks")?;
    for (id, _) in asked.iter().step_by(asked.len().div_ceil(LOOKED_UP)) {
        let task = cluster.client.task(&id.to_string()).await?;
        if task.state.as_str() != "succeeded" {
            return Err(format!("task {id} has a receipt but is {}", task.state).into());
        }
    }
    let per_second = count(asked.len()) / last.duration_since(schedule.started()).as_secs_f64();
    Ok(Loaded { tasks: asked.len(), per_second, started })
}
