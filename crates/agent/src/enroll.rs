//! Enrollment with a join token or by approval.
//!
//! A join token also contains the fingerprint of the CA. An approval needs an e-mail address and the CA's fingerprint; the agent
//! waits until an operator approves. The request is kept in `identity.new/`, so that the next `enroll` continues an interrupted
//! wait. The keys never leave the host.

use std::path::PathBuf;
use std::time::Duration;

use gpuaas_contract::id::{ClusterId, EnrollmentId, NodeId};
use gpuaas_contract::key::KeyId;
use gpuaas_contract::link::{
    Applicant, ENROLL_SECRET_HEADER, EnrollPending, EnrollRequest, EnrollStatus, EnrollWithToken, Grant, route,
};
use gpuaas_contract::time::Timestamp;
use gpuaas_host::Host;
use gpuaas_host::fingerprint::NoIdentity;
use gpuaas_host::private_file::{self, PrivateFileError};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::identity::{self, IdentityError, Keys};
use crate::link::dial::{self, Dialer, TlsSetupError};
use crate::link::http::{Call, HttpError, Lane};
use crate::state::{StateError, StateLock};

/// Time between two polls of a request that waits for an operator.
const POLL_EVERY: Duration = Duration::from_secs(2);
/// Size limit of the kept request.
const MAX_FILE: u64 = 64 * 1024;

/// How to enroll.
#[derive(Clone, Debug)]
pub struct EnrollOptions {
    /// The agent's configuration: state folder, server, simulated or not.
    pub config: Config,
    /// The way to enroll.
    pub door: Door,
    /// Enroll again although the host is enrolled: the old identity ends.
    pub replace: bool,
    /// Host name of a new simulated host.
    pub simulated_hostname: Option<String>,
}

/// The two ways to enroll.
#[derive(Clone)]
pub enum Door {
    /// A join token as the CLI prints it: `gpj_….<CA fingerprint>`.
    Token(String),
    /// Approval by an operator.
    Approval {
        /// The e-mail address of the requester.
        email: String,
        /// SHA-256 of the CA certificate, in hex.
        ca_sha256: String,
    },
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Token(token) => f.debug_tuple("Token").field(&gpuaas_host::exec::redact(token)).finish(),
            Self::Approval { email, ca_sha256 } => {
                f.debug_struct("Approval").field("email", email).field("ca_sha256", ca_sha256).finish()
            }
        }
    }
}

/// Progress of an enrollment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnrollProgress {
    /// An operator must approve this request.
    Waiting {
        /// The request.
        enrollment_id: EnrollmentId,
        /// The time of expiry.
        expires_at: Timestamp,
        /// Whether it was created by an earlier `enroll`.
        resumed: bool,
        /// This host's receipt key. The operator sees it too, and must compare it before the approval.
        receipt_key: KeyId,
    },
    /// The control plane cannot be reached at the moment; the wait continues.
    Unreachable(String),
}

/// The new identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enrolled {
    /// The node.
    pub node_id: NodeId,
    /// Its cluster.
    pub cluster_id: ClusterId,
    /// The number of the machine's enrollment.
    pub node_epoch: u64,
}

