//! Clients that create ping tasks as fast as they complete, and record every response.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gpuaas_api::client::{Client, ClientError, ClientOptions};
use gpuaas_api::dto::StateFilter;
use gpuaas_api::dto::{Task, TaskCreate, TaskListQuery};
use gpuaas_contract::id::TaskId;
use gpuaas_testkit::{PATIENCE, eventually};

use crate::cluster::Cluster;

/// Number of concurrent clients.
const CLIENTS: usize = 6;
/// Number of tasks that a client leaves open before it waits for the oldest.
const WINDOW: usize = 12;
/// Pause before a request is repeated.
const RETRY: Duration = Duration::from_millis(25);

/// Load on a cluster, until it is stopped.
pub(crate) struct Load {
    client: Client,
    shared: Arc<Shared>,
    clients: Vec<tokio::task::JoinHandle<()>>,
    runtime: tokio::runtime::Runtime,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// The task that the server acknowledged, by the idempotency key of the request.
    acknowledged: Mutex<HashMap<String, TaskId>>,
    /// Number of idempotency keys that were sent.
    asked: AtomicUsize,
    /// Number of requests that failed with a transient error.
    failures: AtomicUsize,
}

/// What was requested, and what the server acknowledged.
pub(crate) struct Asked {
    pub(crate) acknowledged: HashMap<String, TaskId>,
    pub(crate) asked: usize,
    pub(crate) failures: usize,
}

impl Load {
    /// Starts to create ping tasks on these nodes.
    pub(crate) fn start(cluster: &Cluster, nodes: &[String]) -> Self {
        let token = std::fs::read_to_string(cluster.admin_token_file()).unwrap();
        let options = ClientOptions { token: Some(token), timeout: Duration::from_secs(20), ..ClientOptions::new(cluster.url()) };
        let client = Client::new(options).unwrap();
        let shared = Arc::new(Shared::default());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let clients = (0..CLIENTS)
            .map(|number| {
                let node = nodes[number % nodes.len()].clone();
                runtime.spawn(ask(client.clone(), Arc::clone(&shared), node, number))
            })
            .collect();
        Self { client, shared, clients, runtime }
    }

    /// Returns how many tasks the server has acknowledged so far.
    pub(crate) fn acknowledged(&self) -> usize {
        self.shared.acknowledged.lock().unwrap().len()
    }

    /// Returns how many requests have failed so far.
    pub(crate) fn failures(&self) -> usize {
        self.shared.failures.load(Ordering::SeqCst)
    }

    /// Waits until the server has acknowledged this many more tasks.
    pub(crate) fn wait_for_more(&self, count: usize) {
        let wanted = self.acknowledged() + count;
        eventually(PATIENCE, "the server goes on taking tasks", || {
            assert!(!self.clients.iter().any(tokio::task::JoinHandle::is_finished), "a client gave up; see its panic");
            (self.acknowledged() >= wanted).then_some(())
        });
    }

    /// Waits until there are more than `before` failures.
    pub(crate) fn wait_for_failure(&self, before: usize) {
        eventually(PATIENCE, "a client notices the outage", || (self.failures() > before).then_some(()));
    }

    /// Stops the clients, and returns what they recorded.
    pub(crate) fn stop(&mut self) -> Asked {
        self.shared.stop.store(true, Ordering::SeqCst);
        for client in self.clients.drain(..) {
            self.runtime.block_on(client).expect("no client panicked");
        }
        let acknowledged = self.shared.acknowledged.lock().unwrap().clone();
        Asked { acknowledged, asked: self.shared.asked.load(Ordering::SeqCst), failures: self.failures() }
    }

    /// Waits until no task is open, then returns all tasks.
    pub(crate) fn settled(&self) -> HashMap<TaskId, Task> {
        let mut left = Vec::new();
        let open = TaskListQuery { state: Some(StateFilter::Open), ..TaskListQuery::default() };
        let started = std::time::Instant::now();
        // Not `eventually`, so that the failure can name the tasks that are stuck.
        while started.elapsed() < PATIENCE * 2 {
            left = self.runtime.block_on(self.client.tasks(&open)).map(|page| page.items).unwrap_or(left);
            if left.is_empty() {
                return self.all();
            }
            self.runtime.block_on(async { tokio::time::sleep(RETRY * 4).await });
        }
        panic!("{} tasks are stuck, such as {:?}", left.len(), left.first());
    }

    fn all(&self) -> HashMap<TaskId, Task> {
        let mut tasks = HashMap::new();
        let mut query = TaskListQuery { limit: Some(gpuaas_api::dto::MAX_PAGE), ..TaskListQuery::default() };
        loop {
            let page = self.runtime.block_on(self.client.tasks(&query)).unwrap();
            tasks.extend(page.items.into_iter().map(|task| (task.id, task)));
            match page.next {
                Some(next) => query.after = Some(next),
                None => return tasks,
            }
        }
    }

    /// Returns how often the audit log records that a receipt was accepted, per task.
    pub(crate) fn receipts_believed(&self) -> HashMap<TaskId, usize> {
        let mut counts = HashMap::new();
        let mut query = gpuaas_api::dto::AuditQuery { limit: Some(gpuaas_api::dto::MAX_PAGE), ..Default::default() };
        loop {
            let page = self.runtime.block_on(self.client.audit(&query)).unwrap();
            for row in page.items.iter().filter(|row| row.action == "task.receipt") {
                *counts.entry(row.target.parse().unwrap()).or_default() += 1;
            }
            match page.next {
                Some(next) => query.after = Some(next.parse().unwrap()),
                None => return counts,
            }
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
    }
}

/// One client. Every request has an idempotency key. Two of three requests are repeated until they are answered; the third is given up.
async fn ask(client: Client, shared: Arc<Shared>, node: String, number: usize) {
    let mut open = VecDeque::new();
    for request in 0.. {
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        let key = format!("client-{number}-request-{request}");
        let params = serde_json::json!({ "message": key });
        let create = TaskCreate {
            node: node.clone(),
            task_type: "diag.ping".to_owned(),
            params,
            queue_seconds: None,
            timeout_seconds: None,
        };
        shared.asked.fetch_add(1, Ordering::SeqCst);
        while !shared.stop.load(Ordering::SeqCst) {
            match client.task_create(&create, Some(&key)).await {
                Ok(task) => {
                    shared.acknowledged.lock().unwrap().insert(key.clone(), task.id);
                    open.push_back(task.id);
                    break;
                }
                Err(error) => passes(&shared, &error),
            }
            if request % 3 == 2 {
                break;
            }
            tokio::time::sleep(RETRY).await;
        }
        while open.len() >= WINDOW && !shared.stop.load(Ordering::SeqCst) {
            match client.task(&open[0].to_string()).await {
                Ok(task) if task.ended() => {
                    open.pop_front();
                }
                Ok(_) => tokio::time::sleep(RETRY).await,
                Err(error) => {
                    passes(&shared, &error);
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }
}

/// Checks that an outage shows only as a transient error, never as a missing task or a conflict.
fn passes(shared: &Shared, error: &ClientError) {
    assert!(error.is_transient(), "an outage was answered with {error} ({error:?})");
    shared.failures.fetch_add(1, Ordering::SeqCst);
}
