//! Quotas: how much an organization and a project may have at once, and how much they have.
//!
//! What is used is kept in the quota's own row, in the commit that begins or ends an allocation. Two requests that would be too much
//! together therefore cannot both pass: the second one finds the row changed and is decided again.

use gpuaas_contract::event::{Event, QuotaSet};
use gpuaas_contract::id::{OrgId, ProjectId};
use gpuaas_contract::product::Product;

pub use gpuaas_contract::quota::Limits;

use crate::decision::{Context, Decision};
use crate::refusal::Refusal;
use crate::resource::{Keys, resource};

/// How much there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Used {
    /// Allocations that are not over.
    pub allocations: u32,
    /// Their slots.
    pub slots: u32,
    /// Whole machines among them.
    pub machines: u32,
}

impl Used {
    /// What one of a product takes.
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
    /// `quota:` and the id of whose it is.
    pub id: String,
    /// Row version.
    #[serde(skip)]
    pub version: i64,
    /// The organization.
    pub organization_id: OrgId,
    /// The project, if it is that of one.
    pub project_id: Option<ProjectId>,
    /// How much may be.
    pub limits: Limits,
    /// How much there is.
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

    /// That of an organization with nothing yet.
    pub fn of_organization(id: OrgId, limits: Limits) -> Self {
        Self { id: quota_id(&id), version: 0, organization_id: id, project_id: None, limits, used: Used::default() }
    }

    /// That of a project with nothing yet.
    pub fn of_project(id: ProjectId, organization: OrgId, limits: Limits) -> Self {
        Self { id: quota_id(&id), version: 0, organization_id: organization, project_id: Some(id), limits, used: Used::default() }
    }

    /// With this more, or a refusal that says which limit is in the way.
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

    /// With this less.
    pub fn give_back(&self, less: Used) -> Self {
        Self { used: self.used.minus(less), ..self.clone() }
    }
}

/// Other limits. What is there already stays, even if it is more.
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
