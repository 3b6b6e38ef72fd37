//! Attacks by tenants who have some permissions: to address parts of a host, to delegate more than they have, to keep what was revoked.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;

use super::http::{self, Answer, Request};
use super::target::{Target, patience_after};
use super::tenant::{DIGEST, Key, Tenant};
use super::{is_long, withstand};

/// Fields that would address parts of a host, with values for them.
fn parts_of_a_host() -> Vec<(&'static str, Value)> {
    vec![
        ("ovs_bridge", json!("br-management")),
        ("bridge", json!("br-management")),
        ("node", json!("leased-1")),
        ("slots", json!([0])),
        ("pci_address", json!("0000:00:00.0")),
        ("nvme_device", json!("/dev/nvme0n1")),
        ("image_path", json!("../../etc/shadow")),
        ("image_url", json!("http://169.254.169.254/")),
        ("private_ip", json!("10.77.0.1")),
        ("graphics", json!(true)),
        ("driver_strategy", json!("cloud-init")),
    ]
}

fn code(answer: &Answer) -> String {
    answer.json()["code"].as_str().unwrap_or("none").to_owned()
}

/// Returns the number of tasks, without those of the bystander.
fn tasks(target: &Target) -> usize {
    let tasks = target.cluster.json(&["task", "ls", "--limit", "1000"]);
    let items = tasks.as_array().or_else(|| tasks["items"].as_array()).unwrap_or_else(|| panic!("no list: {tasks}"));
    items.iter().filter(|task| task["task_type"] != "diag.ping").count()
}

#[test]
fn a_tenant_names_no_part_of_a_host() {
    let mut target = Target::start();
    let tenant = Tenant::new(&target);
    let owner = tenant.key(&target, "owner", "owner");
    let before = tasks(&target);
    withstand("host-parts", &mut target, |target| {
        let mut refused = 0;
        for (name, value) in parts_of_a_host() {
            let mut request = Tenant::request("trainer");
            request[name] = value;
            let answer = target.ask(&Request::json(&tenant.path("allocations"), &owner.secret, &request.to_string()));
            assert!((400..500).contains(&answer.status), "an allocation with {name}: {answer:?}");
            refused += 1;
        }
        // The endpoints for operators.
        let slice = json!({
            "node": tenant.node, "slots": [0], "vm_name": "trainer", "ovs_bridge": "br-management",
            "image": { "url": "https://images.example/u.img", "sha256": DIGEST },
        });
        let task = json!({ "node": tenant.node, "task_type": "diag.ping", "params": {} });
        for (path, body) in [("/api/v1/slices", slice), ("/api/v1/tasks", task)] {
            let answer = target.ask(&Request::json(path, &owner.secret, &body.to_string()));
            assert_eq!(answer.status, 403, "{path}: {answer:?}");
            refused += 1;
        }
        let image = json!({ "name": "shadow", "path": "../../etc/shadow", "sha256": DIGEST });
        let answer = target.ask(&Request::json(&tenant.path("images"), &owner.secret, &image.to_string()));
        assert!((400..500).contains(&answer.status), "an image in a host's folder: {answer:?}");
        refused += 1;
        assert_eq!(tasks(target), before, "a task was made for what was refused");
        // The same request without any of these fields is fulfilled.
        tenant.lease(target, &owner, "trainer");
        format!(
            "{refused} requests that name a bridge, a device, a node or a file refused, {}",
            denied_by_the_policy(target, &tenant)
        )
    });
}

/// An operator, or somebody with an operator's token, asks for what the host's owner does not allow.
fn denied_by_the_policy(target: &Target, tenant: &Tenant) -> String {
    let source = ["--image-url", "https://images.example/u.img"];
    // A slot for each attempt, so that none blocks the next.
    let ways: [(&str, &[&str]); 3] = [
        ("5", &[source[0], source[1], "--bridge", "br-management"]),
        ("6", &["--image-url", "https://elsewhere.example/u.img"]),
        ("7", &[source[0], source[1], "--graphics"]),
    ];
    for (slot, way) in ways {
        let plain = ["slice", "create", &tenant.node, "--slot", slot, "--name", "guest", "--image-sha256", DIGEST, "-o", "json"];
        let ran = target.cluster.cli(&[&plain[..], way].concat());
        assert_ne!(ran.code, 0, "{way:?}: {ran:?}");
        assert!(ran.stdout.contains("policy_denied") || ran.stderr.contains("policy_denied"), "{way:?}: {ran:?}");
    }
    format!("{} orders of an operator denied by the host's policy", ways.len())
}

