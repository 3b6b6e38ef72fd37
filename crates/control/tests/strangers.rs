//! Attacks by unauthenticated callers, each with a legitimate user beside it who can still sign in.

#![allow(clippy::unwrap_used, reason = "tests")]

mod browser;
mod common;

use browser::*;
use common::TestServer;
use common::node::Host;
use gpuaas_contract::link::{EnrollPending, EnrollRequest, route};
use gpuaas_domain::enrollment::{MAX_WAITING, MAX_WAITING_PER_ADDRESS};
use gpuaas_identity::pkce::CodeVerifier;
use reqwest::StatusCode;
use serde_json::Value;

const ATTACKER: [u8; 4] = [127, 0, 0, 66];
const OFFICE: [u8; 4] = [127, 0, 0, 10];

/// Returns many addresses.
fn crowd(count: u16) -> impl Iterator<Item = [u8; 4]> {
    (0..count).map(|number| {
        let [high, low] = number.to_be_bytes();
        [127, 1, high, low]
    })
}

/// Requests a device code from this address.
async fn device_code(http: &reqwest::Client, server: &TestServer) -> (StatusCode, Option<u64>, Value) {
    let request = http.post(format!("{}/oauth/device_authorization", server.url()));
    let request = request.header("content-type", "application/x-www-form-urlencoded");
    let answer = request.body(encoded(&[("client_id", "gpuaas-cli"), ("scope", SCOPE)])).send().await.unwrap();
    let retry = answer.headers().get("retry-after").map(|value| value.to_str().unwrap().parse().unwrap());
    (answer.status(), retry, answer.json().await.unwrap())
}

fn http_from(address: [u8; 4]) -> reqwest::Client {
    common::plain_http_from(Some(address.into()))
}

