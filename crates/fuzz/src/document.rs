//! Signed documents built from an input, and the properties that must hold when one is opened.
//!
//! The fuzzer cannot guess a signature. The input therefore specifies what is signed, with which key and as which type, and how
//! the result is damaged afterwards; or the input is the whole document.

use gpuaas_contract::dsse::{self, KeyLookup, OpenError};
use gpuaas_contract::key::SigningKey;

use crate::input::Input;

/// A type of signed document, and the keys to build one with.
pub(crate) struct DocumentKind<'a, K> {
    pub(crate) payload_type: &'static str,
    pub(crate) limit: usize,
    /// The keys that the verifier trusts.
    pub(crate) trusted: &'a K,
    /// The signing keys of all keys in `trusted`.
    pub(crate) signers: &'a [&'a SigningKey],
    /// Keys that exist but are not valid for this type of document.
    pub(crate) others: &'a [&'a SigningKey],
}

/// Number of ways in which [`DocumentKind::make`] can build a document.
pub(crate) const WAYS: u8 = 6;

impl<K: KeyLookup> DocumentKind<'_, K> {
    /// Builds a document from the rest of the input in the given way (below [`WAYS`]), and checks that it opens only if it should.
    pub(crate) fn make(&self, way: u8, input: &mut Input<'_>) -> Vec<u8> {
        let signer = self.signers[usize::from(input.byte()) % self.signers.len()];
        match way {
            0 => {
                let document = input.rest().to_vec();
                let _ = self.open(&document);
                document
            }
            1 => self.signed(input.rest(), signer),
            2 => {
                let signer = self.others[usize::from(input.byte()) % self.others.len()];
                let document = dsse::seal(self.payload_type, input.rest().to_vec(), signer);
                let refused = self.open(&document).expect_err("a document of a key that does not count was opened");
                assert!(
                    matches!(refused, OpenError::UnknownKey(_) | OpenError::KeyNotUsable { .. } | OpenError::Oversized { .. }),
                    "{refused}"
                );
                document
            }
            3 => {
                let payload_type = input.short_text();
                let document = dsse::seal(&payload_type, input.rest().to_vec(), signer);
                match self.open(&document) {
                    Ok(_) => assert_eq!(payload_type, self.payload_type),
                    Err(OpenError::WrongPayloadType { .. }) => assert_ne!(payload_type, self.payload_type),
                    Err(refused) => assert!(document.len() > self.limit, "{refused}"),
                }
                document
            }
            4 => {
                let edits: Vec<(u16, u8)> = (0..=input.byte() % 4).map(|_| (input.u16(), input.byte())).collect();
                let payload = input.rest();
                let mut document = dsse::seal(self.payload_type, payload.to_vec(), signer);
                let length = document.len();
                for (at, change) in edits {
                    document[usize::from(at) % length] ^= change;
                }
                if let Ok(opened) = self.open(&document) {
                    assert_eq!(opened, payload, "an edited document opened to something that was never signed");
                }
                document
            }
            5 => {
                let over = input.byte() % 2 == 1;
                let mut document = self.signed(input.rest(), signer);
                document.resize(document.len().max(self.limit + usize::from(over)), b' ');
                assert_eq!(
                    matches!(self.open(&document), Err(OpenError::Oversized { .. })),
                    document.len() > self.limit,
                    "the limit is exact"
                );
                document
            }
            _ => unreachable!("there are {WAYS} ways"),
        }
    }

    /// Returns a correctly signed document.
    pub(crate) fn signed(&self, payload: &[u8], signer: &SigningKey) -> Vec<u8> {
        let document = dsse::seal(self.payload_type, payload.to_vec(), signer);
        match self.open(&document) {
            Ok(opened) => assert_eq!(opened, payload, "what was sealed opens to other bytes"),
            Err(OpenError::Oversized { .. }) => assert!(document.len() > self.limit),
            Err(refused) => panic!("what was sealed does not open: {refused}"),
        }
        document
    }

    /// Opens a document. Whatever opens must be, up to formatting, the document that the signer creates from that payload:
    /// Ed25519 signatures are deterministic here, so each key and payload have exactly one.
    pub(crate) fn open(&self, document: &[u8]) -> Result<Vec<u8>, OpenError> {
        let payload = dsse::open(document, self.limit, self.payload_type, self.trusted)?;
        assert!(document.len() <= self.limit);
        assert_eq!(dsse::payload_unverified(document).as_deref(), Ok(payload.as_slice()));
        let read = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).expect("what opens is JSON");
        let document = read(document);
        let named = &document["signatures"][0]["keyid"];
        let signer = self.signers.iter().find(|signer| *named == signer.verifying_key().id().as_str());
        let signer = signer.expect("a document opened that no trusted key has signed");
        assert_eq!(read(&dsse::seal(self.payload_type, payload.clone(), signer)), document, "nobody has signed that");
        Ok(payload)
    }
}
