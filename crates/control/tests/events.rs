//! The events of a project, as listeners receive them: in order, without gaps, and only their own.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;

use common::looking::refused;
use common::{PATIENCE, TestServer};
use futures::StreamExt as _;
use gpuaas_api::dto::{
    ApiKeyCreate, CloudEvent, EventsQuery, Limits, OrganizationCreate, ProjectChange, ProjectCreate, ServiceAccountCreate,
    WebhookCreate,
};
use gpuaas_api::{Client, ClientOptions};
use gpuaas_backends::BackendsConfig;
use gpuaas_backends::redis::RedisConfig;
use gpuaas_contract::access::ProjectRole;
use gpuaas_control::{ServerConfig, process_roles, start};
use gpuaas_testkit::{TempDir, pg_database, redis_url};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

async fn project(client: &Client, name: &str) -> String {
    let wanted =
        OrganizationCreate { name: name.to_owned(), description: String::new(), limits: Limits::default(), owner_email: None };
    let organization = client.organization_create(&wanted, None).await.unwrap();
    let wanted =
        ProjectCreate { name: name.to_owned(), description: String::new(), limits: Limits::default(), owner_email: None };
    client.project_create(&organization.id.to_string(), &wanted, None).await.unwrap().id.to_string()
}

/// Causes one event in a project, with this text in it.
async fn happens(client: &Client, project: &str, what: &str) {
    let change = ProjectChange { description: Some(what.to_owned()) };
    client.project_change(project, &change, None).await.unwrap();
}

fn reported(event: &CloudEvent) -> &str {
    event.data["description"].as_str().unwrap_or_default()
}

/// Creates a key of a service account of the project, with its id.
async fn tenant(client: &Client, project: &str) -> (String, String) {
    let wanted = ServiceAccountCreate { name: "t".to_owned(), description: String::new(), role: Some(ProjectRole::Owner) };
    let account = client.service_account_create(project, &wanted, None).await.unwrap().id.to_string();
    let wanted = ApiKeyCreate { name: "k".to_owned(), scopes: None, life_seconds: None };
    (client.api_key_create(project, &account, &wanted, None).await.unwrap().secret, account)
}

/// A reader of a stream of server-sent events that checks every byte.
struct Ear {
    response: reqwest::Response,
    buffer: String,
    /// The start position of the stream.
    start: i64,
}

impl Ear {
    async fn open(server: &TestServer, token: &str, path: &str, last: Option<i64>) -> Self {
        let mut request = http().get(format!("{}{path}", server.url())).bearer_auth(token);
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200, "{path}");
        let mut ear = Self { response, buffer: String::new(), start: 0 };
        let (start, data) = ear.block().await.unwrap();
        assert_eq!(data, "", "the first block says where the stream starts");
        ear.start = start.unwrap();
        ear
    }

    /// Returns the id and the data of the next block, or `None` at the end.
    async fn block(&mut self) -> Option<(Option<i64>, String)> {
        loop {
            if let Some((block, rest)) = self.buffer.split_once("\n\n") {
                let fields: BTreeMap<String, String> =
                    block.lines().filter_map(|line| line.split_once(": ")).map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
                self.buffer = rest.to_owned();
                // Comments keep the connection alive.
                if fields.contains_key("id") || fields.contains_key("data") {
                    let id = fields.get("id").map(|id| id.parse().unwrap());
                    return Some((id, fields.get("data").cloned().unwrap_or_default()));
                }
                continue;
            }
            let chunk =
                tokio::time::timeout(PATIENCE, self.response.chunk()).await.expect("something is said in time").ok()??;
            self.buffer.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    async fn next(&mut self) -> (i64, CloudEvent) {
        let (id, data) = self.block().await.expect("the stream goes on");
        (id.expect("every event has its position"), serde_json::from_str(&data).unwrap())
    }
}

fn http() -> reqwest::Client {
    let tls = gpuaas_api::tls_config(false, None).unwrap();
    reqwest::Client::builder().tls_backend_preconfigured(tls).build().unwrap()
}

/// A client of a WebSocket.
struct Socket(tokio::net::TcpStream);

impl Socket {
    async fn open(server: &TestServer, path: &str) -> Self {
        let address = server.server().api_address.unwrap();
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            server.admin_token
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(tokio::time::timeout(PATIENCE, stream.read_u8()).await.unwrap().unwrap());
        }
        assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
        Self(stream)
    }

    /// Returns the next text message.
    async fn next(&mut self) -> String {
        let frame = async {
            loop {
                let first = self.0.read_u8().await.unwrap();
                let length = match self.0.read_u8().await.unwrap() {
                    126 => usize::from(self.0.read_u16().await.unwrap()),
                    127 => usize::try_from(self.0.read_u64().await.unwrap()).unwrap(),
                    short => usize::from(short),
                };
                let mut payload = vec![0; length];
                self.0.read_exact(&mut payload).await.unwrap();
                if first == 0x81 {
                    return String::from_utf8(payload).unwrap();
                }
                assert_eq!(first, 0x89, "only texts and pings are expected");
            }
        };
        tokio::time::timeout(PATIENCE, frame).await.expect("a message in time")
    }
}

