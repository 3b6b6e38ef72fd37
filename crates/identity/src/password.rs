//! Passwords of the built-in issuer: argon2id, with its parameters in the stored text.
//!
//! Every function here except [`needs_rehash`] and [`check`] takes tens of milliseconds and 19 MiB. Callers always run them on
//! the same thread: it keeps the memory for the next password, because allocators do not return that much.

use std::cell::RefCell;

use argon2::password_hash::phc::{Output, ParamsString, Salt};
use argon2::{Algorithm, Argon2, Block, Params, PasswordHash, Version};

/// Fewest characters of a new password.
pub const MIN_CHARS: usize = 12;
/// Maximum size of a password, in bytes.
pub const MAX_BYTES: usize = 1024;
/// Memory of one hash, in KiB.
const MEMORY_KIB: u32 = 19 * 1024;
/// Passes over that memory.
const PASSES: u32 = 2;
/// Lanes of one hash.
const LANES: u32 = 1;
/// Stored texts that need more than this are not computed: an attacker who can write a row must not be able to exhaust the
/// server.
const MAX_MEMORY_KIB: u32 = 128 * 1024;
/// Maximum number of passes that are computed.
const MAX_PASSES: u32 = 16;
/// Maximum number of lanes that are computed.
const MAX_LANES: u32 = 8;
/// Maximum size of a stored text, in bytes.
const MAX_STORED_BYTES: usize = 512;

/// The stored text to verify against for users that do not exist. No password matches it, and the result is ignored.
const NOBODY: &str = "$argon2id$v=19$m=19456,t=2,p=1$Z3B1YWFzLW5vYm9keS0wMQ$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// Why a password is rejected or could not be hashed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PasswordError {
    /// The password is too short to resist guessing.
    #[error("the password must have at least {MIN_CHARS} characters; several words in a row are easy to remember")]
    TooShort,
    /// The password is longer than any typed one.
    #[error("the password must have at most {MAX_BYTES} bytes")]
    TooLong,
    /// The library failed. Its reason concerns the parameters, never the password.
    #[error("the password could not be hashed: {reason}; try again, and tell the operator if it happens again")]
    Hash {
        /// The message of the library.
        reason: String,
    },
}

impl PasswordError {
    /// Returns a stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::TooShort => "password_too_short",
            Self::TooLong => "password_too_long",
            Self::Hash { .. } => "password_not_hashed",
        }
    }
}

/// Checks the length of a new password.
pub fn check(password: &str) -> Result<(), PasswordError> {
    if password.len() > MAX_BYTES {
        Err(PasswordError::TooLong)
    } else if password.chars().count() < MIN_CHARS {
        Err(PasswordError::TooShort)
    } else {
        Ok(())
    }
}

/// Hashes a new password with a fresh salt and returns the text to store.
pub fn hash(password: &str) -> Result<String, PasswordError> {
    check(password)?;
    let failed = |reason: String| PasswordError::Hash { reason };
    let hashed = hashed(password).map_err(failed)?;
    Ok(hashed.to_string())
}

fn hashed(password: &str) -> Result<PasswordHash, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let params = Params::new(MEMORY_KIB, PASSES, LANES, None).map_err(|error| text(&error))?;
    let mut salt = [0; Salt::RECOMMENDED_LENGTH];
    getrandom::fill(&mut salt).map_err(|error| text(&error))?;
    let mut output = [0; Params::DEFAULT_OUTPUT_LEN];
    compute(&Argon2::new(Algorithm::Argon2id, Version::V0x13, params.clone()), password, &salt, &mut output)?;
    Ok(PasswordHash {
        algorithm: Algorithm::Argon2id.ident(),
        version: Some(Version::V0x13.into()),
        params: ParamsString::try_from(&params).map_err(|error| text(&error))?,
        salt: Some(Salt::new(&salt).map_err(|error| text(&error))?),
        hash: Some(Output::new(&output).map_err(|error| text(&error))?),
    })
}

thread_local! {
    static MEMORY: RefCell<Vec<Block>> = const { RefCell::new(Vec::new()) };
}

/// Computes a hash, in memory that the thread keeps.
fn compute(hasher: &Argon2<'_>, password: &str, salt: &[u8], output: &mut [u8]) -> Result<(), String> {
    MEMORY.with_borrow_mut(|memory| {
        let blocks = hasher.params().block_count();
        if memory.len() < blocks {
            memory.resize(blocks, Block::new());
        }
        let computed = hasher.hash_password_into_with_memory(password.as_bytes(), salt, output, &mut memory[..blocks]);
        // A stored text may need more memory than our parameters; the excess is not kept.
        memory.truncate(usize::try_from(MEMORY_KIB).unwrap_or(usize::MAX));
        memory.shrink_to_fit();
        computed.map_err(|error| error.to_string())
    })
}

