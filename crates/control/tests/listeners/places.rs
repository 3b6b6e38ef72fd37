//! Many connections, and a user who must be served.

use gpuaas_runtime::places::PlaceLimits;

use super::*;
use crate::common::node::Host;

async fn connect_from(from: &str, to: SocketAddr) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
    socket.connect(to).await.unwrap()
}

async fn is_served(stall: &Stall) {
    let reported = ask(stall, &get("/healthz")).await;
    assert!(reported.starts_with("HTTP/1.1 200"), "{reported}");
}

/// Returns whether the server has closed the connection.
async fn is_ended(socket: &mut TcpStream) -> bool {
    let read = tokio::time::timeout(Duration::from_millis(1), socket.read_u8()).await;
    read.is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_silent_connections_keep_nobody_out() {
    let mut limits = long();
    for places in [&mut limits.api.places, &mut limits.link.places, &mut limits.local.places] {
        *places = PlaceLimits { total: 16, per_origin: 8 };
    }
    let server = server(limits, false).await;
    let (api_address, link_address) = (server.server().api_address.unwrap(), server.server().link_address.unwrap());
    let mut held = Vec::new();
    for number in 0..200 {
        held.push(TcpStream::connect(api_address).await.unwrap());
        held.push(connect_from(&format!("127.0.3.{}", number % 250 + 1), api_address).await);
        held.push(TcpStream::connect(link_address).await.unwrap());
    }
    let mut local_held = Vec::new();
    for _ in 0..50 {
        local_held.push(local(&server).connect().await);
    }
    is_served(&api(&server)).await;
    is_served(&local(&server)).await;
    let host = Host::enrolled(&server).await;
    let _link = host.connect(&[]).await;
    let metrics = server.metrics().await;
    let open = |listener: &str| {
        let wanted = format!("gpuaas_connections{{listener=\"{listener}\"}} ");
        metrics.lines().find_map(|line| line.strip_prefix(&wanted)).unwrap().trim().parse::<usize>().unwrap()
    };
    // Not all closing connections may be gone yet; there are never more than a few of them.
    assert!(open("api") <= 32 + 1 && open("link") <= 32 + 1 && open("local") <= 32 + 1, "{metrics}");
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_address_takes_no_places_from_another() {
    let mut limits = long();
    limits.api.places = PlaceLimits { total: 16, per_origin: 4 };
    let server = server(limits, false).await;
    let to = server.server().api_address.unwrap();
    let mut quiet = connect_from("127.0.4.1", to).await;
    let mut flood = Vec::new();
    for _ in 0..100 {
        flood.push(connect_from("127.0.4.2", to).await);
    }
    is_served(&api(&server)).await;
    assert!(!is_ended(&mut quiet).await, "older than all of them, and of another address");
    let mut left = 0;
    for socket in &mut flood {
        left += usize::from(!is_ended(socket).await);
    }
    assert!(left <= 4, "{left} connections of one address");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_do_not_count_for_their_address() {
    let mut limits = long();
    limits.link.places = PlaceLimits { total: 64, per_origin: 2 };
    let server = server(limits, false).await;
    let host = Host::enrolled(&server).await;
    let mut links = Vec::new();
    for _ in 0..8 {
        let mut tls = host.grpc(true).await;
        let (say, words) = tokio::sync::mpsc::channel(1);
        let words = tokio_stream::wrappers::ReceiverStream::new(words);
        links.push(tokio::spawn(async move { tls.connect(words).await.map(drop) }));
        links.push(tokio::spawn(async move {
            say.closed().await;
            Ok(())
        }));
    }
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(TcpStream::connect(server.server().link_address.unwrap()).await.unwrap());
    }
    let _link = host.connect(&[]).await;
    assert!(links.iter().all(|link| !link.is_finished()), "eight connections of one address, and none had to leave");
    for link in links {
        link.abort();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trusted_proxy_has_as_many_connections_as_it_needs() {
    let mut limits = long();
    limits.api.places = PlaceLimits { total: 64, per_origin: 2 };
    let server = TestServer::configured(|config| {
        config.limits = Some(limits);
        config.trusted_proxies = vec!["127.0.5.0/24".parse().unwrap()];
    })
    .await;
    let to = server.server().api_address.unwrap();
    let (mut proxy, mut other) = (Vec::new(), Vec::new());
    for _ in 0..8 {
        proxy.push(connect_from("127.0.5.7", to).await);
        other.push(connect_from("127.0.6.7", to).await);
    }
    is_served(&api(&server)).await;
    for socket in &mut proxy {
        assert!(!is_ended(socket).await);
    }
    let mut left = 0;
    for socket in &mut other {
        left += usize::from(!is_ended(socket).await);
    }
    assert!(left <= 2, "{left} connections of an address that is no proxy");
}
