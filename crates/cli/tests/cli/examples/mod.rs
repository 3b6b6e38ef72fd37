//! Every example of the API reference, sent to a real server with real agents on simulated hosts.
//!
//! The examples are sent in order. Each must succeed, and its response must have the same fields as the real one. Ids differ from
//! run to run, so the ids in the examples are mapped to real ones from earlier responses. `UPDATE_EXAMPLES=1` writes the response
//! of an example that has none, or one that does not match. A new example needs only a request and, in its `response`, the ids
//! that later examples use.

mod cluster;
mod shape;
mod stream;

use std::path::PathBuf;

use gpuaas_api::dto::{AllocationCreate, AllocationListQuery, Reason, SkuCreate, StateFilter, TaskCreate};
use gpuaas_api::endpoints::{ENDPOINTS, Endpoint, StreamKind};
use gpuaas_api::examples::Example;
use gpuaas_testkit::{PATIENCE, eventually_async};
use serde_json::Value;

use cluster::Cluster;
use shape::Names;

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../api/src/examples.json")
}

/// A running cluster, and the mapping from ids in the examples to real ones.
struct Replay {
    cluster: Cluster,
    examples: Vec<Example>,
    names: Names,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_example_can_be_sent_and_is_answered_as_it_says() {
    let update = std::env::var("UPDATE_EXAMPLES").is_ok_and(|value| value == "1");
    let examples: Vec<Example> = serde_json::from_slice(&std::fs::read(file()).expect("examples.json")).expect("examples");
    let mut replay = Replay { cluster: Cluster::start().await, examples: examples.clone(), names: Names::default() };
    let mut recorded = Vec::new();
    let mut faults = Vec::new();
    for mut example in examples {
        let endpoint = ENDPOINTS.iter().find(|endpoint| endpoint.name == example.operation).expect("an endpoint");
        replay.prepare(endpoint, &example).await;
        let real = replay.send(endpoint, &example).await;
        replay.names.learn(&example.response, &real);
        let found = shape::differences(&example.response, &real, &replay.names);
        if update && !found.is_empty() {
            example.response = replay.cluster.disguise(replay.names.record(&real));
        } else {
            faults.extend(found.into_iter().map(|fault| format!("{}: {fault}", example.operation)));
        }
        recorded.push(example);
    }
    replay.cluster.stop().await;
    if update {
        let text = serde_json::to_string_pretty(&recorded).expect("JSON") + "\n";
        std::fs::write(file(), text).expect("examples.json can be written");
    }
    assert!(
        faults.is_empty(),
        "these examples are not what the server answers; `UPDATE_EXAMPLES=1` writes them anew:\n{}",
        faults.join("\n")
    );
}

impl Replay {
    /// Sends the example's request and returns the response, or the first document of a stream.
    async fn send(&self, endpoint: &Endpoint, example: &Example) -> Value {
        let path = self.names.to_real(&example.path);
        let body = example.body.as_ref().map(|body| self.names.to_real(&body.to_string()));
        if endpoint.name == "budget_lift" {
            // API tokens cannot lift the budget, but the local socket can.
            let answer = self.cluster.local().raw(endpoint.method.as_str(), &path, body.map(String::into_bytes)).await;
            return serde_json::from_slice(&answer.expect("lifted")).expect("JSON");
        }
        let token = match endpoint.name {
            "own_password_set" => self.cluster.sign_in(example.body.as_ref().expect("a body")).await,
            _ => self.cluster.token.clone(),
        };
        if endpoint.stream == StreamKind::WebSocket {
            return stream::first_message(&self.cluster.url, &path, &token).await;
        }
        let method = http::Method::from_bytes(endpoint.method.as_str().as_bytes()).expect("a method");
        let mut request = self.cluster.http.request(method, format!("{}{path}", self.cluster.url)).bearer_auth(token);
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body);
        }
        let response = request.send().await.expect("a response");
        if response.status().as_u16() != endpoint.status {
            let status = response.status();
            panic!("{} answers {status}: {}", endpoint.name, response.text().await.unwrap_or_default());
        }
        let mut response = response;
        let mut text = String::new();
        let read = async {
            while let Some(chunk) = response.chunk().await.expect("more of the response") {
                text.push_str(std::str::from_utf8(&chunk).expect("text"));
                if let StreamKind::Sse(names) = endpoint.stream
                    && let Some(document) = stream::first_event(&text, names[0])
                {
                    return document;
                }
            }
            match endpoint.stream {
                StreamKind::Metrics => text.lines().take(6).map(|line| format!("{line}\n")).collect::<String>().into(),
                StreamKind::JsonLines => serde_json::from_str(text.lines().next().expect("a line")).expect("JSON"),
                StreamKind::Document => serde_json::from_str(&text).expect("JSON"),
                StreamKind::Sse(_) | StreamKind::WebSocket => panic!("{} ended before its first document", endpoint.name),
            }
        };
        tokio::time::timeout(PATIENCE, read).await.expect("a document in time")
    }

    /// Creates what this example requires before it can be sent.
    async fn prepare(&mut self, endpoint: &Endpoint, example: &Example) {
        let segment = |name| self.names.to_real(example.segment(endpoint, name).expect("a segment"));
        match endpoint.name {
            "enrollments" => self.cluster.request_enrollments().await,
            "nodes" => self.cluster.until_sampled().await,
            "task_logs" | "task_evidence" | "task" => self.until_task_ended(&segment("task")).await,
            "task_cancel" => {
                let enrolled = || async { self.cluster.client.node("gpu-03").await.ok() };
                eventually_async(PATIENCE, "the approved host is a node", enrolled).await;
                // For a host that is enrolled but off.
                let create = TaskCreate {
                    node: "gpu-03".to_owned(),
                    task_type: "diag.ping".to_owned(),
                    params: serde_json::json!({ "message": "hello" }),
                    queue_seconds: None,
                    timeout_seconds: None,
                };
                let task = self.cluster.client.task_create(&create, None).await.expect("a task");
                self.names.insert(example.segment(endpoint, "task").expect("a segment"), &task.id.to_string());
            }
            "allocation_retry" => {
                let project = self.names.to_real(&self.of("project").path);
                let project = project.rsplit('/').next().expect("a project").to_owned();
                // No host has eight free slots, so the allocation waits and then fails.
                let mut sku: SkuCreate = self.body_of("sku_create");
                sku = SkuCreate { name: "h100-8x".to_owned(), slots: Some(8), ..sku };
                let sku = self.cluster.client.sku_create(&sku, None).await.expect("a product").name;
                let wanted = AllocationCreate { sku, wait_seconds: Some(1), ..self.body_of("allocation_create") };
                let made = self.cluster.client.allocation_create(&project, &wanted, None).await.expect("an allocation");
                self.names.insert(example.segment(endpoint, "allocation").expect("a segment"), &made.id.to_string());
                self.until_allocation(&made.id.to_string(), "failed").await;
            }
            "allocation" | "allocation_console" | "allocation_stop" | "allocation_reboot" | "allocation_release" => {
                self.until_allocation(&segment("allocation"), "active").await;
            }
            "allocation_start" => self.until_allocation(&segment("allocation"), "stopped").await,
            "allocation_events" => self.until_allocation(&segment("allocation"), "released").await,
            "slice_console" | "slice_power" | "slice_release" => self.until_slice_idle(&segment("slice")).await,
            "project_delete" => self.release_allocations(&segment("project")).await,
            "slot_force_cleanup" => self.until_slot(&segment("slot"), "needs_wipe").await,
            _ => {}
        }
    }

    fn of(&self, operation: &str) -> &Example {
        self.examples.iter().find(|example| example.operation == operation).expect("an example")
    }

    fn body_of<T: serde::de::DeserializeOwned>(&self, operation: &str) -> T {
        serde_json::from_value(self.of(operation).body.clone().expect("a body")).expect("a request")
    }

    async fn until_task_ended(&self, task: &str) {
        eventually_async(PATIENCE, "the task ends", || async {
            self.cluster.client.task(task).await.expect("a task").ended().then_some(())
        })
        .await;
    }

    async fn until_allocation(&self, allocation: &str, state: &str) {
        eventually_async(PATIENCE, state, || async {
            let now = self.cluster.client.allocation(allocation).await.expect("an allocation");
            (now.state.as_str() == state && now.pending_power_action.is_none()).then_some(())
        })
        .await;
    }

    /// Releases all allocations of the project.
    async fn release_allocations(&self, project: &str) {
        let client = &self.cluster.client;
        let open = AllocationListQuery { state: Some(StateFilter::Open), ..AllocationListQuery::default() };
        for allocation in client.project_allocations(project, &open).await.expect("allocations").items {
            client.allocation_release(&allocation.id.to_string(), &Reason::default()).await.expect("released");
        }
        eventually_async(PATIENCE, "the project is empty", || async {
            client.project_allocations(project, &open).await.expect("allocations").items.is_empty().then_some(())
        })
        .await;
    }

    async fn until_slice_idle(&self, slice: &str) {
        eventually_async(PATIENCE, "the slice has no open task", || async {
            let slice = self.cluster.client.slice(slice).await.expect("a slice");
            slice.tasks.iter().all(gpuaas_api::dto::Task::ended).then_some(())
        })
        .await;
    }

    async fn until_slot(&self, slot: &str, state: &str) {
        eventually_async(PATIENCE, state, || async {
            (self.cluster.client.slot(slot).await.expect("a slot").state.as_str() == state).then_some(())
        })
        .await;
    }
}
