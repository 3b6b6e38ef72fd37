//! Types of the operations on users.

use gpuaas_contract::id::{AllocationId, TaskId};
use gpuaas_contract::slice::{Holder, UserName};
use gpuaas_contract::time::Timestamp;

use crate::HostError;

/// User numbers of tenants: separate from those of people (from 1000 on) and of system services (below 1000 and above 60000).
pub const TENANT_UIDS: std::ops::RangeInclusive<u32> = 20_000..=59_999;
/// Lowest user number that is not the system's.
pub const FIRST_PERSON: u32 = 1_000;
/// The folder of homes.
const HOMES: &str = "/home";
/// The prefix of the comment of a tenant's user.
const MARK: &str = "gpuaas ";

/// The lease of the whole machine, and its user. One file.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineLease {
    /// The allocation.
    pub allocation_id: AllocationId,
    /// Its epoch, for fencing.
    pub lease_epoch: u64,
    /// The task that took it.
    pub task_id: TaskId,
    /// The user.
    pub username: UserName,
    /// The allocation that the user was created for. It differs only while another allocation's remains are cleaned up.
    pub user_of: AllocationId,
    /// The user's number, recorded before anything is created with it.
    pub uid: Option<u32>,
    /// Whether the user already existed when the lease was taken, so that a failure does not remove it.
    pub adopted: bool,
    /// Whether it is being released: nothing can begin under it any more.
    pub leaving: bool,
    /// The time when it was taken.
    pub taken_at: Timestamp,
}

impl MachineLease {
    /// Returns its holder.
    pub fn holder(&self) -> Holder {
        Holder { allocation_id: self.allocation_id, lease_epoch: self.lease_epoch }
    }

    /// Returns the user whose traces to find.
    pub fn traces(&self) -> Traces {
        Traces { name: self.username.clone(), uid: self.uid }
    }
}

/// What the machine remembers after its lease is gone.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineFence {
    /// The highest epoch it has seen.
    pub lease_epoch: u64,
    /// The allocation of that epoch.
    pub allocation_id: AllocationId,
    /// Its user.
    pub username: UserName,
    /// The allocation that the user was created for.
    pub user_of: AllocationId,
    /// The user's number.
    pub uid: Option<u32>,
    /// The number that was assigned last: the next user gets another one.
    pub last_uid: Option<u32>,
    /// Whether the holder has released it, or started to. From then on nothing can begin in that epoch; it can only be cleaned up
    /// again.
    pub over: bool,
}

impl MachineFence {
    /// Creates the fence of a lease, from the fence before it.
    pub(crate) fn of(lease: &MachineLease, before: Option<&Self>) -> Self {
        Self {
            lease_epoch: lease.lease_epoch,
            allocation_id: lease.allocation_id,
            username: lease.username.clone(),
            user_of: lease.user_of,
            uid: lease.uid,
            last_uid: lease.uid.or_else(|| before?.last_uid),
            over: lease.leaving,
        }
    }
}

/// An entry of the user database.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SystemUser {
    /// The name.
    pub name: String,
    /// The number.
    pub uid: u32,
    /// The number of its own group.
    pub gid: u32,
    /// Its comment.
    pub comment: String,
    /// Its home.
    pub home: String,
}

impl SystemUser {
    /// Returns the allocation it was created for, or `None` if it is not a tenant's. System users never are, whatever their
    /// comment.
    pub fn allocation(&self) -> Option<AllocationId> {
        // The user can change what follows the first comma.
        let noted = self.comment.split(',').next()?.strip_prefix(MARK)?;
        if self.uid < FIRST_PERSON || self.home != home_of(&self.name) {
            return None;
        }
        noted.parse().ok()
    }
}

/// Returns the home of a tenant.
pub fn home_of(name: &str) -> String {
    format!("{HOMES}/{name}")
}

/// Returns the comment that links a user to its allocation.
pub fn comment_of(allocation_id: AllocationId) -> String {
    format!("{MARK}{allocation_id}")
}

/// A user to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewUser {
    /// The name.
    pub name: UserName,
    /// The allocation.
    pub allocation_id: AllocationId,
    /// The number.
    pub uid: u32,
}

impl NewUser {
    /// Checks that an existing user is the expected one.
    pub(crate) fn check(&self, user: SystemUser) -> Result<SystemUser, HostError> {
        let Self { name, allocation_id, uid } = self;
        if user.allocation() != Some(*allocation_id) {
            let message = format!("there is a user {name} already, with number {}, who is not of {allocation_id}", user.uid);
            return Err(HostError::new("user_exists", message));
        }
        if user.uid != *uid {
            return Err(differs(name, *uid, user.uid));
        }
        Ok(user)
    }
}

pub(crate) fn differs(name: &UserName, wanted: u32, found: u32) -> HostError {
    let message =
        format!("the user {name} has number {found} and was created with {wanted}; it was changed since, so check it first");
    HostError::new("user_differs", message)
}

/// A user to remove, whether or not the system still knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traces {
    /// The name.
    pub name: UserName,
    /// The number, if it ever had one.
    pub uid: Option<u32>,
}

/// What was ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Sessions.
    pub sessions: u32,
    /// Processes.
    pub processes: u32,
}

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Files and folders.
    pub files: u64,
    /// Whether there was a home.
    pub home: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_comment_of_ours_on_a_user_of_ours_is_believed() {
        let allocation = AllocationId::generate();
        let user = |uid: u32, comment: String, home: &str| SystemUser {
            name: "tenant-1".to_owned(),
            uid,
            gid: uid,
            comment,
            home: home.to_owned(),
        };
        let home = &home_of("tenant-1");
        assert_eq!(user(20_000, comment_of(allocation), home).allocation(), Some(allocation));
        let with_room = format!("{},room 5,,", comment_of(allocation));
        assert_eq!(user(20_000, with_room, home).allocation(), Some(allocation), "the rest of the comment is the user's own");
        for other in [
            user(0, comment_of(allocation), home),
            user(999, comment_of(allocation), home),
            user(20_000, comment_of(allocation), "/"),
            user(20_000, comment_of(allocation), &home_of("tenant-10")),
            user(20_000, String::new(), home),
            user(20_000, "gpuaas".to_owned(), home),
            user(20_000, "gpuaas agent".to_owned(), home),
            user(20_000, format!("x,{}", comment_of(allocation)), home),
            user(20_000, format!("{} ", comment_of(allocation)), home),
            user(20_000, format!(" {}", comment_of(allocation)), home),
        ] {
            assert_eq!(other.allocation(), None, "{other:?}");
        }
    }
}
