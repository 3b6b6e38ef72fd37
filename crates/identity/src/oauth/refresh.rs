//! Refresh tokens: each is used once and issues the next one.
//!
//! If a used token is presented again, two parties have the chain, and the server cannot tell which one is the thief: it revokes
//! the whole grant. There is **no grace period** for a client whose answer was lost; the user signs in again. During a grace
//! period of a few seconds a stolen token would work unnoticed.

use gpuaas_contract::Digest;
use gpuaas_contract::id::GrantId;
use gpuaas_contract::time::Timestamp;

use super::client::ClientId;
use super::error::{OauthError, OauthFailure};
use super::scope::Scopes;
use super::{GRANT_LIFE, REFRESH_TOKEN_LIFE};
use crate::secrets::{Secret, SecretKind};

/// A stored refresh token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refresh {
    /// Digest of the token.
    pub digest: Digest,
    /// The grant it belongs to.
    pub grant: GrantId,
    /// The client it was issued to.
    pub client: ClientId,
    /// The scopes of the sign-in; a refresh never extends them.
    pub scope: Scopes,
    /// Position in the chain of the grant; the first is 1.
    pub generation: u32,
    /// The time of its use.
    pub used_at: Option<Timestamp>,
    /// The time of expiry if it is not used.
    pub expires_at: Timestamp,
    /// The end of the grant, however often it is refreshed.
    pub grant_ends_at: Timestamp,
}

/// One step of the chain.
#[derive(Clone, Debug)]
pub struct Rotation {
    /// The presented token, now used. Replace the stored row with it, if that is still unused.
    pub used: Refresh,
    /// The next token. Store it too.
    pub next: Refresh,
    /// The text of the next token, for the client.
    pub secret: Secret,
    /// The scopes of the new access token.
    pub scope: Scopes,
}

/// The result of an attempt to use a refresh token.
#[derive(Clone, Debug)]
pub enum RefreshOutcome {
    /// Store both rows and issue new tokens.
    Rotated(Box<Rotation>),
    /// Issue nothing and change nothing.
    Refused(OauthFailure),
    /// The token was used before: revoke the grant with all its tokens, then refuse.
    Reused {
        /// The grant to revoke.
        grant: GrantId,
        /// The error to return.
        failure: OauthFailure,
    },
}

impl Refresh {
    /// Creates the first refresh token of a grant that begins now, and its text.
    pub fn first(grant: GrantId, client: ClientId, scope: Scopes, now: Timestamp) -> (Self, Secret) {
        let secret = Secret::generate(SecretKind::RefreshToken);
        let grant_ends_at = now.plus(GRANT_LIFE);
        let token = Self {
            digest: secret.digest(),
            grant,
            client,
            scope,
            generation: 1,
            used_at: None,
            expires_at: now.plus(REFRESH_TOKEN_LIFE),
            grant_ends_at,
        };
        (token, secret)
    }

