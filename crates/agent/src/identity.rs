//! The node's identity: keys, certificate, the pinned CA, the root key and the verifier set, in `<state_dir>/identity/`.
//!
//! A new enrollment is prepared in `identity.new/` and swapped in as a whole, so that a crash leaves the old identity or the new
//! one and never a mixture. Every file has mode 0600.

use std::path::{Path, PathBuf};

use gpuaas_contract::id::{ClusterId, NodeId};
use gpuaas_contract::key::{SigningKey, VerifyingKey};
use gpuaas_contract::link::Grant;
use gpuaas_contract::time::Timestamp;
use gpuaas_contract::verifier_set::{SetError, VerifierSet};
use gpuaas_host::private_file::{self, PrivateFileError};
use gpuaas_runtime::secret::Locked;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

const MAX_FILE: u64 = 256 * 1024;
/// Maximum number of certificates from this node to the pinned CA, including its own.
const MAX_CHAIN: usize = 4;

/// The content of `identity.json`.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Document {
    pub(crate) cluster_id: ClusterId,
    pub(crate) node_id: NodeId,
    pub(crate) node_epoch: u64,
    /// The key that signs verifier sets.
    pub(crate) root_key: VerifyingKey,
    /// The addresses of the enrollment.
    pub(crate) server: Vec<String>,
}

/// A complete identity.
#[derive(Debug)]
pub(crate) struct Identity {
    folder: PathBuf,
    pub(crate) document: Document,
    pub(crate) keys: Keys,
    pub(crate) ca: CertificateDer<'static>,
    pub(crate) certificate_pem: String,
    pub(crate) verifier_set: Vec<u8>,
}

/// The two private keys of an enrollment.
#[derive(Debug)]
pub(crate) struct Keys {
    pub(crate) receipt: Locked<SigningKey>,
    pub(crate) tls: rcgen::KeyPair,
}

