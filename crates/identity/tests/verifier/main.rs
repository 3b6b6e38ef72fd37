//! Tokens of an issuer on a loopback address: which are accepted, which are refused, and how often the issuer is asked.

mod issuer;

use std::time::Duration;

use gpuaas_contract::time::Timestamp;
use gpuaas_identity::verifier::{BadIssuers, HttpOptions, IssuerConfig, Source, Verifier};
use issuer::{Issuer, Key, tls};
use serde_json::{Value, json};

const AUDIENCE: &str = "https://api.cloud.example";
const NOW: Timestamp = Timestamp(1_800_000_000_000_000);

fn later(seconds: u64) -> Timestamp {
    NOW.plus(Duration::from_secs(seconds))
}

fn verifier(issuer: &str) -> Verifier {
    let config = IssuerConfig { issuer: issuer.to_owned(), audience: AUDIENCE.to_owned(), jwks: Source::Discovery };
    Verifier::new(vec![config], HttpOptions::new(tls())).expect("a verifier")
}

fn claims_at(issuer: &str, now: Timestamp) -> Value {
    let now = now.0 / 1_000_000;
    json!({ "iss": issuer, "sub": "person-1", "aud": AUDIENCE, "iat": now, "exp": now + 600, "sid": "session-1" })
}

fn claims(issuer: &str) -> Value {
    claims_at(issuer, NOW)
}

fn with(mut claims: Value, name: &str, value: Value) -> Value {
    claims[name] = value;
    claims
}

async fn code(verifier: &Verifier, token: &str, now: Timestamp) -> &'static str {
    verifier.verify(token, now).await.err().map_or("fine", |error| error.code())
}

#[tokio::test]
async fn keys_of_every_kind_are_taken() {
    let keys = [Key::p256("ec"), Key::ed25519("ed"), Key::rsa("rsa")];
    let issuer = Issuer::start(&keys).await;
    let verifier = verifier(&issuer.url);
    for (key, algorithm) in [(&keys[0], "ES256"), (&keys[1], "EdDSA"), (&keys[2], "RS256"), (&keys[2], "PS256")] {
        let token = key.sign(&json!({ "alg": algorithm, "kid": key.kid, "typ": "JWT" }), &claims(&issuer.url));
        let claims = verifier.verify(&token, NOW).await.unwrap_or_else(|error| panic!("{algorithm}: {error}"));
        assert_eq!((claims.issuer.as_str(), claims.subject.as_str()), (issuer.url.as_str(), "person-1"));
        assert_eq!((claims.issued_at, claims.expires_at), (NOW, later(600)));
        assert_eq!(claims.session.as_deref(), Some("session-1"));
    }
    assert_eq!(issuer.fetches(), 1);
}

#[tokio::test]
async fn claims_for_others_and_of_other_times_are_refused_without_asking_the_issuer() {
    let key = Key::p256("a");
    let issuer = Issuer::start(std::slice::from_ref(&key)).await;
    let verifier = verifier(&issuer.url);
    let good = claims(&issuer.url);
    for (claims, refusal) in [
        (with(good.clone(), "exp", json!(1_700_000_000)), "token_expired"),
        (with(good.clone(), "aud", json!("https://other.example")), "token_audience"),
        (with(good.clone(), "iss", json!("https://other.example")), "token_issuer"),
        (with(good.clone(), "iss", json!(format!("{}/", issuer.url))), "token_issuer"),
        (with(good.clone(), "nbf", json!(1_800_000_061)), "token_not_yet_valid"),
        (with(good.clone(), "exp", json!(1_800_000_000 + 86_401)), "token_lives_too_long"),
    ] {
        assert_eq!(code(&verifier, &key.token(&claims), NOW).await, refusal, "{claims}");
    }
    assert_eq!(issuer.fetches(), 0);
    assert_eq!(code(&verifier, &key.token(&good), NOW).await, "fine");
}