common::on_both_stores! {
    async fn a_listener_hears_its_own_project_in_order_and_nothing_else(server: TestServer) {
        let client = server.client();
        let (own, other) = (project(&client, "own").await, project(&client, "other").await);
        let (key, _) = tenant(&client, &own).await;
        let mut ear = Ear::open(&server, &key, &format!("/api/v1/projects/{own}/events"), None).await;
        for round in 0..10 {
            happens(&client, &other, &format!("theirs {round}")).await;
            happens(&client, &own, &format!("ours {round}")).await;
        }
        let mut last = ear.start;
        for round in 0..10 {
            let (position, event) = ear.next().await;
            assert!(position > last);
            last = position;
            assert_eq!((reported(&event), event.kind.as_str()), (format!("ours {round}").as_str(), "gpuaas.project.changed.v1"));
            assert_eq!((event.subject.as_str(), event.data["project_id"].as_str()), (own.as_str(), Some(own.as_str())));
        }
        let foreign = server.client_with(Some(&key));
        let mut strange = Box::pin(foreign.project_events(&other, &EventsQuery::default()));
        assert_eq!(strange.next().await.unwrap().unwrap_err().problem().unwrap().status, 404, "they cannot even see it");
        let mut all = Box::pin(foreign.events(&EventsQuery::default()));
        assert_eq!(refused(all.next().await.unwrap()), "forbidden");
    }

    async fn whoever_comes_back_goes_on_where_they_were(server: TestServer) {
        let client = server.client();
        let own = project(&client, "own").await;
        let path = format!("/api/v1/projects/{own}/events");
        let started = Ear::open(&server, &server.admin_token, &path, None).await.start;
        for round in 0..6 {
            happens(&client, &own, &format!("{round}")).await;
        }
        let hear = async |path: String, last: Option<i64>, count: usize| {
            let mut ear = Ear::open(&server, &server.admin_token, &path, last).await;
            let mut heard = Vec::new();
            while heard.len() < count {
                let (position, event) = ear.next().await;
                heard.push((position, reported(&event).to_owned()));
            }
            heard
        };
        // Cut off before the first event: the start of the stream is enough to miss nothing.
        let all = hear(path.clone(), Some(started), 6).await;
        assert_eq!(all.iter().map(|(_, reported)| reported.as_str()).collect::<Vec<_>>(), ["0", "1", "2", "3", "4", "5"]);
        assert_eq!(hear(format!("{path}?after={started}"), None, 6).await, all);
        assert_eq!(hear(path.clone(), Some(all[2].0), 3).await, all[3..]);
        assert_eq!(hear(format!("{path}?after={}", all[3].0), None, 2).await, all[4..]);
        // The header is newer than the URL that a browser keeps.
        assert_eq!(hear(format!("{path}?after=0"), Some(all[4].0), 1).await, all[5..]);
        let bad = http().get(format!("{}{path}", server.url())).bearer_auth(&server.admin_token).header("last-event-id", "x");
        assert_eq!(bad.send().await.unwrap().status(), 400);
    }

    async fn a_listener_that_is_cut_off_again_and_again_misses_nothing(server: TestServer) {
        const EVENTS: usize = 60;
        let client = server.client();
        let own = project(&client, "own").await;
        let path = format!("/api/v1/projects/{own}/events");
        let mut last = Ear::open(&server, &server.admin_token, &path, None).await.start;
        let making = async {
            for round in 0..EVENTS {
                happens(&client, &own, &format!("{round}")).await;
            }
        };
        let hearing = async {
            let mut heard = Vec::new();
            for connection in 0_usize.. {
                let mut ear = Ear::open(&server, &server.admin_token, &path, Some(last)).await;
                // One to five events, then the connection is closed.
                for _ in 0..=connection % 5 {
                    if heard.len() == EVENTS {
                        return heard;
                    }
                    let (position, event) = ear.next().await;
                    last = position;
                    heard.push(reported(&event).to_owned());
                }
            }
            heard
        };
        let ((), heard) = tokio::join!(making, hearing);
        assert_eq!(heard, (0..EVENTS).map(|round| round.to_string()).collect::<Vec<_>>(), "no gap, no repeat, in order");
    }

    async fn only_the_kinds_that_were_asked_for_are_heard(server: TestServer) {
        let client = server.client();
        let own = project(&client, "own").await;
        let path = format!("/api/v1/projects/{own}/events?kinds=service_account,project.deleted");
        let mut ear = Ear::open(&server, &server.admin_token, &path, None).await;
        happens(&client, &own, "nobody asked").await;
        let (_, account) = tenant(&client, &own).await;
        happens(&client, &own, "nobody asked").await;
        client.service_account_delete(&own, &account).await.unwrap();
        client.project_delete(&own, None).await.unwrap();
        for kind in ["service_account.created", "service_account.deleted", "project.deleted"] {
            assert_eq!(ear.next().await.1.kind.as_str(), format!("gpuaas.{kind}.v1"));
        }
        let many = vec!["x"; 51].join(",");
        let request = http().get(format!("{}/api/v1/events?kinds={many}", server.url())).bearer_auth(&server.admin_token);
        assert_eq!(request.send().await.unwrap().status(), 400);
    }

    async fn a_web_socket_brings_the_same_documents(server: TestServer) {
        let client = server.client();
        let own = project(&client, "own").await;
        let path = format!("/api/v1/projects/{own}/events");
        let mut ear = Ear::open(&server, &server.admin_token, &path, None).await;
        let mut socket = Socket::open(&server, &format!("{path}/ws?after={}", ear.start)).await;
        let mut positions = Vec::new();
        for round in 0..5 {
            happens(&client, &own, &format!("{round}")).await;
            let (position, event) = ear.next().await;
            let text = socket.next().await;
            let mut received: CloudEvent = serde_json::from_str(&text).unwrap();
            // Messages of a WebSocket have no id of their own, so the position is in the document.
            let sequence = received.sequence.take().unwrap();
            assert_eq!(received, event);
            assert_eq!(sequence, position.to_string());
            positions.push(sequence);
        }
        let mut again = Socket::open(&server, &format!("{path}/ws?after={}&kinds=project.changed", positions[3])).await;
        assert_eq!(reported(&serde_json::from_str::<CloudEvent>(&again.next().await).unwrap()), "4");
        let plain = http().get(format!("{}{path}/ws", server.url())).bearer_auth(&server.admin_token).send().await.unwrap();
        assert_eq!(plain.status(), 400, "without an upgrade");
    }

    async fn whoever_loses_the_right_to_listen_is_hung_up_on(server: TestServer) {
        let client = server.client();
        let own = project(&client, "own").await;
        let (key, account) = tenant(&client, &own).await;
        let mut ear = Ear::open(&server, &key, &format!("/api/v1/projects/{own}/events?kinds=nothing"), None).await;
        client.service_account_delete(&own, &account).await.unwrap();
        assert_eq!(ear.block().await, None, "the stream ends");
        let request = http().get(format!("{}/api/v1/projects/{own}/events", server.url())).bearer_auth(&key);
        assert_eq!(request.send().await.unwrap().status(), 401);
    }

    async fn whoever_asks_too_often_is_told_to_wait_and_nobody_else_is(server: TestServer) {
        let client = server.client();
        let own = project(&client, "own").await;
        let (key, _) = tenant(&client, &own).await;
        let (hasty, calm) = (server.client_with(Some(&key)), server.client_with(Some(&tenant_of(&client, &own, "calm").await)));
        let bad = WebhookCreate { url: "ftp://nowhere".to_owned(), ..WebhookCreate::default() };
        let mut allowed = 0;
        let told = loop {
            let error = hasty.webhook_create(&own, &bad, None).await.unwrap_err();
            if error.problem().is_none_or(|problem| problem.status == 429) {
                break error;
            }
            allowed += 1;
            assert!(allowed < 3000, "nobody told them to wait");
        };
        assert!(allowed >= 600, "only {allowed} were let through");
        assert!(told.retry_after().is_some(), "{told}");
        assert_eq!(refused(calm.webhook_create(&own, &bad, None).await), "url_invalid");
        hasty.project(&own).await.expect("reading is counted by itself");
        let answer = http().get(format!("{}/api/v1/projects/{own}", server.url())).bearer_auth(&key).send().await.unwrap();
        assert!(answer.headers().contains_key("ratelimit") && answer.headers().contains_key("ratelimit-policy"));
    }
}

