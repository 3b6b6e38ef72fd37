//! An authorization code: made when a person has signed in, redeemed once by the client that asked.

use gpuaas_contract::Digest;
use gpuaas_contract::id::{GrantId, UserId};
use gpuaas_contract::time::Timestamp;

use super::CODE_LIFE;
use super::client::ClientId;
use super::error::{OauthError, OauthFailure};
use super::request::AuthorizationRequest;
use super::scope::Scopes;
use crate::pkce::{CodeChallenge, CodeVerifier};
use crate::secrets::{Secret, SecretKind};

/// A code as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizationCode {
    /// Digest of the code.
    pub digest: Digest,
    /// The sign-in that all its tokens belong to.
    pub grant: GrantId,
    /// Who signed in.
    pub user: UserId,
    /// Who asked.
    pub client: ClientId,
    /// Where the code was sent.
    pub redirect_uri: String,
    /// Ties it to whoever asked.
    pub challenge: CodeChallenge,
    /// Goes into the ID token.
    pub nonce: Option<String>,
    /// What was asked for.
    pub scope: Scopes,
    /// When it ends.
    pub expires_at: Timestamp,
    /// Whether it was redeemed.
    pub used: bool,
}

/// What becomes of an attempt to redeem a code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CodeOutcome {
    /// Store this code in the place of the old one, if that is still unused, and give tokens of its grant.
    Granted(AuthorizationCode),
    /// Give nothing, change nothing.
    Refused(OauthFailure),
    /// The code was redeemed before, so two parties have it: revoke the grant with all its tokens, then refuse.
    Reused {
        /// What to revoke.
        grant: GrantId,
        /// The answer.
        failure: OauthFailure,
    },
}

impl AuthorizationCode {
    /// A code for a person who has signed in, and the secret to send.
    pub fn issue(request: &AuthorizationRequest, user: UserId, grant: GrantId, now: Timestamp) -> (Self, Secret) {
        let secret = Secret::generate(SecretKind::AuthorizationCode);
        let code = Self {
            digest: secret.digest(),
            grant,
            user,
            client: request.client,
            redirect_uri: request.redirect_uri.clone(),
            challenge: request.challenge.clone(),
            nonce: request.nonce.clone(),
            scope: request.scope.clone(),
            expires_at: now.plus(CODE_LIFE),
            used: false,
        };
        (code, secret)
    }

    /// Decides about an attempt to redeem it.
    pub fn redeem(&self, client: ClientId, redirect_uri: &str, verifier: &CodeVerifier, now: Timestamp) -> CodeOutcome {
        // One sentence for all: whoever tries codes does not learn which part was right.
        let failure = || OauthFailure::new(OauthError::InvalidGrant, "the code is not valid; start to sign in again");
        if self.used {
            return CodeOutcome::Reused { grant: self.grant, failure: failure() };
        }
        let is_theirs = client == self.client && redirect_uri == self.redirect_uri && self.challenge.is_met_by(verifier);
        if now >= self.expires_at || !is_theirs {
            return CodeOutcome::Refused(failure());
        }
        CodeOutcome::Granted(Self { used: true, ..self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Timestamp = Timestamp(1_800_000_000_000_000);
    const CALLBACK: &str = "http://127.0.0.1:4711/callback";

    fn code(verifier: &CodeVerifier) -> (AuthorizationCode, Secret) {
        let request = AuthorizationRequest {
            client: ClientId::Cli,
            redirect_uri: CALLBACK.to_owned(),
            state: "state".to_owned(),
            nonce: Some("nonce".to_owned()),
            challenge: verifier.challenge(),
            scope: Scopes::parse(None).expect("scopes"),
        };
        AuthorizationCode::issue(&request, UserId::generate(), GrantId::generate(), NOW)
    }

    #[test]
    fn a_code_is_redeemed_once_and_a_second_time_revokes_the_grant() {
        let verifier = CodeVerifier::generate();
        let (code, secret) = code(&verifier);
        assert_eq!(code.digest, secret.digest());
        let CodeOutcome::Granted(used) = code.redeem(ClientId::Cli, CALLBACK, &verifier, NOW) else { panic!("not granted") };
        assert_eq!(used, AuthorizationCode { used: true, ..code.clone() });
        // Whoever comes second, with whatever, and however late.
        for (verifier, now) in [(verifier, NOW), (CodeVerifier::generate(), NOW.plus(CODE_LIFE))] {
            let outcome = used.redeem(ClientId::Cli, CALLBACK, &verifier, now);
            assert!(matches!(outcome, CodeOutcome::Reused { grant, .. } if grant == code.grant), "{outcome:?}");
        }
    }

    #[test]
    fn only_whoever_asked_can_redeem_it_and_only_for_a_minute() {
        let verifier = CodeVerifier::generate();
        let (code, _) = code(&verifier);
        for outcome in [
            code.redeem(ClientId::Console, CALLBACK, &verifier, NOW),
            code.redeem(ClientId::Cli, "http://127.0.0.1:4712/callback", &verifier, NOW),
            code.redeem(ClientId::Cli, CALLBACK, &CodeVerifier::generate(), NOW),
            code.redeem(ClientId::Cli, CALLBACK, &verifier, NOW.plus(CODE_LIFE)),
        ] {
            assert!(
                matches!(outcome, CodeOutcome::Refused(ref failure) if failure.error == OauthError::InvalidGrant),
                "{outcome:?}"
            );
        }
        let last = NOW.plus(CODE_LIFE - Duration::from_micros(1));
        assert!(matches!(code.redeem(ClientId::Cli, CALLBACK, &verifier, last), CodeOutcome::Granted(_)));
    }
}
