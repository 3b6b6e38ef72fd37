//! Quotas: how much an organization or a project may have at once, and how much it has.
//!
//! Usage is stored in the quota's own row and changed in the commit that begins or ends an allocation. Two requests that together would
//! exceed the quota therefore cannot both pass: the second finds the row changed and is decided again.

use gpuaas_contract::event::{Event, QuotaSet};
use gpuaas_contract::id::{OrgId, ProjectId};
use gpuaas_contract::product::Product;

pub use gpuaas_contract::quota::Limits;

use crate::decision::{Context, Decision};
use crate::refusal::Refusal;
use crate::resource::{Keys, resource};

/// Current usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Used {
    /// Allocations that have not ended.
    pub allocations: u32,
    /// Slots of these allocations.
    pub slots: u32,
    /// Whole machines among these allocations.
    pub machines: u32,
}

impl Used {
    /// What one allocation of this product uses.
    pub const fn of(product: Product) -> Self {
        match product {
            Product::Slice { slots } => Self { allocations: 1, slots, machines: 0 },
            Product::BareMetal => Self { allocations: 1, slots: 0, machines: 1 },
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            allocations: self.allocations.saturating_add(other.allocations),
            slots: self.slots.saturating_add(other.slots),
            machines: self.machines.saturating_add(other.machines),
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            allocations: self.allocations.saturating_sub(other.allocations),
            slots: self.slots.saturating_sub(other.slots),
            machines: self.machines.saturating_sub(other.machines),
        }
    }
}

/// The quota of one organization or project.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Quota {
    /// `quota:` and the id of the organization or project.
    pub id: String,
    /// Row version.
    #[serde(skip)]
    pub version: i64,
    /// The organization, or the one that the project belongs to.
    pub organization_id: OrgId,
    /// The project; `None` for the quota of an organization.
    pub project_id: Option<ProjectId>,
    /// Maximum usage.
    pub limits: Limits,
    /// Current usage.
    pub used: Used,
}

resource!(Quota, Quota);

/// Id of the quota of an organization or a project.
pub fn quota_id(of: &impl std::fmt::Display) -> String {
    format!("quota:{of}")
}

impl Quota {
    fn found_by(&self) -> Keys {
        Keys { parent: self.organization_id.to_string(), state: "active", ..Keys::default() }
    }

    /// The quota of a new organization.
    pub fn of_organization(id: OrgId, limits: Limits) -> Self {
        Self { id: quota_id(&id), version: 0, organization_id: id, project_id: None, limits, used: Used::default() }
    }

    /// The quota of a new project.
    pub fn of_project(id: ProjectId, organization: OrgId, limits: Limits) -> Self {
        Self { id: quota_id(&id), version: 0, organization_id: organization, project_id: Some(id), limits, used: Used::default() }
    }

    /// Adds usage, or refuses and says which limit is exceeded.
    pub fn take(&self, more: Used) -> Result<Self, Refusal> {
        let used = self.used.plus(more);
        let whose = if self.project_id.is_some() { "project" } else { "organization" };
        let limits = [
            ("allocations", self.limits.allocations, self.used.allocations, used.allocations),
            ("slots", self.limits.slots, self.used.slots, used.slots),
            ("machines", self.limits.machines, self.used.machines, used.machines),
        ];
        for (what, limit, has, wants) in limits {
            if let Some(limit) = limit
                && wants > limit
                && wants > has
            {
                let message = format!(
                    "the {whose} may have {limit} {what} at once and has {has}; release something, or ask for a higher quota"
                );
                return Err(Refusal::conflict("quota_exceeded", message));
            }
        }
        Ok(Self { used, ..self.clone() })
    }

    /// Subtracts usage.
    pub fn give_back(&self, less: Used) -> Self {
        Self { used: self.used.minus(less), ..self.clone() }
    }
}

/// Changes the limits. Existing usage stays, even if it exceeds them.
pub fn set_limits(quota: &Quota, limits: Limits, context: &Context) -> (Quota, Decision) {
    if quota.limits == limits {
        return (quota.clone(), Decision::default());
    }
    let next = Quota { limits, ..quota.clone() };
    let whose = next.project_id.map_or_else(|| next.organization_id.to_string(), |project| project.to_string());
    let event = Event::QuotaSet(QuotaSet { of: whose.clone(), before: quota.limits, limits });
    (next.clone(), Decision::default().update(&next).record(context, whose, event))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: Used = Used { allocations: 1, slots: 4, machines: 0 };

    fn quota(limits: Limits) -> Quota {
        Quota::of_organization(OrgId::generate(), limits)
    }

    #[test]
    fn what_fits_is_taken_and_what_does_not_is_refused_with_the_limit() {
        let quota = quota(Limits { slots: Some(8), ..Limits::default() });
        let two = quota.take(SLICE).and_then(|quota| quota.take(SLICE)).expect("8 of 8");
        let refusal = two.take(SLICE).expect_err("12 of 8");
        assert_eq!(refusal.code, "quota_exceeded");
        assert!(refusal.message.contains("8 slots"), "{refusal}");
        assert_eq!(two.give_back(SLICE).give_back(SLICE).used, Used::default());
    }

    #[test]
    fn a_limit_below_what_there_is_stops_only_more_of_it() {
        let full = quota(Limits::default()).take(SLICE).expect("no limit");
        let lowered = Quota { limits: Limits { slots: Some(2), ..Limits::default() }, ..full };
        assert!(lowered.take(Used { machines: 1, allocations: 1, slots: 0 }).is_ok(), "a machine takes no slots");
        assert!(lowered.take(SLICE).is_err());
    }
}
