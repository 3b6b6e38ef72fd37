//! A small issuer on a loopback address, and keys that sign anything.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RSA_PSS_SHA256, RsaEncoding,
    RsaKeyPair,
};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

/// Returns a TLS configuration without trusted authorities: this issuer uses plain HTTP.
pub(crate) fn tls() -> rustls::ClientConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions of TLS")
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth()
}

enum Pair {
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
    Rsa(Box<RsaKeyPair>),
}

/// A key pair with its published half.
pub(crate) struct Key {
    pub(crate) kid: &'static str,
    pub(crate) jwk: Value,
    /// The bytes of the public key.
    pub(crate) public: Vec<u8>,
    pair: Pair,
}

impl Key {
    pub(crate) fn p256(kid: &'static str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key");
        let public = pair.public_key().as_ref().to_vec();
        let (x, y) = (URL_SAFE_NO_PAD.encode(&public[1..33]), URL_SAFE_NO_PAD.encode(&public[33..65]));
        let jwk = json!({ "kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": kid, "use": "sig", "alg": "ES256" });
        Self { kid, jwk, public, pair: Pair::P256(pair) }
    }

    pub(crate) fn ed25519(kid: &'static str) -> Self {
        let pair = Ed25519KeyPair::generate().expect("a key");
        let public = pair.public_key().as_ref().to_vec();
        let jwk = json!({ "kty": "OKP", "crv": "Ed25519", "x": URL_SAFE_NO_PAD.encode(&public), "kid": kid });
        Self { kid, jwk, public, pair: Pair::Ed25519(pair) }
    }

    pub(crate) fn rsa(kid: &'static str) -> Self {
        let pair = RsaKeyPair::generate(KeySize::Rsa2048).expect("a key");
        let public = pair.public_key().as_ref().to_vec();
        // RSAPublicKey in DER: a sequence of the modulus (256 bytes after a zero) and the exponent (three bytes).
        assert_eq!((public.len(), &public[..9]), (270, &[0x30, 0x82, 0x01, 0x0a, 0x02, 0x82, 0x01, 0x01, 0x00][..]));
        let (n, e) = (URL_SAFE_NO_PAD.encode(&public[9..265]), URL_SAFE_NO_PAD.encode(&public[267..]));
        let jwk = json!({ "kty": "RSA", "n": n, "e": e, "kid": kid, "use": "sig" });
        Self { kid, jwk, public, pair: Pair::Rsa(Box::new(pair)) }
    }

    /// Returns a token with a correct header.
    pub(crate) fn token(&self, claims: &Value) -> String {
        let algorithm = match &self.pair {
            Pair::P256(_) => "ES256",
            Pair::Ed25519(_) => "EdDSA",
            Pair::Rsa(_) => "RS256",
        };
        self.sign(&json!({ "alg": algorithm, "kid": self.kid, "typ": "JWT" }), claims)
    }

    /// Returns a token with any header. An RSA key signs with the algorithm in the header.
    pub(crate) fn sign(&self, header: &Value, claims: &Value) -> String {
        let message = unsigned(header, claims);
        let random = SystemRandom::new();
        let signature = match &self.pair {
            Pair::P256(pair) => pair.sign(&random, message.as_bytes()).expect("a signature").as_ref().to_vec(),
            Pair::Ed25519(pair) => pair.sign(message.as_bytes()).as_ref().to_vec(),
            Pair::Rsa(pair) => {
                let padding: &dyn RsaEncoding = if header["alg"] == "PS256" { &RSA_PSS_SHA256 } else { &RSA_PKCS1_SHA256 };
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(padding, &random, message.as_bytes(), &mut signature).expect("a signature");
                signature
            }
        };
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// Returns header and claims without a signature.
pub(crate) fn unsigned(header: &Value, claims: &Value) -> String {
    format!("{}.{}", URL_SAFE_NO_PAD.encode(header.to_string()), URL_SAFE_NO_PAD.encode(claims.to_string()))
}

struct Shared {
    discovery: Mutex<Value>,
    keys: Mutex<Value>,
    fetches: AtomicUsize,
    discoveries: AtomicUsize,
    down: AtomicBool,
}

/// The issuer. It counts the requests.
pub(crate) struct Issuer {
    pub(crate) url: String,
    shared: Arc<Shared>,
}

impl Issuer {
    pub(crate) async fn start(keys: &[Key]) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let shared = Arc::new(Shared {
            discovery: Mutex::new(json!({ "issuer": url, "jwks_uri": format!("{url}/jwks") })),
            keys: Mutex::default(),
            fetches: AtomicUsize::new(0),
            discoveries: AtomicUsize::new(0),
            down: AtomicBool::new(false),
        });
        let issuer = Self { url, shared: Arc::clone(&shared) };
        issuer.publish(&keys.iter().collect::<Vec<_>>());
        let router = Router::new()
            .route("/.well-known/openid-configuration", get(discovery))
            .route("/jwks", get(jwks))
            .route("/redirect", get(async || Redirect::temporary("/jwks")))
            .with_state(shared);
        tokio::spawn(async move { axum::serve(listener, router).await });
        issuer
    }

    pub(crate) fn publish(&self, keys: &[&Key]) {
        let keys: Vec<&Value> = keys.iter().map(|key| &key.jwk).collect();
        self.publish_json(json!({ "keys": keys }));
    }

    pub(crate) fn publish_json(&self, keys: Value) {
        *self.shared.keys.lock().expect("the keys") = keys;
    }

    pub(crate) fn set_discovery(&self, document: Value) {
        *self.shared.discovery.lock().expect("the document") = document;
    }

    pub(crate) fn set_down(&self, down: bool) {
        self.shared.down.store(down, Ordering::SeqCst);
    }

    /// Returns how often the keys were fetched.
    pub(crate) fn fetches(&self) -> usize {
        self.shared.fetches.load(Ordering::SeqCst)
    }

    /// Returns how often the discovery document was requested, also while the issuer is down.
    pub(crate) fn discoveries(&self) -> usize {
        self.shared.discoveries.load(Ordering::SeqCst)
    }
}

async fn discovery(State(shared): State<Arc<Shared>>) -> Response {
    shared.discoveries.fetch_add(1, Ordering::SeqCst);
    if shared.down.load(Ordering::SeqCst) {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    axum::Json(shared.discovery.lock().expect("the document").clone()).into_response()
}

async fn jwks(State(shared): State<Arc<Shared>>) -> Response {
    shared.fetches.fetch_add(1, Ordering::SeqCst);
    axum::Json(shared.keys.lock().expect("the keys").clone()).into_response()
}
