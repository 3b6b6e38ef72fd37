//! A device grant (RFC 8628): a terminal without a browser requests it, and a user decides in a browser elsewhere.

use std::time::Duration;

use gpuaas_contract::Digest;
use gpuaas_contract::id::{GrantId, UserId};
use gpuaas_contract::time::Timestamp;

use super::client::ClientId;
use super::error::{OauthError, OauthFailure};
use super::request::DeviceAuthorizationRequest;
use super::scope::Scopes;
use super::{DEVICE_CODE_LIFE, DEVICE_POLL_INTERVAL};
use crate::secrets::{Secret, SecretKind};
use crate::user_code::UserCode;

/// How much the interval grows when a client polls too fast.
const SLOWER_BY: Duration = Duration::from_secs(5);
/// The longest interval.
const MAX_INTERVAL: Duration = Duration::from_secs(60);
/// How early a poll may arrive, because network delays vary.
const EARLY_BY: Duration = Duration::from_secs(1);

/// The user's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceState {
    /// No decision yet.
    Pending,
    /// Approved by this user.
    Approved(UserId),
    /// Denied.
    Denied,
    /// The tokens were issued.
    Redeemed,
}

/// A stored device grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceGrant {
    /// Digest of the device code, which only the terminal knows.
    pub device_digest: Digest,
    /// The code that the user types.
    pub user_code: UserCode,
    /// The grant of all its tokens.
    pub grant: GrantId,
    /// The client that requested it.
    pub client: ClientId,
    /// The requested scopes.
    pub scope: Scopes,
    /// The user's decision.
    pub state: DeviceState,
    /// Shortest time between two polls.
    pub interval: Duration,
    /// The time of the last poll.
    pub last_polled_at: Option<Timestamp>,
    /// The time of expiry.
    pub expires_at: Timestamp,
}

/// The result of a poll. If it has a grant, replace the stored one with it before answering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DevicePoll {
    /// Return this error: there is no decision yet, or the terminal polls too fast.
    NotYet {
        /// The new row.
        grant: DeviceGrant,
        /// `authorization_pending` or `slow_down`.
        failure: OauthFailure,
    },
    /// Issue tokens for this user.
    Tokens {
        /// The new row.
        grant: DeviceGrant,
        /// The user.
        user: UserId,
    },
    /// Return this error and change nothing: the grant is expired, denied or not this client's.
    Refused(OauthFailure),
    /// The tokens were issued before, so two parties have the code: revoke the grant with all its tokens, then refuse.
    Reused {
        /// The grant to revoke.
        grant: GrantId,
        /// The error to return.
        failure: OauthFailure,
    },
}

/// Why a user can no longer decide about a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotDecidable {
    /// The grant has expired.
    #[error("this code has expired; start the sign-in again on the device")]
    Expired,
    /// There is already a decision.
    #[error("this code was used already; start the sign-in again on the device if that was not you")]
    Decided,
}

impl DeviceGrant {
    /// Creates a grant, and the device code to send.
    pub fn issue(request: &DeviceAuthorizationRequest, now: Timestamp) -> (Self, Secret) {
        let secret = Secret::generate(SecretKind::DeviceCode);
        let grant = Self {
            device_digest: secret.digest(),
            user_code: UserCode::generate(),
            grant: GrantId::generate(),
            client: request.client,
            scope: request.scope.clone(),
            state: DeviceState::Pending,
            interval: DEVICE_POLL_INTERVAL,
            last_polled_at: None,
            expires_at: now.plus(DEVICE_CODE_LIFE),
        };
        (grant, secret)
    }

    /// Approves the grant as this user.
    pub fn approve(&self, user: UserId, now: Timestamp) -> Result<Self, NotDecidable> {
        self.decide(DeviceState::Approved(user), now)
    }

    /// Denies the grant.
    pub fn deny(&self, now: Timestamp) -> Result<Self, NotDecidable> {
        self.decide(DeviceState::Denied, now)
    }

    fn decide(&self, state: DeviceState, now: Timestamp) -> Result<Self, NotDecidable> {
        match self.state {
            DeviceState::Pending if now < self.expires_at => Ok(Self { state, ..self.clone() }),
            DeviceState::Pending => Err(NotDecidable::Expired),
            DeviceState::Approved(_) | DeviceState::Denied | DeviceState::Redeemed => Err(NotDecidable::Decided),
        }
    }

    /// Decides about a poll.
    pub fn poll(&self, client: ClientId, now: Timestamp) -> DevicePoll {
        let refused = |error, description: &str| DevicePoll::Refused(OauthFailure::new(error, description));
        if client != self.client {
            return refused(OauthError::InvalidGrant, "the device code is not valid; start to sign in again");
        }
        if self.state == DeviceState::Redeemed {
            let failure = OauthFailure::new(OauthError::InvalidGrant, "the device code was used already; start to sign in again");
            return DevicePoll::Reused { grant: self.grant, failure };
        }
        if now >= self.expires_at {
            return refused(OauthError::ExpiredToken, "the device code has ended; start to sign in again");
        }
        match self.state {
            DeviceState::Pending => self.not_yet(now),
            DeviceState::Approved(user) => {
                let grant = Self { state: DeviceState::Redeemed, last_polled_at: Some(now), ..self.clone() };
                DevicePoll::Tokens { grant, user }
            }
            DeviceState::Denied => refused(OauthError::AccessDenied, "the sign-in was denied in the browser"),
            // Handled above.
            DeviceState::Redeemed => refused(OauthError::InvalidGrant, "the device code was used already"),
        }
    }

