//! The built-in certificate authority: its key is a file of the control plane.

use std::path::Path;
use std::time::Duration;

use gpuaas_contract::id::{ClusterId, NodeId};
use gpuaas_contract::link::SERVER_NAME;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::node::Certificate;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, SerialNumber,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject as _};

use super::{CaError, Issued, NODE_LIFE, SERVER_LIFE, parse_request};
use crate::pki::files::{self, KeyFileError};

/// Certificates start a little in the past, for hosts whose clock is slightly behind.
const BACKDATE: Duration = Duration::from_secs(120);
const CA_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// A certificate authority in a folder of key files.
pub struct BuiltInCa {
    cluster_id: ClusterId,
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    der: CertificateDer<'static>,
}

impl BuiltInCa {
    /// Loads the CA of this folder, or creates one at the first start.
    pub fn open(dir: &Path, cluster_id: ClusterId, now: Timestamp) -> Result<Self, CaError> {
        let _lock = files::FolderLock::take(dir)?;
        Self::open_locked(dir, cluster_id, now)
    }

    fn open_locked(dir: &Path, cluster_id: ClusterId, now: Timestamp) -> Result<Self, CaError> {
        let (key_path, certificate_path) = (dir.join("ca.key"), dir.join("ca.crt"));
        match (files::read_private(&key_path)?, files::read_private(&certificate_path)?) {
            (Some(key), Some(certificate)) => {
                let text = |bytes: &[u8], path: &Path| {
                    String::from_utf8(bytes.to_vec())
                        .map_err(|_| KeyFileError::Damaged { path: path.to_owned(), detail: "not PEM".to_owned() })
                };
                let key = KeyPair::from_pem(&zeroize::Zeroizing::new(text(&key, &key_path)?)).map_err(CaError::Damaged)?;
                Self::assemble(cluster_id, key, text(&certificate, &certificate_path)?)
            }
            (None, None) => {
                let key = KeyPair::generate().map_err(CaError::Sign)?;
                let mut params = CertificateParams::default();
                params.distinguished_name = name(&format!("gpuaas CA {cluster_id}"));
                params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
                params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
                set_life(&mut params, now, CA_LIFE);
                let pem = params.self_signed(&key).map_err(CaError::Sign)?.pem();
                // The key first: a certificate without its key could never be completed.
                files::write_private(&key_path, key.serialize_pem().as_bytes())?;
                files::write_private(&certificate_path, pem.as_bytes())?;
                Self::assemble(cluster_id, key, pem)
            }
            (Some(key), None) => {
                // A crash between the two writes of the first start: nothing was issued yet, so start over.
                drop(key);
                std::fs::remove_file(&key_path).map_err(|source| KeyFileError::Io {
                    action: "remove",
                    path: key_path,
                    source,
                })?;
                Self::open_locked(dir, cluster_id, now)
            }
            (None, Some(_)) => Err(CaError::Incomplete),
        }
    }

    fn assemble(cluster_id: ClusterId, key: KeyPair, pem: String) -> Result<Self, CaError> {
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|e| CaError::BadRequest(e.to_string()))?;
        let issuer = Issuer::from_ca_cert_pem(&pem, key).map_err(CaError::Damaged)?;
        Ok(Self { cluster_id, issuer, pem, der })
    }

    /// Returns the CA's certificate, PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Returns the CA's certificate, DER.
    pub fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }

    /// Returns the pin for agents: the SHA-256 of the CA's certificate in hex.
    pub fn pin(&self) -> String {
        super::pin_of(&self.der)
    }

    /// Issues a certificate for a node. Only the key of the request is used; the CA sets everything else.
    pub fn issue_node(&self, csr_pem: &str, node_id: NodeId, node_epoch: u64, now: Timestamp) -> Result<Issued, CaError> {
        let request = parse_request(csr_pem)?;
        let mut serial = crate::pki::random::<16>();
        serial[0] &= 0x7f;
        serial[0] |= 0x40; // no leading zero, so that the hex form is the same wherever it is read
        let mut params = CertificateParams::default();
        params.distinguished_name = name(&node_id.to_string());
        params.subject_alt_names =
            vec![SanType::URI(format!("spiffe://{}/node/{node_id}", self.cluster_id).try_into().map_err(CaError::Sign)?)];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        params.use_authority_key_identifier_extension = true;
        set_life(&mut params, now, NODE_LIFE);
        let signed = params.signed_by(&request.public_key, &self.issuer).map_err(CaError::Sign)?;
        let certificate = Certificate {
            serial: gpuaas_contract::hex(&serial),
            node_id,
            node_epoch,
            not_before: now.minus(BACKDATE),
            not_after: now.plus(NODE_LIFE),
            revoked_at: None,
        };
        Ok(Issued { pem: signed.pem(), certificate })
    }

    /// Issues a certificate and key for a listener: chain of leaf and CA, so that a first contact can check the pin.
    pub fn issue_server(
        &self,
        extra_names: &[String],
        now: Timestamp,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), CaError> {
        let key = KeyPair::generate().map_err(CaError::Sign)?;
        let mut names = vec![SERVER_NAME.to_owned()];
        names.extend_from_slice(extra_names);
        let mut params = CertificateParams::new(names).map_err(CaError::Sign)?;
        params.distinguished_name = name("gpuaas server");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        set_life(&mut params, now, SERVER_LIFE);
        let leaf = params.signed_by(&key, &self.issuer).map_err(CaError::Sign)?;
        let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        Ok((vec![leaf.der().clone(), self.der.clone()], private))
    }
}

fn name(common: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common);
    name
}

fn set_life(params: &mut CertificateParams, now: Timestamp, life: Duration) {
    params.not_before = moment(now.minus(BACKDATE));
    params.not_after = moment(now.plus(life));
}

fn moment(at: Timestamp) -> time::OffsetDateTime {
    time::OffsetDateTime::from_unix_timestamp(at.0.div_euclid(1_000_000)).unwrap_or(time::OffsetDateTime::UNIX_EPOCH)
}
