//! The callers and their roles: read from the resources, cached for a moment.
//!
//! Every change of anyone's roles clears the cache in every server process: by a wake-up, and after [`KEPT`] if the wake-up is
//! lost.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gpuaas_contract::id::{ApiTokenId, CorrelationId, GrantId, ServiceAccountId, UserId};
use gpuaas_contract::state::UserState;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::access::{ApiToken, MAX_KEY_CHAIN, Membership, Place, Policies, Principal, PrincipalId, Who};
use gpuaas_domain::decision::Context;
use gpuaas_domain::resource::ResourceKind;
use gpuaas_domain::tenancy::{self, Claims, ServiceAccount, User};
use gpuaas_domain::{Actor, Wakeup, caps};
use gpuaas_store::ResourceFilter;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

use crate::error::ControlError;
use crate::transact::transact;
use crate::{Control, identity, resources};

/// How long roles are cached without a wake-up.
const KEPT: Duration = Duration::from_secs(3);
/// Maximum number of cached callers. Above that, the cache is cleared.
const MAX_REMEMBERED: usize = 10_000;

/// The policies, and the cached roles.
pub(crate) struct AuthzCache {
    /// What roles may do.
    pub(crate) policies: Policies,
    known: Mutex<HashMap<PrincipalId, (Timestamp, Arc<Principal>)>>,
    /// Users whose token was checked, by issuer and subject.
    people: Mutex<HashMap<String, (Timestamp, Claims, UserId)>>,
    /// Keys whose account and parent keys were checked, and whether all of them are valid.
    keys: Mutex<HashMap<ApiTokenId, (Timestamp, bool)>>,
    /// Sign-ins whose tokens were checked, and whether they are valid.
    sign_ins: Mutex<HashMap<GrantId, (Timestamp, bool)>>,
    /// Notifies open requests that someone's roles changed.
    changed: watch::Sender<()>,
}

impl AuthzCache {
    /// Creates the cache with these policies.
    pub(crate) fn new(policies: Policies) -> Self {
        Self {
            policies,
            known: Mutex::default(),
            people: Mutex::default(),
            keys: Mutex::default(),
            sign_ins: Mutex::default(),
            changed: watch::Sender::new(()),
        }
    }

    /// Clears the cache when anyone's roles change.
    pub(crate) fn spawn(control: &Arc<Control>) {
        let mut wakeups = control.store.wakeups();
        let control = Arc::clone(control);
        let tracker = control.background.clone();
        tracker.spawn(async move {
            loop {
                let wakeup =
                    tokio::select! { biased; () = control.shutdown.cancelled() => return, wakeup = wakeups.recv() => wakeup };
                match wakeup {
                    Ok(Wakeup::Rights) | Err(RecvError::Lagged(_)) => control.authz.forget(),
                    Ok(
                        Wakeup::NodeWork(_)
                        | Wakeup::NodeAccess(_)
                        | Wakeup::Task(_)
                        | Wakeup::Allocation(_)
                        | Wakeup::AllocationAdvanced(_)
                        | Wakeup::Fleet(_)
                        | Wakeup::Link(_)
                        | Wakeup::Outbox
                        | Wakeup::Progress { .. },
                    ) => {}
                    Err(RecvError::Closed) => return,
                }
            }
        });
    }

    pub(crate) fn forget(&self) {
        // The notification before the clearing: see `remember`.
        self.changed.send_replace(());
        lock(&self.known).clear();
        lock(&self.people).clear();
        lock(&self.keys).clear();
        lock(&self.sign_ins).clear();
    }

