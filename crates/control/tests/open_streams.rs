//! Open streams end soon after their caller loses the right to them: every kind of stream, for every way to lose a right.

#![allow(clippy::unwrap_used, reason = "tests")]

mod browser;
mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use browser::{EMAIL, ada, text, tokens};
use common::answers::succeeded;
use common::lifecycle::{Shop, until};
use common::looking::Looking;
use common::{TestServer, plain_http};
use gpuaas_api::dto::{
    Allocation, ApiKeyCreate, ApiTokenCreate, MemberAdd, PageQuery, Reason, ServiceAccountCreate, SliceConsole, Task,
};
use gpuaas_api::endpoints::{ENDPOINTS, Method, StreamKind};
use gpuaas_api::routes;
use gpuaas_contract::access::{MemberRole, PlatformRole, ProjectRole};
use gpuaas_testkit::eventually_async;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;

/// The promise: from the loss of the right to the end of the stream.
const AT_MOST: Duration = Duration::from_secs(10);

/// Every endpoint whose answer stays open. A new one must be added here and to [`Place::streams`], so that it is tested.
const STREAMS: [&str; 5] =
    [routes::ALLOCATION_WATCH, routes::TASK_WATCH, routes::PROJECT_EVENTS, routes::PROJECT_EVENTS_WS, routes::EVENTS];

/// Endpoints that answer in pieces, but end by themselves.
const PIECEMEAL: [&str; 1] = [routes::AUDIT_EXPORT];

/// What a tenant can hold open: a running guest, and a task that reads its console and is never answered.
struct Place {
    server: TestServer,
    project: String,
    allocation: Allocation,
    console: Task,
    _node: Looking,
}

impl Place {
    async fn new(server: TestServer) -> Self {
        let (mut node, _) = Looking::with_slots(&server, 1).await;
        let shop = Shop::open(&server).await;
        let client = server.client();
        let made = client.allocation_create(&shop.project, &shop.wants("a", "one"), None).await.unwrap();
        let task = node.next().await;
        assert_eq!(node.answers(&task, |payload| succeeded(payload, &task, None)).await, "");
        let allocation = until(&server, &made, "active").await;
        let console = SliceConsole { tail_bytes: None, follow_seconds: Some(600) };
        let console = client.allocation_console(&made.id.to_string(), &console, None).await.unwrap();
        Self { server, project: shop.project, allocation, console, _node: node }
    }

    /// Returns the paths of every stream that a member of the project may open.
    fn streams(&self) -> [String; 4] {
        let (project, allocation, task) = (&self.project, self.allocation.id, self.console.id);
        [
            format!("/api/v1/projects/{project}/events?kinds=nothing"),
            format!("/api/v1/projects/{project}/events/ws?kinds=nothing"),
            format!("/api/v1/allocations/{allocation}/watch"),
            format!("/api/v1/tasks/{task}/watch"),
        ]
    }

    /// Returns a request that is answered late: it waits for lines of the console.
    fn long_request(&self) -> String {
        format!("/api/v1/tasks/{}/logs?follow=true", self.console.id)
    }

    /// Creates a service account of the project: its id, its key and the secret.
    async fn account(&self, name: &str, life_seconds: Option<u64>) -> (String, String, String) {
        let client = self.server.client();
        let wanted = ServiceAccountCreate { name: name.to_owned(), description: String::new(), role: Some(ProjectRole::Member) };
        let account = client.service_account_create(&self.project, &wanted, None).await.unwrap().id.to_string();
        let wanted = ApiKeyCreate { name: "k".to_owned(), scopes: None, life_seconds };
        let made = client.api_key_create(&self.project, &account, &wanted, None).await.unwrap();
        (account, made.key.id.to_string(), made.secret)
    }

    /// Opens everything, removes the right and waits until all have ended.
    async fn all_end(&self, why: &str, token: &str, paths: &[String], take_away: impl AsyncFnOnce(&TestServer)) {
        let mut opened = Vec::new();
        for path in paths {
            opened.push((path, open(&self.server, path, token).await));
        }
        let waiting = plain_http().get(format!("{}{}", self.server.url(), self.long_request())).bearer_auth(token);
        let waiting = tokio::spawn(async move { waiting.send().await.unwrap().status().as_u16() });
        for (path, stream) in &opened {
            assert!(!stream.is_finished(), "{why}: {path} ended by itself");
        }
        take_away(&self.server).await;
        let all = async {
            for (path, stream) in opened {
                tokio::time::timeout(AT_MOST, stream).await.unwrap_or_else(|_| panic!("{why}: {path} goes on")).unwrap();
            }
            waiting.await.unwrap()
        };
        let told = tokio::time::timeout(AT_MOST, all).await.unwrap_or_else(|_| panic!("{why}: a long request goes on"));
        assert!([401, 403, 404].contains(&told), "{why}: the long request was answered with {told}");
    }
}

/// Opens a stream and returns a handle that ends with it.
async fn open(server: &TestServer, path: &str, token: &str) -> JoinHandle<()> {
    if path.contains("/ws?") {
        return open_socket(server, path, token).await;
    }
    let request = plain_http().get(format!("{}{path}", server.url())).bearer_auth(token);
    let mut response = request.send().await.unwrap();
    assert_eq!(response.status(), 200, "{path}");
    tokio::spawn(async move { while let Ok(Some(_)) = response.chunk().await {} })
}

