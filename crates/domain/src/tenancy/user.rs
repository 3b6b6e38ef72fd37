//! Users: people, as the issuers of their tokens identify them. A user is created at the first sign-in and has no permissions until someone
//! invites them.

use gpuaas_contract::event::{Event, UserChanged, UserCreated, UserDeleted, UserEvent, UserSignInFailed};
use gpuaas_contract::id::UserId;
use gpuaas_contract::state::UserState;
use gpuaas_contract::time::Timestamp;

use super::{leave, revoke_key};
use crate::access::{ApiToken, Membership};
use crate::decision::{Context, Decision, Wakeup};
use crate::names::{checked_email, checked_text};
use crate::refusal::Refusal;
use crate::resource::{Keys, resource};

/// A person.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct User {
    /// Unique id of the user.
    pub id: UserId,
    /// Row version.
    #[serde(skip)]
    pub version: i64,
    /// The issuer that identifies them.
    pub issuer: String,
    /// The issuer's identifier for them; never reassigned to another person.
    pub subject: String,
    /// Email address, as the issuer last reported it.
    pub email: String,
    /// Whether the issuer states that they have verified it. Invitations are accepted only with a verified address.
    pub email_verified: bool,
    /// Name for people.
    pub name: String,
    /// For users of the built-in issuer: an argon2 hash. Never leaves the control plane.
    pub password_hash: Option<String>,
    /// Number of wrong passwords since the last correct one.
    #[serde(default)]
    pub failed_sign_ins: u32,
    /// Time of the first sign-in.
    pub created_at: Timestamp,
    /// When they were deactivated and could no longer sign in; `None` while they can.
    pub deactivated_at: Option<Timestamp>,
    /// When they were deleted and could no longer sign in. The row stays, so that the audit log can be interpreted.
    #[serde(default)]
    pub deleted_at: Option<Timestamp>,
}

resource!(User, User);

/// The lookup key of a user with this issuer and subject.
pub fn lookup(issuer: &str, subject: &str) -> String {
    format!("{issuer}\n{subject}")
}

impl User {
    fn found_by(&self) -> Keys {
        // Anyone who signs in later with the address or the subject of a deleted user is a different user.
        let there = self.deleted_at.is_none();
        Keys {
            lookup: there.then(|| lookup(&self.issuer, &self.subject)),
            owner: there.then(|| self.email.clone()),
            state: self.state().as_str(),
            ..Keys::default()
        }
    }

    /// Whether they can sign in.
    pub const fn state(&self) -> UserState {
        match (self.deleted_at, self.deactivated_at) {
            (Some(_), _) => UserState::Deleted,
            (None, Some(_)) => UserState::Deactivated,
            (None, None) => UserState::Active,
        }
    }

    /// Refuses a user who may no longer sign in.
    pub fn check_active(&self) -> Result<(), Refusal> {
        match self.deactivated_at {
            None => Ok(()),
            Some(_) => Err(Refusal::forbidden("user_deactivated", "this user was deactivated; ask an administrator")),
        }
    }
}

/// What an issuer states about someone who signs in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// The issuer of the token.
    pub issuer: String,
    /// The issuer's identifier for them.
    pub subject: String,
    /// Email address, if the token has one.
    pub email: Option<String>,
    /// Whether the issuer has verified it.
    pub email_verified: bool,
    /// Name for people, if the token has one.
    pub name: Option<String>,
}

/// Records a sign-in: creates the user the first time, and updates them later. Usually nothing changes, and nothing is written.
pub fn signed_in(known: Option<&User>, id: UserId, claims: &Claims, context: &Context) -> Result<(User, Decision), Refusal> {
    let email = claims.email.as_deref().map(checked_email).transpose()?;
    // A name is only displayed; an invalid one is left out.
    let name = claims.name.as_deref().and_then(|name| checked_text(name, "the name").ok());
    if let Some(user) = known {
        user.check_active()?;
        let next = User {
            email_verified: if email.is_some() { claims.email_verified } else { user.email_verified },
            email: email.unwrap_or_else(|| user.email.clone()),
            name: name.unwrap_or_else(|| user.name.clone()),
            ..user.clone()
        };
        if next == *user {
            return Ok((next, Decision::default()));
        }
        let event =
            Event::UserChanged(UserChanged { user_id: next.id, email: next.email.clone(), email_verified: next.email_verified });
        let decision = Decision::default().update(&next).wakeup(Wakeup::Rights);
        return Ok((next, decision.record(context, user.id, event)));
    }
    let user = User {
        id,
        version: 0,
        issuer: claims.issuer.clone(),
        subject: claims.subject.clone(),
        email_verified: email.is_some() && claims.email_verified,
        email: email.unwrap_or_default(),
        name: name.unwrap_or_default(),
        password_hash: None,
        failed_sign_ins: 0,
        created_at: context.now,
        deactivated_at: None,
        deleted_at: None,
    };
    Ok((user.clone(), made(&user, context)))
}

