//! The enrollment certificate, and its tokens (X5C: a JWT whose header contains the signing certificate).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use gpuaas_contract::time::Timestamp;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::MAX_CHAIN;
use crate::pki::ca::{CaError, check};
use crate::pki::files;

/// Lifetime of a token.
const TOKEN_LIFE: Duration = Duration::from_secs(120);
/// step-ca's clock may be behind ours.
const TOKEN_BACKDATE: Duration = Duration::from_secs(30);
/// Size limit of a certificate file.
const MAX_FILE: u64 = 64 * 1024;

/// The claims of a token.
pub(super) struct TokenClaims<'a> {
    /// The provisioner.
    pub(super) issuer: &'a str,
    /// The signing route of step-ca, with the provisioner.
    pub(super) audience: &'a str,
    /// The common name.
    pub(super) subject: String,
    /// Every name of the certificate.
    pub(super) names: Vec<String>,
    /// SHA-256 of the request, base64url: the token is valid for this request only. Versions of step-ca before 0.26 do not check
    /// it.
    pub(super) request: String,
    /// SHA-256 of the root, hex.
    pub(super) root: String,
}

/// The enrollment certificate with its key.
pub(super) struct Credential {
    chain: Vec<CertificateDer<'static>>,
    key: SigningKey,
    until: Timestamp,
}

enum SigningKey {
    P256(EcdsaKeyPair),
    P384(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl SigningKey {
    fn read(path: &Path) -> Result<Self, CaError> {
        let bad = |detail: &str| CaError::Credential(format!("{}: {detail}", path.display()));
        let pem = files::read_private(path)?.ok_or_else(|| bad("there is no such file"))?;
        let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| bad(&format!("it is not a PEM key: {error}")))?;
        let der = key.secret_der();
        // Both formats, because the `step` command writes one and other tools the other.
        if let Ok(key) = EcdsaKeyPair::from_private_key_der(&ECDSA_P256_SHA256_FIXED_SIGNING, der) {
            return Ok(Self::P256(key));
        }
        if let Ok(key) = EcdsaKeyPair::from_private_key_der(&ECDSA_P384_SHA384_FIXED_SIGNING, der) {
            return Ok(Self::P384(key));
        }
        Ed25519KeyPair::from_pkcs8_maybe_unchecked(der)
            .map(Self::Ed25519)
            .map_err(|_| bad("the key must be ECDSA on P-256 or P-384, or Ed25519"))
    }

    fn algorithm(&self) -> &'static str {
        match self {
            Self::P256(_) => "ES256",
            Self::P384(_) => "ES384",
            Self::Ed25519(_) => "EdDSA",
        }
    }

    fn public_key(&self) -> &[u8] {
        match self {
            Self::P256(key) | Self::P384(key) => key.public_key().as_ref(),
            Self::Ed25519(key) => key.public_key().as_ref(),
        }
    }

    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, CaError> {
        match self {
            Self::P256(key) | Self::P384(key) => key
                .sign(&SystemRandom::new(), message)
                .map(|signature| signature.as_ref().to_vec())
                .map_err(|_| CaError::Credential("the token could not be signed".to_owned())),
            Self::Ed25519(key) => Ok(key.sign(message).as_ref().to_vec()),
        }
    }
}

impl Credential {
    /// Reads both files and checks that they match and are currently valid.
    pub(super) fn read(
        certificate: &Path,
        key: &Path,
        step_ca_root: &CertificateDer<'static>,
        now: Timestamp,
    ) -> Result<Self, CaError> {
        let bad = |detail: &str| CaError::Credential(format!("{}: {detail}", certificate.display()));
        let length = std::fs::metadata(certificate).map_err(|error| bad(&error.to_string()))?.len();
        if length > MAX_FILE {
            return Err(bad("it is too large for a certificate"));
        }
        let pem = std::fs::read(certificate).map_err(|error| bad(&error.to_string()))?;
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
        let chain = chain.map_err(|error| bad(&format!("it is not PEM: {error}")))?;
        let Some((leaf, between)) = chain.split_first().filter(|_| chain.len() <= MAX_CHAIN) else {
            return Err(bad(&format!("expected 1 to {MAX_CHAIN} certificates, the leaf first")));
        };
        let key = SigningKey::read(key)?;
        let (_, parsed) = X509Certificate::from_der(leaf).map_err(|error| bad(&error.to_string()))?;
        if parsed.public_key().subject_public_key.data.as_ref() != key.public_key() {
            return Err(bad("the key file belongs to another certificate"));
        }
        let usage = parsed.key_usage().map_err(|error| bad(&error.to_string()))?;
        if parsed.is_ca() || usage.as_ref().is_some_and(|usage| usage.value.key_cert_sign()) {
            return Err(bad(
                "it is the certificate of a CA; the control plane must not hold a CA's key. Make a leaf certificate for it",
            ));
        }
        if usage.is_none_or(|usage| !usage.value.digital_signature()) {
            return Err(bad("it needs the key usage digitalSignature"));
        }
        let extended = parsed.extended_key_usage().map_err(|error| bad(&error.to_string()))?;
        if extended.is_some_and(|extended| !extended.value.client_auth) {
            return Err(bad("it needs the extended key usage clientAuth"));
        }
        let (from, until) = check::validity(leaf)?;
        if now < from || now >= until {
            return Err(bad(&format!(
                "it is valid from {from} until {until}; replace the file with a new one, the server need not be restarted"
            )));
        }
        // A provisioner that trusts step-ca's own root would accept tokens from every node, for every name.
        if check::client_chain_leads_to(step_ca_root, leaf, between, now).is_ok() {
            return Err(bad(
                "it comes from step-ca's own root, so that every node could sign tokens too; issue it from a separate CA and put only that CA into the \
                 provisioner's roots",
            ));
        }
        Ok(Self { chain, key, until })
    }

    /// Returns the end of its validity. Certificates issued with it end no later.
    pub(super) fn until(&self) -> Timestamp {
        self.until
    }

    /// Creates a token for one request, valid once and for two minutes.
    pub(super) fn token(&self, claims: &TokenClaims<'_>, now: Timestamp) -> Result<String, CaError> {
        let chain: Vec<String> = self.chain.iter().map(|certificate| STANDARD.encode(certificate)).collect();
        let header = serde_json::json!({ "alg": self.key.algorithm(), "typ": "JWT", "x5c": chain });
        let seconds = |at: Timestamp| at.0.div_euclid(1_000_000);
        let payload = serde_json::json!({
            "iss": claims.issuer,
            "aud": claims.audience,
            "sub": claims.subject,
            "sans": claims.names,
            "jti": crate::pki::secret_text(""),
            "iat": seconds(now),
            "nbf": seconds(now.minus(TOKEN_BACKDATE)),
            "exp": seconds(now.plus(TOKEN_LIFE)),
            "sha": claims.root,
            "cnf": { "x5rt#S256": claims.request },
        });
        let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(header.to_string()), URL_SAFE_NO_PAD.encode(payload.to_string()));
        let signature = self.key.sign(message.as_bytes())?;
        Ok(format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

/// A verifier for the one request whose answer proves itself: the root with a known fingerprint. It checks that the server has
/// the key of its certificate, and nothing about its identity.
#[derive(Debug)]
pub(super) struct FirstContact(Arc<CryptoProvider>);

impl FirstContact {
    pub(super) fn new(provider: &Arc<CryptoProvider>) -> Self {
        Self(Arc::clone(provider))
    }
}

impl ServerCertVerifier for FirstContact {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