/// Why the identity cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The host is not enrolled.
    #[error("this host is not enrolled; run: gpuaas-agent enroll")]
    NotEnrolled,
    /// A file is missing, unreadable or readable by others.
    #[error("the node's identity cannot be read")]
    File(#[from] PrivateFileError),
    /// A file is damaged.
    #[error("{path} is damaged ({detail}); enroll again with: gpuaas-agent enroll --replace", path = .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// The stored verifier set is not valid.
    #[error("the stored verifier set is not trusted; enroll again with: gpuaas-agent enroll --replace")]
    VerifierSet(#[from] SetError),
    /// The keys could not be generated.
    #[error("keys could not be generated: {0}")]
    Keys(String),
}

impl Keys {
    /// Loads the keys in `folder`. Generates them if there are none.
    pub(crate) fn load_or_make(folder: &Path) -> Result<Self, IdentityError> {
        private_file::make_folder(folder)?;
        if !folder.join("tls.key").exists() {
            let key =
                rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(|e| IdentityError::Keys(e.to_string()))?;
            private_file::write(&folder.join("tls.key"), Zeroizing::new(key.serialize_pem()).as_bytes())?;
        }
        if !folder.join("receipt.key").exists() {
            let mut seed = Zeroizing::new([0_u8; 32]);
            getrandom::fill(seed.as_mut_slice()).map_err(|e| IdentityError::Keys(e.to_string()))?;
            private_file::write(&folder.join("receipt.key"), gpuaas_contract::hex(seed.as_slice()).as_bytes())?;
        }
        Self::load(folder)
    }

    fn load(folder: &Path) -> Result<Self, IdentityError> {
        let path = folder.join("tls.key");
        let damaged = |path: &Path, detail: &str| IdentityError::Damaged { path: path.to_owned(), detail: detail.to_owned() };
        let pem = read_text(&path)?;
        let tls = rcgen::KeyPair::from_pem(&pem).map_err(|error| damaged(&path, &error.to_string()))?;
        let path = folder.join("receipt.key");
        let hex = read_text(&path)?;
        let seed = seed_from_hex(hex.trim()).ok_or_else(|| damaged(&path, "expected 64 hex digits"))?;
        Ok(Self { receipt: Locked::new(SigningKey::from_seed(&seed)), tls })
    }

    /// Returns a certificate signing request for the TLS key.
    pub(crate) fn signing_request(&self) -> Result<String, IdentityError> {
        let mut params = rcgen::CertificateParams::default();
        // The control plane chooses every name in the certificate, so the request has none.
        params.distinguished_name = rcgen::DistinguishedName::new();
        let request = params.serialize_request(&self.tls).map_err(|e| IdentityError::Keys(e.to_string()))?;
        request.pem().map_err(|e| IdentityError::Keys(e.to_string()))
    }

    /// Returns the TLS key for rustls.
    pub(crate) fn tls_der(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(self.tls.serialize_der().into())
    }
}

impl Identity {
    /// Loads the identity in `state_dir`. Finishes an enrollment that a crash interrupted at its last step.
    pub(crate) fn load(state_dir: &Path) -> Result<Self, IdentityError> {
        finish_swap(state_dir)?;
        Self::read(state_dir)
    }

    /// Reads the identity in `state_dir` without changing anything.
    pub(crate) fn read(state_dir: &Path) -> Result<Self, IdentityError> {
        let folder = folder(state_dir);
        if !folder.join("identity.json").exists() {
            return Err(IdentityError::NotEnrolled);
        }
        Self::load_from(&folder)
    }

    fn load_from(folder: &Path) -> Result<Self, IdentityError> {
        let path = folder.join("identity.json");
        let document: Document = serde_json::from_str(&read_text(&path)?)
            .map_err(|error| IdentityError::Damaged { path, detail: error.to_string() })?;
        let path = folder.join("ca.crt");
        let ca = certificate(&read_text(&path)?).map_err(|detail| IdentityError::Damaged { path, detail })?;
        let path = folder.join("tls.crt");
        let certificate_pem = read_text(&path)?;
        let keys = Keys::load(folder)?;
        check_certificate(&certificate_pem, &keys, document.cluster_id, document.node_id)
            .map_err(|detail| IdentityError::Damaged { path, detail })?;
        let verifier_set = private_file::read_secret(&folder.join("verifier_set.json"), MAX_FILE)?;
        VerifierSet::open(&verifier_set, &document.root_key, document.cluster_id)?;
        Ok(Self { keys, folder: folder.to_owned(), document, ca, certificate_pem: certificate_pem.to_string(), verifier_set })
    }

    /// Returns the validity of the certificate.
    pub(crate) fn validity(&self) -> Result<Validity, IdentityError> {
        validity(&self.certificate_pem).map_err(|detail| IdentityError::Damaged { path: self.folder.join("tls.crt"), detail })
    }

    /// Returns the chain to present: the leaf, and the certificates up to the pinned CA.
    pub(crate) fn chain(&self) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
        chain(&self.certificate_pem).map_err(|detail| IdentityError::Damaged { path: self.folder.join("tls.crt"), detail })
    }

    /// Accepts a fresh certificate, if it is for this node's key and name.
    pub(crate) fn renew(&mut self, certificate_pem: String) -> Result<(), IdentityError> {
        let path = self.folder.join("tls.crt");
        check_certificate(&certificate_pem, &self.keys, self.document.cluster_id, self.document.node_id)
            .map_err(|detail| IdentityError::Damaged { path: path.clone(), detail })?;
        private_file::write(&path, certificate_pem.as_bytes())?;
        self.certificate_pem = certificate_pem;
        Ok(())
    }
}

/// Returns the path of the verifier set.
pub(crate) fn verifier_set_path(state_dir: &Path) -> PathBuf {
    folder(state_dir).join("verifier_set.json")
}

/// Returns the folder of the current identity.
pub(crate) fn folder(state_dir: &Path) -> PathBuf {
    state_dir.join("identity")
}

/// Returns the folder of the identity that is being prepared.
pub(crate) fn pending_folder(state_dir: &Path) -> PathBuf {
    state_dir.join("identity.new")
}

/// Returns whether there is an identity.
pub(crate) fn is_enrolled(state_dir: &Path) -> bool {
    folder(state_dir).join("identity.json").exists()
}

/// Checks the grant of the control plane, completes the prepared identity and swaps it in.
pub(crate) fn commit_grant(state_dir: &Path, keys: &Keys, grant: &Grant, server: &[String]) -> Result<(), IdentityError> {
    let pending = pending_folder(state_dir);
    let bad = |name: &str, detail: String| IdentityError::Damaged { path: pending.join(name), detail };
    check_certificate(&grant.certificate_pem, keys, grant.cluster_id, grant.node_id).map_err(|d| bad("tls.crt", d))?;
    certificate(&grant.ca_pem).map_err(|detail| bad("ca.crt", detail))?;
    VerifierSet::open(&grant.verifier_set, &grant.root_key, grant.cluster_id)?;
    let document = Document {
        cluster_id: grant.cluster_id,
        node_id: grant.node_id,
        node_epoch: grant.node_epoch,
        root_key: grant.root_key.clone(),
        server: server.to_vec(),
    };
    private_file::write(&pending.join("tls.crt"), grant.certificate_pem.as_bytes())?;
    private_file::write(&pending.join("ca.crt"), grant.ca_pem.as_bytes())?;
    private_file::write(&pending.join("verifier_set.json"), &grant.verifier_set)?;
    // Written last, because its presence makes the prepared identity complete.
    private_file::write(&pending.join("identity.json"), &serde_json::to_vec_pretty(&document).unwrap_or_default())?;
    finish_swap(state_dir)
}

