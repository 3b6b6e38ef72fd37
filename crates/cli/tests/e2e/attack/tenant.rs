//! Tenants of the attacked server, with something to lease and keys to request it with.

use gpuaas_testkit::free_port;
use serde_json::{Value, json};

use super::http::Request;
use super::target::Target;
use crate::cluster::{AgentHost, Carrier};

const SSH_KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJwBQ0Rk5yyC9bmCK1Kf9gvvNQWYF3rPzqeQFZ0sWsWq";
/// SHA-256 of an image.
pub(super) const DIGEST: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// A project, a host of its own to lease from, and one product.
pub(super) struct Tenant {
    pub(super) project: String,
    pub(super) node: String,
    /// Address on which that host listens for its guests' metrics.
    pub(super) telemetry: String,
    pub(super) host: AgentHost,
}

/// An API key of a service account.
pub(super) struct Key {
    pub(super) account: String,
    pub(super) id: String,
    pub(super) secret: String,
}

impl Tenant {
    pub(super) fn new(target: &Target) -> Self {
        let cluster = &target.cluster;
        let mut host = AgentHost::new(cluster, "leased-1", Carrier::Stream, Some("h100"), None);
        let telemetry = format!("127.0.0.1:{}", free_port());
        host.configure(&format!("guest_telemetry_listen = \"{telemetry}\""));
        host.enroll(cluster);
        host.start();
        let node = host.node_id();
        cluster.wait_online(&node, true);
        cluster.json(&["org", "create", "acme"]);
        let project = cluster.json(&["project", "create", "acme/training"])["id"].as_str().unwrap().to_owned();
        cluster.json(&["node", "topology", "discover", &node]);
        cluster.json(&["node", "topology", "approve", &node]);
        cluster.json(&["sku", "create", "h100-1x", "--slots", "1", "--gpu", "10de:2330", "--price", "5"]);
        cluster.json(&["image", "create", "ubuntu", "--from", "https://images.example/u.img", "--sha256", DIGEST, "--platform"]);
        Self { project, node, telemetry, host }
    }

    /// Creates a service account with this role, and a key for it.
    pub(super) fn key(&self, target: &Target, account: &str, role: &str) -> Key {
        target.cluster.json(&["service-account", "create", account, "--role", role]);
        let made = target.cluster.json(&["key", "create", account]);
        let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("no text in {made}")).to_owned();
        Key { account: text(&made["key"]["service_account_id"]), id: text(&made["key"]["id"]), secret: text(&made["secret"]) }
    }

    /// Returns a path below that of the project.
    pub(super) fn path(&self, rest: &str) -> String {
        format!("/api/v1/projects/{}/{rest}", self.project)
    }

    /// Returns a request for an allocation that can be fulfilled.
    pub(super) fn request(name: &str) -> Value {
        json!({ "name": name, "sku": "h100-1x", "image": "ubuntu", "ssh_public_keys": [SSH_KEY] })
    }

    /// Leases a guest with this key and waits until it runs. Returns its id.
    pub(super) fn lease(&self, target: &Target, key: &Key, name: &str) -> String {
        let made = target.ask(&Request::json(&self.path("allocations"), &key.secret, &Self::request(name).to_string()));
        assert_eq!(made.status, 201, "{made:?}");
        let id = made.json()["id"].as_str().unwrap().to_owned();
        let path = format!("/api/v1/allocations/{id}");
        gpuaas_testkit::eventually(gpuaas_testkit::PATIENCE, "the guest runs", || {
            let now = target.ask(&Request::get(&path, &key.secret)).json();
            assert_ne!(now["state"], "failed", "{now}");
            (now["state"] == "active").then_some(())
        });
        id
    }
}