#[tokio::test]
async fn no_header_makes_a_public_key_a_secret_or_a_signature_needless() {
    let key = Key::p256("a");
    let issuer = Issuer::start(std::slice::from_ref(&key)).await;
    let verifier = verifier(&issuer.url);
    let good = claims(&issuer.url);
    let token = key.token(&good);
    assert_eq!(code(&verifier, &token, NOW).await, "fine");

    let (signed, signature) = token.rsplit_once('.').expect("a signature");
    for name in ["none", "None", "NONE", "nOnE"] {
        let unsigned = issuer::unsigned(&json!({ "alg": name, "kid": "a" }), &good);
        assert_eq!(code(&verifier, &format!("{unsigned}."), NOW).await, "token_algorithm", "{name}");
        assert_eq!(code(&verifier, &format!("{unsigned}.{signature}"), NOW).await, "token_algorithm", "{name}");
    }
    let mut header = jsonwebtoken::Header::new(jsonwebtoken::Algorithm::HS256);
    header.kid = Some("a".to_owned());
    for secret in [key.public.clone(), key.jwk.to_string().into_bytes()] {
        let forged = jsonwebtoken::encode(&header, &good, &jsonwebtoken::EncodingKey::from_secret(&secret)).expect("a token");
        assert_eq!(code(&verifier, &forged, NOW).await, "token_algorithm");
    }
    for (header, refusal) in [
        (json!({ "alg": "RS256", "kid": "a" }), "token_algorithm"),
        (json!({ "alg": "ES384", "kid": "a" }), "token_algorithm"),
        (json!({ "alg": "ES256", "kid": "a", "crit": ["b64"], "b64": false }), "token_critical_header"),
        (json!({ "alg": "ES256", "kid": "a", "typ": "dpop+jwt" }), "token_type"),
    ] {
        assert_eq!(code(&verifier, &key.sign(&header, &good), NOW).await, refusal, "{header}");
    }
    // A key in the token's header is ignored.
    let thief = Key::p256("a");
    let smuggled = thief.sign(&json!({ "alg": "ES256", "kid": "a", "jwk": thief.jwk, "jku": "https://evil.example" }), &good);
    assert_eq!(code(&verifier, &smuggled, NOW).await, "token_signature");
    assert_eq!(code(&verifier, &format!("{signed}."), NOW).await, "token_signature");
    let other = issuer::unsigned(&json!({ "alg": "ES256", "kid": "a" }), &with(good, "sub", json!("admin")));
    assert_eq!(code(&verifier, &format!("{other}.{signature}"), NOW).await, "token_signature");
    assert_eq!(code(&verifier, &"a".repeat(16 * 1024 + 1), NOW).await, "token_too_long");
}

#[tokio::test]
async fn a_token_must_name_its_key_where_there_are_several() {
    let (one, two) = (Key::p256("one"), Key::p256("two"));
    let issuer = Issuer::start(std::slice::from_ref(&one)).await;
    let nameless = one.sign(&json!({ "alg": "ES256" }), &claims(&issuer.url));
    assert_eq!(code(&verifier(&issuer.url), &nameless, NOW).await, "fine");
    issuer.publish(&[&one, &two]);
    assert_eq!(code(&verifier(&issuer.url), &nameless, NOW).await, "token_key_name_needed");
    // Keys for other purposes are ignored.
    let mut encryption = two.jwk.clone();
    encryption["use"] = json!("enc");
    issuer.publish_json(json!({ "keys": [encryption, { "kty": "oct", "k": "AAAA", "kid": "one" }, one.jwk] }));
    assert_eq!(code(&verifier(&issuer.url), &nameless, NOW).await, "fine");
}