/// Creates a key of the account, authenticated with another key.
fn mint(target: &Target, tenant: &Tenant, with: &str, account: &str, wanted: &Value) -> Answer {
    let path = tenant.path(&format!("service-accounts/{account}/keys"));
    target.ask(&Request::json(&path, with, &wanted.to_string()))
}

#[test]
fn a_key_hands_on_nothing_wider_and_nothing_that_outlives_it() {
    let mut target = Target::start();
    let tenant = Tenant::new(&target);
    let owner = tenant.key(&target, "owner", "owner");
    withstand("child-keys", &mut target, |target| {
        let made = |answer: Answer| -> (String, String) {
            assert_eq!(answer.status, 201, "{answer:?}");
            let made = answer.json();
            (made["key"]["id"].as_str().unwrap().to_owned(), made["secret"].as_str().unwrap().to_owned())
        };
        let narrow = json!({ "name": "narrow", "scopes": ["key.*", "*.read"], "life_seconds": 3600 });
        let (parent_id, parent) = made(mint(target, &tenant, &owner.secret, &owner.account, &narrow));
        let wider = [
            (json!({ "name": "k", "scopes": ["*"], "life_seconds": 60 }), "key_scopes_exceed_own"),
            (json!({ "name": "k", "scopes": ["*.read", "allocation.*"], "life_seconds": 60 }), "key_scopes_exceed_own"),
            (json!({ "name": "k", "scopes": ["*.read"], "life_seconds": 7200 }), "key_life_exceeds_own"),
        ];
        for (wanted, refusal) in &wider {
            let answer = mint(target, &tenant, &parent, &owner.account, wanted);
            assert_eq!((answer.status >= 400, code(&answer).as_str()), (true, *refusal), "{wanted}: {answer:?}");
        }
        let account = json!({ "name": "helper", "role": "owner" }).to_string();
        let answer = target.ask(&Request::json(&tenant.path("service-accounts"), &parent, &account));
        assert!((400..500).contains(&answer.status), "an account with a role beyond the key: {answer:?}");
        // A new key inherits the limits that the request leaves out, and the length of a chain is limited.
        let (_, child) = made(mint(target, &tenant, &parent, &owner.account, &json!({ "name": "child" })));
        let answer = mint(target, &tenant, &child, &owner.account, &json!({ "name": "grandchild" }));
        assert_eq!(code(&answer), "key_chain_too_long", "{answer:?}");
        let whoami = |secret: &str| target.ask(&Request::get("/api/v1/whoami", secret)).status;
        for secret in [&parent, &child] {
            assert_eq!(whoami(secret), 200);
            let request = Tenant::request("stolen").to_string();
            let answer = target.ask(&Request::json(&tenant.path("allocations"), secret, &request));
            assert_eq!(answer.status, 403, "a key that may only read: {answer:?}");
        }
        let path = tenant.path(&format!("service-accounts/{}/keys/{parent_id}", owner.account));
        let revoked =
            target.ask(&Request { method: "DELETE", path: &path, token: Some(&owner.secret), body: None, headers: &[] });
        assert!(revoked.status < 300, "{revoked:?}");
        for secret in [&parent, &child] {
            assert_eq!(whoami(secret), 401, "a key outlived the one it was made with");
        }
        assert_eq!(whoami(&owner.secret), 200);
        format!("{} wider or longer keys, one role and one longer chain refused, and a key ended with its parent", wider.len())
    });
}

