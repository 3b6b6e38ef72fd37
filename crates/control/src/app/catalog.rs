//! The catalog: products, and how many of each could be had now.

use std::collections::{BTreeSet, HashMap};

use gpuaas_api::dto::{Gpu, Page, ProductKind, SkuCreate};
use gpuaas_contract::id::SkuId;
use gpuaas_domain::Refusal;
use gpuaas_domain::catalog::{self, Product, Sku, SkuChange};
use gpuaas_domain::placement::{Fleet, PlacementRequest, Policy, SlotCount, What};
use gpuaas_store::ResourceFilter;

use super::{Caller, IfMatch, PageRequest, check_name_free, list_resources};
use crate::error::ControlError;
use crate::{Control, resources};

/// What is on offer, with how many of each could be placed now.
pub(crate) async fn offers(control: &Control) -> Result<Vec<(Sku, u32)>, ControlError> {
    let filter = ResourceFilter { states: vec!["active"], ..ResourceFilter::default() };
    let mut offers = Vec::new();
    for sku in resources::all::<Sku>(control, &filter).await? {
        let available = available(control, &sku).await?;
        offers.push((sku, available));
    }
    Ok(offers)
}

/// How many of a product could be placed now, one after the other.
async fn available(control: &Control, sku: &Sku) -> Result<u32, ControlError> {
    let what = match sku.product {
        Product::Slice { slots } => {
            let count = usize::try_from(slots).ok().and_then(|slots| SlotCount::new(slots).ok());
            let Some(count) = count else { return Ok(0) };
            What::Slots {
                count,
                gpu_model: sku.gpu_model.clone(),
                min_vcpus_per_slot: sku.min_vcpus,
                min_memory_mib_per_slot: sku.min_memory_mib,
            }
        }
        Product::BareMetal => What::Machine { gpu_model: sku.gpu_model.clone(), gpus: None },
    };
    let request = PlacementRequest { policy: Policy::Pack, ..PlacementRequest::new(what) };
    let found = control.fleet.ask(control, |fleet| fleet.how_many(&request)).await?;
    Ok(u32::try_from(found).unwrap_or(u32::MAX))
}

/// Returns vendor, name and PCI id of each of these GPUs, which are named as products name them.
pub(crate) async fn gpus(control: &Control, models: BTreeSet<&str>) -> Result<HashMap<String, Gpu>, ControlError> {
    if models.is_empty() {
        return Ok(HashMap::new());
    }
    let gpu = |fleet: &Fleet, model: &str| {
        // What no node has is known only by what the product says.
        let (pci_id, name) = fleet.model(model).unwrap_or(if model.contains(':') { (model, "") } else { ("", model) });
        let (vendor, device) = pci_id.split_once(':').unwrap_or_default();
        Gpu::new(name, vendor, device)
    };
    control.fleet.ask(control, |fleet| models.into_iter().map(|model| (model.to_owned(), gpu(fleet, model))).collect()).await
}

/// The product with this id or name.
async fn find(control: &Control, name: &str) -> Result<Sku, ControlError> {
    let unknown = || Refusal::not_found("sku_unknown", format!("there is no product {name}"));
    let found = match name.parse::<SkuId>() {
        Ok(id) => resources::get::<Sku>(control, id).await?,
        Err(_) => resources::by_name::<Sku>(control, "", name).await?,
    };
    Ok(found.ok_or_else(unknown)?)
}

/// Lists products, also those that are retired.
pub(crate) async fn list(control: &Control, page: &PageRequest<SkuId>) -> Result<Page<Sku>, ControlError> {
    list_resources(control, &ResourceFilter::default(), page, false).await
}

/// Creates a product.
pub(crate) async fn create(control: &Control, caller: &Caller, wanted: SkuCreate) -> Result<Sku, ControlError> {
    let product = match (wanted.kind, wanted.slots) {
        (ProductKind::Slice, slots) => Product::Slice { slots: slots.unwrap_or(1) },
        (ProductKind::BareMetal, None) => Product::BareMetal,
        (ProductKind::BareMetal, Some(_)) => {
            let message = "a whole host has no number of slots; leave `slots` out";
            return Err(Refusal::invalid("sku_invalid", message).into());
        }
    };
    let context = caller.context();
    if let Some(model) = wanted.gpu_model.as_deref().filter(|_| !wanted.allow_unknown_gpu) {
        control.fleet.ask(control, |fleet| fleet.check_model(model)).await??;
    }
    let sku = Sku {
        id: SkuId::generate(),
        version: 0,
        name: wanted.name,
        description: wanted.description,
        product,
        gpu_model: wanted.gpu_model,
        min_vcpus: wanted.min_vcpus,
        min_memory_mib: wanted.min_memory_mib,
        price_per_hour: wanted.price_per_hour,
        created_at: context.now,
        retired_at: None,
    };
    let attempt = || async {
        check_name_free::<Sku>(control, "", &sku.name).await?;
        Ok(catalog::create_sku(sku.id, sku.clone(), &context)?)
    };
    caller.transact(control, attempt).await
}

/// Changes the product with this id or name.
pub(crate) async fn change(
    control: &Control,
    caller: &Caller,
    name: &str,
    change: &SkuChange,
    if_match: &IfMatch,
) -> Result<Sku, ControlError> {
    let context = caller.context();
    let attempt = || async {
        let sku = find(control, name).await?;
        if_match.check(sku.version)?;
        if sku.retired_at.is_some() && change.retired == Some(false) {
            check_name_free::<Sku>(control, "", &sku.name).await?;
        }
        let (next, decision) = catalog::change_sku(&sku, change, &context)?;
        Ok((next.id, decision))
    };
    let id = caller.transact(control, attempt).await?;
    find(control, &id.to_string()).await
}
