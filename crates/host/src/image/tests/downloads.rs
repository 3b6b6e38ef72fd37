//! Downloads from correct and from misbehaving servers.

use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

use http::header;

use super::server::{End, Reply, Server};
use super::{Arc, Bytes, Digest};
use super::{Duration, Place, Told, fails, fetch, file_of, name_of, stored, wanted};

const HALF: usize = 1_000_000;
const SIZE: usize = 2 * HALF + 17;

#[tokio::test]
async fn an_image_is_downloaded_once_and_then_cached() {
    let (place, file) = (Place::new(), file_of(1, SIZE));
    let served = file.clone();
    let server = Server::start(move |seen| Reply::good(&served, Some("\"v1\""), seen)).await;
    let (images, told) = (place.images(), Told::default());
    let wanted = wanted(&file, &server.url("/a.qcow2?token=x"));
    let first = images.fetch(&wanted, &|done, total| told.tell(done, total)).await;
    assert_eq!(first, Ok(stored(&file, false)));
    assert_eq!(told.all().last(), Some(&(SIZE as u64, SIZE as u64)), "the last that is told is that all is there");
    assert_eq!(std::fs::read(images.path_of(&wanted.sha256)).expect("the image"), file);
    assert_eq!(images.path_of(&wanted.sha256).metadata().expect("meta").mode() & 0o7777, 0o600);
    assert_eq!(place.store().metadata().expect("meta").mode() & 0o7777, 0o700);
    assert_eq!(place.names(), [name_of(&file)], "nothing else is left");
    assert_eq!(fetch(&images, &wanted).await, Ok(stored(&file, true)));
    assert_eq!(fetch(&place.images(), &wanted).await, Ok(stored(&file, true)), "also after a restart");
    let seen = server.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!((seen[0].path.as_str(), seen[0].from()), ("/a.qcow2?token=x", None));
}

#[tokio::test]
async fn a_download_that_breaks_goes_on_where_it_was() {
    let (place, file) = (Place::new(), file_of(2, SIZE));
    let served = file.clone();
    let server = Server::start(move |seen| {
        let reply = Reply::good(&served, Some("\"v1\""), seen);
        if seen.index < 3 { reply.ending(End::Cut(HALF / 2)) } else { reply }
    })
    .await;
    let images = place.images();
    assert_eq!(fetch(&images, &wanted(&file, &server.url("/a"))).await, Ok(stored(&file, false)));
    assert_eq!(std::fs::read(images.path_of(&Digest::of(&file))).expect("the image"), file);
    let seen = server.seen();
    assert_eq!(seen.len(), 4);
    assert_eq!(seen[0].from(), None);
    for pair in seen.windows(2) {
        assert!(pair[1].from() > pair[0].from(), "each asks for less than the one before");
        assert_eq!(pair[1].header(header::IF_RANGE), Some("\"v1\""));
    }
}

#[tokio::test]
async fn a_server_without_ranges_begins_anew() {
    let (place, file) = (Place::new(), file_of(3, SIZE));
    let served = file.clone();
    let server = Server::start(move |seen| {
        let reply = Reply::whole(&served);
        if seen.index == 0 { reply.ending(End::Cut(HALF)) } else { reply }
    })
    .await;
    assert_eq!(fetch(&place.images(), &wanted(&file, &server.url("/a"))).await, Ok(stored(&file, false)));
    assert_eq!(server.requests(), 2);
    assert!(server.seen()[1].from().is_some());
}

#[tokio::test]
async fn a_server_that_always_breaks_at_the_same_place_is_given_up_on() {
    let (place, file) = (Place::new(), file_of(4, SIZE));
    let served = file.clone();
    let server = Server::start(move |_| Reply::whole(&served).ending(End::Cut(HALF))).await;
    let error = fails(&place.images(), &wanted(&file, &server.url("/a"))).await;
    assert_eq!(error.code, "image_unreachable", "{error}");
    assert!(server.requests() <= 12, "{} requests", server.requests());
    assert_eq!(
        place.names(),
        [format!("{}.part", name_of(&file)), format!("{}.source", name_of(&file))],
        "what is there is kept"
    );
}

#[tokio::test]
async fn a_server_that_stalls_is_asked_again_and_then_given_up_on() {
    let (place, file) = (Place::new(), file_of(5, SIZE));
    let (served, heals) = (file.clone(), Arc::new(AtomicBool::new(false)));
    let healed = Arc::clone(&heals);
    let server = Server::start(move |seen| {
        let reply = Reply::good(&served, None, seen);
        if healed.load(Ordering::SeqCst) { reply } else { reply.ending(End::Stall(if seen.from().is_none() { HALF } else { 0 })) }
    })
    .await;
    let images = place.images_with(u64::MAX, Duration::from_millis(300));
    let error = fails(&images, &wanted(&file, &server.url("/a"))).await;
    assert_eq!(error.code, "image_stalled", "{error}");
    let requests = server.requests();
    assert!(requests >= 5, "it was asked again: {requests}");
    heals.store(true, Ordering::SeqCst);
    assert_eq!(fetch(&place.images(), &wanted(&file, &server.url("/a"))).await, Ok(stored(&file, false)));
    assert!(server.seen()[requests].from().is_some(), "what was there is not asked for again");
}

