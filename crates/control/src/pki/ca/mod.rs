//! The certificate authority, which signs the certificates of nodes and of our own listeners.
//!
//! There are two implementations, with the same tests: the built-in one, whose key is a file of the control plane, and step-ca,
//! which keeps its key and gets a token for each certificate. The certificates of both chain to one root, which agents pin. A
//! valid certificate alone gives no access: a node can connect only with one that is in the store.

mod built_in;
mod check;
#[cfg(test)]
mod conformance;
mod step_ca;

use std::path::Path;
use std::time::Duration;

use gpuaas_contract::Digest;
use gpuaas_contract::id::{ClusterId, NodeId};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::node::Certificate;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use rcgen::{CertificateSigningRequestParams, PublicKeyData as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::files::KeyFileError;

pub use built_in::BuiltInCa;
pub(super) use check::validity;
pub(crate) use step_ca::HealthState;
pub use step_ca::{StepCa, StepCaConfig};

/// Longest validity of a node's certificate; the built-in CA uses exactly this.
const NODE_LIFE: Duration = Duration::from_secs(24 * 3600);
/// Longest validity of a listener's certificate; the built-in CA uses exactly this.
const SERVER_LIFE: Duration = Duration::from_secs(90 * 24 * 3600);
/// Longest request that is parsed.
const MAX_CSR: usize = 16 * 1024;

/// The certificate authority of a cluster.
#[derive(Clone, Debug, Default)]
pub enum CaConfig {
    /// The built-in one.
    #[default]
    BuiltIn,
    /// A step-ca beside the control plane.
    StepCa(StepCaConfig),
}

/// An issued certificate.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The leaf, then the intermediate certificates, PEM.
    pub pem: String,
    /// What the store keeps of it.
    pub certificate: Certificate,
}

/// A key and a certificate for a listener.
pub struct ServerCertificate {
    /// The leaf first, the root last, so that a first contact can check the pin.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its key.
    pub key: PrivateKeyDer<'static>,
    /// Start of the validity.
    pub from: Timestamp,
    /// End of the validity.
    pub until: Timestamp,
}

/// Why there is no CA, or no certificate.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// A file cannot be used.
    #[error("the certificate authority's files cannot be used")]
    File(#[from] KeyFileError),
    /// The CA's own files do not match.
    #[error("the certificate authority's key or certificate is damaged; restore `ca.key` and `ca.crt` from a backup")]
    Damaged(#[source] rcgen::Error),
    /// The CA's key or certificate is missing.
    #[error("`ca.key` and `ca.crt` must both be there or both be absent; restore the missing one from a backup")]
    Incomplete,
    /// The request of a node is not valid, or its signature is wrong.
    #[error("the certificate request is not valid: {0}")]
    BadRequest(String),
    /// Signing failed.
    #[error("the certificate could not be signed")]
    Sign(#[source] rcgen::Error),
    /// The options for step-ca, or their files, are not valid.
    #[error("step-ca cannot be used: {0}")]
    Settings(String),
    /// The cluster was created with another CA.
    #[error("{0}")]
    Changed(String),
    /// The control plane's credentials for step-ca cannot be used.
    #[error("the enrollment certificate for step-ca cannot be used: {0}")]
    Credential(String),
    /// step-ca did not answer, or is temporarily unavailable.
    #[error("step-ca at {url} does not answer: {detail}")]
    Unavailable {
        /// Its URL.
        url: String,
        /// The cause.
        detail: String,
    },
    /// step-ca refused the request.
    #[error(
        "step-ca refused ({status}): {detail}; check its log, the name of the X5C provisioner and that its roots contain the issuer of the enrollment certificate"
    )]
    Refused {
        /// The HTTP status.
        status: u16,
        /// Its message.
        detail: String,
    },
    /// The certificate of step-ca does not match the request.
    #[error("step-ca gave a certificate that is not acceptable: {0}")]
    Unacceptable(String),
}

impl CaError {
    /// Returns the label for counting requests to the CA, which is also the code of the refusal.
    pub fn code(&self) -> &'static str {
        match self {
            Self::BadRequest(_) => "csr_invalid",
            Self::Unavailable { .. } => "ca_unavailable",
            Self::Refused { .. } => "ca_refused",
            Self::Unacceptable(_) => "ca_answer_rejected",
            Self::Credential(_) => "ca_credential_unusable",
            Self::File(_) | Self::Damaged(_) | Self::Incomplete | Self::Sign(_) | Self::Settings(_) | Self::Changed(_) => {
                "ca_internal"
            }
        }
    }
}

/// Certificate requests by result.
pub(crate) type CaRequests = Family<ResultLabel, Counter>;

/// The result of a certificate request: `issued`, or the code of the error.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ResultLabel {
    result: &'static str,
}

/// The cluster's certificate authority.
pub struct Ca {
    issuer: Issuer,
    requests: CaRequests,
}

enum Issuer {
    BuiltIn(Box<BuiltInCa>),
    StepCa(Box<StepCa>),
}