    /// Returns a watch that changes when anyone's roles change, for open requests.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Caches what was read since `since`, unless roles have changed in the meantime: a value from before a change must not outlive
/// it.
fn remember<K: std::hash::Hash + Eq, V>(map: &Mutex<HashMap<K, V>>, since: &watch::Receiver<()>, key: K, value: V) {
    let mut map = lock(map);
    if since.has_changed().unwrap_or(true) {
        return;
    }
    if map.len() >= MAX_REMEMBERED {
        map.clear();
    }
    map.insert(key, value);
}

/// Returns the holder of this token with their roles, or `None` if the token is not valid.
pub(crate) async fn of_token(control: &Control, token: &ApiToken) -> Result<Option<(Actor, Arc<Principal>)>, ControlError> {
    if !token.counts(Timestamp::now()) || !origin_counts(control, token).await? {
        return Ok(None);
    }
    match (token.role, token.service_account) {
        (Some(role), None) => {
            let who = PrincipalId::Token(token.id);
            let principal = Principal { platform: vec![role], ..limited(Principal::nobody(who), token) };
            Ok(Some((Actor::Token { id: token.id, role }, Arc::new(principal))))
        }
        (None, Some(id)) => {
            let roles = remembered(control, PrincipalId::ServiceAccount(id)).await?;
            let mut principal = limited((*roles).clone(), token);
            // A key acts only in its own project, whatever roles its account has elsewhere.
            principal.memberships.retain(|(place, _)| token.project.is_some_and(|own| *place == Place::Project(own)));
            principal.platform.clear();
            Ok(Some((Actor::ServiceAccount { id, key: token.id }, Arc::new(principal))))
        }
        // The control plane never writes a row with both or neither.
        (Some(_), Some(_)) | (None, None) => Ok(None),
    }
}

/// Returns the holder of a key, with the limits of the key.
fn limited(holder: Principal, token: &ApiToken) -> Principal {
    Principal { scopes: token.scopes.clone(), expires_at: token.expires_at, ..holder }
}

/// Returns whether the account of this key and the person who created it exist, and every key that it was created with is valid. Cached for
/// a moment, because otherwise every request would read all of them.
async fn origin_counts(control: &Control, token: &ApiToken) -> Result<bool, ControlError> {
    if token.parent.is_none() && token.service_account.is_none() && !matches!(token.created_by, Some(PrincipalId::User(_))) {
        return Ok(true);
    }
    let now = Timestamp::now();
    if let Some((at, counts)) = lock(&control.authz.keys).get(&token.id)
        && now.since(*at) < KEPT
    {
        return Ok(*counts);
    }
    let since = control.authz.changes();
    let counts = is_holder_there(control, token).await? && ancestors_count(control, token, now).await?;
    remember(&control.authz.keys, &since, token.id, (now, counts));
    Ok(counts)
}

/// Whether the account of a key and the person who made it are there.
async fn is_holder_there(control: &Control, token: &ApiToken) -> Result<bool, ControlError> {
    if let Some(PrincipalId::User(maker)) = token.created_by {
        let maker = resources::get::<User>(control, maker).await?;
        if maker.is_none_or(|maker| maker.deleted_at.is_some()) {
            return Ok(false);
        }
    }
    let Some(account) = token.service_account else { return Ok(true) };
    let account = resources::get::<ServiceAccount>(control, account).await?;
    Ok(account.is_some_and(|account| account.deleted_at.is_none()))
}

/// Returns whether every key that this one was created with is valid, one after the other.
async fn ancestors_count(control: &Control, token: &ApiToken, now: Timestamp) -> Result<bool, ControlError> {
    let mut above = token.parent;
    for _ in 0..MAX_KEY_CHAIN {
        let Some(id) = above else { return Ok(true) };
        let Some(key) = control.store.api_token_get(id).await?.filter(|key| key.counts(now)) else { return Ok(false) };
        if !is_holder_there(control, &key).await? {
            return Ok(false);
        }
        above = key.parent;
    }
    Ok(above.is_none())
}

/// Returns whether tokens of this sign-in at the built-in issuer are still valid.
pub(crate) async fn sign_in_counts(control: &Control, id: GrantId) -> Result<bool, ControlError> {
    let now = Timestamp::now();
    if let Some((at, counts)) = lock(&control.authz.sign_ins).get(&id)
        && now.since(*at) < KEPT
    {
        return Ok(*counts);
    }
    let since = control.authz.changes();
    let counts = identity::is_live(control, id).await?;
    remember(&control.authz.sign_ins, &since, id, (now, counts));
    Ok(counts)
}

/// Returns the user of these claims with their roles. Creates the user at the first sign-in, without permissions until they are
/// invited.
pub(crate) async fn of_person(control: &Control, claims: &Claims) -> Result<(Actor, Arc<Principal>), ControlError> {
    let id = known_person(control, claims).await?;
    Ok((Actor::User(id), remembered(control, PrincipalId::User(id)).await?))
}

async fn known_person(control: &Control, claims: &Claims) -> Result<UserId, ControlError> {
    let lookup = tenancy::user_lookup(&claims.issuer, &claims.subject);
    let now = Timestamp::now();
    if let Some((at, known, id)) = lock(&control.authz.people).get(&lookup)
        && now.since(*at) < KEPT
        && known == claims
    {
        return Ok(*id);
    }
    let since = control.authz.changes();
    let user = transact(control, || async {
        let known = resources::by_lookup::<User>(control, &lookup).await?;
        if known.is_none() {
            let present = control.store.resource_count(ResourceKind::User, &users_there()).await?;
            caps::USERS.check(present).inspect_err(|refusal| control.metrics.refused(refusal.code))?;
        }
        let id = known.as_ref().map_or_else(UserId::generate, |user| user.id);
        let context = Context { now, actor: Actor::User(id), correlation_id: CorrelationId::generate() };
        Ok(tenancy::signed_in(known.as_ref(), id, claims, &context)?)
    })
    .await?;
    accept_invitations(control, &user).await?;
    remember(&control.authz.people, &since, lookup, (now, claims.clone(), user.id));
    Ok(user.id)
}

/// Returns the filter for users who were not deleted.
pub(crate) fn users_there() -> ResourceFilter {
    let states = vec![UserState::Active.as_str(), UserState::Deactivated.as_str()];
    ResourceFilter { states, ..ResourceFilter::default() }
}

/// Converts invitations to the user's address into roles.
async fn accept_invitations(control: &Control, user: &User) -> Result<(), ControlError> {
    let Some(invited) = tenancy::invitations_of(user) else { return Ok(()) };
    transact(control, || async {
        let invitations = of_owner(control, &invited).await?;
        if invitations.is_empty() {
            return Ok(((), gpuaas_domain::Decision::default()));
        }
        let present = of_owner(control, &Who::User(user.id).to_string()).await?;
        let context = Context { now: Timestamp::now(), actor: Actor::User(user.id), correlation_id: CorrelationId::generate() };
        Ok(((), tenancy::accept_invitations(user, &invitations, &present, &context)))
    })
    .await
}

/// The roles that a service account holds now.
pub(crate) async fn of_account(control: &Control, id: ServiceAccountId) -> Result<Principal, ControlError> {
    let rows = of_owner(control, &Who::ServiceAccount(id).to_string()).await?;
    Ok(Principal::with_memberships(PrincipalId::ServiceAccount(id), &rows))
}

/// The roles and invitations of this holder.
pub(crate) async fn of_owner(control: &Control, owner: &str) -> Result<Vec<Membership>, ControlError> {
    let filter = ResourceFilter { owner: Some(owner.to_owned()), ..ResourceFilter::default() };
    resources::all(control, &filter).await
}

async fn remembered(control: &Control, who: PrincipalId) -> Result<Arc<Principal>, ControlError> {
    let now = Timestamp::now();
    if let Some((at, principal)) = lock(&control.authz.known).get(&who)
        && now.since(*at) < KEPT
    {
        return Ok(Arc::clone(principal));
    }
    let owner = match who {
        PrincipalId::User(id) => Who::User(id).to_string(),
        PrincipalId::ServiceAccount(id) => Who::ServiceAccount(id).to_string(),
        PrincipalId::Token(_) | PrincipalId::LocalAdmin => return Ok(Arc::new(Principal::nobody(who))),
    };
    let since = control.authz.changes();
    let principal = Arc::new(Principal::with_memberships(who, &of_owner(control, &owner).await?));
    remember(&control.authz.known, &since, who, (now, Arc::clone(&principal)));
    Ok(principal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_before_a_change_of_rights_is_not_remembered_after_it() {
        let (map, changed) = (Mutex::new(HashMap::new()), watch::Sender::new(()));
        let since = changed.subscribe();
        remember(&map, &since, "key", true);
        assert_eq!(lock(&map).get("key"), Some(&true));
        changed.send_replace(());
        lock(&map).clear();
        remember(&map, &since, "key", true);
        assert_eq!(lock(&map).get("key"), None, "it was read before the change");
        remember(&map, &changed.subscribe(), "key", false);
        assert_eq!(lock(&map).get("key"), Some(&false));
    }
}