/// Signs Ada in from the office, where everything works.
async fn ada_in_the_office(server: &TestServer) -> Browser {
    ada(server).await;
    let mut browser = Browser::at(server, OFFICE);
    browser.code(&CodeVerifier::generate()).await;
    browser
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn device_codes_of_one_address_or_of_all_strangers_leave_codes_for_others() {
    let server = TestServer::sqlite().await;
    ada_in_the_office(&server).await;
    let attacker = http_from(ATTACKER);
    let mut made = 0;
    let (status, retry, refused) = loop {
        let (status, retry, answer) = device_code(&attacker, &server).await;
        if status != StatusCode::OK {
            break (status, retry, answer);
        }
        made += 1;
        assert!(made <= 20, "one address makes rows without end");
    };
    assert_eq!((status, refused["code"].as_str()), (StatusCode::TOO_MANY_REQUESTS, Some("device_codes_exhausted")));
    assert!(retry.is_some_and(|seconds| seconds >= 1) && refused["error"] == "slow_down", "{refused}");
    assert_eq!(device_code(&http_from([127, 0, 0, 67]), &server).await.0, StatusCode::OK, "others are not meant");

    // A crowd uses up the budget of all strangers.
    let mut short = 0;
    for address in crowd(120) {
        let (http, mut own) = (http_from(address), 0);
        while device_code(&http, &server).await.0 == StatusCode::OK {
            own += 1;
        }
        made += own;
        short += usize::from(own < 20);
    }
    // A few are refilled while the crowd asks.
    assert!(made <= 2500 && short > 0, "{made} rows, {short} of the crowd got less than they may have");
    assert_eq!(device_code(&http_from(OFFICE), &server).await.0, StatusCode::OK, "whoever works here gets one");
    let metrics = server.metrics().await;
    assert!(metrics.contains("gpuaas_refusals_total{reason=\"device_codes_exhausted\"}"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guessing_user_codes_ends_soon_and_a_real_one_is_still_taken() {
    let server = TestServer::sqlite().await;
    ada_in_the_office(&server).await;
    let (device_code, user_code) = start_device(&server).await;
    let mut attacker = Browser::at(&server, ATTACKER);
    let csrf = attacker.get("/device").await.hidden()["csrf"].clone();
    let letters: Vec<char> = "BCDFGHJKLMNPQRSTVWXZ".chars().collect();
    let mut guesses = 0;
    let refused = loop {
        let guess: String = (0..8).map(|place| letters[(guesses * 7 + place * 3) % letters.len()]).collect();
        let page = attacker.post("/device", &[("user_code", &guess), ("csrf", &csrf)]).await;
        if page.status == StatusCode::TOO_MANY_REQUESTS {
            break page;
        }
        guesses += 1;
        assert!(guesses <= 10, "guesses without end");
    };
    assert!(refused.retry_after.is_some() && refused.html.contains("user_code_guesses_exhausted"));
    // Not even the right one: a lucky guess must look like any other.
    let page = attacker.post("/device", &[("user_code", &user_code), ("csrf", &csrf)]).await;
    assert_eq!(page.status, StatusCode::TOO_MANY_REQUESTS);
    let mut browser = Browser::at(&server, OFFICE);
    let question = asked(&mut browser, &user_code).await;
    assert_eq!(decides(&mut browser, &question, "approve").await.status, StatusCode::OK);
    assert!(poll(&server, &device_code).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_locks_somebody_else_out_by_typing_wrong_passwords() {
    let server = TestServer::sqlite().await;
    let office = ada_in_the_office(&server).await;
    for email in [EMAIL, "nobody@example.org"] {
        // A few attempts from each of many addresses, until the budget of all strangers for this account is used up.
        let mut tries = 0;
        for address in crowd(20) {
            let mut browser = Browser::at(&server, address);
            let page = browser.open(&CodeVerifier::generate()).await;
            while browser.types(&page, "/oauth/authorize", email, "wrong wrong wrong").await.status == StatusCode::FORBIDDEN {
                tries += 1;
            }
        }
        assert!((50..=52).contains(&tries), "{email}: {tries}, the same number whether there is such an account or not");
        let refused = Browser::at(&server, ATTACKER).tries(email, PASSWORD).await;
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
        assert!(refused.html.contains("sign_in_throttled") && refused.retry_after.is_some());
    }
    let from_the_office = Browser::at(&server, OFFICE).tries(EMAIL, PASSWORD).await;
    assert_eq!(from_the_office.status, StatusCode::SEE_OTHER, "where she signed in before");
    // With her browser, from anywhere.
    let mut abroad = Browser { cookies: office.cookies.clone(), ..Browser::at(&server, [127, 0, 0, 77]) };
    assert_eq!(abroad.tries(EMAIL, PASSWORD).await.status, StatusCode::SEE_OTHER);
    // The cookie of one account is not valid for another, and a forged one never is.
    let mut forged = Browser::at(&server, [127, 0, 0, 78]);
    forged.cookies = office.cookies.clone();
    assert_eq!(forged.tries("nobody@example.org", PASSWORD).await.status, StatusCode::TOO_MANY_REQUESTS);
    for value in forged.cookies.values_mut() {
        *value = value.replace('.', ".x");
    }
    assert_eq!(forged.tries(EMAIL, PASSWORD).await.status, StatusCode::TOO_MANY_REQUESTS);
    // Her own mistakes are counted too.
    let mut slips = 0;
    while abroad.tries(EMAIL, "wrong wrong wrong").await.status == StatusCode::FORBIDDEN {
        slips += 1;
        assert!(slips <= 10, "a stolen cookie guesses without end");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_passwords_to_compute_keeps_nobody_out() {
    let server = TestServer::sqlite().await;
    ada_in_the_office(&server).await;
    let stop = tokio_util::sync::CancellationToken::new();
    let mut flood = Vec::new();
    for (number, address) in crowd(12).enumerate() {
        for lane in 0..8 {
            let (mut browser, stop) = (Browser::at(&server, address), stop.clone());
            flood.push(tokio::spawn(async move {
                let page = browser.open(&CodeVerifier::generate()).await;
                while !stop.is_cancelled() {
                    let email = format!("nobody-{number}-{lane}@example.org");
                    browser.types(&page, "/oauth/authorize", &email, "wrong wrong wrong").await;
                }
            }));
        }
    }
    // A known user, and one who signs in for the first time.
    for (who, address) in [("known", OFFICE), ("new", [127, 0, 0, 11])] {
        let mut served = 0;
        for _ in 0..3 {
            let answer = Browser::at(&server, address).tries(EMAIL, PASSWORD).await;
            assert_eq!(answer.status, StatusCode::SEE_OTHER, "{who}: {}", answer.html);
            served += 1;
        }
        assert_eq!(served, 3);
    }
    stop.cancel();
    for one in flood {
        one.await.unwrap();
    }
}

/// Returns an enrollment request of a separate machine.
fn request(host: &Host, number: usize) -> EnrollRequest {
    let mut applicant = host.applicant();
    applicant.fingerprint = format!("{}-{number:06}", host.fingerprint);
    EnrollRequest { email: "ops@example.org".to_owned(), applicant }
}

async fn knock(http: &reqwest::Client, host: &Host, request: &EnrollRequest) -> Result<EnrollPending, (u16, String, bool)> {
    let answer = http.post(host.url(route::ENROLL_REQUEST)).json(request).send().await.unwrap();
    let (status, has_retry) = (answer.status().as_u16(), answer.headers().contains_key("retry-after"));
    if status == 200 {
        return Ok(answer.json().await.unwrap());
    }
    let problem: Value = answer.json().await.unwrap();
    Err((status, problem["code"].as_str().unwrap().to_owned(), has_retry))
}

common::on_both_stores! {
    async fn one_address_cannot_fill_the_queue_of_those_who_want_to_be_enrolled(server: TestServer) {
        let host = Host::new(&server);
        let attacker = host.anonymous_from(ATTACKER);
        for number in 0..usize::try_from(MAX_WAITING_PER_ADDRESS).unwrap() {
            knock(&attacker, &host, &request(&host, number)).await.unwrap();
        }
        let refused = knock(&attacker, &host, &request(&host, 9999)).await.unwrap_err();
        assert_eq!(refused, (429, "too_many_enrollments_from_address".to_owned(), true));
        // The same machine again is the same request: it keeps its place, with a new secret.
        let first = knock(&host.anonymous_from(OFFICE), &host, &request(&host, 5000)).await.unwrap();
        let again = knock(&host.anonymous_from(OFFICE), &host, &request(&host, 5000)).await.unwrap();
        assert_eq!(first.enrollment_id, again.enrollment_id);
        assert_ne!(first.poll_secret, again.poll_secret);
        // From elsewhere, or with another key, it is another request: it cannot take over a place.
        let elsewhere = knock(&host.anonymous_from([127, 0, 0, 11]), &host, &request(&host, 5000)).await.unwrap();
        assert_ne!(elsewhere.enrollment_id, first.enrollment_id);
        let other = Host { fingerprint: host.fingerprint.clone(), ..Host::new(&server) };
        let other = knock(&host.anonymous_from(OFFICE), &other, &request(&other, 5000)).await.unwrap();
        assert_ne!(other.enrollment_id, first.enrollment_id);
        assert!(server.metrics().await.contains("gpuaas_refusals_total{reason=\"too_many_enrollments_from_address\"} 1"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_still_has_room_for_a_host_from_elsewhere() {
    let server = TestServer::sqlite().await;
    let host = Host::new(&server);
    let per_address = usize::try_from(MAX_WAITING_PER_ADDRESS).unwrap();
    for (row, address) in crowd(u16::try_from(MAX_WAITING / MAX_WAITING_PER_ADDRESS).unwrap()).enumerate() {
        let http = host.anonymous_from(address);
        for number in 0..per_address {
            knock(&http, &host, &request(&host, row * per_address + number)).await.unwrap();
        }
    }
    let mine = knock(&host.anonymous_from(OFFICE), &host, &request(&host, 999_999)).await.expect("there is room");
    let waits = server.client().enrollment(&mine.enrollment_id.to_string()).await.unwrap();
    assert_eq!((waits.state.as_str(), waits.address.as_str()), ("pending", "127.0.0.10"));
}
