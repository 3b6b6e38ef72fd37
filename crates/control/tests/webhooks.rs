//! Webhooks with real receivers: everything arrives, signed, and nothing goes to a forbidden destination.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::IntoResponse as _;
use common::looking::refused;
use common::{PATIENCE, TestServer};
use futures::StreamExt as _;
use gpuaas_api::client::HeardEvent;
use gpuaas_api::dto::{
    CloudEvent, Delivery, DeliveryListQuery, EventsQuery, Limits, OrganizationCreate, ProjectChange, ProjectCreate,
    WebhookChange, WebhookCreate, WebhookCreated,
};
use gpuaas_api::{Client, ClientOptions};
use gpuaas_backends::webhook::{Headers, Secret, VerifyError, verify};
use gpuaas_contract::time::Timestamp;
use gpuaas_control::{ServerConfig, start};
use gpuaas_testkit::{TempDir, eventually_async};
use tokio::sync::watch;

/// One received request.
#[derive(Clone)]
struct Got {
    path: String,
    headers: Headers,
    body: Bytes,
}

impl Got {
    fn event(&self) -> CloudEvent {
        serde_json::from_slice(&self.body).unwrap()
    }

    fn reported(&self) -> String {
        self.event().data["description"].as_str().unwrap_or_default().to_owned()
    }

    fn verify(&self, secret: &str) -> Result<(), VerifyError> {
        verify(&secret.parse::<Secret>().unwrap(), &self.headers, &self.body, Timestamp::now().0 / 1_000_000)
    }
}

/// A web server for deliveries, on loopback.
#[derive(Clone)]
struct Receiver {
    address: SocketAddr,
    got: Arc<Mutex<Vec<Got>>>,
    /// The status of each path, if not 200.
    answers: Arc<Mutex<HashMap<String, u16>>>,
    /// While this is false, answers are held back.
    open: watch::Sender<bool>,
}

impl Receiver {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let receiver = Self {
            address: listener.local_addr().unwrap(),
            got: Arc::default(),
            answers: Arc::default(),
            open: watch::Sender::new(true),
        };
        let router = Router::new().fallback(take).with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        receiver
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn answers(&self, path: &str, status: u16) {
        self.answers.lock().unwrap().insert(path.to_owned(), status);
    }

    fn got(&self, path: &str) -> Vec<Got> {
        self.got.lock().unwrap().iter().filter(|got| got.path == path).cloned().collect()
    }

    /// Returns how often each event was sent to this path.
    fn counts(&self, path: &str) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for got in self.got(path) {
            *counts.entry(got.headers.id).or_default() += 1;
        }
        counts
    }

    /// Waits until all these texts were sent to this path.
    async fn until_said(&self, path: &str, words: impl IntoIterator<Item = String>) -> Vec<Got> {
        let words: BTreeSet<String> = words.into_iter().collect();
        eventually_async(PATIENCE, "all events arrive", || async {
            let got = self.got(path);
            let reported: BTreeSet<String> = got.iter().map(Got::reported).collect();
            reported.is_superset(&words).then_some(got)
        })
        .await
    }
}

async fn take(State(receiver): State<Receiver>, uri: Uri, headers: HeaderMap, body: Bytes) -> axum::response::Response {
    let header = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
    assert_eq!(header("content-type"), "application/cloudevents+json");
    let signed =
        Headers { id: header("webhook-id"), timestamp: header("webhook-timestamp"), signature: header("webhook-signature") };
    let path = uri.path().to_owned();
    let status = receiver.answers.lock().unwrap().get(&path).copied().unwrap_or(200);
    receiver.got.lock().unwrap().push(Got { path, headers: signed, body });
    receiver.open.subscribe().wait_for(|open| *open).await.unwrap();
    (StatusCode::from_u16(status).unwrap(), [("location", "/landing")]).into_response()
}

async fn project(client: &Client, name: &str) -> String {
    let wanted =
        OrganizationCreate { name: name.to_owned(), description: String::new(), limits: Limits::default(), owner_email: None };
    let organization = client.organization_create(&wanted, None).await.unwrap();
    let wanted =
        ProjectCreate { name: name.to_owned(), description: String::new(), limits: Limits::default(), owner_email: None };
    client.project_create(&organization.id.to_string(), &wanted, None).await.unwrap().id.to_string()
}

async fn happens(client: &Client, project: &str, what: &str) {
    let change = ProjectChange { description: Some(what.to_owned()) };
    client.project_change(project, &change, None).await.unwrap();
}

