//! step-ca as the certificate authority: the control plane is its registration authority and has no CA key.
//!
//! The control plane authenticates a node, as always: at enrollment, by its store. For each certificate it creates an X5C token
//! with its enrollment certificate, for one name, one request and one use. step-ca signs exactly what the token says, and the
//! result is checked before it is used. Agents never connect to step-ca.

mod credential;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use gpuaas_contract::id::{ClusterId, NodeId};
use gpuaas_contract::link::SERVER_NAME;
use gpuaas_contract::time::Timestamp;
use rcgen::{
    CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType, DnValue, KeyPair, PublicKeyData as _,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject as _};
use sha2::Digest as _;
use tokio::sync::Semaphore;

use self::credential::{Credential, TokenClaims};
use super::{CaError, Issued, ServerCertificate, check, parse_request, pem_text, pin_of};
use crate::pki::files;

/// Time limit for one answer, including the connection. Shorter than the agents' time limit.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(8);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest wait for a turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of concurrent requests.
const MAX_REQUESTS: usize = 16;
/// Size limit of an answer.
const MAX_ANSWER: usize = 64 * 1024;
/// Maximum number of certificates of a chain.
const MAX_CHAIN: usize = 4;
/// Maximum number of characters of step-ca's own message that are passed on.
const MAX_WORDS: usize = 300;
/// The common name that older agents put into their requests. step-ca accepts only the token's subject.
const AGENT_COMMON_NAME: &str = "gpuaas node";
/// The file with the pinned root, in the key folder.
const ROOT_FILE: &str = "step-ca-root.crt";

/// The address of step-ca and the credentials for it.
#[derive(Clone, Debug)]
pub struct StepCaConfig {
    /// Its address, `https://host:port`.
    pub url: String,
    /// Its root: a PEM file, or the SHA-256 of the root certificate in hex.
    pub root: String,
    /// The name of its X5C provisioner.
    pub provisioner: String,
    /// The enrollment certificate and its intermediates up to a root of that provisioner, PEM.
    pub certificate: PathBuf,
    /// Its key, PEM. Only its owner may read it.
    pub key: PathBuf,
}

/// The health of step-ca at the last check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Health {
    /// Since when it answers, or does not; `None` before the first answer.
    pub(crate) state: Option<HealthState>,
    /// The time of the last check.
    pub(crate) checked_at: Option<Timestamp>,
}

/// Whether step-ca answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HealthState {
    /// It answers.
    Available,
    /// It does not answer, and why.
    Unavailable(String),
}

/// A client of step-ca.
pub struct StepCa {
    cluster_id: ClusterId,
    config: StepCaConfig,
    /// Without a trailing slash.
    url: String,
    /// The audience of tokens: step-ca's signing route, with the provisioner.
    audience: String,
    http: reqwest::Client,
    turns: Semaphore,
    root: CertificateDer<'static>,
    root_pem: String,
    health: Mutex<Health>,
}

/// The answer to a certificate request.
#[derive(serde::Deserialize)]
struct SignAnswer {
    #[serde(rename = "certChain")]
    chain: Vec<String>,
}

/// The error of step-ca.
#[derive(serde::Deserialize)]
struct ErrorAnswer {
    message: String,
}

/// The answer to a root request.
#[derive(serde::Deserialize)]
struct RootAnswer {
    ca: String,
}

/// Checks before a built-in CA is created or used: a cluster whose agents pin step-ca's root keeps step-ca.
pub(super) fn refuse_other_ca(dir: &Path) -> Result<(), CaError> {
    if dir.join(ROOT_FILE).exists() {
        return Err(CaError::Changed(format!(
            "this cluster's certificates come from step-ca and its agents pin that root; start the server with `--ca step-ca`. To change to the built-in CA, \
             move {} away and enroll every host again",
            dir.join(ROOT_FILE).display()
        )));
    }
    Ok(())
}

