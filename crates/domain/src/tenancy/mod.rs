//! Organizations, projects, and their members.

mod key;
mod member;
mod sign_in;
mod tenant;
mod user;

pub use key::revoke_key;
pub use member::{accept_invitations, change_role, invitations_of, invite, leave};
pub use sign_in::{SignIn, SignInKind};
pub use tenant::{
    Organization, Project, ServiceAccount, create_organization, create_project, create_service_account, delete_organization,
    delete_project, delete_service_account, describe_organization, describe_project,
};
pub use user::{
    Claims, User, UserBelongings, create_local_user, deactivate, delete_user, lookup as user_lookup, reactivate, right_password,
    set_password, signed_in, wrong_password,
};