async fn webhook(client: &Client, project: &str, url: String, kinds: &[&str]) -> WebhookCreated {
    let kinds = kinds.iter().map(|kind| (*kind).to_owned()).collect();
    client.webhook_create(project, &WebhookCreate { url, description: String::new(), kinds }, None).await.unwrap()
}

fn words(from: usize, to: usize) -> impl Iterator<Item = String> {
    (from..to).map(|number| number.to_string())
}

/// Returns the webhook's deliveries, once one of them matches.
async fn delivery(client: &Client, webhook: &str, wanted: impl Fn(&Delivery) -> bool) -> Delivery {
    eventually_async(PATIENCE, "a delivery is as it should be", || async {
        let page = client.webhook_deliveries(webhook, &DeliveryListQuery::default()).await.unwrap();
        page.items.into_iter().find(|delivery| wanted(delivery))
    })
    .await
}

common::on_both_stores! {
    async fn every_event_of_the_project_arrives_once_and_signed(server: TestServer) {
        const EVENTS: usize = 100;
        let (client, receiver) = (server.client(), Receiver::start().await);
        let (own, other) = (project(&client, "own").await, project(&client, "other").await);
        happens(&client, &own, "before there was a webhook").await;
        let all = webhook(&client, &own, receiver.url("/all"), &[]).await;
        let some = webhook(&client, &own, receiver.url("/some"), &["service_account", "webhook.created"]).await;
        for round in 0..EVENTS {
            happens(&client, &other, "not theirs").await;
            happens(&client, &own, &round.to_string()).await;
        }
        let got = receiver.until_said("/all", words(0, EVENTS)).await;
        for got in &got {
            assert_eq!(got.verify(&all.secret), Ok(()));
            assert_eq!(got.verify(&some.secret), Err(VerifyError::NoMatch), "every webhook has its own secret");
            assert_eq!(got.headers.id, got.event().id.to_string());
            assert_eq!(got.event().data["project_id"], own.as_str());
        }
        let counts = receiver.counts("/all");
        assert!(counts.values().all(|count| *count == 1), "nothing was repeated: {counts:?}");
        // The creation of a webhook is an event too: two of them.
        assert_eq!(counts.len(), EVENTS + 2);
        let kinds: Vec<String> = receiver.got("/some").iter().map(|got| got.event().kind.to_string()).collect();
        assert_eq!(kinds, ["gpuaas.webhook.created.v1"], "its own making is the only one of its kinds");
        let page = client.webhook_deliveries(&all.webhook.id.to_string(), &DeliveryListQuery::default()).await.unwrap();
        assert!(page.items.is_sorted_by(|one, next| one.id > next.id), "the newest first");
        let delivered = |delivery: &Delivery| delivery.state.as_str() == "delivered" && delivery.attempts == 1 && delivery.due_at.is_none();
        eventually_async(PATIENCE, "all is written down", || async {
            let query = DeliveryListQuery { limit: Some(200), ..DeliveryListQuery::default() };
            let page = client.webhook_deliveries(&all.webhook.id.to_string(), &query).await.unwrap();
            (page.items.len() == EVENTS + 2 && page.items.iter().all(delivered)).then_some(())
        })
        .await;
    }

    async fn a_test_is_one_signed_delivery_to_the_webhook_that_it_names(server: TestServer) {
        let (client, receiver) = (server.client(), Receiver::start().await);
        let own = project(&client, "own").await;
        let tested = webhook(&client, &own, receiver.url("/tested"), &["allocation"]).await;
        let other = webhook(&client, &own, receiver.url("/other"), &[]).await;
        let id = tested.webhook.id.to_string();
        let test = client.webhook_test(&id).await.unwrap();
        let sent = delivery(&client, &id, |delivery| delivery.event_id == test.event_id && !delivery.last.is_empty()).await;
        assert_eq!((sent.kind.as_str(), sent.state.as_str()), ("gpuaas.webhook.test.v1", "delivered"), "{sent:?}");
        let got = receiver.got("/tested");
        assert_eq!((got.len(), got[0].verify(&tested.secret)), (1, Ok(())));
        assert_eq!(got[0].event().data["webhook_id"], id.as_str());
        let again = client.webhook_test(&id).await.unwrap_err();
        assert_eq!(again.code(), "tested_just_now", "{again}");
        let audit = client.audit(&gpuaas_api::dto::AuditQuery { target: Some(id.clone()), ..Default::default() }).await.unwrap();
        assert!(audit.items.iter().any(|row| row.action == "webhook.test"));
        // What comes later is sent to the other one, and the test never was.
        happens(&client, &own, "later").await;
        receiver.until_said("/other", ["later".to_owned()]).await;
        let kinds: Vec<String> = receiver.got("/other").iter().map(|got| got.event().kind.to_string()).collect();
        assert!(!kinds.contains(&"gpuaas.webhook.test.v1".to_owned()), "{kinds:?}");
        let off = WebhookChange { enabled: Some(false), ..WebhookChange::default() };
        client.webhook_change(&other.webhook.id.to_string(), &off, None).await.unwrap();
        let refused = client.webhook_test(&other.webhook.id.to_string()).await.unwrap_err();
        assert_eq!(refused.code(), "webhook_off");
    }

    async fn a_receiver_that_fails_is_tried_again(server: TestServer) {
        let (client, receiver) = (server.client(), Receiver::start().await);
        let own = project(&client, "own").await;
        receiver.answers("/fails", 500);
        let hook = webhook(&client, &own, receiver.url("/fails"), &["project"]).await.webhook.id.to_string();
        happens(&client, &own, "one").await;
        let failed = delivery(&client, &hook, |delivery| delivery.attempts == 1 && !delivery.last.is_empty()).await;
        assert!(failed.state.as_str() == "pending" && failed.last.contains("500"), "{failed:?}");
        let wait = failed.due_at.unwrap().since(failed.created_at);
        assert!(wait >= std::time::Duration::from_millis(4500), "the first try again comes after about five seconds: {wait:?}");
        assert_eq!(receiver.got("/fails").len(), 1);
        // After some time it is delivered by itself.
        receiver.answers("/fails", 204);
        let taken = delivery(&client, &hook, |delivery| delivery.state.as_str() == "delivered").await;
        assert_eq!((taken.attempts, taken.id, taken.last.as_str()), (2, failed.id, "204 No Content"));
        assert_eq!(receiver.counts("/fails").into_values().collect::<Vec<_>>(), [2], "the same id both times");
    }

    async fn a_delivery_can_be_replayed(server: TestServer) {
        let (client, receiver) = (server.client(), Receiver::start().await);
        let own = project(&client, "own").await;
        receiver.answers("/hook", 500);
        let made = webhook(&client, &own, receiver.url("/hook"), &["project"]).await;
        let hook = made.webhook.id.to_string();
        happens(&client, &own, "one").await;
        let failed = delivery(&client, &hook, |delivery| !delivery.last.is_empty()).await;
        receiver.answers("/hook", 200);
        // A replay does not wait for the next attempt.
        client.delivery_replay(&failed.id.to_string()).await.unwrap();
        let taken = delivery(&client, &hook, |delivery| delivery.state.as_str() == "delivered").await;
        assert_eq!((taken.id, taken.attempts), (failed.id, 1));
        client.delivery_replay(&failed.id.to_string()).await.unwrap();
        eventually_async(PATIENCE, "it is sent again", || async { (receiver.got("/hook").len() == 3).then_some(()) }).await;
        assert_eq!(receiver.counts("/hook").len(), 1, "it is the same event");
        assert!(receiver.got("/hook").iter().all(|got| got.verify(&made.secret).is_ok()));
        let nowhere = gpuaas_contract::id::DeliveryId::generate().to_string();
        assert!(client.delivery_replay(&nowhere).await.is_err());
    }

    async fn a_receiver_that_says_gone_is_told_nothing_any_more(server: TestServer) {
        let (client, receiver) = (server.client(), Receiver::start().await);
        let own = project(&client, "own").await;
        receiver.answers("/gone", 410);
        let hook = webhook(&client, &own, receiver.url("/gone"), &["project"]).await.webhook.id.to_string();
        webhook(&client, &own, receiver.url("/witness"), &[]).await;
        let mut heard = Box::pin(client.project_events(&own, &EventsQuery { after: Some(0), kinds: Some("webhook.disabled".to_owned()) }));
        happens(&client, &own, "one").await;
        let ended = delivery(&client, &hook, |delivery| delivery.state.as_str() == "failed").await;
        assert!(ended.attempts == 1 && ended.due_at.is_none() && ended.last.contains("410"), "{ended:?}");
        let off = client.webhook(&hook).await.unwrap();
        assert!(!off.enabled && off.disabled_reason.unwrap().contains("410"));
        match heard.next().await.unwrap().unwrap() {
            HeardEvent::Event(event) => assert_eq!(event.data["webhook_id"], hook.as_str()),
            HeardEvent::Reconnecting => panic!("the server is there"),
        }
        happens(&client, &own, "two").await;
        receiver.until_said("/witness", ["two".to_owned()]).await;
        assert_eq!(receiver.got("/gone").len(), 1);
        // Its owner enables it again, and it gets later events.
        receiver.answers("/gone", 200);
        let on = WebhookChange { enabled: Some(true), ..WebhookChange::default() };
        let on = client.webhook_change(&hook, &on, None).await.unwrap().webhook;
        assert!(on.enabled && on.failed == 0 && on.disabled_reason.is_none());
        happens(&client, &own, "three").await;
        let got = receiver.until_said("/gone", ["three".to_owned()]).await;
        assert_eq!(got.iter().map(Got::reported).collect::<Vec<_>>(), ["one", "three"]);
    }

    async fn while_a_secret_is_rotated_both_sign(server: TestServer) {
        let (client, receiver) = (server.client(), Receiver::start().await);
        let own = project(&client, "own").await;
        let first = webhook(&client, &own, receiver.url("/hook"), &["project"]).await;
        let hook = first.webhook.id.to_string();
        let rotate = WebhookChange { rotate_secret: true, ..WebhookChange::default() };
        let second = client.webhook_change(&hook, &rotate, None).await.unwrap().secret.unwrap();
        assert_ne!(first.secret, second);
        happens(&client, &own, "one").await;
        let got = receiver.until_said("/hook", ["one".to_owned()]).await;
        assert_eq!((got[0].verify(&first.secret), got[0].verify(&second)), (Ok(()), Ok(())));
        assert_eq!(got[0].headers.signature.split(' ').count(), 2);
        let third = client.webhook_change(&hook, &rotate, None).await.unwrap().secret.unwrap();
        happens(&client, &own, "two").await;
        let got = receiver.until_said("/hook", ["two".to_owned()]).await;
        let last = got.last().unwrap();
        assert_eq!((last.verify(&second), last.verify(&third)), (Ok(()), Ok(())));
        assert_eq!(last.verify(&first.secret), Err(VerifyError::NoMatch), "the one before the last is over");
    }

    async fn a_webhook_that_was_deleted_or_turned_off_is_told_nothing(server: TestServer) {
        let (client, receiver) = (server.client(), Receiver::start().await);
        let own = project(&client, "own").await;
        let deleted = webhook(&client, &own, receiver.url("/deleted"), &["project"]).await.webhook.id.to_string();
        let off = webhook(&client, &own, receiver.url("/off"), &["project"]).await.webhook.id.to_string();
        webhook(&client, &own, receiver.url("/witness"), &["project"]).await;
        happens(&client, &own, "one").await;
        for path in ["/deleted", "/off", "/witness"] {
            receiver.until_said(path, ["one".to_owned()]).await;
        }
        client.webhook_delete(&deleted, None).await.unwrap();
        client.webhook_change(&off, &WebhookChange { enabled: Some(false), ..WebhookChange::default() }, None).await.unwrap();
        happens(&client, &own, "two").await;
        receiver.until_said("/witness", ["two".to_owned()]).await;
        assert_eq!((receiver.got("/deleted").len(), receiver.got("/off").len()), (1, 1));
        assert_eq!(client.webhook(&deleted).await.unwrap_err().problem().unwrap().status, 404);
    }

    async fn a_server_that_is_restarted_loses_nothing_and_repeats_only_what_was_under_way(server: TestServer) {
        const EVENTS: usize = 30;
        let mut server = server;
        let (client, receiver) = (server.client(), Receiver::start().await);
        let own = project(&client, "own").await;
        webhook(&client, &own, receiver.url("/hook"), &["project"]).await;
        for round in 0..EVENTS / 2 {
            happens(&client, &own, &round.to_string()).await;
        }
        receiver.until_said("/hook", words(0, EVENTS / 2)).await;
        receiver.open.send_replace(false);
        for round in EVENTS / 2..EVENTS {
            happens(&client, &own, &round.to_string()).await;
        }
        // Some have arrived and are not answered; the server is stopped in the middle of that.
        eventually_async(PATIENCE, "some are under way", || async { (receiver.got("/hook").len() > EVENTS / 2).then_some(()) }).await;
        server.restart().await;
        let under_way: BTreeSet<String> = receiver.counts("/hook").into_keys().collect();
        let settled = EVENTS / 2;
        assert!(under_way.len() > settled && under_way.len() < EVENTS, "{} arrived", under_way.len());
        receiver.open.send_replace(true);
        let got = receiver.until_said("/hook", words(0, EVENTS)).await;
        assert_eq!(got.iter().map(|got| &got.headers.id).collect::<BTreeSet<_>>().len(), EVENTS);
        eventually_async(PATIENCE, "all is written down", || async {
            let hook = server.client().webhooks(&own, &Default::default()).await.unwrap().items[0].id.to_string();
            let query = DeliveryListQuery { state: Some(gpuaas_contract::state::DeliveryState::Delivered), limit: Some(100), after: None };
            (server.client().webhook_deliveries(&hook, &query).await.unwrap().items.len() == EVENTS).then_some(())
        })
        .await;
        let repeated: Vec<(String, usize)> = receiver.counts("/hook").into_iter().filter(|(_, count)| *count > 1).collect();
        assert!(repeated.iter().all(|(id, count)| *count == 2 && under_way.contains(id)), "{repeated:?}");
        assert!(repeated.len() <= under_way.len() - settled, "only what was under way: {repeated:?}");
    }

    async fn redirects_are_not_followed(server: TestServer) {
        let (client, receiver) = (server.client(), Receiver::start().await);
        let own = project(&client, "own").await;
        receiver.answers("/moved", 302);
        let hook = webhook(&client, &own, receiver.url("/moved"), &["project"]).await.webhook.id.to_string();
        happens(&client, &own, "one").await;
        let tried = delivery(&client, &hook, |delivery| !delivery.last.is_empty()).await;
        assert!(tried.state.as_str() == "pending" && tried.last.contains("redirects are not followed"), "{tried:?}");
        assert!(receiver.got("/landing").is_empty());
    }

    async fn addresses_that_give_credentials_away_are_refused(server: TestServer) {
        let client = server.client();
        let own = project(&client, "own").await;
        let good = webhook(&client, &own, "https://hooks.example.com/x".to_owned(), &["allocation.rebooted"]).await.webhook.id.to_string();
        // A webhook for an unknown kind would wait in vain.
        let unknown = WebhookCreate { url: "https://hooks.example.com/x".to_owned(), kinds: vec!["allocation.lost".to_owned()], ..Default::default() };
        assert_eq!(refused(client.webhook_create(&own, &unknown, None).await), "kind_unknown");
        let change = WebhookChange { kinds: Some(unknown.kinds), ..WebhookChange::default() };
        assert_eq!(refused(client.webhook_change(&good, &change, None).await), "kind_unknown");
        for url in [
            "http://169.254.169.254/latest/meta-data",
            "http://169.254.1.1/",
            "http://[fe80::1]/",
            "http://[fd00:ec2::254]/",
            "http://168.63.129.16/",
            "http://0.0.0.0/",
            "http://2852039166/",
            "http://[::ffff:169.254.169.254]/",
            "https://user@hooks.example.com/",
            "ftp://hooks.example.com/",
            "hooks.example.com",
        ] {
            let wanted = WebhookCreate { url: url.to_owned(), ..WebhookCreate::default() };
            assert_eq!(refused(client.webhook_create(&own, &wanted, None).await), "url_invalid", "{url}");
            let change = WebhookChange { url: Some(url.to_owned()), ..WebhookChange::default() };
            assert_eq!(refused(client.webhook_change(&good, &change, None).await), "url_invalid", "{url}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_leave_webhooks_go_to_public_addresses_only() {
    let dir = TempDir::new();
    let config = || ServerConfig { webhooks_to_private: false, ..TestServer::config(&dir, None) };
    let server = start(config()).await.unwrap();
    let mut options = ClientOptions::new(server.api_url.clone().unwrap());
    options.token = Some(std::fs::read_to_string(&server.admin_token_file).unwrap());
    let client = Client::new(options).unwrap();
    let own = project(&client, "own").await;
    for url in [
        "http://hooks.example.com/",
        "https://127.0.0.1/",
        "https://10.1.2.3/",
        "https://192.168.0.1/",
        "https://[::1]/",
        "https://localhost/",
        "https://metadata.google.internal/",
    ] {
        let wanted = WebhookCreate { url: url.to_owned(), ..WebhookCreate::default() };
        assert_eq!(refused(client.webhook_create(&own, &wanted, None).await), "url_invalid", "{url}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_never_answers_does_not_keep_the_others_waiting() {
    let server = TestServer::sqlite().await;
    let (client, stuck, quick) = (server.client(), Receiver::start().await, Receiver::start().await);
    let (first, second) = (project(&client, "first").await, project(&client, "second").await);
    stuck.open.send_replace(false);
    webhook(&client, &first, stuck.url("/stuck"), &["project"]).await;
    webhook(&client, &second, quick.url("/quick"), &["project"]).await;
    for round in 0..150 {
        happens(&client, &first, &round.to_string()).await;
    }
    happens(&client, &second, "at last").await;
    quick.until_said("/quick", ["at last".to_owned()]).await;
    assert!(stuck.got("/stuck").len() <= 8, "few are under way at the same time: {}", stuck.got("/stuck").len());
}