impl StepCa {
    /// Reads the root and checks the enrollment certificate. step-ca itself need not be reachable, unless only the root's
    /// fingerprint is known.
    pub async fn open(config: &StepCaConfig, dir: &Path, cluster_id: ClusterId) -> Result<Self, CaError> {
        let url = config.url.trim_end_matches('/').to_owned();
        let parsed = reqwest::Url::parse(&url).map_err(|error| CaError::Settings(format!("`{url}` is not a URL: {error}")))?;
        if parsed.scheme() != "https" || parsed.host_str().is_none() || !matches!(parsed.path(), "" | "/") {
            return Err(CaError::Settings(format!("`{url}` must be https://host:port and nothing more")));
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '@');
        if config.provisioner.is_empty() || config.provisioner.len() > 128 || !config.provisioner.chars().all(plain) {
            let message = "the provisioner's name must be 1 to 128 letters, digits, `-`, `_`, `.` or `@`";
            return Err(CaError::Settings(message.to_owned()));
        }
        if dir.join("ca.key").exists() {
            return Err(CaError::Changed(format!(
                "{} belongs to the built-in CA, whose root this cluster's agents pin. To change to step-ca, move `ca.key` and `ca.crt` away and enroll \
                 every host again",
                dir.join("ca.key").display()
            )));
        }
        let root = known_root(config, &url, dir).await?;
        let root_pem = pem_of(std::slice::from_ref(&root));
        let http = client(&root)?;
        let audience = format!("https://{}/1.0/sign#x5c/{}", authority(&parsed), config.provisioner);
        let ca = Self {
            cluster_id,
            config: config.clone(),
            url,
            audience,
            http,
            turns: Semaphore::new(MAX_REQUESTS),
            root,
            root_pem,
            health: Mutex::default(),
        };
        ca.credential(Timestamp::now()).await?;
        Ok(ca)
    }

    /// Returns the root, PEM.
    pub fn root_pem(&self) -> &str {
        &self.root_pem
    }