/// Replaces the old identity with a complete prepared one. Does nothing if there is none. Idempotent.
fn finish_swap(state_dir: &Path) -> Result<(), IdentityError> {
    let (current, pending, old) = (folder(state_dir), pending_folder(state_dir), state_dir.join("identity.old"));
    if !pending.join("identity.json").exists() {
        return Ok(());
    }
    let io = |what, path: &Path| {
        let path = path.to_owned();
        move |source| IdentityError::File(PrivateFileError::Io { what, path, source })
    };
    let _ = std::fs::remove_file(pending.join("pending.json"));
    if current.exists() {
        if old.exists() {
            std::fs::remove_dir_all(&old).map_err(io("remove", &old))?;
        }
        std::fs::rename(&current, &old).map_err(io("rename", &current))?;
    }
    std::fs::rename(&pending, &current).map_err(io("rename", &pending))?;
    private_file::sync_folder(state_dir)?;
    if old.exists() {
        std::fs::remove_dir_all(&old).map_err(io("remove", &old))?;
    }
    Ok(())
}

fn read_text(path: &Path) -> Result<Zeroizing<String>, IdentityError> {
    let bytes = private_file::read_secret(path, MAX_FILE)?;
    let text = String::from_utf8(bytes)
        .map_err(|_| IdentityError::Damaged { path: path.to_owned(), detail: "it is not text".to_owned() })?;
    Ok(Zeroizing::new(text))
}

fn seed_from_hex(hex: &str) -> Option<Zeroizing<[u8; 32]>> {
    let mut seed = Zeroizing::new([0_u8; 32]);
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    for (byte, index) in seed.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(hex.get(index..index + 2)?, 16).ok()?;
    }
    Some(seed)
}

/// Returns all certificates in a PEM text, the leaf first.
fn chain(pem: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).take(MAX_CHAIN + 1).collect();
    let all = all.map_err(|error| format!("not a PEM certificate: {error}"))?;
    if (1..=MAX_CHAIN).contains(&all.len()) { Ok(all) } else { Err(format!("expected 1 to {MAX_CHAIN} certificates")) }
}

/// Returns the first certificate in a PEM text.
pub(crate) fn certificate(pem: &str) -> Result<CertificateDer<'static>, String> {
    CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| format!("not a PEM certificate: {error}"))
}

/// The validity of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) from: Timestamp,
    pub(crate) until: Timestamp,
}

impl Validity {
    /// Returns the time of the renewal.
    pub(crate) fn half_life(self) -> Timestamp {
        Timestamp(self.from.0 + (self.until.0 - self.from.0) / 2)
    }
}

fn validity(pem: &str) -> Result<Validity, String> {
    let der = certificate(pem)?;
    let (_, parsed) = x509_parser::parse_x509_certificate(&der).map_err(|error| error.to_string())?;
    let micros = |time: x509_parser::time::ASN1Time| Timestamp(time.timestamp().saturating_mul(1_000_000));
    Ok(Validity { from: micros(parsed.validity().not_before), until: micros(parsed.validity().not_after) })
}

/// Checks that a certificate is for our key and names exactly this node.
fn check_certificate(pem: &str, keys: &Keys, cluster: ClusterId, node: NodeId) -> Result<(), String> {
    use x509_parser::extensions::GeneralName;
    let chain = chain(pem)?;
    let der = chain.first().ok_or("there is no certificate")?;
    let (_, parsed) = x509_parser::parse_x509_certificate(der).map_err(|error| error.to_string())?;
    if parsed.public_key().subject_public_key.data.as_ref() != rcgen::PublicKeyData::der_bytes(&keys.tls) {
        return Err("the certificate is for another key".to_owned());
    }
    let names = parsed.subject_alternative_name().map_err(|error| error.to_string())?;
    let names = names.map(|extension| extension.value.general_names.as_slice()).unwrap_or_default();
    let wanted = format!("spiffe://{cluster}/node/{node}");
    match names {
        [GeneralName::URI(uri)] if *uri == wanted => Ok(()),
        _ => Err(format!("the certificate does not name exactly {wanted}")),
    }
}
