//! Which addresses may be the source of an image: a tenant's URL must not reach the owner's network.

use std::time::Duration;

use http::header;

use super::downloads::localhost_tls;
use super::server::{Reply, Server};
use super::{Place, fails, fetch, file_of, stored, wanted};

const SIZE: usize = 5_000;

fn networks(texts: &[&str]) -> Vec<gpuaas_contract::address::Network> {
    texts.iter().map(|text| text.parse().expect("a network")).collect()
}

#[tokio::test]
async fn an_address_that_is_not_public_is_asked_only_if_the_owner_lists_its_network() {
    if !crate::skip::has_localhost() {
        return crate::skip::skipped("`localhost` is not in /etc/hosts");
    }
    let file = file_of(40, SIZE);
    let served = file.clone();
    let server = Server::start(move |seen| Reply::good(&served, None, seen)).await;
    let port = server.port();
    // By address, by a name for it, and in spellings that only the resolver understands.
    let spellings = ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "[::ffff:127.0.0.1]", "0.0.0.0"];
    for host in spellings {
        let mut asked = wanted(&file, &format!("http://{host}:{port}/a"));
        asked.private_networks = networks(&["10.0.0.0/8", "192.168.0.0/16"]);
        asked.allowed_prefixes = vec!["*".to_owned()];
        let error = fails(&Place::new().images(), &asked).await;
        assert_eq!(error.code, "image_address_refused", "{host}: {error}");
        assert!(error.message.contains("image_private_networks"), "{error}");
    }
    assert_eq!(server.requests(), 0, "nobody was connected to");
    let mut asked = wanted(&file, &format!("http://127.0.0.1:{port}/a"));
    asked.private_networks = networks(&["127.0.0.1"]);
    assert_eq!(fetch(&Place::new().images(), &asked).await, Ok(stored(&file, false)));
}

#[tokio::test]
async fn a_metadata_service_is_not_asked_even_if_its_network_is_listed() {
    let file = file_of(41, 10);
    for host in ["169.254.169.254", "[fd00:ec2::254]", "100.100.100.200"] {
        let mut asked = wanted(&file, &format!("http://{host}/latest/meta-data"));
        asked.private_networks = networks(&["0.0.0.0/0", "::/0"]);
        assert_eq!(fails(&Place::new().images(), &asked).await.code, "image_address_refused", "{host}");
    }
}

#[tokio::test]
async fn a_redirect_to_an_address_that_is_not_listed_is_not_followed() {
    let (file, target) = (file_of(42, SIZE), Server::start(|_| Reply::status(200)).await);
    let port = target.port();
    let server = Server::start(move |seen| {
        Reply::status(302).with(header::LOCATION, &format!("http://{}:{port}/a", seen.path.trim_start_matches('/')))
    })
    .await;
    // The server itself is allowed. Its redirects are checked again, even if `image_sources` allows everything.
    for host in ["127.0.0.2", "169.254.169.254", "10.255.255.1"] {
        let mut asked = wanted(&file, &server.url(&format!("/{host}")));
        asked.allowed_prefixes = vec!["*".to_owned()];
        asked.private_networks = networks(&["127.0.0.1"]);
        let error = fails(&Place::new().images(), &asked).await;
        assert_eq!(error.code, "image_address_refused", "{host}: {error}");
    }
    assert_eq!(target.requests(), 0, "nobody was connected to");
}

#[tokio::test]
async fn a_redirect_from_https_to_http_is_not_followed() {
    if !crate::skip::has_localhost() {
        return crate::skip::skipped("`localhost` is not in /etc/hosts");
    }
    let (config, ca) = localhost_tls();
    let (file, target) = (file_of(43, SIZE), Server::start(|_| Reply::status(200)).await);
    let location = target.url("/a");
    let server = Server::start_tls(config, move |_| Reply::status(302).with(header::LOCATION, &location)).await;
    let place = Place::new();
    let bundle = place.folder.path().join("ca.pem");
    std::fs::write(&bundle, ca).expect("written");
    let mut asked = wanted(&file, &format!("https://localhost:{}/a", server.port()));
    asked.allowed_prefixes = vec!["*".to_owned()];
    let error = fails(&place.images_trusting(u64::MAX, Duration::from_secs(60), vec![bundle]), &asked).await;
    assert_eq!(error.code, "image_redirect_refused", "{error}");
    assert!(error.message.contains("from https to http"), "{error}");
    assert_eq!(target.requests(), 0, "nothing was asked for there");
}