async fn tenant_of(client: &Client, project: &str, name: &str) -> String {
    let wanted = ServiceAccountCreate { name: name.to_owned(), description: String::new(), role: Some(ProjectRole::Owner) };
    let account = client.service_account_create(project, &wanted, None).await.unwrap().id.to_string();
    let wanted = ApiKeyCreate { name: "k".to_owned(), scopes: None, life_seconds: None };
    client.api_key_create(project, &account, &wanted, None).await.unwrap().secret
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_redis_a_listener_on_one_server_hears_what_another_did() {
    let Some(redis) = redis_url() else { return };
    let Some(pg) = tokio::task::spawn_blocking(pg_database).await.unwrap() else { return };
    let dir = TempDir::new();
    let config = |roles: &str| ServerConfig {
        roles: process_roles::parse(roles).unwrap(),
        backends: BackendsConfig { nats: None, redis: Some(RedisConfig::new(&redis)) },
        ..TestServer::config(&dir, Some(&pg))
    };
    let everything = start(config("all")).await.unwrap();
    let only_api = start(config("api")).await.unwrap();
    let token = std::fs::read_to_string(&everything.admin_token_file).unwrap();
    let client_of = |url: &str| {
        let mut options = ClientOptions::new(url.to_owned());
        options.token = Some(token.clone());
        Client::new(options).unwrap()
    };
    let (one, two) = (client_of(everything.api_url.as_ref().unwrap()), client_of(only_api.api_url.as_ref().unwrap()));
    let own = project(&one, "own").await;
    let dir_of_ear = TempDir::new();
    let driver = std::sync::Arc::new(gpuaas_control::workflow::Embedded);
    let server = TestServer {
        server: Some(only_api),
        dir: dir_of_ear,
        pg: None,
        admin_token: token.clone(),
        driver,
        ca: Default::default(),
    };
    let mut ear = Ear::open(&server, &token, &format!("/api/v1/projects/{own}/events"), None).await;
    for round in 0..10 {
        happens(if round % 2 == 0 { &one } else { &two }, &own, &format!("{round}")).await;
        assert_eq!(reported(&ear.next().await.1), format!("{round}"), "on the server without `notify`");
    }
    let TestServer { server: only_api, .. } = server;
    only_api.unwrap().stop().await;
    everything.stop().await;
}
