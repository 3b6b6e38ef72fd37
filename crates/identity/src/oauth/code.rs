//! An authorization code: issued when a user has signed in, redeemed once by the client that requested it.

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

/// A stored authorization code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizationCode {
    /// Digest of the code.
    pub digest: Digest,
    /// The grant of all its tokens.
    pub grant: GrantId,
    /// The user who signed in.
    pub user: UserId,
    /// The client that requested it.
    pub client: ClientId,
    /// The address that the code was sent to.
    pub redirect_uri: String,
    /// Binds the code to the requesting client.
    pub challenge: CodeChallenge,
    /// Copied into the ID token.
    pub nonce: Option<String>,
    /// The requested scopes.
    pub scope: Scopes,
    /// The time of expiry.
    pub expires_at: Timestamp,
    /// Whether it was redeemed.
    pub used: bool,
}

/// The result of an attempt to redeem a code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CodeOutcome {
    /// Replace the stored code with this one, if it is still unused, and issue tokens of its grant.
    Granted(AuthorizationCode),
    /// Issue nothing and change nothing.
    Refused(OauthFailure),
    /// The code was redeemed before, so two parties have it: revoke the grant with all its tokens, then refuse.
    Reused {
        /// The grant to revoke.
        grant: GrantId,
        /// The error to return.
        failure: OauthFailure,
    },
}

impl AuthorizationCode {
    /// Creates a code for a user who has signed in, and the secret to send.
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

    /// Decides about an attempt to redeem the code.
    pub fn redeem(&self, client: ClientId, redirect_uri: &str, verifier: &CodeVerifier, now: Timestamp) -> CodeOutcome {
        // The same message for every cause, so that an attacker does not learn which part was right.
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
        // A second use, with any verifier and at any time.
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
