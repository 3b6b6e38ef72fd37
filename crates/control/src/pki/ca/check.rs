//! The checks of a certificate from another program: it must have the requested key, exactly the requested names, an allowed
//! validity, and the pinned root. Everything else is refused.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use gpuaas_contract::id::{ClusterId, NodeId};
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::node::Certificate;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use x509_parser::prelude::{FromDer as _, GeneralName, ParsedExtension, X509Certificate};

use super::{CaError, NODE_LIFE, SERVER_LIFE};
use crate::pki::NodeCertificate;

/// How far back a certificate may begin, and how much our clock and step-ca's may differ.
const SLACK: Duration = Duration::from_secs(10 * 60);
/// Longest serial number, in bytes (RFC 5280), with one for the sign.
const MAX_SERIAL: usize = 21;

/// The requirements for every certificate.
pub(super) struct Expected<'a> {
    /// The required root.
    pub(super) root: &'a CertificateDer<'static>,
    /// The required public key (SPKI, DER).
    pub(super) key: &'a [u8],
    /// The time by our clock.
    pub(super) now: Timestamp,
}

fn bad(detail: impl Into<String>) -> CaError {
    CaError::Unacceptable(detail.into())
}

fn parse<'a>(der: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, CaError> {
    let (rest, certificate) = X509Certificate::from_der(der).map_err(|error| bad(format!("it does not parse: {error}")))?;
    if rest.is_empty() { Ok(certificate) } else { Err(bad("there is something behind it")) }
}

/// Returns the validity of a certificate.
pub(in crate::pki) fn validity(der: &CertificateDer<'_>) -> Result<(Timestamp, Timestamp), CaError> {
    let certificate = parse(der)?;
    let micros = |time: x509_parser::time::ASN1Time| Timestamp(time.timestamp().saturating_mul(1_000_000));
    Ok((micros(certificate.validity().not_before), micros(certificate.validity().not_after)))
}

/// Returns the public key of a certificate, DER.
pub(super) fn public_key(der: &CertificateDer<'_>) -> Result<Vec<u8>, CaError> {
    Ok(parse(der)?.public_key().raw.to_vec())
}

/// Checks every leaf: its key, its validity, its serial number, and that it is not a CA. The CA's clock may be ahead of ours, so the
/// chain is then checked at the time from which the leaf is valid.
fn check_leaf(der: &CertificateDer<'_>, longest: Duration, expected: &Expected<'_>) -> Result<(Timestamp, Timestamp), CaError> {
    let certificate = parse(der)?;
    if certificate.public_key().raw != expected.key {
        return Err(bad("it is for another key than the one in the request"));
    }
    if certificate.is_ca() {
        return Err(bad("it is the certificate of a CA"));
    }
    let usage = certificate.key_usage().map_err(|error| bad(error.to_string()))?;
    if usage.is_some_and(|usage| !usage.value.digital_signature() || usage.value.key_cert_sign()) {
        return Err(bad("its key usage is not that of a leaf for TLS"));
    }
    let serial = certificate.raw_serial();
    if serial.len() > MAX_SERIAL || serial.iter().all(|byte| *byte == 0) {
        return Err(bad("its serial number is empty or too long"));
    }
    let (from, until) = validity(der)?;
    if until <= expected.now || from > expected.now.plus(SLACK) {
        return Err(bad(format!("it is valid from {from} until {until}, and the time is {}; check both clocks", expected.now)));
    }
    if until.since(from) > longest + SLACK {
        let hours = longest.as_secs() / 3600;
        return Err(bad(format!(
            "it is valid from {from} until {until}, longer than {hours} h; set `defaultTLSCertDuration` of the provisioner to at most {hours}h"
        )));
    }
    Ok((from, until))
}

fn moment(now: Timestamp) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(now.since(Timestamp(0)).as_secs()))
}

fn roots(root: &CertificateDer<'static>) -> Result<Arc<rustls::RootCertStore>, CaError> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(root.clone()).map_err(|error| CaError::Settings(format!("the root certificate is not usable: {error}")))?;
    Ok(Arc::new(roots))
}