/// Why the enrollment failed.
#[derive(Debug, thiserror::Error)]
pub enum EnrollError {
    /// There is already an identity.
    #[error("this host is already enrolled; to enroll it again and end its old identity, add --replace")]
    AlreadyEnrolled,
    /// There is no server address.
    #[error("no server address; add --server host:port")]
    NoServer,
    /// The token is not valid.
    #[error(
        "that is not a join token: expected gpj_, a secret, a dot and the CA's fingerprint, as `gpuaas node token create` prints it"
    )]
    BadToken,
    /// The fingerprint is not valid.
    #[error("the CA fingerprint must be 64 hex digits, as the control plane prints it")]
    BadPin,
    /// The e-mail address is not valid.
    #[error("`{0}` is not an e-mail address")]
    BadEmail(String),
    /// The granted CA is not the pinned one.
    #[error("the control plane granted another CA than the pinned one; nothing was saved")]
    OtherCa,
    /// An operator rejected the request.
    #[error("an operator rejected the request: {0}")]
    Rejected(String),
    /// The request expired.
    #[error("the request was not approved in time; run enroll again to send a new one")]
    Expired,
    /// Stopped while waiting.
    #[error("stopped while waiting for approval; run enroll again to continue waiting for the same request")]
    Stopped,
    /// The control plane did not answer or refused.
    #[error("enrollment failed")]
    Http(#[from] HttpError),
    /// TLS could not be set up.
    #[error(transparent)]
    Tls(#[from] TlsSetupError),
    /// The identity could not be saved or is not valid.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The state folder cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// A file cannot be used.
    #[error("the waiting request cannot be kept")]
    File(#[from] PrivateFileError),
    /// The machine has no identity of its own.
    #[error(transparent)]
    Fingerprint(#[from] NoIdentity),
    /// The simulated host cannot be used.
    #[error(transparent)]
    Simulation(#[from] gpuaas_host::SimError),
    /// A thread failed.
    #[error("reading the host's facts failed")]
    Thread(#[from] tokio::task::JoinError),
}

/// A request that waits for an operator, in `identity.new/pending.json`.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct PendingRequest {
    server: Vec<String>,
    ca_sha256: String,
    email: String,
    pending: EnrollPending,
}

/// Enrolls the host. `progress` is called while it waits. Dropping the future or firing `stop` leaves a request that can be
/// resumed.
pub async fn enroll(
    options: EnrollOptions,
    progress: impl Fn(EnrollProgress) + Send,
    stop: CancellationToken,
) -> Result<Enrolled, EnrollError> {
    let config = &options.config;
    let (pin, token) = match &options.door {
        Door::Token(text) => {
            let (secret, pin) = text.trim().split_once('.').ok_or(EnrollError::BadToken)?;
            if !secret.starts_with("gpj_") {
                return Err(EnrollError::BadToken);
            }
            (parse_pin(pin).ok_or(EnrollError::BadToken)?, Some(secret.to_owned()))
        }
        Door::Approval { email, ca_sha256 } => {
            if !email.contains('@') || email.len() > 254 || email.chars().any(char::is_control) {
                return Err(EnrollError::BadEmail(email.clone()));
            }
            (parse_pin(ca_sha256).ok_or(EnrollError::BadPin)?, None)
        }
    };
    if config.server.is_empty() {
        return Err(EnrollError::NoServer);
    }
    let _lock = StateLock::take(&config.state_dir)?;
    if identity::is_enrolled(&config.state_dir) && !options.replace {
        return Err(EnrollError::AlreadyEnrolled);
    }
    let host = crate::open_host(config, options.simulated_hostname.as_deref())?;
    let keys = Keys::load_or_make(&identity::pending_folder(&config.state_dir))?;
    let dialer = Dialer::new(config.server.clone(), dial::pinned_config(pin)?, config.request_timeout);
    let mut lane = Lane::new(dialer);
    let grant = match (token, &options.door) {
        (Some(token), _) => {
            let body = EnrollWithToken { token, applicant: applicant(&host, &keys).await? };
            let call = Call::post_json(route::ENROLL_WITH_TOKEN.to_owned(), &body, config.request_timeout);
            lane.call_json::<Grant>(&call).await?
        }
        (None, Door::Approval { email, ca_sha256 }) => {
            let waiting = Waiting { config, email, ca_sha256, host: &host, keys: &keys };
            waiting.wait(&mut lane, progress, stop).await?
        }
        (None, Door::Token(_)) => return Err(EnrollError::BadToken),
    };
    let granted_ca = identity::certificate(&grant.ca_pem)
        .map_err(|detail| IdentityError::Damaged { path: PathBuf::from("ca.crt"), detail })?;
    if dial::fingerprint(&granted_ca) != pin {
        return Err(EnrollError::OtherCa);
    }
    identity::commit_grant(&config.state_dir, &keys, &grant, &config.server)?;
    Ok(Enrolled { node_id: grant.node_id, cluster_id: grant.cluster_id, node_epoch: grant.node_epoch })
}

async fn applicant(host: &Host, keys: &Keys) -> Result<Applicant, EnrollError> {
    let for_facts = host.clone();
    let mut facts = gpuaas_runtime::blocking(move || for_facts.facts()).await?;
    facts.agent_version = crate::VERSION.to_owned();
    Ok(Applicant {
        fingerprint: host.fingerprint()?,
        csr_pem: keys.signing_request()?,
        receipt_key: keys.receipt.verifying_key(),
        facts,
    })
}

struct Waiting<'a> {
    config: &'a Config,
    email: &'a str,
    ca_sha256: &'a str,
    host: &'a Host,
    keys: &'a Keys,
}

impl Waiting<'_> {
    async fn wait(
        &self,
        lane: &mut Lane,
        progress: impl Fn(EnrollProgress) + Send,
        stop: CancellationToken,
    ) -> Result<Grant, EnrollError> {
        let (request, resumed) = match self.resumable()? {
            Some(request) => (request, true),
            None => (self.ask(lane).await?, false),
        };
        let EnrollPending { enrollment_id, poll_secret, expires_at } = request.pending;
        let receipt_key = self.keys.receipt.verifying_key().id();
        progress(EnrollProgress::Waiting { enrollment_id, expires_at, resumed, receipt_key });
        let path = route::ENROLL_POLL.replace("{enrollment}", &enrollment_id.to_string());
        let call = Call::get(path, self.config.request_timeout).header(ENROLL_SECRET_HEADER, poll_secret);
        let mut told = false;
        loop {
            match lane.call_json::<EnrollStatus>(&call).await {
                Ok(EnrollStatus::Pending) => told = false,
                Ok(EnrollStatus::Approved { grant }) => return Ok(*grant),
                Ok(EnrollStatus::Rejected { reason }) => {
                    self.forget();
                    return Err(EnrollError::Rejected(reason));
                }
                Ok(EnrollStatus::Expired) => {
                    self.forget();
                    return Err(EnrollError::Expired);
                }
                // A refusal is final, a network error is not.
                Err(error @ (HttpError::Problem { .. } | HttpError::Malformed(_))) => {
                    let server_trouble = matches!(&error, HttpError::Problem { status, .. } if *status >= 500);
                    if !server_trouble {
                        self.forget();
                        return Err(error.into());
                    }
                }
                Err(error @ (HttpError::Dial(_) | HttpError::Timeout(_) | HttpError::Broken(_))) => {
                    if !told {
                        progress(EnrollProgress::Unreachable(crate::error_chain::chain(&error)));
                        told = true;
                    }
                }
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return Err(EnrollError::Stopped),
                () = tokio::time::sleep(POLL_EVERY) => {}
            }
        }
    }

    async fn ask(&self, lane: &mut Lane) -> Result<PendingRequest, EnrollError> {
        let body = EnrollRequest { email: self.email.to_owned(), applicant: applicant(self.host, self.keys).await? };
        let call = Call::post_json(route::ENROLL_REQUEST.to_owned(), &body, self.config.request_timeout);
        let request = PendingRequest {
            server: self.config.server.clone(),
            ca_sha256: self.ca_sha256.to_owned(),
            email: self.email.to_owned(),
            pending: lane.call_json(&call).await?,
        };
        private_file::write(&self.path(), &serde_json::to_vec_pretty(&request).unwrap_or_default())?;
        Ok(request)
    }

    /// Returns the request of an earlier `enroll`, if it still waits for the same server and CA.
    fn resumable(&self) -> Result<Option<PendingRequest>, EnrollError> {
        let path = self.path();
        if !path.exists() {
            return Ok(None);
        }
        let bytes = private_file::read_secret(&path, MAX_FILE)?;
        let request = serde_json::from_slice::<PendingRequest>(&bytes).ok().filter(|request| {
            let same = (&request.server, request.ca_sha256.as_str(), request.email.as_str());
            same == (&self.config.server, self.ca_sha256, self.email) && request.pending.expires_at > Timestamp::now()
        });
        Ok(request)
    }

    fn path(&self) -> PathBuf {
        identity::pending_folder(&self.config.state_dir).join("pending.json")
    }

    fn forget(&self) {
        // Otherwise the next `enroll` would resume it only to be refused again.
        let _ = std::fs::remove_file(self.path());
    }
}

fn parse_pin(hex: &str) -> Option<[u8; 32]> {
    let mut pin = [0_u8; 32];
    let hex = hex.trim();
    if hex.len() != 64 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, index) in pin.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(hex.get(index..index + 2)?, 16).ok()?;
    }
    Some(pin)
}
