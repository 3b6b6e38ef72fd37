//! Ed25519 keys.
//!
//! A [`VerifyingKey`] always verifies with `verify_strict`, and a [`SigningKey`] always signs with its own public half: no call accepts the
//! two halves separately.

use ed25519_dalek::Signer as _;

/// The public half of a key, with its id.
#[derive(Clone, PartialEq, Eq)]
pub struct VerifyingKey {
    key: ed25519_dalek::VerifyingKey,
    /// Derived from the key. Stored because every signature names it.
    id: KeyId,
}

/// The private half of a key; wiped from memory on drop.
pub struct SigningKey {
    key: ed25519_dalek::SigningKey,
    public: VerifyingKey,
}

/// Id of a key: `key_` and the first 16 bytes of the SHA-256 of its public half, in hex.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(transparent)]
pub struct KeyId(String);

impl KeyId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for KeyId {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl std::fmt::Display for KeyId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The bytes are not an Ed25519 key.
#[derive(Debug, thiserror::Error)]
#[error("not an Ed25519 key: expected 32 bytes that are a valid curve point")]
pub struct BadKey;

impl SigningKey {
    /// The key with this seed.
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        let key = ed25519_dalek::SigningKey::from_bytes(seed);
        Self { public: VerifyingKey::new(key.verifying_key()), key }
    }

    /// The seed, which must only be written to a file that no one but its owner can read.
    pub fn seed(&self) -> zeroize::Zeroizing<[u8; 32]> {
        zeroize::Zeroizing::new(self.key.to_bytes())
    }

    /// The public half.
    pub fn verifying_key(&self) -> VerifyingKey {
        self.public.clone()
    }

    /// The key's id.
    pub fn id(&self) -> KeyId {
        self.public.id()
    }

    /// Signs exactly these bytes.
    pub fn sign(&self, bytes: &[u8]) -> [u8; 64] {
        self.key.sign(bytes).to_bytes()
    }
}

impl VerifyingKey {
    fn new(key: ed25519_dalek::VerifyingKey) -> Self {
        use sha2::Digest as _;
        let id = KeyId(format!("key_{}", crate::hex(&sha2::Sha256::digest(key.as_bytes())[..16])));
        Self { key, id }
    }

    /// The key with these 32 bytes. Weak (small-order) keys are refused.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BadKey> {
        let bytes: &[u8; 32] = bytes.try_into().map_err(|_| BadKey)?;
        let key = ed25519_dalek::VerifyingKey::from_bytes(bytes).map_err(|_| BadKey)?;
        if key.is_weak() { Err(BadKey) } else { Ok(Self::new(key)) }
    }

    /// The key as 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        self.key.as_bytes()
    }

    /// The key's id.
    pub fn id(&self) -> KeyId {
        self.id.clone()
    }

    /// Whether `id` is this key's id.
    pub fn is_named(&self, id: &KeyId) -> bool {
        self.id == *id
    }

    /// Whether `signature` is this key's signature over exactly `bytes`. Strict: neither malleable signatures nor weak points are accepted.
    pub fn verifies(&self, bytes: &[u8], signature: &[u8]) -> bool {
        ed25519_dalek::Signature::from_slice(signature).is_ok_and(|s| self.key.verify_strict(bytes, &s).is_ok())
    }
}

impl std::fmt::Debug for VerifyingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "VerifyingKey({})", self.id())
    }
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SigningKey({})", self.id())
    }
}

impl serde::Serialize for VerifyingKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        crate::bytes_as_base64::serialize(self.as_bytes(), serializer)
    }
}

impl<'de> serde::Deserialize<'de> for VerifyingKey {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = crate::bytes_as_base64::deserialize(deserializer)?;
        Self::from_bytes(&bytes).map_err(serde::de::Error::custom)
    }
}
