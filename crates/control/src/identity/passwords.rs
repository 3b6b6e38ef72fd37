//! Checking passwords: slow on purpose, few at a time, and the same answer for everybody who does not get in.

use std::time::Duration;

use gpuaas_contract::id::CorrelationId;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::decision::Context;
use gpuaas_domain::names::checked_email;
use gpuaas_domain::people::{self, User};
use gpuaas_domain::{Actor, Decision, Refusal};
use gpuaas_identity::password;
use tokio::sync::{Semaphore, SemaphorePermit};
use zeroize::Zeroizing;

use super::BuiltIn;
use crate::failure::{Failure, settle};
use crate::{Control, books};

/// Most passwords that are computed at a time: each takes a core and 19 MiB.
const AT_A_TIME: usize = 2;
/// How long somebody waits for their turn.
const PATIENCE: Duration = Duration::from_secs(10);

/// The few who may compute at a time.
pub(crate) struct Hashing(Semaphore);

impl Default for Hashing {
    fn default() -> Self {
        Self(Semaphore::new(AT_A_TIME))
    }
}

impl Hashing {
    async fn turn(&self) -> Result<SemaphorePermit<'_>, Failure> {
        let busy = || {
            let message = "too many people sign in right now; try again in a moment".to_owned();
            Failure::Unavailable { code: "sign_in_busy", message }
        };
        tokio::time::timeout(PATIENCE, self.0.acquire()).await.map_err(|_| busy())?.map_err(|_| busy())
    }

    /// Hashes a new password.
    pub(crate) async fn hash(&self, password: Zeroizing<String>) -> Result<String, Failure> {
        password::check(&password).map_err(|error| Refusal::invalid(error.code(), error.to_string()))?;
        let _turn = self.turn().await?;
        let hashed = blocking(move || password::hash(&password)).await?;
        hashed.map_err(|error| Failure::Internal(error.to_string()))
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    let ended = tokio::task::spawn_blocking(work).await;
    ended.map_err(|_| Failure::Internal("the computation of a password ended without a result".to_owned()))
}

/// The user with this address and this password. `None`, after the same time, for everybody else: unknown, deactivated, locked for a
/// while, or with another password.
pub(super) async fn check(
    control: &Control,
    built_in: &BuiltIn,
    email: &str,
    typed: Zeroizing<String>,
    correlation_id: &CorrelationId,
) -> Result<Option<User>, Failure> {
    // Read after the turn has come: nobody tries more passwords than the lock allows by sending them all at once.
    let _turn = built_in.hashing.turn().await?;
    let now = Timestamp::now();
    let user = match checked_email(email) {
        Ok(email) => books::by_lookup::<User>(control, &people::user_lookup(&built_in.issuer, &email)).await?,
        Err(_) => None,
    };
    let user = user.filter(|user| user.deactivated_at.is_none() && !is_locked(user, now));
    let Some((user, stored)) = user.and_then(|user| user.password_hash.clone().map(|stored| (user, stored))) else {
        blocking(move || password::verify_nobody(&typed)).await?;
        return Ok(None);
    };
    let is_right = blocking(move || password::verify(&typed, &stored)).await?;
    let context = Context { now, actor: Actor::User(user.id), correlation_id: correlation_id.clone() };
    settle(control, || async {
        let Some(user) = books::get::<User>(control, user.id).await?.filter(|user| user.deactivated_at.is_none()) else {
            return Ok((None, Decision::default()));
        };
        // Somebody else, in another process perhaps, has tried too often meanwhile.
        if is_locked(&user, now) {
            return Ok((None, Decision::default()));
        }
        if !is_right {
            return Ok((None, people::wrong_password(&user, &context)));
        }
        let decision = people::right_password(&user, &context);
        Ok((Some(user), decision))
    })
    .await
}

fn is_locked(user: &User, now: Timestamp) -> bool {
    user.locked_until.is_some_and(|until| now < until)
}