    fn not_yet(&self, now: Timestamp) -> DevicePoll {
        let too_fast = self.last_polled_at.is_some_and(|last| now.since(last) + EARLY_BY < self.interval);
        let grant = Self { last_polled_at: Some(now), ..self.clone() };
        if too_fast {
            let interval = (self.interval + SLOWER_BY).min(MAX_INTERVAL);
            let failure = OauthFailure::new(OauthError::SlowDown, format!("wait {} seconds between polls", interval.as_secs()));
            DevicePoll::NotYet { grant: Self { interval, ..grant }, failure }
        } else {
            let failure = OauthFailure::new(OauthError::AuthorizationPending, "there is no decision in the browser yet");
            DevicePoll::NotYet { grant, failure }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_800_000_000_000_000);

    fn seconds(seconds: u64) -> Timestamp {
        NOW.plus(Duration::from_secs(seconds))
    }

    fn grant() -> DeviceGrant {
        let request = DeviceAuthorizationRequest { client: ClientId::Cli, scope: Scopes::parse(None).expect("scopes") };
        DeviceGrant::issue(&request, NOW).0
    }

    fn not_yet(grant: &DeviceGrant, now: Timestamp) -> (DeviceGrant, OauthError) {
        match grant.poll(ClientId::Cli, now) {
            DevicePoll::NotYet { grant, failure } => (grant, failure.error),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn polls_wait_until_the_person_has_approved_and_give_tokens_once() {
        let user = UserId::generate();
        let (grant, error) = not_yet(&grant(), NOW);
        assert_eq!(error, OauthError::AuthorizationPending);
        let (grant, error) = not_yet(&grant, seconds(5));
        assert_eq!(error, OauthError::AuthorizationPending);
        let approved = grant.approve(user, seconds(6)).expect("approved");
        let DevicePoll::Tokens { grant: redeemed, user: theirs } = approved.poll(ClientId::Cli, seconds(10)) else {
            panic!("no tokens")
        };
        assert_eq!((theirs, redeemed.state), (user, DeviceState::Redeemed));
        let again = redeemed.poll(ClientId::Cli, seconds(15));
        assert!(matches!(again, DevicePoll::Reused { grant: revoked, .. } if revoked == grant.grant), "{again:?}");
    }

    #[test]
    fn who_polls_too_fast_has_to_wait_longer_each_time() {
        let (mut grant, _) = not_yet(&grant(), NOW);
        let mut now = NOW;
        for expected in [10, 15, 20] {
            now = now.plus(Duration::from_secs(3));
            let (next, error) = not_yet(&grant, now);
            assert_eq!((error, next.interval), (OauthError::SlowDown, Duration::from_secs(expected)));
            grant = next;
        }
        // A client that respects the new interval is answered, even if the network makes it a little early.
        let (_, error) = not_yet(&grant, now.plus(Duration::from_millis(19_200)));
        assert_eq!(error, OauthError::AuthorizationPending);
    }

    #[test]
    fn the_pause_does_not_grow_for_ever() {
        let mut grant = DeviceGrant { last_polled_at: Some(NOW), ..grant() };
        for _ in 0..50 {
            grant = not_yet(&grant, NOW).0;
        }
        assert_eq!(grant.interval, MAX_INTERVAL);
    }

    #[test]
    fn ended_denied_and_foreign_grants_give_nothing() {
        let grant = grant();
        let end = NOW.plus(DEVICE_CODE_LIFE);
        let approved = grant.approve(UserId::generate(), NOW).expect("approved");
        for (outcome, error) in [
            (grant.poll(ClientId::Cli, end), OauthError::ExpiredToken),
            (approved.poll(ClientId::Cli, end), OauthError::ExpiredToken),
            (approved.poll(ClientId::Console, NOW), OauthError::InvalidGrant),
            (grant.deny(NOW).expect("denied").poll(ClientId::Cli, NOW), OauthError::AccessDenied),
        ] {
            assert!(matches!(outcome, DevicePoll::Refused(ref failure) if failure.error == error), "{outcome:?}");
        }
    }

    #[test]
    fn a_person_decides_once_and_in_time() {
        let (grant, user) = (grant(), UserId::generate());
        assert_eq!(grant.approve(user, NOW.plus(DEVICE_CODE_LIFE)), Err(NotDecidable::Expired));
        let denied = grant.deny(NOW).expect("denied");
        assert_eq!(denied.approve(user, NOW), Err(NotDecidable::Decided));
        let approved = grant.approve(user, NOW).expect("approved");
        assert_eq!(approved.approve(UserId::generate(), NOW), Err(NotDecidable::Decided));
        assert_eq!(approved.deny(NOW), Err(NotDecidable::Decided));
    }
}