/// Opens a stream. Returns a task that ends when the stream does.
async fn open(target: &Target, path: &str, token: &str) -> JoinHandle<()> {
    let mut stream = http::connect(std::net::Ipv4Addr::LOCALHOST, target.api()).await.expect("connects");
    let upgrade = match path.contains("/ws") {
        true => {
            "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        }
        false => "",
    };
    let request = format!("GET {path} HTTP/1.1\r\nhost: gpuaas.test\r\nauthorization: Bearer {token}\r\n{upgrade}\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("a head"));
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    assert!(head.starts_with("HTTP/1.1 200") || head.starts_with("HTTP/1.1 101"), "{path}: {head}");
    tokio::spawn(async move {
        let mut rest = [0; 4096];
        let mut end = Vec::new();
        // Over HTTP/1.1 a stream ends with an empty chunk and its connection may stay open. A WebSocket ends with its connection.
        while let Ok(read @ 1..) = stream.read(&mut rest).await {
            end.extend_from_slice(&rest[..read]);
            if end.ends_with(b"0\r\n\r\n") {
                break;
            }
            let keep = end.len().saturating_sub(8);
            end.drain(..keep);
        }
    })
}

/// Opens every type of stream with this token, revokes the right, and returns how many streams ended and how long the last one took.
fn all_end(target: &Target, paths: &[String], token: &str, revoke: impl FnOnce()) -> (usize, Duration) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let streams = runtime.block_on(async {
        let mut streams = Vec::new();
        for path in paths {
            streams.push((path.clone(), open(target, path, token).await));
        }
        // Rule out streams that would have ended anyway.
        tokio::time::sleep(Duration::from_millis(500)).await;
        for (path, stream) in &streams {
            assert!(!stream.is_finished(), "{path} ended by itself");
        }
        streams
    });
    revoke();
    let revoked = Instant::now();
    let count = streams.len();
    runtime.block_on(async {
        for (path, stream) in streams {
            let left = patience_after().saturating_sub(revoked.elapsed());
            let ended = tokio::time::timeout(left, stream).await;
            ended.unwrap_or_else(|_| panic!("{path} goes on without a right to it")).expect("a reader");
        }
    });
    let refused = target.ask(&Request::get("/api/v1/whoami", token));
    assert_eq!(refused.status, 401, "{refused:?}");
    (count, revoked.elapsed())
}

#[test]
fn what_a_revoked_key_has_open_ends() {
    let mut target = Target::start();
    let tenant = Tenant::new(&target);
    let owner = tenant.key(&target, "owner", "owner");
    let allocation = tenant.lease(&target, &owner, "trainer");
    let path = format!("/api/v1/allocations/{allocation}/console");
    let console = target.ask(&Request::json(&path, &owner.secret, &json!({ "follow_seconds": 600 }).to_string()));
    assert!(console.status < 300, "{console:?}");
    let console = console.json()["id"].as_str().unwrap().to_owned();
    let Key { account, id, secret } = tenant.key(&target, "thief", "member");
    withstand("open-streams", &mut target, |target| {
        let each = [
            tenant.path("events?kinds=nothing"),
            tenant.path("events/ws?kinds=nothing"),
            format!("/api/v1/allocations/{allocation}/watch"),
            format!("/api/v1/tasks/{console}/watch"),
        ];
        // As many as one caller may have open.
        let times = if is_long() { 4 } else { 2 };
        let paths: Vec<String> = each.iter().cycle().take(each.len() * times).cloned().collect();
        let (streams, took) = all_end(target, &paths, &secret, || {
            target.cluster.json(&["key", "revoke", &account, &id, "--yes"]);
        });
        let token = target.cluster.json(&["token", "create", "operator", "--role", "operator"]);
        let operator = token["token"].as_str().unwrap_or_else(|| panic!("no token in {token}"));
        let of_operators = vec!["/api/v1/events?kinds=nothing".to_owned(), each[3].clone()];
        let (more, later) = all_end(target, &of_operators, operator, || {
            target.cluster.json(&["token", "revoke", token["api_token"]["id"].as_str().unwrap(), "--yes"]);
        });
        format!("{} streams of revoked keys ended, the last after {} ms", streams + more, took.max(later).as_millis())
    });
}