#[tokio::test]
async fn a_wrong_digest_leaves_nothing_behind() {
    let (place, file, other) = (Place::new(), file_of(6, SIZE), file_of(7, SIZE));
    let served = other.clone();
    let server = Server::start(move |seen| Reply::good(&served, None, seen)).await;
    let error = fails(&place.images(), &wanted(&file, &server.url("/a"))).await;
    assert_eq!(error.code, "image_digest_mismatch");
    assert!(error.message.contains(Digest::of(&file).as_str()), "{error}");
    assert!(error.message.contains(Digest::of(&other).as_str()), "{error}");
    assert_eq!(place.names(), Vec::<String>::new());
    assert_eq!(server.requests(), 1, "what came in one piece is not tried again");
}

#[tokio::test]
async fn a_restarted_agent_goes_on_where_it_was() {
    let (place, file) = (Place::new(), file_of(8, SIZE));
    let served = file.clone();
    let server = Server::start(move |seen| {
        let reply = Reply::good(&served, Some("\"v1\""), seen);
        if seen.index == 0 { reply.ending(End::Stall(HALF)) } else { reply }
    })
    .await;
    let part = place.store().join(format!("{}.part", name_of(&file)));
    let old = place.images();
    let (wanted, images) = (wanted(&file, &server.url("/a")), old.clone());
    let asking = wanted.clone();
    let caller = tokio::spawn(async move { fetch(&images, &asking).await });
    super::eventually("half of it is there", || part.metadata().is_ok_and(|meta| meta.len() == HALF as u64)).await;
    caller.abort();
    let _ = caller.await;
    drop(old);
    assert_eq!(fetch(&place.images(), &wanted).await, Ok(stored(&file, false)));
    assert_eq!(server.seen()[1].from(), Some(HALF));
    assert_eq!(server.requests(), 2);
}

#[tokio::test]
async fn another_version_of_the_file_is_never_put_behind_a_part() {
    let (place, file, old) = (Place::new(), file_of(9, SIZE), file_of(10, SIZE));
    let served = (file.clone(), old);
    let server = Server::start(move |seen| match seen.index {
        0 => Reply::good(&served.1, Some("\"old\""), seen).ending(End::Cut(HALF)),
        _ => Reply::good(&served.0, Some("\"new\""), seen),
    })
    .await;
    assert_eq!(fetch(&place.images(), &wanted(&file, &server.url("/a"))).await, Ok(stored(&file, false)));
    assert_eq!(server.requests(), 2, "the server sees that its file has changed and sends all of it");
}

#[tokio::test]
async fn a_file_that_changes_without_a_name_for_its_version_is_fetched_in_one_piece() {
    let (place, file, old) = (Place::new(), file_of(11, SIZE), file_of(12, SIZE));
    let served = (file.clone(), old);
    let server = Server::start(move |seen| match seen.index {
        0 => Reply::good(&served.1, None, seen).ending(End::Cut(HALF)),
        _ => Reply::good(&served.0, None, seen),
    })
    .await;
    assert_eq!(fetch(&place.images(), &wanted(&file, &server.url("/a"))).await, Ok(stored(&file, false)));
    let from: Vec<_> = server.seen().iter().map(|seen| seen.from().is_some()).collect();
    assert_eq!(from, [false, true, false]);
}

#[tokio::test]
async fn a_part_from_elsewhere_is_not_gone_on_with() {
    let (place, file) = (Place::new(), file_of(13, SIZE));
    let served = file.clone();
    let server = Server::start(move |seen| {
        let reply = Reply::good(&served, (seen.path.starts_with("/named")).then_some("\"v1\""), seen);
        if seen.path.ends_with("broken") { reply.ending(End::Cut(if seen.from().is_none() { HALF } else { 0 })) } else { reply }
    })
    .await;
    let images = place.images();
    fails(&images, &wanted(&file, &server.url("/a?broken"))).await;
    let before = server.requests();
    assert_eq!(fetch(&images, &wanted(&file, &server.url("/b"))).await, Ok(stored(&file, false)));
    assert_eq!(server.seen()[before].from(), None);
    // With an ETag, the same file with another signature in its URL is the same file.
    let place = Place::new();
    let images = place.images();
    fails(&images, &wanted(&file, &server.url("/named?broken"))).await;
    let before = server.requests();
    assert_eq!(fetch(&images, &wanted(&file, &server.url("/named?other"))).await, Ok(stored(&file, false)));
    assert!(server.seen()[before].from().is_some());
}