/// Checks whether a chain of a TLS client leads to this root.
pub(super) fn client_chain_leads_to(
    root: &CertificateDer<'static>,
    leaf: &CertificateDer<'_>,
    between: &[CertificateDer<'static>],
    now: Timestamp,
) -> Result<(), String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let roots = roots(root).map_err(|error| error.to_string())?;
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build().map_err(|error| error.to_string())?;
    verifier.verify_client_cert(leaf, between, moment(now)).map(|_| ()).map_err(|error| error.to_string())
}

/// Checks a certificate of a node and returns what the store keeps of it.
pub(super) fn node(
    chain: &[CertificateDer<'static>],
    (cluster_id, node_id, node_epoch): (ClusterId, NodeId, u64),
    expected: &Expected<'_>,
) -> Result<Certificate, CaError> {
    let (leaf, between) = chain.split_first().ok_or_else(|| bad("there is none"))?;
    let (not_before, not_after) = check_leaf(leaf, NODE_LIFE, expected)?;
    // Parsed like on the link, so that a serial number with leading zeros is the same in the store and on the wire.
    let named = NodeCertificate::read(leaf, cluster_id).map_err(|error| bad(error.to_string()))?;
    if named.node_id != node_id {
        return Err(bad(format!("it names {} and not {node_id}", named.node_id)));
    }
    client_chain_leads_to(expected.root, leaf, between, expected.now.max(not_before))
        .map_err(|error| bad(format!("it does not lead to the configured root as a client's certificate: {error}")))?;
    Ok(Certificate { serial: named.serial, node_id, node_epoch, not_before, not_after, revoked_at: None })
}

/// Checks a certificate of a listener.
pub(super) fn server(
    chain: &[CertificateDer<'static>],
    names: &[String],
    expected: &Expected<'_>,
) -> Result<(Timestamp, Timestamp), CaError> {
    let (leaf, between) = chain.split_first().ok_or_else(|| bad("there is none"))?;
    let (not_before, not_after) = check_leaf(leaf, SERVER_LIFE, expected)?;
    let wanted: BTreeSet<String> = names.iter().map(|name| name.to_ascii_lowercase()).collect();
    let given = server_names(leaf)?;
    if given != wanted {
        return Err(bad(format!("it names {given:?} and not {wanted:?}")));
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots(expected.root)?, provider)
        .build()
        .map_err(|error| CaError::Settings(error.to_string()))?;
    for name in names {
        let name = ServerName::try_from(name.as_str()).map_err(|_| CaError::Settings(format!("`{name}` is not a name")))?;
        verifier
            .verify_server_cert(leaf, between, &name, &[], moment(expected.now.max(not_before)))
            .map_err(|error| bad(format!("it does not lead to the configured root as a server's certificate: {error}")))?;
    }
    Ok((not_before, not_after))
}

/// Returns every name of a certificate. A listener's certificate has only DNS names and addresses.
#[allow(clippy::wildcard_enum_match_arm, reason = "an enum of the parser: whatever else there is, is not a name of a listener")]
fn server_names(der: &CertificateDer<'_>) -> Result<BTreeSet<String>, CaError> {
    let mut names = BTreeSet::new();
    for extension in parse(der)?.extensions() {
        let ParsedExtension::SubjectAlternativeName(san) = extension.parsed_extension() else { continue };
        for name in &san.general_names {
            names.insert(match name {
                GeneralName::DNSName(name) => name.to_ascii_lowercase(),
                GeneralName::IPAddress(bytes) => address(bytes).ok_or_else(|| bad("it has an address of a strange length"))?,
                other => return Err(bad(format!("it has a name that is not a listener's: {other}"))),
            });
        }
    }
    Ok(names)
}

fn address(bytes: &[u8]) -> Option<String> {
    let v4 = <[u8; 4]>::try_from(bytes).ok().map(|bytes| std::net::IpAddr::from(bytes).to_string());
    v4.or_else(|| <[u8; 16]>::try_from(bytes).ok().map(|bytes| std::net::IpAddr::from(bytes).to_string()))
}
