//! Real programs with certificates from a real step-ca that are valid for seconds: what usually takes a day takes half a minute here.

use gpuaas_testkit::{PATIENCE, STEP_CA_PROVISIONER, StepCaServer, eventually};
use serde_json::Value;

use crate::cluster::{AgentHost, Carrier, Cluster};

/// Lifetime of the certificates, instead of a day.
const LIFE: &str = "16s";

fn environment(step_ca: &StepCaServer) -> Vec<(&'static str, String)> {
    let enrollment = step_ca.enrollment();
    vec![
        ("GPUAAS_CA", "step-ca".to_owned()),
        ("GPUAAS_STEP_CA_URL", step_ca.url()),
        ("GPUAAS_STEP_CA_ROOT", step_ca.root_file().display().to_string()),
        ("GPUAAS_STEP_CA_PROVISIONER", STEP_CA_PROVISIONER.to_owned()),
        ("GPUAAS_STEP_CA_CERT", enrollment.certificate.display().to_string()),
        ("GPUAAS_STEP_CA_KEY", enrollment.key.display().to_string()),
    ]
}

/// Returns how often the audit log records this action on the node.
fn count(cluster: &Cluster, node: &str, action: &str) -> usize {
    let audit = cluster.json(&["audit", "ls", "--target", node]);
    let rows = audit["items"].as_array().or(audit.as_array()).cloned().unwrap_or_default();
    rows.iter().filter(|row| row["action"] == action).count()
}

fn ping(cluster: &Cluster, node: &str) -> Value {
    cluster.json(&["task", "run", node, "diag.ping", "--wait"])["state"].clone()
}

#[test]
fn agents_renew_at_half_life_through_step_ca_and_rejoin_after_an_outage_that_outlived_their_certificates() {
    let Some(mut step_ca) = StepCaServer::start(LIFE) else { return };
    let cluster = Cluster::start_told(environment(&step_ca));
    assert_eq!(cluster.json(&["cluster", "info"])["ca"]["kind"], "step-ca");
    assert!(!cluster.dir.join("server/keys/ca.key").exists(), "the control plane holds no CA key");
    let mut host = AgentHost::enrolled(&cluster, "rack-1", Carrier::Auto);
    let certificate = || std::fs::read_to_string(host_certificate(&cluster)).unwrap();
    let first = certificate();
    host.start();
    let node = host.node_id();
    cluster.wait_online(&node, true);
    assert_eq!(ping(&cluster, &node), "succeeded");

    // Twice, so that both the first certificate and a renewed one are renewed, and the listener's own is replaced meanwhile.
    eventually(PATIENCE, "the agent renews twice", || (count(&cluster, &node, "node.renew") >= 2).then_some(()));
    assert_ne!(certificate(), first);
    assert_eq!(count(&cluster, &node, "node.rejoin"), 0, "it was in time");
    cluster.wait_online(&node, true);
    assert_eq!(ping(&cluster, &node), "succeeded");

    step_ca.kill();
    eventually(PATIENCE, "the outage is seen", || {
        (cluster.json(&["cluster", "info"])["ca"]["state"] == "unavailable").then_some(())
    });
    // Links and certificates last until they expire, and no longer.
    cluster.wait_online(&node, false);
    step_ca.restart();
    let back = || {
        let ran = cluster.cli(&["node", "show", &node, "-o", "json"]);
        (ran.code == 0 && ran.json()["online"] == true).then_some(())
    };
    eventually(PATIENCE * 3, "the node is back", back);
    assert!(count(&cluster, &node, "node.rejoin") >= 1, "its certificate had expired: {}", host.log());
    assert_eq!(ping(&cluster, &node), "succeeded");
    cluster.verify_audit();
}

fn host_certificate(cluster: &Cluster) -> std::path::PathBuf {
    cluster.dir.join("rack-1/state/identity/tls.crt")
}

#[test]
fn a_server_told_to_use_step_ca_says_what_is_missing() {
    let Some(step_ca) = StepCaServer::start("24h") else { return };
    let folder = gpuaas_testkit::TempDir::new();
    for missing in ["GPUAAS_STEP_CA_URL", "GPUAAS_STEP_CA_ROOT", "GPUAAS_STEP_CA_CERT", "GPUAAS_STEP_CA_KEY"] {
        let mut launch = gpuaas_testkit::Launch::new("gpuaas").args(["server", "--data-dir"]).arg(folder.join("server"));
        for (name, value) in environment(&step_ca).into_iter().filter(|(name, _)| *name != missing) {
            launch = launch.env(name, value);
        }
        let (status, _, stderr) = launch.run(folder.path(), PATIENCE);
        let option = missing.replace("GPUAAS_", "--").replace('_', "-").to_lowercase();
        assert!(!status.success() && stderr.contains(&format!("needs {option}")), "{stderr}");
    }
}