#[tokio::test]
async fn a_server_that_talks_nonsense_about_ranges_is_asked_for_everything() {
    let file = file_of(14, SIZE);
    for range in
        ["bytes 5-9/10", "bytes */10", "x", "bytes 1000000-2000016/1", "bytes 18446744073709551615-18446744073709551615/*"]
    {
        let (place, served) = (Place::new(), file.clone());
        let server = Server::start(move |seen| match seen.index {
            0 => Reply::whole(&served).ending(End::Cut(HALF)),
            1 => Reply::good(&served, None, seen).with(header::CONTENT_RANGE, range),
            _ => Reply::good(&served, None, seen),
        })
        .await;
        assert_eq!(fetch(&place.images(), &wanted(&file, &server.url("/a"))).await, Ok(stored(&file, false)), "{range}");
        assert_eq!(server.seen()[2].from(), None, "{range}");
    }
}

#[tokio::test]
async fn a_status_is_told_and_only_some_are_tried_again() {
    let file = file_of(15, 1000);
    for (status, requests) in [(404, 1), (401, 1), (403, 1), (206, 1), (416, 1), (204, 1), (503, 5), (429, 5)] {
        let place = Place::new();
        let server = Server::start(move |_| Reply::status(status)).await;
        let error = fails(&place.images(), &wanted(&file, &server.url("/a?secret"))).await;
        assert_eq!((error.code, server.requests()), ("image_http_status", requests), "{status}: {error}");
        assert!(error.message.contains(&status.to_string()) && !error.message.contains("secret"), "{error}");
    }
    let (place, served) = (Place::new(), file.clone());
    let server = Server::start(move |seen| if seen.index < 3 { Reply::status(502) } else { Reply::whole(&served) }).await;
    assert_eq!(fetch(&place.images(), &wanted(&file, &server.url("/a"))).await, Ok(stored(&file, false)));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_said_to_be_unreachable() {
    let (place, file) = (Place::new(), file_of(16, 10));
    let server = Server::start(|_| Reply::status(200)).await;
    let url = server.url("/a");
    drop(server);
    let error = fails(&place.images(), &wanted(&file, &url)).await;
    assert_eq!(error.code, "image_unreachable");
    assert!(error.message.contains("check the address"), "{error}");
    for url in ["ftp://a/b", "http://127.0.0.1/a/../b", "http://u@127.0.0.1/"] {
        assert_eq!(fails(&place.images(), &wanted(&file, url)).await.code, "image_unreachable", "{url}");
    }
}

#[tokio::test]
async fn an_image_without_a_length_is_taken_and_still_kept_within_bounds() {
    let (place, file) = (Place::new(), file_of(17, SIZE));
    let served = file.clone();
    let server = Server::start(move |_| Reply::whole(&served).claiming(None)).await;
    assert_eq!(fetch(&place.images(), &wanted(&file, &server.url("/a"))).await, Ok(stored(&file, false)));
    let place = Place::new();
    let error = fails(&place.images_with(SIZE as u64, Duration::from_secs(60)), &wanted(&file, &server.url("/a"))).await;
    assert_eq!(error.code, "image_cache_full", "room for what may come is made first: {error}");
}

#[tokio::test]
async fn an_image_that_cannot_fit_is_refused_by_its_length() {
    let file = file_of(18, 10);
    let answering =
        |length| move |_: &super::server::Seen| Reply::whole(&Bytes::new()).claiming(Some(length)).ending(End::Stall(0));
    // Nothing waits for bytes that are not needed: otherwise this would take a day.
    let (place, patience) = (Place::new(), Duration::from_secs(86_400));
    let images = place.images_with(u64::MAX, patience);
    let server = Server::start(answering((1 << 40) + 1)).await;
    assert_eq!(fails(&images, &wanted(&file, &server.url("/a"))).await.code, "image_too_large");
    let server = Server::start(answering(1001)).await;
    let error = fails(&place.images_with(1000, patience), &wanted(&file, &server.url("/a"))).await;
    assert_eq!(error.code, "image_cache_full", "{error}");
    let free = crate::space(place.folder.path()).expect("space").available_bytes;
    if free < 1 << 40 {
        let server = Server::start(answering(free)).await;
        let error = fails(&images, &wanted(&file, &server.url("/a"))).await;
        assert_eq!(error.code, "disk_full", "a reserve is left to others: {error}");
    }
}

#[tokio::test]
async fn a_server_may_send_on_only_to_where_the_owner_allows_it() {
    let file = file_of(19, SIZE);
    let served = file.clone();
    let target = Server::start(move |seen| Reply::good(&served, None, seen)).await;
    let to = target.url("/files/a");
    let server = Server::start(move |seen| match seen.path.as_str() {
        "/out" => Reply::status(302).with(header::LOCATION, &to),
        "/twice" => Reply::status(307).with(header::LOCATION, "out"),
        "/loop" => Reply::status(301).with(header::LOCATION, "/loop"),
        "/ftp" => Reply::status(302).with(header::LOCATION, "ftp://127.0.0.1/a"),
        "/file" => Reply::status(302).with(header::LOCATION, "file:///etc/passwd"),
        _ => Reply::status(302),
    })
    .await;
    let here = format!("{}/", server.url(""));
    let (files, others) = (target.url("/files/"), target.url("/other/"));
    for (path, allowed) in [
        ("/out", vec![]),
        ("/out", vec![here.clone()]),
        ("/out", vec![here.clone(), others, "file".to_owned()]),
        ("/twice", vec![files.clone()]),
        ("/loop", vec!["*".to_owned()]),
        ("/ftp", vec!["*".to_owned()]),
        ("/file", vec!["*".to_owned(), "file".to_owned()]),
        ("/nowhere", vec!["*".to_owned()]),
    ] {
        let (place, mut wanted) = (Place::new(), wanted(&file, &server.url(path)));
        wanted.allowed_prefixes = allowed;
        let error = fails(&place.images(), &wanted).await;
        assert_eq!(error.code, "image_redirect_refused", "{path}: {error}");
    }
    assert_eq!(target.requests(), 0, "nothing was asked for there");
    assert_eq!(server.seen().iter().filter(|seen| seen.path == "/loop").count(), 6);
    for (path, allowed) in [("/out", vec![files.clone()]), ("/twice", vec![here, files]), ("/twice", vec!["*".to_owned()])] {
        let (place, mut wanted) = (Place::new(), wanted(&file, &server.url(path)));
        wanted.allowed_prefixes = allowed;
        assert_eq!(fetch(&place.images(), &wanted).await, Ok(stored(&file, false)), "{path}");
    }
}

/// Returns the configuration of an https server for `localhost`, and the certificate of its CA.
pub(super) fn localhost_tls() -> (rustls::ServerConfig, String) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = params.self_signed(&key).expect("a certificate");
    let issuer = rcgen::Issuer::new(params, key);
    let key = rcgen::KeyPair::generate().expect("a key");
    let leaf =
        rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name").signed_by(&key, &issuer).expect("signed");
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], rustls_pki_types::PrivatePkcs8KeyDer::from(key.serialize_der()).into())
        .expect("a configuration");
    (config, ca.pem())
}