    /// Returns the root, DER.
    pub fn root(&self) -> &CertificateDer<'static> {
        &self.root
    }

    /// Returns its URL.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns its health at the last check.
    pub(crate) fn health(&self) -> Health {
        self.health.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the end of the enrollment certificate, if it can be read.
    pub(crate) async fn credential_until(&self) -> Option<Timestamp> {
        self.credential(Timestamp::now()).await.ok().map(|credential| credential.until())
    }

    /// Reads the credential for every token, so that a certificate that was replaced on disk is used at once.
    async fn credential(&self, now: Timestamp) -> Result<Credential, CaError> {
        let (config, root) = (self.config.clone(), self.root.clone());
        let read = gpuaas_runtime::blocking(move || Credential::read(&config.certificate, &config.key, &root, now));
        read.await.map_err(|error| CaError::Credential(error.to_string()))?
    }

    /// Issues a certificate for a node.
    pub async fn issue_node(&self, csr_pem: &str, node_id: NodeId, node_epoch: u64, now: Timestamp) -> Result<Issued, CaError> {
        let request = parse_request(csr_pem)?;
        let subject = subject(&request, node_id)?;
        let names = vec![format!("spiffe://{}/node/{node_id}", self.cluster_id)];
        let token = self.token(csr_pem, subject, names, now).await?;
        let chain = self.sign(csr_pem, &token).await?;
        let key = request.public_key.subject_public_key_info();
        let expected = check::Expected { root: &self.root, key: &key, now };
        let certificate = check::node(&chain, (self.cluster_id, node_id, node_epoch), &expected)?;
        Ok(Issued { pem: pem_of(&chain), certificate })
    }

    /// Issues a key and certificate for a listener.
    pub async fn issue_server(&self, extra_names: &[String], now: Timestamp) -> Result<ServerCertificate, CaError> {
        let names = server_names(extra_names);
        let key = KeyPair::generate().map_err(CaError::Sign)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&key).and_then(|request| request.pem()).map_err(CaError::Sign)?;
        let token = self.token(&request, "gpuaas server".to_owned(), names.clone(), now).await?;
        let mut chain = self.sign(&request, &token).await?;
        let expected = check::Expected { root: &self.root, key: &key.subject_public_key_info(), now };
        let (from, until) = check::server(&chain, &names, &expected)?;
        chain.push(self.root.clone());
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        Ok(ServerCertificate { chain, key, from, until })
    }

    /// Checks whether a listener's certificate from an earlier start can still be used.
    pub(in crate::pki) fn check_server(
        &self,
        chain: &[CertificateDer<'static>],
        extra_names: &[String],
        now: Timestamp,
    ) -> Result<(Timestamp, Timestamp), CaError> {
        let (last, rest) = chain.split_last().ok_or_else(|| CaError::Unacceptable("there is none".to_owned()))?;
        if *last != self.root {
            return Err(CaError::Unacceptable("it was made under another root".to_owned()));
        }
        let leaf = rest.first().ok_or_else(|| CaError::Unacceptable("there is none".to_owned()))?;
        // A mismatch of the key shows when both are loaded.
        let key = check::public_key(leaf)?;
        check::server(rest, &server_names(extra_names), &check::Expected { root: &self.root, key: &key, now })
    }

    async fn token(&self, csr_pem: &str, subject: String, names: Vec<String>, now: Timestamp) -> Result<String, CaError> {
        let request = rustls::pki_types::CertificateSigningRequestDer::from_pem_slice(csr_pem.as_bytes())
            .map_err(|error| CaError::BadRequest(error.to_string()))?;
        let digest = sha2::Sha256::digest(&*request);
        let claims = TokenClaims {
            issuer: &self.config.provisioner,
            audience: &self.audience,
            subject,
            names,
            request: base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(digest),
            root: pin_of(&self.root),
        };
        self.credential(now).await?.token(&claims, now)
    }

    /// Gets a request signed. The returned chain is not checked yet.
    async fn sign(&self, csr_pem: &str, token: &str) -> Result<Vec<CertificateDer<'static>>, CaError> {
        let turn = tokio::time::timeout(TURN_TIMEOUT, self.turns.acquire()).await;
        let Ok(Ok(_turn)) = turn else {
            return Err(self.unavailable(format!("{MAX_REQUESTS} requests are under way and none ended in time")));
        };
        let body = serde_json::json!({ "csr": csr_pem, "ott": token });
        let answer = self.http.post(format!("{}/1.0/sign", self.url)).json(&body).send().await;
        let result = self.read(answer).await;
        // A refusal is an answer too.
        self.note(match &result {
            Ok(_) | Err(CaError::Refused { .. }) => HealthState::Available,
            Err(error) => HealthState::Unavailable(error.to_string()),
        });
        let unreadable = |error: &dyn std::fmt::Display| CaError::Unacceptable(format!("the answer does not parse: {error}"));
        let answer: SignAnswer = serde_json::from_slice(&result?).map_err(|error| unreadable(&error))?;
        if answer.chain.is_empty() || answer.chain.len() > MAX_CHAIN {
            return Err(CaError::Unacceptable(format!("{} certificates; expected 1 to {MAX_CHAIN}", answer.chain.len())));
        }
        answer.chain.iter().map(|pem| one_certificate(pem.as_bytes()).map_err(|error| unreadable(&error))).collect()
    }

    /// Checks whether it is reachable, and returns the state if it has changed since the last check.
    pub(crate) async fn probe(&self) -> Option<HealthState> {
        let answer = self.http.get(format!("{}/health", self.url)).send().await;
        let state = match self.read(answer).await {
            Ok(_) => HealthState::Available,
            Err(error) => HealthState::Unavailable(error.to_string()),
        };
        self.note(state)
    }

    /// Records its state and returns it if it is new.
    fn note(&self, state: HealthState) -> Option<HealthState> {
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        let was = health.state.as_ref().map(std::mem::discriminant);
        let changed = was != Some(std::mem::discriminant(&state));
        *health = Health { state: Some(state.clone()), checked_at: Some(Timestamp::now()) };
        changed.then_some(state)
    }

    fn unavailable(&self, detail: String) -> CaError {
        CaError::Unavailable { url: self.url.clone(), detail }
    }

    async fn read(&self, answer: Result<reqwest::Response, reqwest::Error>) -> Result<Vec<u8>, CaError> {
        let answer = answer.map_err(|error| self.unavailable(crate::link::chain(&error.without_url())))?;
        let status = answer.status();
        let body = bounded(answer).await.map_err(|detail| self.unavailable(detail))?;
        if status.is_success() {
            return Ok(body);
        }
        let words = serde_json::from_slice::<ErrorAnswer>(&body).map_or_else(|_| "no reason was given".to_owned(), |e| e.message);
        let detail: String = words.chars().filter(|c| !c.is_control()).take(MAX_WORDS).collect();
        if status.is_client_error() && status != reqwest::StatusCode::TOO_MANY_REQUESTS {
            return Err(CaError::Refused { status: status.as_u16(), detail });
        }
        Err(self.unavailable(format!("status {status}: {detail}")))
    }
}

/// Returns the names of a listener's certificate, each once.
fn server_names(extra_names: &[String]) -> Vec<String> {
    let mut names = vec![SERVER_NAME.to_owned()];
    for name in extra_names {
        if !names.iter().any(|known| known.eq_ignore_ascii_case(name)) {
            names.push(name.clone());
        }
    }
    names
}

/// Returns the token's subject, which becomes the common name: the node's id. A common name in the request must match it, and a
/// host must not choose a name in certificates that others may read, so only the fixed name of agents is accepted.
fn subject(request: &CertificateSigningRequestParams, node_id: NodeId) -> Result<String, CaError> {
    match request.params.distinguished_name.get(&DnType::CommonName) {
        None => Ok(node_id.to_string()),
        Some(DnValue::Utf8String(name)) if name == AGENT_COMMON_NAME => Ok(name.clone()),
        Some(_) => Err(CaError::BadRequest("it has a common name of its own; leave the subject empty".to_owned())),
    }
}

