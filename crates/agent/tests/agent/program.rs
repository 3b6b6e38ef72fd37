//! The program itself: its commands, and being killed at any moment.

use std::path::Path;
use std::time::Duration;

use gpuaas_contract::receipt::Outcome;
use gpuaas_host::exec::{Exec, ExecError};

use crate::harness::{Host, believe, enrolled, eventually, ping};
use crate::server::{Server, Shared};

const PROGRAM: &str = env!("CARGO_BIN_EXE_gpuaas-agent");

async fn call(config: &Path, args: &[&str]) -> Result<String, ExecError> {
    let exec = args.iter().fold(Exec::new(PROGRAM).arg("--config").arg(config), |exec, arg| exec.arg(arg));
    exec.run().await.map(|finished| String::from_utf8(finished.stdout).expect("text"))
}

fn refusal(result: Result<String, ExecError>) -> (Option<i32>, String) {
    match result {
        Err(ExecError::Failed { status, stderr, .. }) => (status.code(), stderr),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// Returns whether no living process has locked the state folder: the kernel releases the lock only when the process is gone.
fn is_unlocked(lock: &Path) -> bool {
    let file = std::fs::File::open(lock).expect("lock file");
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_killed_again_and_again_runs_every_task_exactly_once() {
    let (server, host) = enrolled().await;
    let shared = &server.shared;
    let config = host.write_config();
    let tasks: Vec<_> = (0..90).map(|n| shared.sign(&ping(&format!("task {n}")), |_| {})).collect();
    for life in 0..6 {
        let running =
            tokio::spawn(Exec::new(PROGRAM).arg("--config").arg(&config).arg("run").deadline(Duration::from_secs(120)).run());
        shared.hello(life + 1).await;
        for (task_id, signed) in &tasks {
            assert!(shared.offer(*task_id, &signed.envelope));
        }
        if life < 5 {
            // Killed (SIGKILL, by dropping it) with most of its tasks running.
            shared.receipt(tasks[life * 15 + 3].0).await;
            running.abort();
            let _ = running.await;
            eventually("the killed process is gone", || is_unlocked(&host.state("lock"))).await;
            shared.drop_session();
            continue;
        }
        for (task_id, signed) in &tasks {
            let (bytes, _) = shared.receipt(*task_id).await;
            let receipt = believe(shared, *task_id, &signed.digest, &bytes);
            assert_eq!(receipt.outcome, Outcome::Succeeded, "{} {}", receipt.code, receipt.message);
            assert_eq!(host.effects(*task_id), 1);
        }
        // The status file follows a moment later.
        let status = || std::fs::read_to_string(host.state("status.json")).unwrap_or_default();
        eventually("a status with the link", || status().contains("\"connected\": true")).await;
        let shown = call(&config, &["status"]).await.expect("running");
        assert!(shown.contains("stream") && shown.contains("simulated host"), "{shown}");
        let examined = call(&config, &["doctor"]).await.expect("healthy");
        assert!(examined.contains("ok    control plane"), "{examined}");
        running.abort();
        let _ = running.await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_answer_on_standard_output_and_refuse_with_documented_codes() {
    let server = Server::start(Shared::new()).await;
    let host = Host::new(&server);
    let config = host.write_config();
    let shown = call(&config, &["config", "show"]).await.expect("shows");
    assert!(shown.contains("heartbeat_interval") && shown.contains("# file"), "{shown}");
    call(&config, &["config", "set", "max_tasks", "9"]).await.expect("sets");
    assert!(call(&config, &["config", "show"]).await.expect("shows").contains("= 9 "));
    let (code, message) = refusal(call(&config, &["config", "set", "max_taks", "9"]).await);
    assert!(code == Some(1) && message.contains("`max_taks`"), "{message}");
    assert_eq!(refusal(call(&config, &["no-such-command"]).await).0, Some(2));
    assert_eq!(refusal(call(&config, &["status"]).await).0, Some(3));
    let (code, _) = refusal(call(&config, &["doctor"]).await);
    assert_eq!(code, Some(1), "not enrolled");
    let (code, message) = refusal(call(&config, &["run"]).await);
    assert!(code == Some(1) && message.contains("gpuaas-agent enroll"), "{message}");
    let enrolled = call(&config, &["enroll", "--token", &server.shared.token()]).await.expect("enrolls");
    assert!(enrolled.contains(&server.shared.node_id.to_string()), "{enrolled}");
    let root = tempfile::tempdir().expect("folder");
    let root_text = root.path().to_str().expect("text");
    let steps = call(&config, &["install", "--root", root_text]).await.expect("installs");
    assert!(steps.contains("policy.toml") && root.path().join("opt/gpuaas-agent/gpuaas-agent").exists(), "{steps}");
    call(&config, &["uninstall", "--purge", "--root", root_text]).await.expect("uninstalls");
    let help = call(&config, &["--help"]).await.expect("helps");
    assert!(help.contains("Exit codes"), "{help}");
}