#[tokio::test]
async fn an_https_server_must_be_vouched_for_by_somebody_whom_the_host_trusts() {
    if !crate::skip::has_localhost() {
        return crate::skip::skipped("`localhost` is not in /etc/hosts");
    }
    let (config, ca) = localhost_tls();
    let file = file_of(20, SIZE);
    let served = file.clone();
    let server = Server::start_tls(config, move |seen| Reply::good(&served, None, seen)).await;
    let place = Place::new();
    let at = |name: &str| place.folder.path().join(name);
    std::fs::write(at("ours.pem"), ca).expect("written");
    let stranger = rcgen::generate_simple_self_signed(vec!["other".to_owned()]).expect("a certificate");
    std::fs::write(at("theirs.pem"), format!("junk\n{}", stranger.cert.pem())).expect("written");
    let patience = Duration::from_secs(60);
    let wanted = wanted(&file, &format!("https://localhost:{}/a", server.port()));

    let error = fails(&place.images_trusting(u64::MAX, patience, vec![at("theirs.pem")]), &wanted).await;
    assert_eq!(error.code, "image_unreachable");
    assert!(error.message.contains("update-ca-certificates"), "{error}");
    let error = fails(&place.images_trusting(u64::MAX, patience, vec![at("missing.pem")]), &wanted).await;
    assert!(error.message.contains("ca-certificates"), "{error}");
    let error =
        fails(&place.images_trusting(u64::MAX, patience, super::super::tls::BUNDLES.map(Into::into).to_vec()), &wanted).await;
    assert_eq!(error.code, "image_unreachable", "the system's authorities know nothing of it: {error}");
    assert_eq!(server.requests(), 0, "nothing was asked for");

    let trusting = place.images_trusting(u64::MAX, patience, vec![at("missing.pem"), at("ours.pem")]);
    let other_name = super::wanted(&file, &server.url("/a"));
    assert_eq!(fails(&trusting, &other_name).await.code, "image_unreachable", "the certificate is for another name");
    assert_eq!(fetch(&trusting, &wanted).await, Ok(stored(&file, false)));
    let plain =
        super::wanted(&file_of(21, 10), &format!("https://localhost:{}/a", Server::start(|_| Reply::status(200)).await.port()));
    assert_eq!(fails(&trusting, &plain).await.code, "image_unreachable", "a server that does not speak TLS");
}
