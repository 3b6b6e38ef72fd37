//! SKUs: products with a price.

use gpuaas_contract::event::{Event, SkuEvent};
use gpuaas_contract::id::SkuId;
use gpuaas_contract::money::Money;
use gpuaas_contract::slice::MAX_SLOTS;
use gpuaas_contract::state::SkuState;
use gpuaas_contract::time::Timestamp;

pub use gpuaas_contract::product::Product;

use crate::decision::{Context, Decision};
use crate::names::{checked_handle, checked_text};
use crate::refusal::Refusal;
use crate::resource::{Keys, resource};

/// A priced product of the catalog.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Sku {
    /// Unique id of the product.
    pub id: SkuId,
    /// Row version.
    #[serde(skip)]
    pub version: i64,
    /// Name that people type; unique among the products on offer.
    pub name: String,
    /// Free text for people.
    pub description: String,
    /// Kind and size of what is leased.
    pub product: Product,
    /// GPU model, as hosts report it or as `vendor:device`; `None` for slots without one.
    pub gpu_model: Option<String>,
    /// Minimum number of vCPUs of each slot.
    pub min_vcpus: u32,
    /// Minimum memory of each slot, in MiB.
    pub min_memory_mib: u64,
    /// Price of new allocations.
    #[serde(deserialize_with = "Money::read_stored")]
    pub price_per_hour: Money,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was retired; existing allocations continue at their price. `None` while it is on offer.
    pub retired_at: Option<Timestamp>,
}

resource!(Sku, Sku);

impl Sku {
    fn found_by(&self) -> Keys {
        let live = self.retired_at.is_none();
        Keys { name: live.then(|| self.name.clone()), state: self.state().as_str(), ..Keys::default() }
    }

    /// Whether it is on offer.
    pub const fn state(&self) -> SkuState {
        if self.retired_at.is_none() { SkuState::Active } else { SkuState::Retired }
    }

    fn check(&self) -> Result<(), Refusal> {
        if let Product::Slice { slots } = self.product
            && !(1..=u32::try_from(MAX_SLOTS).unwrap_or(u32::MAX)).contains(&slots)
        {
            return Err(Refusal::invalid("sku_invalid", format!("a slice has 1 to {MAX_SLOTS} slots")));
        }
        if !(0..=1_000_000_000_000).contains(&self.price_per_hour.amount.0) {
            return Err(Refusal::invalid("sku_invalid", "the price per hour is 0 to 1,000,000"));
        }
        if self.gpu_model.as_ref().is_some_and(|model| model.is_empty() || checked_text(model, "the GPU model").is_err()) {
            return Err(Refusal::invalid(
                "sku_invalid",
                "the GPU model has 1 to 200 bytes on one line; leave it out for slots without a GPU",
            ));
        }
        Ok(())
    }
}

/// Creates a product. `sku` has the wanted content; id, version and times are set here.
pub fn create_sku(id: SkuId, sku: Sku, context: &Context) -> Result<(Sku, Decision), Refusal> {
    let sku = Sku {
        id,
        version: 0,
        name: checked_handle(&sku.name, "a product")?,
        description: checked_text(&sku.description, "the description")?,
        created_at: context.now,
        retired_at: None,
        ..sku
    };
    sku.check()?;
    let decision = Decision::default().insert(&sku);
    Ok((sku.clone(), recorded(decision, &sku, Event::SkuCreated, context)))
}

/// The properties of a product that can change after it has been leased: description, price of new allocations, and whether it is on offer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SkuChange {
    /// New description.
    pub description: Option<String>,
    /// New price, for allocations that are created from now on.
    pub price_per_hour: Option<Money>,
    /// Whether to retire it or to offer it again.
    pub retired: Option<bool>,
}

/// Changes a product. Idempotent.
pub fn change_sku(sku: &Sku, change: &SkuChange, context: &Context) -> Result<(Sku, Decision), Refusal> {
    let next = Sku {
        description: match &change.description {
            Some(text) => checked_text(text, "the description")?,
            None => sku.description.clone(),
        },
        price_per_hour: change.price_per_hour.unwrap_or(sku.price_per_hour),
        retired_at: match change.retired {
            Some(true) => Some(sku.retired_at.unwrap_or(context.now)),
            Some(false) => None,
            None => sku.retired_at,
        },
        ..sku.clone()
    };
    next.check()?;
    if next == *sku {
        return Ok((next, Decision::default()));
    }
    let decision = Decision::default().update(&next);
    Ok((next.clone(), recorded(decision, &next, Event::SkuChanged, context)))
}

fn recorded(decision: Decision, sku: &Sku, event: fn(SkuEvent) -> Event, context: &Context) -> Decision {
    let data = SkuEvent {
        sku_id: sku.id,
        name: sku.name.clone(),
        product: sku.product,
        gpu_model: sku.gpu_model.clone(),
        price_per_hour: sku.price_per_hour,
        retired: sku.retired_at.is_some(),
    };
    decision.record(context, sku.id, event(data))
}