impl Ca {
    /// Opens the CA of this key folder. A cluster keeps the CA it was created with, because agents pin its root.
    pub(crate) async fn open(
        config: &CaConfig,
        dir: &Path,
        cluster_id: ClusterId,
        now: Timestamp,
        requests: CaRequests,
    ) -> Result<Self, CaError> {
        let issuer = match config {
            CaConfig::BuiltIn => {
                step_ca::refuse_other_ca(dir)?;
                Issuer::BuiltIn(Box::new(BuiltInCa::open(dir, cluster_id, now)?))
            }
            CaConfig::StepCa(config) => Issuer::StepCa(Box::new(StepCa::open(config, dir, cluster_id).await?)),
        };
        Ok(Self { issuer, requests })
    }

    /// Returns `built-in` or `step-ca`.
    pub fn kind(&self) -> &'static str {
        match &self.issuer {
            Issuer::BuiltIn(_) => "built-in",
            Issuer::StepCa(_) => "step-ca",
        }
    }

    /// Returns the root certificate, PEM.
    pub fn pem(&self) -> &str {
        match &self.issuer {
            Issuer::BuiltIn(ca) => ca.pem(),
            Issuer::StepCa(ca) => ca.root_pem(),
        }
    }

    /// Returns the root certificate, DER.
    pub fn der(&self) -> &CertificateDer<'static> {
        match &self.issuer {
            Issuer::BuiltIn(ca) => ca.der(),
            Issuer::StepCa(ca) => ca.root(),
        }
    }

    /// Returns the pin for agents: the SHA-256 of the root certificate in hex.
    pub fn pin(&self) -> String {
        pin_of(self.der())
    }

    /// Returns the step-ca, if the cluster has one.
    pub(crate) fn step_ca(&self) -> Option<&StepCa> {
        match &self.issuer {
            Issuer::BuiltIn(_) => None,
            Issuer::StepCa(ca) => Some(ca),
        }
    }

    /// Returns the digest of the public key of a request, after checking the request's own signature.
    pub fn request_key_digest(csr_pem: &str) -> Result<Digest, CaError> {
        Ok(Digest::of(&parse_request(csr_pem)?.public_key.subject_public_key_info()))
    }

    /// Issues a certificate for a node. Only the key of the request is used; the CA sets everything else.
    pub async fn issue_node(&self, csr_pem: &str, node_id: NodeId, node_epoch: u64, now: Timestamp) -> Result<Issued, CaError> {
        self.count(match &self.issuer {
            Issuer::BuiltIn(ca) => ca.issue_node(csr_pem, node_id, node_epoch, now),
            Issuer::StepCa(ca) => ca.issue_node(csr_pem, node_id, node_epoch, now).await,
        })
    }

    /// Issues a key and certificate for a listener, for the link's own name and these names.
    pub async fn issue_server(&self, extra_names: &[String], now: Timestamp) -> Result<ServerCertificate, CaError> {
        self.count(match &self.issuer {
            Issuer::BuiltIn(ca) => ca.issue_server(extra_names, now).and_then(|(chain, key)| server_certificate(chain, key)),
            Issuer::StepCa(ca) => ca.issue_server(extra_names, now).await,
        })
    }

    /// Issues a listener's certificate without a remote call, or returns `None` if the CA needs one.
    pub(super) fn issue_server_at_once(
        &self,
        extra_names: &[String],
        now: Timestamp,
    ) -> Option<Result<ServerCertificate, CaError>> {
        match &self.issuer {
            Issuer::BuiltIn(ca) => {
                Some(self.count(ca.issue_server(extra_names, now).and_then(|(chain, key)| server_certificate(chain, key))))
            }
            Issuer::StepCa(_) => None,
        }
    }

    fn count<T>(&self, result: Result<T, CaError>) -> Result<T, CaError> {
        let label = result.as_ref().map_or_else(CaError::code, |_| "issued");
        self.requests.get_or_create(&ResultLabel { result: label }).inc();
        result
    }
}

/// Adds the validity of the leaf to a chain.
fn server_certificate(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<ServerCertificate, CaError> {
    let leaf = chain.first().ok_or_else(|| CaError::Unacceptable("the chain is empty".to_owned()))?;
    let (from, until) = check::validity(leaf)?;
    Ok(ServerCertificate { chain, key, from, until })
}

/// Returns the SHA-256 of a certificate in hex.
fn pin_of(certificate: &CertificateDer<'_>) -> String {
    Digest::of(certificate).as_str().trim_start_matches("sha256:").to_owned()
}

fn parse_request(csr_pem: &str) -> Result<CertificateSigningRequestParams, CaError> {
    if csr_pem.len() > MAX_CSR {
        return Err(CaError::BadRequest(format!("{} bytes; at most {MAX_CSR}", csr_pem.len())));
    }
    CertificateSigningRequestParams::from_pem(csr_pem).map_err(|e| CaError::BadRequest(e.to_string()))
}

/// Returns one PEM block.
pub(super) fn pem_text(label: &str, der: &[u8]) -> String {
    use base64::Engine as _;
    let encoded = zeroize::Zeroizing::new(base64::engine::general_purpose::STANDARD.encode(der));
    // Allocated at once with line breaks and both borders, so that growing leaves no copy of a secret behind.
    let mut text = String::with_capacity(encoded.len() + encoded.len() / 64 + 2 * label.len() + 40);
    text.push_str(&format!("-----BEGIN {label}-----\n"));
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, next) = rest.split_at(rest.len().min(64));
        text.push_str(line);
        text.push('\n');
        rest = next;
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}