async fn open_socket(server: &TestServer, path: &str, token: &str) -> JoinHandle<()> {
    let address = server.server().api_address.unwrap();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    tokio::spawn(async move {
        let mut rest = [0; 1024];
        while stream.read(&mut rest).await.is_ok_and(|read| read > 0) {}
    })
}

common::on_both_stores! {
    async fn every_stream_ends_when_the_right_to_it_is_lost(server: TestServer) {
        let place = Place::new(server).await;
        let (paths, project) = (place.streams(), place.project.clone());

        let (account, key, secret) = place.account("revoked", None).await;
        place.all_end("a revoked key", &secret, &paths, async |server| {
            server.client().api_key_revoke(&project, &account, &key).await.unwrap();
        }).await;

        let (account, _, secret) = place.account("deleted", None).await;
        place.all_end("a deleted service account", &secret, &paths, async |server| {
            server.client().service_account_delete(&project, &account).await.unwrap();
        }).await;

        let (account, _, secret) = place.account("removed", None).await;
        place.all_end("a removed member", &secret, &paths, async |server| {
            let members = server.client().project_members(&project, &PageQuery::default()).await.unwrap().items;
            let member = members.iter().find(|one| one.service_account_id.is_some_and(|id| id.to_string() == account)).unwrap();
            server.client().project_member_remove(&project, &member.id.to_string(), None).await.unwrap();
        }).await;

        // An expired key causes no wake-up: the check without one finds it.
        let (_, _, secret) = place.account("expired", Some(8)).await;
        place
            .all_end("an expired key", &secret, &paths, async |server| {
                let client = server.client_with(Some(&secret));
                eventually_async(common::PATIENCE, "the key is refused", || async { client.whoami().await.err() }).await;
            })
            .await;

        let ada = ada(&place.server).await;
        let invite = MemberAdd { email: Some(EMAIL.to_owned()), service_account_id: None, role: MemberRole::Project(ProjectRole::Member) };
        place.server.client().project_member_add(&project, &invite, None).await.unwrap();
        let signed_in = text(&tokens(&place.server).await, "access_token");
        place.all_end("a sign-in that was ended", &signed_in, &paths, async |server| {
            browser::call(server, "/oauth/revoke", &[("token", &signed_in)]).await.unwrap();
        }).await;
        let signed_in = text(&tokens(&place.server).await, "access_token");
        place.all_end("a deactivated user", &signed_in, &paths, async |server| {
            server.client().user_deactivate(&ada.id.to_string(), &Reason::default()).await.unwrap();
        }).await;

        let wanted = ApiTokenCreate { name: "t".to_owned(), role: PlatformRole::Operator, life_seconds: None };
        let made = place.server.client().api_token_create(&wanted, None).await.unwrap();
        let mut of_operators = paths.to_vec();
        of_operators.push(format!("{}?kinds=nothing", routes::EVENTS));
        place.all_end("a revoked platform token", &made.token, &of_operators, async |server| {
            server.client().api_token_revoke(&made.api_token.id.to_string()).await.unwrap();
        }).await;
        let metrics = place.server.metrics().await;
        let ended = metrics.lines().find_map(|line| line.strip_prefix("gpuaas_rights_lost_total ")).unwrap();
        assert!(ended.parse::<usize>().unwrap() >= 6 * paths.len() + of_operators.len(), "{ended} were ended");
    }

    async fn what_is_open_in_a_project_ends_when_it_is_deleted(server: TestServer) {
        let client = server.client();
        let shop = Shop::open(&server).await;
        let project = shop.project.clone();
        let path = format!("/api/v1/projects/{project}/events");
        let mut opened = Vec::new();
        for path in [format!("{path}?kinds=nothing"), format!("{path}/ws?kinds=nothing")] {
            opened.push(open(&server, &path, &server.admin_token).await);
        }
        client.project_delete(&project, None).await.unwrap();
        for stream in opened {
            tokio::time::timeout(AT_MOST, stream).await.expect("it ends, also for administrators").unwrap();
        }
    }
}

#[test]
fn every_endpoint_that_streams_is_among_those_that_are_tested() {
    let streams: BTreeSet<&str> = ENDPOINTS
        .iter()
        .filter(|endpoint| match endpoint.stream {
            StreamKind::Sse(_) | StreamKind::WebSocket => true,
            StreamKind::Document | StreamKind::JsonLines | StreamKind::Metrics => false,
        })
        .map(|endpoint| endpoint.path)
        .collect();
    assert_eq!(streams, BTreeSet::from(STREAMS), "open it in `Place::streams` and take the right to it away");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_other_endpoint_leaves_its_answer_open() {
    let place = Place::new(TestServer::sqlite().await).await;
    let fill = |path: &str| {
        let path = path.replace("{project}", &place.project).replace("{task}", &place.console.id.to_string());
        path.replace("{allocation}", &place.allocation.id.to_string())
    };
    for endpoint in ENDPOINTS.iter().filter(|endpoint| endpoint.method == Method::Get) {
        if STREAMS.contains(&endpoint.path) || PIECEMEAL.contains(&endpoint.path) {
            continue;
        }
        let request = plain_http().get(format!("{}{}", place.server.url(), fill(endpoint.path)));
        let response = request.bearer_auth(&place.server.admin_token).send().await.unwrap();
        let has_an_end = response.headers().contains_key("content-length");
        assert!(has_an_end, "{} answers piece by piece; add it to STREAMS or PIECEMEAL", endpoint.path);
    }
}
