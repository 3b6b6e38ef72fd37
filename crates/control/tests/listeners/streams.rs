//! Streams and WebSockets.

use gpuaas_api::dto::{Limits, OrganizationCreate, ProjectCreate};
use http::StatusCode;

use super::*;

async fn project(server: &TestServer) -> String {
    let client = server.client();
    let wanted =
        OrganizationCreate { name: "o".to_owned(), description: String::new(), limits: Limits::default(), owner_email: None };
    let organization = client.organization_create(&wanted, None).await.unwrap();
    let wanted = ProjectCreate { name: "p".to_owned(), description: String::new(), limits: Limits::default(), owner_email: None };
    client.project_create(&organization.id.to_string(), &wanted, None).await.unwrap().id.to_string()
}

async fn websocket(server: &TestServer, project: &str) -> (Box<dyn Socket>, String) {
    let mut socket = api(server).connect().await;
    let request = format!(
        "GET /api/v1/projects/{project}/events/ws HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {}\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        server.admin_token
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    let reported = head(&mut socket).await;
    (socket, reported)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_that_is_too_large_ends_the_websocket_before_it_has_come() {
    let server = server(long(), false).await;
    let project = project(&server).await;
    let (mut socket, reported) = websocket(&server, &project).await;
    assert!(reported.starts_with("HTTP/1.1 101"), "{reported}");
    // The head of a binary frame of 8 MiB, masked, and hardly anything of it.
    socket.write_all(b"\x82\xff\x00\x00\x00\x00\x00\x80\x00\x00\x00\x00\x00\x00abc").await.unwrap();
    until_ended(&mut socket).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_websocket_outlives_every_deadline_of_requests() {
    let server = server(short(), false).await;
    let project = project(&server).await;
    let (mut socket, reported) = websocket(&server, &project).await;
    assert!(reported.starts_with("HTTP/1.1 101"), "{reported}");
    // Longer than the idle limit.
    until_ended(&mut api(&server).connect().await).await;
    until_ended(&mut api(&server).connect().await).await;
    until_ended(&mut api(&server).connect().await).await;
    server
        .client()
        .project_change(&project, &gpuaas_api::dto::ProjectChange { description: Some("x".to_owned()) }, None)
        .await
        .unwrap();
    loop {
        let first = socket.read_u8().await.unwrap();
        let length = match socket.read_u8().await.unwrap() {
            126 => usize::from(socket.read_u16().await.unwrap()),
            short => usize::from(short),
        };
        let mut payload = vec![0; length];
        socket.read_exact(&mut payload).await.unwrap();
        if first == 0x81 {
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_has_a_few_streams_at_the_same_time() {
    let limits = ServerLimits { streams_per_caller: 2, ..long() };
    let server = server(limits, false).await;
    let project = project(&server).await;
    let (socket, reported) = websocket(&server, &project).await;
    assert!(reported.starts_with("HTTP/1.1 101"), "{reported}");
    let http = common::plain_http();
    let open = || http.get(format!("{}/api/v1/events", server.url())).bearer_auth(&server.admin_token).send();
    let events = open().await.unwrap();
    assert_eq!(events.status(), StatusCode::OK);
    let refused = open().await.unwrap();
    assert_eq!((refused.status(), refused.headers().contains_key("retry-after")), (StatusCode::TOO_MANY_REQUESTS, true));
    assert!(refused.text().await.unwrap().contains("\"too_many_streams\""));
    let (_, reported) = websocket(&server, &project).await;
    assert!(reported.starts_with("HTTP/1.1 429"), "{reported}");
    // Every end makes room: of a WebSocket, and of a stream of events.
    drop(socket);
    let again = gpuaas_testkit::eventually_async(PATIENCE, "there is room again", || async {
        let answer = open().await.unwrap();
        (answer.status() == StatusCode::OK).then_some(answer)
    })
    .await;
    drop((events, again));
    gpuaas_testkit::eventually_async(PATIENCE, "there is room again", || async {
        let (_, reported) = websocket(&server, &project).await;
        reported.starts_with("HTTP/1.1 101").then_some(())
    })
    .await;
}
