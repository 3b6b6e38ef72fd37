//! Checks passwords: slow on purpose, few at a time, and with the same answer for every failure.
//!
//! Wrong passwords are counted by the typed address, whether such an account exists or not: per account and origin, per account
//! over all strangers, and per origin over all accounts. The owner of an account in a browser or at an address with an earlier
//! sign-in is counted separately, so that strangers cannot lock them out.

use std::sync::Arc;
use std::time::Duration;

use gpuaas_backends::limits::Rule;
use gpuaas_contract::Digest;
use gpuaas_contract::id::CorrelationId;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::decision::Context;
use gpuaas_domain::names::checked_email;
use gpuaas_domain::tenancy::{self, User};
use gpuaas_domain::{Actor, Decision, Refusal};
use gpuaas_identity::password;
use zeroize::Zeroizing;

use super::BuiltIn;
use super::known_browser::KnownBrowser;
use super::password_threads::PasswordThreads;
use super::turns::{Busy, Turn, Turns};
use crate::error::ControlError;
use crate::stranger_budgets::{self, AddressRange, WRONG_PASSWORDS};
use crate::transact::transact;
use crate::{Control, resources};

/// Wrong passwords for one account from one address.
const HERE: Rule = Rule { per: Duration::from_secs(900), burst: 5 };
/// Wrong passwords for one account from all unknown origins.
const STRANGERS: Rule = Rule { per: Duration::from_secs(3600), burst: 50 };
/// Wrong passwords for one account from a browser or an address with an earlier sign-in.
const FAMILIAR: Rule = Rule { per: Duration::from_secs(900), burst: 10 };
/// The retry delay if too many users sign in at the same time.
const BUSY_FOR: Duration = Duration::from_secs(2);

/// Computes password hashes, a few at a time.
pub(crate) struct Hashing {
    turns: Arc<Turns>,
    threads: PasswordThreads,
}

impl Hashing {
    /// Starts the threads that compute.
    pub(crate) fn start() -> std::io::Result<Self> {
        Ok(Self { turns: Arc::default(), threads: PasswordThreads::start()? })
    }

    async fn turn(&self, control: &Control, address: &str, is_known: bool) -> Result<Turn, ControlError> {
        self.turns.turn(address, is_known).await.map_err(|Busy| {
            let message = "too many people sign in right now; try again in a moment";
            stranger_budgets::too_many(control, "sign_in_busy", message, BUSY_FOR)
        })
    }

    /// Hashes a new password, for an administrator.
    pub(crate) async fn hash(&self, control: &Control, password: Zeroizing<String>) -> Result<String, ControlError> {
        password::check(&password).map_err(|error| Refusal::invalid(error.code(), error.to_string()))?;
        let _turn = self.turn(control, "administrators", true).await?;
        let hashed = self.threads.run(move || password::hash(&password)).await?;
        hashed.map_err(|error| ControlError::Internal(error.to_string()))
    }
}

/// Returns the key of an account in counters and cookies, whether it exists or not.
pub(super) fn account_key(email: &str) -> String {
    let email = checked_email(email).unwrap_or_else(|_| email.trim().to_lowercase());
    Digest::of(email.as_bytes()).to_string()
}

/// A sign-in attempt with an address and a password.
pub(super) struct Attempt<'a> {
    /// The address.
    pub(super) email: &'a str,
    /// The password.
    pub(super) typed: Zeroizing<String>,
    /// The origin of the request.
    pub(super) from: &'a AddressRange,
    /// The browser, if the account has signed in with it before.
    pub(super) browser: Option<KnownBrowser>,
    /// The correlation id of the request.
    pub(super) correlation_id: &'a CorrelationId,
}

/// The counters of an attempt.
struct Throttle<'a> {
    from: &'a AddressRange,
    is_familiar: bool,
    counters: Vec<(String, Rule)>,
}

impl<'a> Throttle<'a> {
    async fn of(control: &Control, attempt: &Attempt<'a>, account: &str) -> Self {
        let from = attempt.from;
        let familiar = match &attempt.browser {
            Some(browser) => Some(browser.id.clone()),
            None => from.is_known_for(control, account).await.then(|| from.to_string()),
        };
        let counters = match &familiar {
            Some(place) => vec![(format!("password:{account}:familiar:{place}"), FAMILIAR)],
            None => vec![(format!("password:{account}:{from}"), HERE), (format!("password:{account}:strangers"), STRANGERS)],
        };
        Self { from, is_familiar: familiar.is_some(), counters }
    }

