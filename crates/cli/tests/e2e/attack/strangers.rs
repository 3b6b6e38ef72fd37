//! Attacks without credentials, through the pages and endpoints that are open to everybody.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use gpuaas_contract::key::SigningKey;
use gpuaas_contract::link::{Applicant, EnrollRequest, route};
use gpuaas_contract::telemetry::HostFacts;
use gpuaas_testkit::PATIENCE;

use super::http::{self, Answer, Request};
use super::sockets::{connector, sources};
use super::target::Target;
use super::{PATIENCE_ALONE, PATIENCE_BESIDE_TESTS, is_long, withstand};
use crate::cluster::{AgentHost, Carrier};

const EMAIL: &str = "ada@example.org";
const PASSWORD: &str = "seven green lanterns";
/// Address of the legitimate user.
const USER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);

pub(super) fn time() -> Duration {
    if is_long() { Duration::from_secs(20) } else { Duration::from_secs(5) }
}

pub(super) fn patience() -> Duration {
    if is_long() { PATIENCE_ALONE } else { PATIENCE_BESIDE_TESTS }
}

/// An attacker who repeats one action.
type Stranger = Box<dyn FnMut() -> BoxFuture<'static, ()> + Send>;

/// Lets `strangers` repeat their actions while `user` works. Returns how often each side acted, and the user's longest wait.
fn beside(strangers: Vec<Stranger>, user: impl AsyncFn() -> Result<(), String>) -> (usize, usize, Duration) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let attempts = Arc::new(AtomicUsize::new(0));
    let (served, slowest) = runtime.block_on(async {
        for mut stranger in strangers {
            let attempts = Arc::clone(&attempts);
            tokio::spawn(async move {
                loop {
                    stranger().await;
                    attempts.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let started = Instant::now();
        let (mut served, mut slowest) = (0, Duration::ZERO);
        while started.elapsed() < time() {
            // At a human pace, because users have a rate limit too.
            tokio::time::sleep(time() / 8).await;
            let asked = Instant::now();
            user().await.unwrap_or_else(|error| panic!("the legitimate user was turned away: {error}"));
            served += 1;
            slowest = slowest.max(asked.elapsed());
        }
        (served, slowest)
    });
    runtime.shutdown_background();
    let attempts = attempts.load(Ordering::Relaxed);
    assert!(attempts > 0, "the attack did not happen");
    assert!(slowest <= patience(), "the legitimate user waited {slowest:?}");
    (attempts, served, slowest)
}

fn encoded(fields: &[(&str, &str)]) -> String {
    let escape = |text: &str| -> String {
        text.bytes()
            .map(|byte| match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
                _ => format!("%{byte:02X}"),
            })
            .collect()
    };
    fields.iter().map(|(name, value)| format!("{}={}", escape(name), escape(value))).collect::<Vec<_>>().join("&")
}

/// Opens the sign-in page as a browser does, and submits its form with these credentials.
async fn sign_in(from: Ipv4Addr, api: std::net::SocketAddr, email: &str, password: &str) -> Result<Answer, String> {
    let challenge = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";
    let query = encoded(&[
        ("response_type", "code"),
        ("client_id", "gpuaas-cli"),
        ("redirect_uri", "http://127.0.0.1:4711/callback"),
        ("scope", "openid"),
        ("state", "s-1"),
        ("code_challenge", challenge),
        ("code_challenge_method", "S256"),
    ]);
    let path = format!("/oauth/authorize?{query}");
    let page = http::send(from, api, &Request { method: "GET", path: &path, token: None, body: None, headers: &[] }).await?;
    if page.status != 200 {
        return Ok(page);
    }
    let cookie = page.header("set-cookie").and_then(|cookie| cookie.split(';').next().map(str::to_owned)).unwrap_or_default();
    let mut fields: Vec<(String, String)> = Vec::new();
    for input in page.body.split("<input type=\"hidden\" name=\"").skip(1) {
        if let Some((name, rest)) = input.split_once("\" value=\"") {
            fields.push((name.to_owned(), rest.split('"').next().unwrap_or_default().replace("&amp;", "&")));
        }
    }
    fields.push(("email".to_owned(), email.to_owned()));
    fields.push(("password".to_owned(), password.to_owned()));
    let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let form = encoded(&fields);
    let headers = [("cookie", cookie.as_str()), ("origin", "null"), ("sec-fetch-site", "same-origin")];
    http::send(from, api, &Request { headers: &headers, ..Request::form("/oauth/authorize", &form) }).await
}

#[test]
fn wrong_passwords_of_strangers_do_not_keep_anybody_from_signing_in() {
    let mut target = Target::start();
    let password_file = target.cluster.dir.join("password");
    std::fs::write(&password_file, PASSWORD).unwrap();
    let password_file = password_file.display().to_string();
    target.cluster.json(&["user", "create", EMAIL, "--password-file", &password_file]);
    withstand("passwords", &mut target, |target| {
        let api = target.api();
        let strangers = sources(8).into_iter().cycle().take(32).enumerate().map(|(number, from)| -> Stranger {
            // Half of the attackers know an e-mail address that exists.
            let email = if number % 2 == 0 { EMAIL.to_owned() } else { format!("nobody-{number}@example.org") };
            Box::new(move || {
                let email = email.clone();
                Box::pin(async move {
                    let _ = sign_in(from, api, &email, "wrong wrong wrong").await;
                })
            })
        });
        let user = async || match sign_in(USER, api, EMAIL, PASSWORD).await? {
            answer if answer.status == 303 => Ok(()),
            answer => Err(format!("{answer:?}")),
        };
        // A user who has signed in from this address before, as most users have.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(user()).expect("signs in before the attack");
        let (attempts, served, slowest) = beside(strangers.collect(), user);
        format!("{attempts} wrong passwords tried, {served} sign-ins of the owner, slowest {} ms", slowest.as_millis())
    });
}

#[test]
fn a_flood_of_device_codes_does_not_keep_anybody_from_getting_one() {
    let mut target = Target::start();
    withstand("device-codes", &mut target, |target| {
        let api = target.api();
        let form = "client_id=gpuaas-cli&scope=openid";
        let strangers = sources(8).into_iter().cycle().take(32).map(|from| -> Stranger {
            Box::new(move || {
                Box::pin(async move {
                    let _ = http::send(from, api, &Request::form("/oauth/device_authorization", form)).await;
                })
            })
        });
        let user = async || match http::send(USER, api, &Request::form("/oauth/device_authorization", form)).await? {
            answer if answer.status == 200 => Ok(()),
            answer => Err(format!("{answer:?}")),
        };
        let (attempts, served, slowest) = beside(strangers.collect(), user);
        format!("{attempts} device codes asked for, {served} by the user, slowest {} ms", slowest.as_millis())
    });
}

#[test]
fn a_flood_of_enrollment_requests_does_not_keep_a_host_out() {
    let mut target = Target::start();
    withstand("enrollment-queue", &mut target, |target| {
        let (link, connector) = (target.link(), connector(target));
        let key = rcgen::KeyPair::generate().expect("a key");
        let csr = rcgen::CertificateParams::default().serialize_request(&key).and_then(|csr| csr.pem()).expect("a request");
        let receipt_key = SigningKey::from_seed(&[7; 32]).verifying_key();
        let number = Arc::new(AtomicUsize::new(0));
        let (accepted, refused) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let strangers = sources(8).into_iter().cycle().take(16).map(|from| -> Stranger {
            let (connector, csr, receipt_key, number) =
                (connector.clone(), csr.clone(), receipt_key.clone(), Arc::clone(&number));
            let (accepted, refused) = (Arc::clone(&accepted), Arc::clone(&refused));
            Box::new(move || {
                let number = number.fetch_add(1, Ordering::Relaxed);
                let (connector, accepted, refused) = (connector.clone(), Arc::clone(&accepted), Arc::clone(&refused));
                let facts = HostFacts { hostname: format!("host-{number}"), ..HostFacts::default() };
                let fingerprint = format!("fingerprint-of-host-{number:08}");
                let applicant = Applicant { fingerprint, csr_pem: csr.clone(), receipt_key: receipt_key.clone(), facts };
                let request = EnrollRequest { email: "eve@example.org".to_owned(), applicant };
                let body = serde_json::to_string(&request).expect("JSON");
                Box::pin(async move {
                    let request = Request { token: None, ..Request::json(route::ENROLL_REQUEST, "", &body) };
                    let counter = match http::send_tls(from, link, &connector, &request).await {
                        Ok(answer) if answer.status == 200 => &accepted,
                        Ok(_) | Err(_) => &refused,
                    };
                    counter.fetch_add(1, Ordering::Relaxed);
                })
            })
        });
        // A host whose owner has read its key out to an operator.
        let host = AgentHost::new(&target.cluster, "gpu-2", Carrier::Stream, Some("h100"), None);
        let pin = target.cluster.ca_pin();
        let (attempts, ..) = beside(strangers.collect(), async || Ok(()));
        let mut enrolling = host.agent_in_background(&[
            "enroll",
            "--server",
            &target.cluster.link,
            "--email",
            "op@example.org",
            "--ca-sha256",
            &pin,
        ]);
        let line = enrolling.wait_for_line("waiting for an operator", PATIENCE);
        let id = line.split_whitespace().find(|word| word.starts_with("enroll_")).unwrap_or_else(|| panic!("no id in {line}"));
        // The operator approves the host with the key that the owner read out.
        let told = enrolling.wait_for_line("receipt key is", PATIENCE);
        let key = told.split("receipt key is ").nth(1).and_then(|rest| rest.split(';').next()).unwrap_or_default();
        let requests = target.cluster.cli(&["node", "requests"]).stdout;
        assert!(!key.is_empty() && requests.contains(key), "`{key}` is not among the requests");
        target.cluster.json(&["node", "approve", id]);
        assert!(enrolling.wait(PATIENCE).success(), "the host did not get in");
        let (accepted, refused) = (accepted.load(Ordering::Relaxed), refused.load(Ordering::Relaxed));
        format!("{attempts} requests of strangers ({accepted} taken, {refused} refused), and a host was enrolled by approval")
    });
}