    /// Decides about an attempt to use the token, for all of its scopes or fewer.
    pub fn rotate(&self, client: ClientId, wanted: Option<&Scopes>, now: Timestamp) -> RefreshOutcome {
        let failure = || OauthFailure::new(OauthError::InvalidGrant, "the refresh token is not valid any more; sign in again");
        // Checked first: a used token is a sign of theft even if it has expired since, or comes from another client.
        if self.used_at.is_some() {
            return RefreshOutcome::Reused { grant: self.grant, failure: failure() };
        }
        if client != self.client || now >= self.expires_at || now >= self.grant_ends_at {
            return RefreshOutcome::Refused(failure());
        }
        let scope = wanted.unwrap_or(&self.scope);
        if !scope.is_within(&self.scope) {
            let more = "a refresh gives no more scopes than the sign-in did; sign in again with them";
            return RefreshOutcome::Refused(OauthFailure::new(OauthError::InvalidScope, more));
        }
        let secret = Secret::generate(SecretKind::RefreshToken);
        let next = Self {
            digest: secret.digest(),
            generation: self.generation.saturating_add(1),
            expires_at: now.plus(REFRESH_TOKEN_LIFE).min(self.grant_ends_at),
            ..self.clone()
        };
        let used = Self { used_at: Some(now), ..self.clone() };
        RefreshOutcome::Rotated(Box::new(Rotation { used, next, secret, scope: scope.clone() }))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::oauth::Scope;

    const NOW: Timestamp = Timestamp(1_800_000_000_000_000);

    fn first() -> Refresh {
        Refresh::first(GrantId::generate(), ClientId::Cli, [Scope::OpenId, Scope::Email].into_iter().collect(), NOW).0
    }

    fn rotated(token: &Refresh, now: Timestamp) -> (Refresh, Refresh) {
        match token.rotate(ClientId::Cli, None, now) {
            RefreshOutcome::Rotated(rotation) => {
                assert_eq!(rotation.next.digest, rotation.secret.digest());
                (rotation.used, rotation.next)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_token_gives_the_next_one() {
        let first = first();
        let (used, second) = rotated(&first, NOW.plus(Duration::from_secs(60)));
        assert_eq!(used.used_at, Some(NOW.plus(Duration::from_secs(60))));
        assert_eq!((second.generation, second.used_at, second.grant), (2, None, first.grant));
        assert_ne!(second.digest, first.digest);
        let (_, third) = rotated(&second, NOW.plus(Duration::from_secs(120)));
        assert_eq!(third.generation, 3);
    }

    #[test]
    fn a_used_token_revokes_the_grant_at_once_and_for_ever() {
        let first = first();
        let (used, _) = rotated(&first, NOW);
        for (client, now) in [
            (ClientId::Cli, NOW),
            (ClientId::Cli, NOW.plus(Duration::from_secs(1))),
            (ClientId::Console, NOW),
            (ClientId::Cli, NOW.plus(GRANT_LIFE)),
        ] {
            let outcome = used.rotate(client, None, now);
            assert!(matches!(outcome, RefreshOutcome::Reused { grant, .. } if grant == first.grant), "{outcome:?}");
        }
    }

    #[test]
    fn lives_slide_up_to_the_end_of_the_grant() {
        let first = first();
        assert_eq!(first.expires_at, NOW.plus(REFRESH_TOKEN_LIFE));
        let almost = REFRESH_TOKEN_LIFE - Duration::from_secs(1);
        let (_, second) = rotated(&first, NOW.plus(almost));
        let (_, third) = rotated(&second, NOW.plus(almost * 2));
        let (_, fourth) = rotated(&third, NOW.plus(almost * 3));
        assert_eq!(fourth.expires_at, NOW.plus(GRANT_LIFE));
        assert!(matches!(fourth.rotate(ClientId::Cli, None, NOW.plus(GRANT_LIFE)), RefreshOutcome::Refused(_)));
        assert!(matches!(first.rotate(ClientId::Cli, None, first.expires_at), RefreshOutcome::Refused(_)));
    }

    #[test]
    fn other_clients_and_more_scopes_are_refused() {
        let token = first();
        assert!(matches!(token.rotate(ClientId::Console, None, NOW), RefreshOutcome::Refused(_)));
        let more: Scopes = [Scope::OpenId, Scope::OfflineAccess].into_iter().collect();
        let outcome = token.rotate(ClientId::Cli, Some(&more), NOW);
        assert!(matches!(outcome, RefreshOutcome::Refused(ref failure) if failure.error == OauthError::InvalidScope));
        let fewer: Scopes = [Scope::OpenId].into_iter().collect();
        let outcome = token.rotate(ClientId::Cli, Some(&fewer), NOW);
        // The access token gets fewer scopes; the chain keeps those that the user agreed to.
        let RefreshOutcome::Rotated(rotation) = outcome else { panic!("{outcome:?}") };
        assert_eq!((rotation.scope, rotation.next.scope), (fewer, token.scope));
    }
}