/// Returns `host` or `host:port` of a URL.
fn authority(url: &reqwest::Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

fn client(root: &CertificateDer<'static>) -> Result<reqwest::Client, CaError> {
    let bad = |error: &dyn std::fmt::Display| CaError::Settings(format!("TLS cannot be set up: {error}"));
    let mut roots = rustls::RootCertStore::empty();
    roots.add(root.clone()).map_err(|error| bad(&error))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| bad(&error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    reqwest_client(tls).map_err(|error| bad(&error))
}

fn reqwest_client(tls: rustls::ClientConfig) -> Result<reqwest::Client, reqwest::Error> {
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .user_agent(concat!("gpuaas/", env!("CARGO_PKG_VERSION")))
        .https_only(true)
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(REQUEST_TIMEOUT)
        .build()
}

/// Returns the body of an answer, or why it cannot be read.
async fn bounded(mut answer: reqwest::Response) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(|error| crate::link::chain(&error.without_url()))? {
        if body.len() + chunk.len() > MAX_ANSWER {
            return Err(format!("the answer is longer than {MAX_ANSWER} bytes"));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Returns the only certificate of a PEM text.
fn one_certificate(pem: &[u8]) -> Result<CertificateDer<'static>, String> {
    let mut all = CertificateDer::pem_slice_iter(pem);
    match (all.next(), all.next()) {
        (Some(Ok(certificate)), None) => Ok(certificate),
        (None, _) => Err("there is no certificate".to_owned()),
        (Some(Ok(_)), Some(_)) => Err("there is more than one certificate".to_owned()),
        (Some(Err(error)), _) => Err(error.to_string()),
    }
}

fn pem_of(chain: &[CertificateDer<'_>]) -> String {
    chain.iter().map(|certificate| pem_text("CERTIFICATE", certificate)).collect()
}

/// Returns the configured root, which must be the one that this cluster was created with: its agents pin it.
async fn known_root(config: &StepCaConfig, url: &str, dir: &Path) -> Result<CertificateDer<'static>, CaError> {
    let kept_path = dir.join(ROOT_FILE);
    let kept = match files::read_private(&kept_path)? {
        Some(pem) => Some(one_certificate(&pem).map_err(|error| CaError::Settings(format!("{}: {error}", kept_path.display())))?),
        None => None,
    };
    let fingerprint = config.root.replace(':', "").to_ascii_lowercase();
    let is_fingerprint = fingerprint.len() == 64 && fingerprint.bytes().all(|byte| byte.is_ascii_hexdigit());
    let root = match &kept {
        Some(kept) if is_fingerprint && pin_of(kept) == fingerprint => kept.clone(),
        None if is_fingerprint => fetch_root(url, &fingerprint).await?,
        Some(_) if is_fingerprint => return Err(other_root(&kept_path)),
        Some(_) | None => {
            let unusable = |error: &dyn std::fmt::Display| {
                CaError::Settings(format!("the root `{}` is neither a fingerprint nor a usable PEM file: {error}", config.root))
            };
            let pem = std::fs::read(&config.root).map_err(|error| unusable(&error))?;
            one_certificate(&pem).map_err(|error| unusable(&error))?
        }
    };
    match kept {
        Some(kept) if kept == root => {}
        Some(_) => return Err(other_root(&kept_path)),
        None => {
            let _lock = files::FolderLock::take(dir)?;
            files::write_private(&kept_path, pem_of(std::slice::from_ref(&root)).as_bytes())?;
        }
    }
    Ok(root)
}

fn other_root(kept: &Path) -> CaError {
    CaError::Changed(format!(
        "this cluster began with another root of step-ca, which its agents pin; use that root, or move {} away and enroll every host again",
        kept.display()
    ))
}

/// Fetches the root of step-ca. The connection proves nothing; the fingerprint does.
async fn fetch_root(url: &str, fingerprint: &str) -> Result<CertificateDer<'static>, CaError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = Arc::new(credential::FirstContact::new(&provider));
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| CaError::Settings(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    let http = reqwest_client(tls).map_err(|error| CaError::Settings(error.to_string()))?;
    let unavailable = |detail: String| CaError::Unavailable { url: url.to_owned(), detail };
    let answer = http.get(format!("{url}/root/{fingerprint}")).send().await;
    let answer = answer.map_err(|error| unavailable(crate::link::chain(&error.without_url())))?;
    let body = bounded(answer).await.map_err(unavailable)?;
    let wrong = |detail: String| CaError::Settings(format!("step-ca did not give the root with this fingerprint: {detail}"));
    let answer: RootAnswer = serde_json::from_slice(&body).map_err(|error| wrong(error.to_string()))?;
    let root = one_certificate(answer.ca.as_bytes()).map_err(wrong)?;
    if pin_of(&root) == fingerprint { Ok(root) } else { Err(wrong("it gave another one".to_owned())) }
}