/// Returns whether the password has this hash. Takes the same time for every password.
fn matches(password: &str, hash: &PasswordHash, params: &Params) -> bool {
    let (Some(salt), Some(expected)) = (&hash.salt, &hash.hash) else { return false };
    let algorithm = Algorithm::try_from(hash.algorithm.as_str());
    let version = hash.version.map_or(Ok(Version::default()), Version::try_from);
    let (Ok(algorithm), Ok(version)) = (algorithm, version) else { return false };
    let mut buffer = [0; Output::MAX_LENGTH];
    let Some(output) = buffer.get_mut(..expected.len()) else { return false };
    let computed = compute(&Argon2::new(algorithm, version, params.clone()), password, salt, output);
    // The outputs are compared in constant time.
    computed.is_ok() && Output::new(output).is_ok_and(|output| output == *expected)
}

/// Returns whether `password` matches `stored`. A stored text that cannot be parsed matches nothing.
pub fn verify(password: &str, stored: &str) -> bool {
    let Some((hash, params)) = readable(stored) else {
        tracing::warn!("a stored password hash is not valid; set a new password for the user");
        verify_nobody(password);
        return false;
    };
    // Checked first: the length of the typed text is not secret.
    password.len() <= MAX_BYTES && matches(password, &hash, &params)
}

/// Does the work of [`verify`] for a user that does not exist, so that the response time does not reveal it.
pub fn verify_nobody(password: &str) {
    if password.len() > MAX_BYTES {
        return;
    }
    if let Some((hash, params)) = readable(NOBODY) {
        std::hint::black_box(matches(password, &hash, &params));
    }
}

/// Returns whether `stored` has other parameters than the current ones. The caller hashes again at the next successful sign-in.
pub fn needs_rehash(stored: &str) -> bool {
    let Some((hash, params)) = readable(stored) else { return true };
    let today = (params.m_cost(), params.t_cost(), params.p_cost()) == (MEMORY_KIB, PASSES, LANES);
    let id = hash.algorithm.as_str() == "argon2id" && hash.version == Some(Version::V0x13.into());
    !(today && id)
}

/// Parses a stored text whose parameters are within the limits.
fn readable(stored: &str) -> Option<(PasswordHash, Params)> {
    if stored.len() > MAX_STORED_BYTES {
        return None;
    }
    let hash = PasswordHash::new(stored).ok()?;
    let params = Params::try_from(&hash).ok()?;
    let affordable = params.m_cost() <= MAX_MEMORY_KIB && params.t_cost() <= MAX_PASSES && params.p_cost() <= MAX_LANES;
    affordable.then_some((hash, params))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_password_verifies() {
        let stored = hash("correct horse battery").expect("a hash");
        assert!(stored.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{stored}");
        assert!(verify("correct horse battery", &stored));
        assert!(!verify("correct horse batterY", &stored));
        assert!(!verify("", &stored));
        assert!(!needs_rehash(&stored));
    }

    /// From the reference implementation, so that hashes of other programs and of earlier versions stay valid.
    #[test]
    fn a_hash_that_was_made_elsewhere_verifies() {
        let stored = "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc";
        assert!(verify("password", stored));
        assert!(!verify("passwore", stored));
    }

    #[test]
    fn the_same_password_never_gives_the_same_text() {
        assert_ne!(hash("correct horse battery").expect("a hash"), hash("correct horse battery").expect("a hash"));
    }

    #[test]
    fn short_and_endless_passwords_are_refused() {
        assert_eq!(check("elevenchars"), Err(PasswordError::TooShort));
        assert_eq!(check("twelve chars"), Ok(()));
        // Characters count, not bytes.
        assert_eq!(check("ääääääääää"), Err(PasswordError::TooShort));
        assert_eq!(check(&"x".repeat(1025)), Err(PasswordError::TooLong));
        assert!(!verify(&"x".repeat(1025), NOBODY));
    }

    #[test]
    fn other_parameters_ask_for_a_new_hash() {
        for stored in [
            NOBODY.replace("m=19456", "m=12288"),
            NOBODY.replace("t=2", "t=3"),
            NOBODY.replace("argon2id", "argon2i"),
            "not a hash".to_owned(),
        ] {
            assert!(needs_rehash(&stored), "{stored}");
        }
        assert!(!needs_rehash(NOBODY));
    }

    #[test]
    fn a_stored_text_cannot_ask_for_all_memory() {
        for stored in [NOBODY.replace("m=19456", "m=4000000"), NOBODY.replace("t=2", "t=1000000")] {
            assert!(readable(&stored).is_none(), "{stored}");
            assert!(!verify("correct horse battery", &stored));
        }
    }
}