/// Creates a user of the built-in issuer. The administrator who does it vouches for the email address.
pub fn create_local_user(
    id: UserId,
    issuer: &str,
    email: &str,
    name: &str,
    password_hash: Option<String>,
    context: &Context,
) -> Result<(User, Decision), Refusal> {
    let email = checked_email(email)?;
    let user = User {
        id,
        version: 0,
        issuer: issuer.to_owned(),
        // The email address is what they type to sign in; the id would be as unique, but the user could not be found by it.
        subject: email.clone(),
        email,
        email_verified: true,
        name: checked_text(name, "the name")?,
        password_hash,
        failed_sign_ins: 0,
        created_at: context.now,
        deactivated_at: None,
        deleted_at: None,
    };
    Ok((user.clone(), made(&user, context)))
}

fn made(user: &User, context: &Context) -> Decision {
    let event = Event::UserCreated(UserCreated { user_id: user.id, issuer: user.issuer.clone(), email: user.email.clone() });
    Decision::default().insert(user).record(context, user.id, event)
}

/// Changes the password. The hash is neither in the event nor in the audit entry.
pub fn set_password(user: &User, password_hash: String, context: &Context) -> (User, Decision) {
    let next = User { password_hash: Some(password_hash), failed_sign_ins: 0, ..user.clone() };
    let decision = Decision::default().update(&next);
    (next, decision.record(context, user.id, Event::UserPasswordSet(UserEvent { user_id: user.id })))
}

/// Records a wrong password. Delays depend on the origin of the attempts and not on the account: otherwise anyone who knows an address
/// could lock its owner out.
pub fn wrong_password(user: &User, context: &Context) -> Decision {
    let failed = user.failed_sign_ins.saturating_add(1);
    let next = User { failed_sign_ins: failed, ..user.clone() };
    let event = Event::UserSignInFailed(UserSignInFailed { user_id: user.id, failed_sign_ins: failed });
    Decision::default().update(&next).record(context, user.id, event)
}

/// Records a correct password after wrong ones.
pub fn right_password(user: &User, context: &Context) -> Decision {
    if user.failed_sign_ins == 0 {
        return Decision::default();
    }
    let next = User { failed_sign_ins: 0, ..user.clone() };
    Decision::default().update(&next).record(context, user.id, Event::UserSignedIn(UserEvent { user_id: user.id }))
}

/// Allows a user to sign in again. Idempotent; a deleted user stays deleted.
pub fn reactivate(user: &User, context: &Context) -> (User, Decision) {
    if user.deactivated_at.is_none() || user.deleted_at.is_some() {
        return (user.clone(), Decision::default());
    }
    let next = User { deactivated_at: None, ..user.clone() };
    let decision = Decision::default().update(&next).wakeup(Wakeup::Rights);
    (next, decision.record(context, user.id, Event::UserReactivated(UserEvent { user_id: user.id })))
}

/// Prevents a user from signing in. Idempotent.
pub fn deactivate(user: &User, context: &Context) -> (User, Decision) {
    if user.deactivated_at.is_some() {
        return (user.clone(), Decision::default());
    }
    let next = User { deactivated_at: Some(context.now), ..user.clone() };
    let decision = Decision::default().update(&next).wakeup(Wakeup::Rights);
    (next, decision.record(context, user.id, Event::UserDeactivated(UserEvent { user_id: user.id })))
}

/// What is removed together with a user.
#[derive(Clone, Debug, Default)]
pub struct UserBelongings {
    /// The roles they hold, and the invitations to their address.
    pub memberships: Vec<Membership>,
    /// The other members of the places in which they hold a role, if they can sign in.
    pub others: Vec<Membership>,
    /// The valid keys and tokens that they created.
    pub keys: Vec<ApiToken>,
}

/// Deletes a user and everything that lets them act: their roles, the invitations to them and the keys they created. Refused for the last
/// administrator of the platform and the last owner of an organization or a project: someone else must take over first.
pub fn delete_user(user: &User, belongings: &UserBelongings, context: &Context) -> Result<(User, Decision), Refusal> {
    if user.deleted_at.is_some() {
        return Ok((user.clone(), Decision::default()));
    }
    let next = User {
        password_hash: None,
        deactivated_at: user.deactivated_at.or(Some(context.now)),
        deleted_at: Some(context.now),
        ..user.clone()
    };
    let mut decision = Decision::default().update(&next).wakeup(Wakeup::Rights);
    for membership in &belongings.memberships {
        decision = decision.and(leave(membership, &belongings.others, context)?.1);
    }
    for key in &belongings.keys {
        decision = decision.and(revoke_key(key, context).1);
    }
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let event = Event::UserDeleted(UserDeleted {
        user_id: user.id,
        email: user.email.clone(),
        memberships: count(belongings.memberships.len()),
        keys: count(belongings.keys.len()),
    });
    Ok((next, decision.record(context, user.id, event)))
}
