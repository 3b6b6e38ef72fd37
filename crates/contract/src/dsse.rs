//! DSSE: sign exact bytes together with their type, and carry those bytes.
//!
//! The payload is never parsed before its signature is checked and never serialized again afterwards.

use crate::key::{KeyId, SigningKey, VerifyingKey};

/// A signed document as it is encoded on the wire.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    #[serde(rename = "payloadType")]
    payload_type: String,
    #[serde(with = "crate::bytes_as_base64")]
    payload: Vec<u8>,
    signatures: Vec<WireSignature>,
}

#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct WireSignature {
    keyid: KeyId,
    #[serde(with = "crate::bytes_as_base64")]
    sig: Vec<u8>,
}

/// Why a document could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Larger than documents of this kind may be. Checked before anything is parsed.
    #[error("document of {size} bytes; the limit is {limit}")]
    Oversized {
        /// Size in bytes.
        size: usize,
        /// Maximum size in bytes.
        limit: usize,
    },
    /// Not a DSSE document with exactly one signature.
    #[error("not a DSSE document with exactly one signature: {0}")]
    Malformed(String),
    /// No trusted key has this id.
    #[error("signed by {0}, which is not a trusted key here")]
    UnknownKey(KeyId),
    /// The key is known, but not usable now: not yet active, retired or revoked.
    #[error("signed by {key}, which is {state}")]
    KeyNotUsable {
        /// The key that signed the document.
        key: KeyId,
        /// The key's state, as text for the error message.
        state: &'static str,
    },
    /// The signature does not match these bytes.
    #[error("the signature does not match the document")]
    BadSignature,
    /// The signature is valid, but the document is of another type.
    #[error("payload type is not {expected}")]
    WrongPayloadType {
        /// The payload type the caller expected.
        expected: &'static str,
    },
}

/// A source of trusted keys.
pub trait KeyLookup {
    /// Finds the key with this id, or says why a signature by it does not count.
    fn find(&self, id: &KeyId) -> Result<&VerifyingKey, OpenError>;
}

/// Trusts a single key.
impl KeyLookup for VerifyingKey {
    fn find(&self, id: &KeyId) -> Result<&VerifyingKey, OpenError> {
        if self.is_named(id) { Ok(self) } else { Err(OpenError::UnknownKey(id.clone())) }
    }
}

/// The pre-authentication encoding of DSSE: the bytes that are signed.
pub fn pre_authentication_encoding(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(payload.len() + payload_type.len() + 48);
    bytes.extend_from_slice(format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).as_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Signs `payload` as a document of `payload_type`.
pub fn seal(payload_type: &str, payload: Vec<u8>, key: &SigningKey) -> Vec<u8> {
    let sig = key.sign(&pre_authentication_encoding(payload_type, &payload)).to_vec();
    let signatures = vec![WireSignature { keyid: key.id(), sig }];
    let wire = Wire { payload_type: payload_type.to_owned(), payload, signatures };
    // Serializing a struct of strings cannot fail.
    serde_json::to_vec(&wire).unwrap_or_default()
}

/// Checks the size, then the signature, then the type, and returns the signed bytes.
pub fn open(document: &[u8], limit: usize, payload_type: &'static str, keys: &impl KeyLookup) -> Result<Vec<u8>, OpenError> {
    if document.len() > limit {
        return Err(OpenError::Oversized { size: document.len(), limit });
    }
    let wire: Wire = serde_json::from_slice(document).map_err(|e| OpenError::Malformed(e.to_string()))?;
    let [signature] = wire.signatures.as_slice() else {
        return Err(OpenError::Malformed(format!("{} signatures", wire.signatures.len())));
    };
    let key = keys.find(&signature.keyid)?;
    if !key.verifies(&pre_authentication_encoding(&wire.payload_type, &wire.payload), &signature.sig) {
        return Err(OpenError::BadSignature);
    }
    if wire.payload_type != payload_type {
        return Err(OpenError::WrongPayloadType { expected: payload_type });
    }
    Ok(wire.payload)
}

/// Reads the payload without checking the signature.
///
/// Only for documents from our own store, which were verified before they were stored: for display and for digests.
pub fn payload_unverified(document: &[u8]) -> Result<Vec<u8>, OpenError> {
    serde_json::from_slice::<Wire>(document).map(|w| w.payload).map_err(|e| OpenError::Malformed(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPE: &str = "application/vnd.gpuaas.test+json";

    fn key() -> SigningKey {
        SigningKey::from_seed(&[7; 32])
    }

    #[test]
    fn the_encoding_matches_the_published_example() {
        // The example from the DSSE specification.
        assert_eq!(
            pre_authentication_encoding("http://example.com/HelloWorld", b"hello world"),
            b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
        );
    }

    #[test]
    fn what_was_sealed_opens_to_the_same_bytes() {
        let document = seal(TYPE, b"{\"a\": 1}".to_vec(), &key());
        assert_eq!(open(&document, 1024, TYPE, &key().verifying_key()).expect("opens"), b"{\"a\": 1}");
    }

    #[test]
    fn every_flipped_bit_is_rejected() {
        let document = seal(TYPE, b"{\"amount\":1}".to_vec(), &key());
        for bit in 0..document.len() * 8 {
            let mut forged = document.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            assert!(open(&forged, 1024, TYPE, &key().verifying_key()).is_err(), "bit {bit} was not noticed");
        }
    }

    #[test]
    fn a_document_of_another_type_is_refused_even_with_a_good_signature() {
        let document = seal("application/vnd.gpuaas.other+json", b"{}".to_vec(), &key());
        let error = open(&document, 1024, TYPE, &key().verifying_key()).expect_err("refused");
        assert_eq!(error, OpenError::WrongPayloadType { expected: TYPE });
    }

    #[test]
    fn size_is_checked_before_anything_else() {
        let error = open(&vec![b'x'; 2000], 1024, TYPE, &key().verifying_key()).expect_err("refused");
        assert_eq!(error, OpenError::Oversized { size: 2000, limit: 1024 });
    }

    #[test]
    fn two_signatures_are_one_too_many() {
        let document = String::from_utf8(seal(TYPE, b"{}".to_vec(), &key())).expect("json");
        let start = document.find("[{").expect("signatures") + 1;
        let end = document.rfind("}]").expect("signatures") + 1;
        let one = &document[start..end];
        let two = document.replace(one, &format!("{one},{one}"));
        assert!(matches!(open(two.as_bytes(), 4096, TYPE, &key().verifying_key()), Err(OpenError::Malformed(_))));
    }
}
