//! The code that a user reads from a terminal and types into a browser (RFC 8628).

use std::fmt;
use std::str::FromStr;

use crate::secrets::random;

/// Consonants only, so that no words appear; without vowels and digits, there is no `O` beside `0` and no `I` beside `1`.
const ALPHABET: &[u8; 20] = b"BCDFGHJKLMNPQRSTVWXZ";
/// Letters of a code: 20^8, about 34 bits. That is enough because a code is valid for minutes and the caller limits the attempts.
const LEN: usize = 8;
/// Maximum size of a typed text, in bytes.
const MAX_TYPED_LEN: usize = 64;
/// Random bytes from this value on are discarded, so that every letter is equally likely.
const FAIR_BELOW: u8 = 240;

/// Eight letters, shown as `XXXX-XXXX`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UserCode([u8; LEN]);

/// The text is not a user code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not a code: it has eight letters, such as `BCDF-GHJK`; check the terminal where you started to sign in")]
pub struct BadUserCode;

impl UserCode {
    /// Generates a code. The caller generates another one if this one is in use.
    pub fn generate() -> Self {
        let mut letters = [0; LEN];
        let mut filled = 0;
        while filled < LEN {
            for byte in random::<16>().into_iter().filter(|byte| *byte < FAIR_BELOW).take(LEN - filled) {
                letters[filled] = ALPHABET[usize::from(byte) % ALPHABET.len()];
                filled += 1;
            }
        }
        Self(letters)
    }
}

impl fmt::Display for UserCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, letter) in self.0.iter().enumerate() {
            if index == LEN / 2 {
                f.write_str("-")?;
            }
            write!(f, "{}", char::from(*letter))?;
        }
        Ok(())
    }
}

impl fmt::Debug for UserCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for UserCode {
    type Err = BadUserCode;

    /// Accepts any case, with or without dash and spaces.
    fn from_str(typed: &str) -> Result<Self, BadUserCode> {
        if typed.len() > MAX_TYPED_LEN {
            return Err(BadUserCode);
        }
        let mut letters = [0; LEN];
        let mut filled = 0;
        for byte in typed.bytes().filter(|byte| !matches!(byte, b'-' | b' ' | b'\t' | b'\r' | b'\n')) {
            let letter = byte.to_ascii_uppercase();
            if filled == LEN || !ALPHABET.contains(&letter) {
                return Err(BadUserCode);
            }
            letters[filled] = letter;
            filled += 1;
        }
        if filled == LEN { Ok(Self(letters)) } else { Err(BadUserCode) }
    }
}

impl TryFrom<String> for UserCode {
    type Error = BadUserCode;

    fn try_from(text: String) -> Result<Self, BadUserCode> {
        text.parse()
    }
}

impl From<UserCode> for String {
    fn from(code: UserCode) -> String {
        code.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_read_however_it_is_typed() {
        let code: UserCode = "BCDF-GHJK".parse().expect("a code");
        for typed in ["bcdfghjk", "BCDFGHJK", " bcdf ghjk ", "Bcdf-ghjK\n", "b-c-d-f-g-h-j-k"] {
            assert_eq!(typed.parse(), Ok(code), "{typed:?}");
        }
        assert_eq!(code.to_string(), "BCDF-GHJK");
    }

    #[test]
    fn what_is_no_code_is_refused() {
        for typed in ["", "BCDF", "BCDF-GHJ", "BCDF-GHJKL", "BCDF-GHJA", "BCDF-GHJ0", "BCDF_GHJK", "BCDF-GHJÄ", &"-".repeat(65)]
        {
            assert_eq!(typed.parse::<UserCode>(), Err(BadUserCode), "{typed:?}");
        }
    }

    #[test]
    fn new_codes_read_back_and_use_every_letter() {
        let codes: Vec<UserCode> = (0..400).map(|_| UserCode::generate()).collect();
        for code in &codes {
            assert_eq!(code.to_string().parse(), Ok(*code));
        }
        // 3200 letters: the probability that one of the 20 is missing is below 10^-70.
        assert!(ALPHABET.iter().all(|letter| codes.iter().any(|code| code.0.contains(letter))));
    }
}