#[tokio::test]
async fn keys_rotate_without_a_restart() {
    let (old, new) = (Key::p256("old"), Key::ed25519("new"));
    let issuer = Issuer::start(std::slice::from_ref(&old)).await;
    let verifier = verifier(&issuer.url);
    let (by_old, by_new) = (old.token(&claims(&issuer.url)), new.token(&claims(&issuer.url)));
    assert_eq!(code(&verifier, &by_old, NOW).await, "fine");
    issuer.publish(&[&old, &new]);
    assert_eq!(code(&verifier, &by_new, later(1)).await, "fine");
    assert_eq!(code(&verifier, &by_old, later(1)).await, "fine");
    assert_eq!(issuer.fetches(), 2);
    // A removed key is no longer accepted after the next refresh, which runs in the background.
    issuer.publish(&[&new]);
    assert_eq!(code(&verifier, &by_old, later(301)).await, "fine");
    let taken_back = async {
        while code(&verifier, &by_old, later(302)).await == "fine" {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), taken_back).await.expect("the old key goes");
    assert_eq!(code(&verifier, &by_old, later(302)).await, "token_key_unknown");
    assert_eq!(code(&verifier, &by_new, later(302)).await, "fine");
}

#[tokio::test]
async fn a_flood_of_unknown_keys_makes_no_flood_of_requests() {
    let key = Key::p256("known");
    let issuer = Issuer::start(std::slice::from_ref(&key)).await;
    let verifier = verifier(&issuer.url);
    assert_eq!(code(&verifier, &key.token(&claims(&issuer.url)), NOW).await, "fine");
    let forged = |name: String| key.sign(&json!({ "alg": "ES256", "kid": name }), &claims(&issuer.url));
    for number in 0..100 {
        assert_eq!(code(&verifier, &forged(format!("first-{number}")), later(1)).await, "token_key_unknown");
    }
    assert_eq!(issuer.fetches(), 2);
    // After the pause a known unknown id still causes no request; another id causes one more.
    assert_eq!(code(&verifier, &forged("first-0".to_owned()), later(40)).await, "token_key_unknown");
    assert_eq!(issuer.fetches(), 2);
    for number in 0..100 {
        assert_eq!(code(&verifier, &forged(format!("second-{number}")), later(40)).await, "token_key_unknown");
    }
    assert_eq!(issuer.fetches(), 3);
    assert_eq!(code(&verifier, &key.token(&claims(&issuer.url)), later(40)).await, "fine");
}

#[tokio::test]
async fn many_tokens_at_once_share_one_fetch() {
    let key = Key::p256("a");
    let issuer = Issuer::start(std::slice::from_ref(&key)).await;
    let verifier = std::sync::Arc::new(verifier(&issuer.url));
    let token = key.token(&claims(&issuer.url));
    let mut requests = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let (verifier, token) = (std::sync::Arc::clone(&verifier), token.clone());
        requests.spawn(async move { code(&verifier, &token, NOW).await });
    }
    assert!(requests.join_all().await.into_iter().all(|code| code == "fine"));
    assert_eq!(issuer.fetches(), 1);
}

#[tokio::test]
async fn a_caller_that_goes_away_does_not_cut_the_fetch_off() {
    let key = Key::p256("a");
    let issuer = Issuer::start(std::slice::from_ref(&key)).await;
    let verifier = verifier(&issuer.url);
    let token = key.token(&claims(&issuer.url));
    for _ in 0..20 {
        let gone = tokio::time::timeout(Duration::ZERO, verifier.verify(&token, NOW)).await;
        assert!(gone.is_err() || gone.is_ok_and(|result| result.is_ok()));
    }
    assert_eq!(code(&verifier, &token, NOW).await, "fine");
    assert_eq!(issuer.fetches(), 1);
}

