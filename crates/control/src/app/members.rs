//! Members of the platform, of organizations and of projects: the same in three places.

use gpuaas_api::dto::{MemberAdd, Page};
use gpuaas_contract::id::{MembershipId, ServiceAccountId};
use gpuaas_domain::access::{MemberRole, Membership, Place, Who};
use gpuaas_domain::names::checked_email;
use gpuaas_domain::tenancy::{self, ServiceAccount, User};
use gpuaas_domain::{Refusal, caps};
use gpuaas_store::ResourceFilter;

use super::{Caller, IfMatch, PageRequest, check_cap, grants, list_resources};
use crate::error::ControlError;
use crate::{Control, resources};

/// The person with this address: a user who has proved to have it, or whoever will.
pub(super) async fn by_email(control: &Control, email: &str) -> Result<Who, ControlError> {
    let email = checked_email(email)?;
    let filter = ResourceFilter { owner: Some(email.clone()), states: vec!["active"], ..ResourceFilter::default() };
    let users: Vec<User> = resources::all(control, &filter).await?;
    let mut proven = users.into_iter().filter(|user| user.email_verified);
    // Two issuers may both know the address; then whoever signs in next is meant, as with nobody.
    Ok(match (proven.next(), proven.next()) {
        (Some(user), None) => Who::User(user.id),
        (Some(_), Some(_)) | (None, _) => Who::Invited(email),
    })
}

fn members_of(at: Place) -> ResourceFilter {
    ResourceFilter { parent: Some(at.to_string()), states: vec!["active", "invited"], ..ResourceFilter::default() }
}

/// Everybody who has a role in a place or is invited.
pub(super) async fn of_place(control: &Control, at: Place) -> Result<Vec<Membership>, ControlError> {
    resources::all(control, &members_of(at)).await
}

/// The membership with this id, if it is in that place.
async fn get(control: &Control, at: Place, id: MembershipId) -> Result<Membership, ControlError> {
    let unknown = || Refusal::not_found("member_unknown", format!("there is no member {id} here"));
    let found = resources::get::<Membership>(control, id).await?.filter(|found| found.at == at && found.removed_at.is_none());
    Ok(found.ok_or_else(unknown)?)
}

/// Lists the members of a place.
pub(crate) async fn list(
    control: &Control,
    at: Place,
    page: &PageRequest<MembershipId>,
) -> Result<Page<Membership>, ControlError> {
    list_resources(control, &members_of(at), page, false).await
}

/// Makes a person or a service account a member of a place.
pub(crate) async fn add(control: &Control, caller: &Caller, at: Place, wanted: &MemberAdd) -> Result<Membership, ControlError> {
    let (id, role, context) = (MembershipId::generate(), wanted.role, caller.context());
    grants::role(control, caller, at, role)?;
    let attempt = || async {
        let who = match (&wanted.email, wanted.service_account_id) {
            (Some(email), None) => by_email(control, email).await?,
            (None, Some(account)) => account_of(control, at, account).await?,
            (Some(_), Some(_)) | (None, None) => {
                let message = "give either the e-mail address of a person or a service account";
                return Err(Refusal::invalid("member_invalid", message).into());
            }
        };
        let present: Vec<Membership> = resources::all(control, &members_of(at)).await?;
        if present.iter().any(|present| present.who == who) {
            let message = "they are a member already; change their role instead";
            return Err(Refusal::conflict("member_exists", message).into());
        }
        let who = match (who, &wanted.email) {
            // Whether an address has an account, and the name of its owner, is not told to whoever types it: they become a member when
            // they next come, as somebody does who has no account yet.
            (Who::User(_), Some(email)) if !caller.audience().is_platform() => Who::Invited(checked_email(email)?),
            (who, _) => who,
        };
        if present.iter().any(|present| present.who == who) {
            return Err(Refusal::conflict("member_exists", "they are invited already; change their role instead").into());
        }
        check_caps(control, &present, &who)?;
        Ok(tenancy::invite(id, who, at, role, &context)?)
    };
    caller.transact(control, attempt).await
}

/// Refuses one more member than there may be.
fn check_caps(control: &Control, present: &[Membership], who: &Who) -> Result<(), ControlError> {
    let is_invited = |who: &Who| matches!(who, Who::Invited(_));
    let cap = if is_invited(who) { caps::INVITATIONS } else { caps::MEMBERS };
    let count = present.iter().filter(|present| is_invited(&present.who) == is_invited(who)).count();
    check_cap(control, cap, u64::try_from(count).unwrap_or(u64::MAX))
}

/// A service account acts in its own project only.
async fn account_of(control: &Control, at: Place, id: ServiceAccountId) -> Result<Who, ControlError> {
    let account = resources::get::<ServiceAccount>(control, id).await?.filter(|account| account.deleted_at.is_none());
    match account {
        Some(account) if at == Place::Project(account.project_id) => Ok(Who::ServiceAccount(id)),
        Some(_) | None => {
            let message =
                format!("there is no service account {id} in this project; one can be a member of its own project only");
            Err(Refusal::invalid("service_account_unknown", message).in_body("/service_account_id").into())
        }
    }
}

/// Gives a member another role.
pub(crate) async fn change(
    control: &Control,
    caller: &Caller,
    at: Place,
    id: MembershipId,
    role: MemberRole,
    if_match: &IfMatch,
) -> Result<Membership, ControlError> {
    let context = caller.context();
    let attempt = || async {
        let member = get(control, at, id).await?;
        if_match.check(member.version)?;
        if !control.authz.policies.covers(member.role, role) {
            grants::role(control, caller, at, role)?;
        }
        let present: Vec<Membership> = resources::all(control, &members_of(at)).await?;
        Ok(tenancy::change_role(&member, role, &present, &context)?)
    };
    caller.transact(control, attempt).await?;
    get(control, at, id).await
}

/// Ends a membership.
pub(crate) async fn remove(
    control: &Control,
    caller: &Caller,
    at: Place,
    id: MembershipId,
    if_match: &IfMatch,
) -> Result<Membership, ControlError> {
    let context = caller.context();
    let attempt = || async {
        let member = get(control, at, id).await?;
        if_match.check(member.version)?;
        let present: Vec<Membership> = resources::all(control, &members_of(at)).await?;
        Ok(tenancy::leave(&member, &present, &context)?)
    };
    caller.transact(control, attempt).await
}
