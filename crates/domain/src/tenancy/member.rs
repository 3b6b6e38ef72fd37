//! Members: invited, changed, removed.

use gpuaas_contract::event::{Event, MemberEvent};
use gpuaas_contract::id::MembershipId;
use gpuaas_contract::state::MemberState;

use crate::access::{MemberRole, Membership, Place, PlatformRole, ProjectRole, Who};
use crate::decision::{Context, Decision, Wakeup};
use crate::refusal::Refusal;
use crate::resource::{Keys, resource};
use crate::tenancy::User;

resource!(Membership, Member);

impl Membership {
    fn found_by(&self) -> Keys {
        let (parent, live) = (self.at.to_string(), self.removed_at.is_none());
        let who = self.who.to_string();
        Keys {
            // One role per holder and place.
            lookup: live.then(|| format!("{parent}\n{who}")),
            owner: live.then_some(who),
            parent,
            state: self.state().as_str(),
            ..Keys::default()
        }
    }

    /// Whether the role counts.
    pub const fn state(&self) -> MemberState {
        match (&self.who, self.removed_at) {
            (_, Some(_)) => MemberState::Removed,
            (Who::Invited(_), None) => MemberState::Invited,
            (Who::User(_) | Who::ServiceAccount(_), None) => MemberState::Active,
        }
    }
}

/// The `owner` key of the rows that invite this user. Only a verified email address counts.
pub fn invitations_of(user: &User) -> Option<String> {
    user.email_verified.then(|| Who::Invited(user.email.clone()).to_string())
}

/// Grants a role. Someone who has no account yet is invited by email address and gets the role at the first sign-in.
pub fn invite(
    id: MembershipId,
    who: Who,
    at: Place,
    role: MemberRole,
    context: &Context,
) -> Result<(Membership, Decision), Refusal> {
    let membership = Membership::new(id, who, at, role, context.actor.to_string(), context.now)?;
    let decision = Decision::default().insert(&membership).wakeup(Wakeup::Rights);
    Ok((membership.clone(), recorded(decision, &membership, Event::MemberAdded, context)))
}

/// Changes a member's role. `others` are the other members of the same place, so that the last owner cannot be demoted.
pub fn change_role(
    membership: &Membership,
    role: MemberRole,
    others: &[Membership],
    context: &Context,
) -> Result<(Membership, Decision), Refusal> {
    check_live(membership)?;
    if membership.role == role {
        return Ok((membership.clone(), Decision::default()));
    }
    check_not_last(membership, others)?;
    let mut next = Membership::new(
        membership.id,
        membership.who.clone(),
        membership.at,
        role,
        membership.invited_by.clone(),
        membership.created_at,
    )?;
    next.version = membership.version;
    let decision = Decision::default().update(&next).wakeup(Wakeup::Rights);
    Ok((next.clone(), recorded(decision, &next, Event::MemberChanged, context)))
}

/// Removes a member's role. `others` are the other members of the same place, so that the last owner cannot leave.
pub fn leave(membership: &Membership, others: &[Membership], context: &Context) -> Result<(Membership, Decision), Refusal> {
    if membership.removed_at.is_some() {
        return Ok((membership.clone(), Decision::default()));
    }
    check_not_last(membership, others)?;
    let next = Membership { removed_at: Some(context.now), ..membership.clone() };
    let decision = Decision::default().update(&next).wakeup(Wakeup::Rights);
    Ok((next.clone(), recorded(decision, &next, Event::MemberRemoved, context)))
}

/// Removes all roles in a place that is deleted.
pub(super) fn close(members: &[Membership], context: &Context) -> Decision {
    let mut decision = Decision::default();
    for member in members.iter().filter(|member| member.removed_at.is_none()) {
        let next = Membership { removed_at: Some(context.now), ..member.clone() };
        decision = decision.update(&next).wakeup(Wakeup::Rights);
        decision = recorded(decision, &next, Event::MemberRemoved, context);
    }
    decision
}

/// Turns invitations to an email address into roles of the user who has verified it. `present` are the user's existing roles: where the
/// user already has one, the invitation is only dropped.
pub fn accept_invitations(user: &User, invitations: &[Membership], present: &[Membership], context: &Context) -> Decision {
    let mut decision = Decision::default();
    if !user.email_verified || user.deactivated_at.is_some() {
        return decision;
    }
    for invitation in invitations {
        let meant = matches!(&invitation.who, Who::Invited(email) if *email == user.email);
        if !meant || invitation.removed_at.is_some() {
            continue;
        }
        let known = present.iter().any(|membership| membership.at == invitation.at && membership.removed_at.is_none());
        let next = if known {
            Membership { removed_at: Some(context.now), ..invitation.clone() }
        } else {
            Membership { who: Who::User(user.id), ..invitation.clone() }
        };
        decision = decision.update(&next).wakeup(Wakeup::Rights);
        decision = recorded(decision, &next, Event::MemberAccepted, context);
    }
    decision
}

fn check_live(membership: &Membership) -> Result<(), Refusal> {
    match membership.removed_at {
        None => Ok(()),
        Some(_) => Err(Refusal::not_found("member_unknown", format!("{} was removed", membership.id))),
    }
}

/// Refuses to remove the last owner or administrator. Without an owner, a project or an organization would depend on an administrator;
/// without an administrator, the platform would depend on someone with access to the local socket.
fn check_not_last(membership: &Membership, others: &[Membership]) -> Result<(), Refusal> {
    let leads = |membership: &Membership| {
        matches!(membership.role, MemberRole::Project(ProjectRole::Owner) | MemberRole::Platform(PlatformRole::Admin))
            && membership.removed_at.is_none()
            && matches!(membership.who, Who::User(_))
    };
    let other = others.iter().any(|other| other.id != membership.id && other.at == membership.at && leads(other));
    if !leads(membership) || other {
        return Ok(());
    }
    Err(match membership.at {
        Place::Platform => {
            Refusal::conflict("last_admin", "this is the last administrator; make somebody else an administrator first")
        }
        Place::Organization(_) | Place::Project(_) => {
            let message = format!("this is the last owner of {}; make somebody else an owner first", membership.at);
            Refusal::conflict("last_owner", message)
        }
    })
}

fn recorded(decision: Decision, membership: &Membership, event: fn(MemberEvent) -> Event, context: &Context) -> Decision {
    let data = MemberEvent {
        membership_id: membership.id,
        who: membership.who.to_string(),
        at: membership.at.to_string(),
        role: membership.role.as_str().to_owned(),
    };
    decision.record(context, membership.id, event(data))
}
