//! The identity in a client certificate. TLS checked the chain and the dates; the name is checked here.

use gpuaas_contract::Digest;
use gpuaas_contract::id::{ClusterId, NodeId};
use gpuaas_contract::resume::{ChannelBinding, EXPORTER_LABEL};
use gpuaas_contract::time::Timestamp;
use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer as _, GeneralName, ParsedExtension, X509Certificate};

/// The client's side of a TLS connection.
#[derive(Clone, Debug)]
pub struct PeerTls {
    /// Its certificate.
    pub certificate: CertificateDer<'static>,
    /// The channel binding of this connection.
    pub binding: ChannelBinding,
}

impl PeerTls {
    /// Reads a finished handshake. Returns `None` if the client sent no certificate, or the connection has no channel binding.
    pub fn of(connection: &rustls::ServerConnection) -> Option<Self> {
        let certificate = connection.peer_certificates()?.first()?.clone();
        let binding = connection.export_keying_material([0; 32], EXPORTER_LABEL, None).ok()?;
        Some(Self { certificate, binding })
    }
}

/// A node as named by its certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The node.
    pub node_id: NodeId,
    /// Serial number of the certificate, hex.
    pub serial: String,
    /// The expiry of the certificate.
    pub not_after: Timestamp,
    /// Digest of its public key (SPKI). A holder of the CA's key can copy everything else.
    pub key_digest: Digest,
    /// The channel binding of its connection.
    pub binding: ChannelBinding,
}

/// The content of a node's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCertificate {
    /// The node.
    pub node_id: NodeId,
    /// Serial number, hex.
    pub serial: String,
    /// Its expiry.
    pub not_after: Timestamp,
    /// Digest of its public key (SPKI).
    pub key_digest: Digest,
}

/// A certificate of our CA that does not name a node of this cluster.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPeer {
    /// It is not X.509.
    #[error("the client certificate does not parse")]
    Unreadable,
    /// It has no name, more than one name, or a name of another kind.
    #[error("the client certificate must have exactly one name, a SPIFFE URI")]
    NotOneUri,
    /// A URI of another cluster, or not of a node.
    #[error("the client certificate names {0}, which is not a node of this cluster")]
    NotANode(String),
}

/// Reads the node's identity from the certificate of a connection.
pub fn peer_of(tls: &PeerTls, cluster_id: ClusterId) -> Result<Peer, BadPeer> {
    let NodeCertificate { node_id, serial, not_after, key_digest } = NodeCertificate::read(&tls.certificate, cluster_id)?;
    Ok(Peer { node_id, serial, not_after, key_digest, binding: tls.binding })
}

impl NodeCertificate {
    /// Reads a certificate that must name a node of this cluster and nothing else.
    pub fn read(der: &[u8], cluster_id: ClusterId) -> Result<Self, BadPeer> {
        let (rest, certificate) = X509Certificate::from_der(der).map_err(|_| BadPeer::Unreadable)?;
        if !rest.is_empty() {
            return Err(BadPeer::Unreadable);
        }
        let mut names = Vec::new();
        for extension in certificate.extensions() {
            if let ParsedExtension::SubjectAlternativeName(san) = extension.parsed_extension() {
                names.extend(&san.general_names);
            }
        }
        let [GeneralName::URI(uri)] = names.as_slice() else { return Err(BadPeer::NotOneUri) };
        let node_id = uri
            .strip_prefix(&format!("spiffe://{cluster_id}/node/"))
            .and_then(|id| id.parse().ok())
            .ok_or_else(|| BadPeer::NotANode((*uri).to_owned()))?;
        let serial = gpuaas_contract::hex(certificate.raw_serial());
        let not_after = Timestamp(certificate.validity().not_after.timestamp().saturating_mul(1_000_000));
        let key_digest = Digest::of(certificate.public_key().raw);
        Ok(Self { node_id, serial, not_after, key_digest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::{BuiltInCa, Ca};
    use gpuaas_contract::id::ClusterId;

    fn shown(certificate: CertificateDer<'static>) -> PeerTls {
        PeerTls { certificate, binding: [0; 32] }
    }

    fn request() -> String {
        let key = rcgen::KeyPair::generate().expect("key");
        let params = rcgen::CertificateParams::new(vec!["evil.example".to_owned()]).expect("params");
        params.serialize_request(&key).expect("request").pem().expect("pem")
    }

    #[test]
    fn an_issued_certificate_names_its_node_and_nothing_of_the_request() {
        let dir = gpuaas_testkit::TempDir::new();
        let (cluster, node) = (ClusterId::generate(), NodeId::generate());
        let now = Timestamp::now();
        let ca = BuiltInCa::open(dir.path(), cluster, now).expect("opens");
        let request = request();
        let issued = ca.issue_node(&request, node, 1, now).expect("issues");
        let der = {
            use rustls::pki_types::pem::PemObject as _;
            shown(CertificateDer::from_pem_slice(issued.pem.as_bytes()).expect("pem"))
        };
        let peer = peer_of(&der, cluster).expect("a node");
        assert_eq!((peer.node_id, &peer.serial), (node, &issued.certificate.serial));
        assert_eq!(
            peer.key_digest,
            Ca::request_key_digest(&request).expect("a request"),
            "the key is the one that was asked for"
        );
        assert_eq!(
            peer_of(&der, ClusterId::generate()).map(|_| ()),
            Err(BadPeer::NotANode(format!("spiffe://{cluster}/node/{node}")))
        );
    }

    #[test]
    fn a_listener_certificate_is_not_a_node() {
        let dir = gpuaas_testkit::TempDir::new();
        let cluster = ClusterId::generate();
        let ca = BuiltInCa::open(dir.path(), cluster, Timestamp::now()).expect("opens");
        let (chain, _) = ca.issue_server(&[], Timestamp::now()).expect("issues");
        assert_eq!(peer_of(&shown(chain[0].clone()), cluster), Err(BadPeer::NotOneUri));
    }

    #[test]
    fn the_ca_is_found_again_and_a_readable_key_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = gpuaas_testkit::TempDir::new();
        let cluster = ClusterId::generate();
        let pin = BuiltInCa::open(dir.path(), cluster, Timestamp::now()).expect("made").pin();
        assert_eq!(BuiltInCa::open(dir.path(), cluster, Timestamp::now()).expect("found").pin(), pin);
        std::fs::set_permissions(dir.path().join("ca.key"), std::fs::Permissions::from_mode(0o644)).expect("chmod");
        let error = BuiltInCa::open(dir.path(), cluster, Timestamp::now()).map(|_| ()).expect_err("refused");
        assert!(std::error::Error::source(&error).is_some_and(|s| s.to_string().contains("chmod 600")), "{error:?}");
    }
}
