//! Replays workflow code from the histories of recorded runs and of a current one. A difference between the code and a history
//! would break running workflows when a server is upgraded.
//!
//! `UPDATE_HISTORIES=1` records the current run as a new fixture. Keep each old fixture for as long as upgrades from the servers
//! that produced it are supported.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../../control/tests/common/mod.rs"]
mod common;
mod temporal;

use std::path::{Path, PathBuf};

use common::TestServer;
use common::lifecycle::{Shop, serves};
use common::looking::Looking;
use gpuaas_api::dto::Reason;
use gpuaas_temporal::{AllocationRun, Temporal};
use temporalio_client::{Client, ClientOptions, Connection, ConnectionOptions, WorkflowFetchHistoryOptions, WorkflowHistory};
use temporalio_sdk::workflow_replayer::{WorkflowReplayError, WorkflowReplayer, WorkflowReplayerOptions};

fn recorded() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/histories");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

async fn replay(history: &[u8]) -> Result<(), WorkflowReplayError> {
    let options = WorkflowReplayerOptions::new().register_workflow::<AllocationRun>().unwrap().build();
    WorkflowReplayer::new(options).unwrap().replay_workflow(WorkflowHistory::from_json(history).unwrap()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_recorded_run_plays_the_same_way() {
    let files = recorded();
    assert!(!files.is_empty());
    for file in files {
        let played = replay(&std::fs::read(&file).unwrap()).await;
        assert!(played.is_ok(), "{}: {played:?}", file.display());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_went_another_way_is_noticed() {
    let text = std::fs::read_to_string(&recorded()[0]).unwrap();
    let other = text.replace("\"await_provision\"", "\"await_something\"");
    assert_ne!(text, other, "the recorded run has no such step");
    assert!(replay(other.as_bytes()).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_of_today_takes_every_step_and_plays_the_same_way() {
    let Some(driver) = temporal::connect().await else { return };
    let server = TestServer::driven_by(driver, None).await;
    let (mut node, _) = Looking::with_slots(&server, 2).await;
    let shop = Shop::open(&server).await;
    let client = server.client();
    let made = client.allocation_create(&shop.project, &shop.wants("a", "two"), None).await.unwrap();
    let id = made.id.to_string();
    serves(&mut node, &server, &made, None, |now| now.state.as_str() == "active").await;
    client.allocation_stop(&id).await.unwrap();
    serves(&mut node, &server, &made, None, |now| now.state.as_str() == "stopped").await;
    client.allocation_release(&id, &Reason::default()).await.unwrap();
    serves(&mut node, &server, &made, None, |now| now.state.as_str() == "released").await;

    let url = temporal::url().unwrap();
    let connection = Connection::connect(ConnectionOptions::new(url).build()).await.unwrap();
    let temporal = Client::new(connection, ClientOptions::new("default").build()).unwrap();
    let run = temporal.get_workflow_handle::<AllocationRun>(Temporal::workflow_id(made.id));
    assert_eq!(run.get_result(Default::default()).await.unwrap(), "done");
    let history = run.fetch_history(WorkflowFetchHistoryOptions::default());
    let history = history.to_json().await.unwrap();
    let text = String::from_utf8(history.clone()).unwrap();
    for step in ["place", "await_provision", "serve", "await_power", "release", "await_release"] {
        assert!(text.contains(&format!("\"name\":\"{step}\"")), "{step} is not in {text}");
    }
    replay(&history).await.unwrap();
    if std::env::var_os("UPDATE_HISTORIES").is_some() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/histories");
        std::fs::create_dir_all(&folder).unwrap();
        let history: serde_json::Value = serde_json::from_slice(&history).unwrap();
        let file = folder.join(format!("run-{}.json", env!("CARGO_PKG_VERSION")));
        std::fs::write(file, format!("{history:#}\n")).unwrap();
    }
}