#[tokio::test]
async fn keys_are_used_for_an_hour_while_the_issuer_is_down_and_then_no_longer() {
    let key = Key::p256("a");
    let issuer = Issuer::start(std::slice::from_ref(&key)).await;
    let verifier = verifier(&issuer.url);
    let token_at = |now| key.token(&claims_at(&issuer.url, now));
    assert_eq!(code(&verifier, &token_at(NOW), NOW).await, "fine");
    issuer.set_down(true);
    for seconds in [299, 300, 1800, 3599] {
        assert_eq!(code(&verifier, &token_at(later(seconds)), later(seconds)).await, "fine", "after {seconds} s");
    }
    let refused = verifier.verify(&token_at(later(3600)), later(3600)).await.expect_err("an hour is over");
    assert_eq!(refused.code(), "issuer_unavailable");
    assert!(refused.is_outage() && std::error::Error::source(&refused).is_some());
    // While the issuer is down it is not asked for every token: at most once more for the first of these.
    assert_eq!(code(&verifier, &token_at(later(3601)), later(3601)).await, "issuer_unavailable");
    let asked = issuer.discoveries();
    for _ in 0..20 {
        assert_eq!(code(&verifier, &token_at(later(3601)), later(3601)).await, "issuer_unavailable");
    }
    assert_eq!(issuer.discoveries(), asked);
    issuer.set_down(false);
    assert_eq!(code(&verifier, &token_at(later(3700)), later(3700)).await, "fine");
}

#[tokio::test]
async fn an_issuer_that_is_not_what_it_says_gives_no_keys() {
    let key = Key::p256("a");
    let token = |issuer: &Issuer| key.token(&claims(&issuer.url));
    let reason = async |issuer: &Issuer| {
        let error = verifier(&issuer.url).verify(&token(issuer), NOW).await.expect_err("no keys");
        assert_eq!(error.code(), "issuer_unavailable");
        std::error::Error::source(&error).expect("a reason").to_string()
    };
    let issuer = Issuer::start(std::slice::from_ref(&key)).await;
    issuer.set_discovery(json!({ "issuer": "https://other.example", "jwks_uri": format!("{}/jwks", issuer.url) }));
    assert!(reason(&issuer).await.contains("names the issuer `https://other.example`"));
    issuer.set_discovery(json!({ "issuer": format!("{}/", issuer.url), "jwks_uri": format!("{}/jwks", issuer.url) }));
    assert!(reason(&issuer).await.contains("names the issuer"));
    issuer.set_discovery(json!({ "issuer": issuer.url, "jwks_uri": "http://keys.example/jwks" }));
    assert!(reason(&issuer).await.contains("https://"));
    issuer.set_discovery(json!({ "issuer": issuer.url }));
    assert!(reason(&issuer).await.contains("jwks_uri"));
    issuer.set_discovery(json!({ "issuer": issuer.url, "jwks_uri": format!("{}/redirect", issuer.url) }));
    assert!(reason(&issuer).await.contains("307"));
    assert_eq!(issuer.fetches(), 0);

    let issuer = Issuer::start(&[]).await;
    assert!(reason(&issuer).await.contains("usable"));
    issuer.publish_json(json!({ "keys": vec![&key.jwk; 65] }));
    assert!(reason(&issuer).await.contains("65 keys"));
    issuer.publish_json(json!({ "keys": [&key.jwk], "padding": "x".repeat(256 * 1024) }));
    assert!(reason(&issuer).await.contains("more than 262144 bytes"));
    issuer.publish_json(json!([]));
    assert!(reason(&issuer).await.contains("keys"));
}

#[tokio::test]
async fn configurations_that_would_take_too_much_are_refused() {
    let config = |issuer: &str, audience: &str| IssuerConfig {
        issuer: issuer.to_owned(),
        audience: audience.to_owned(),
        jwks: Source::Discovery,
    };
    let refusal = |configs| Verifier::new(configs, HttpOptions::new(tls())).err();
    assert!(matches!(refusal(vec![config("http://issuer.example", "a")]), Some(BadIssuers::Address(_))));
    assert!(matches!(refusal(vec![config("https://issuer.example", "")]), Some(BadIssuers::NoAudience(_))));
    assert!(matches!(refusal(vec![config("", "a")]), Some(BadIssuers::NoName)));
    assert!(matches!(
        refusal(vec![config("https://i.example", "a"), config("https://i.example", "b")]),
        Some(BadIssuers::Twice(_))
    ));
    assert!(refusal(vec![config("https://i.example", "a"), config("https://i.example/", "a")]).is_none());
}