    /// Refuses before anything is computed.
    async fn look(&self, control: &Control) -> Result<(), ControlError> {
        for (key, rule) in &self.counters {
            if let Some(wait) = stranger_budgets::empty(control, key, *rule).await {
                let message = "too many wrong passwords; wait, or sign in from where you did before";
                return Err(stranger_budgets::too_many(control, "sign_in_throttled", message, wait));
            }
        }
        if self.is_familiar { Ok(()) } else { WRONG_PASSWORDS.look(control, self.from, false).await }
    }

    /// Counts a wrong password.
    async fn spend(&self, control: &Control) {
        for (key, rule) in &self.counters {
            control.backends.limits.check(key, *rule, 1).await;
        }
        if !self.is_familiar {
            // The next attempt sees whether anything is left.
            let _ = WRONG_PASSWORDS.spend(control, self.from, false).await;
        }
    }
}

/// Returns the user with this address and this password. Returns `None`, after the same work, in all other cases: unknown,
/// deactivated, or another password.
pub(super) async fn check(
    control: &Arc<Control>,
    built_in: &BuiltIn,
    attempt: Attempt<'_>,
) -> Result<Option<User>, ControlError> {
    let account = account_key(attempt.email);
    let throttle = Throttle::of(control, &attempt, &account).await;
    throttle.look(control).await?;
    let is_known = throttle.is_familiar || attempt.from.is_known(control).await;
    let _turn = built_in.hashing.turn(control, &attempt.from.to_string(), is_known).await?;
    // Other attempts for the same account may have failed while this one waited.
    throttle.look(control).await?;
    let user = match checked_email(attempt.email) {
        Ok(email) => resources::by_lookup::<User>(control, &tenancy::user_lookup(&built_in.issuer, &email)).await?,
        Err(_) => None,
    };
    let user = user.filter(|user| user.deactivated_at.is_none());
    let (known, stored) = match user.and_then(|user| user.password_hash.clone().map(|stored| (user, stored))) {
        Some((user, stored)) => (Some(user), Some(stored)),
        None => (None, None),
    };
    let typed = attempt.typed;
    let compute = move || match &stored {
        Some(stored) => password::verify(&typed, stored),
        None => {
            password::verify_nobody(&typed);
            false
        }
    };
    let is_right = built_in.hashing.threads.run(compute).await?;
    let Some(user) = known.filter(|_| is_right) else {
        throttle.spend(control).await;
        record_failure(control, &account, attempt.email, built_in, attempt.correlation_id);
        return Ok(None);
    };
    let context = Context { now: Timestamp::now(), actor: Actor::User(user.id), correlation_id: attempt.correlation_id.clone() };
    let user = transact(control, || async {
        let Some(user) = resources::get::<User>(control, user.id).await?.filter(|user| user.deactivated_at.is_none()) else {
            return Ok((None, Decision::default()));
        };
        let decision = tenancy::right_password(&user, &context);
        Ok((Some(user), decision))
    })
    .await?;
    if user.is_some() {
        attempt.from.remember(control, &account).await;
    }
    Ok(user)
}

/// Returns whether this is the password of a signed-in user. Wrong ones count like those at a sign-in.
pub(crate) async fn is_password_of(
    control: &Arc<Control>,
    built_in: &BuiltIn,
    user: &User,
    typed: Zeroizing<String>,
    from: &AddressRange,
    correlation_id: &CorrelationId,
) -> Result<bool, ControlError> {
    let attempt = Attempt { email: &user.email, typed, from, browser: None, correlation_id };
    Ok(check(control, built_in, attempt).await?.is_some_and(|known| known.id == user.id))
}

/// Records a wrong password, if the account exists. The caller does not wait for it: the time would reveal the account.
fn record_failure(control: &Arc<Control>, account: &str, email: &str, built_in: &BuiltIn, correlation_id: &CorrelationId) {
    let Ok(email) = checked_email(email) else { return };
    let (lookup, correlation_id) = (tenancy::user_lookup(&built_in.issuer, &email), correlation_id.clone());
    let (shared, account) = (Arc::clone(control), account.to_owned());
    control.background.spawn(async move {
        let written = transact(&shared, || async {
            let Some(user) = resources::by_lookup::<User>(&shared, &lookup).await? else { return Ok(((), Decision::default())) };
            let context = Context { now: Timestamp::now(), actor: Actor::User(user.id), correlation_id: correlation_id.clone() };
            Ok(((), tenancy::wrong_password(&user, &context)))
        })
        .await;
        if let Err(error) = written {
            tracing::warn!(account, error = %crate::link::chain(&error), "a wrong password could not be recorded");
        }
    });
}
