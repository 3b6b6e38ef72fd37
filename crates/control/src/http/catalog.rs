//! The catalog: products, with how many of each could be had now.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::{Extension, Json};
use gpuaas_api::dto::{self, CatalogItem, Page, PageQuery, ProductKind, SkuCreate};
use gpuaas_api::routes;
use gpuaas_contract::id::SkuId;
use gpuaas_contract::time::Timestamp;
use gpuaas_domain::Refusal;
use gpuaas_domain::catalog::{self, Product, Sku, SkuChange};
use gpuaas_domain::placement::{PlacementRequest, Policy, SlotCount, What};
use gpuaas_store::ResourceFilter;

use super::caller::Caller;
use super::problem::{JsonBody, Params, Rejected, Segments};
use super::{Location, Tagged, etag_of, free_name, if_match, page, page_limit, parse_id};
use crate::error::ControlError;
use crate::transact::transact;
use crate::{Control, resources};

type Shared = State<Arc<Control>>;

pub(super) fn product_shown(product: Product) -> dto::Product {
    dto::Product { kind: product.kind().into(), slots: product.slots() }
}

/// What is on offer.
pub(super) async fn offers(State(control): Shared) -> Result<Json<Page<CatalogItem>>, Rejected> {
    let filter = ResourceFilter { states: vec!["active"], ..ResourceFilter::default() };
    let skus: Vec<Sku> = resources::all(&control, &filter).await?;
    let mut items = Vec::with_capacity(skus.len());
    for sku in skus {
        let available = available(&control, &sku).await?;
        items.push(CatalogItem {
            id: sku.id,
            product: product_shown(sku.product),
            name: sku.name,
            description: sku.description,
            gpu_model: sku.gpu_model,
            min_vcpus: sku.min_vcpus,
            min_memory_mib: sku.min_memory_mib,
            price_per_hour: sku.price_per_hour,
            available,
        });
    }
    Ok(Json(Page::whole(items)))
}

/// How many of a product could be placed now, one after the other.
pub(super) async fn available(control: &Control, sku: &Sku) -> Result<u32, ControlError> {
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

async fn get(control: &Control, id: &str) -> Result<Sku, ControlError> {
    let unknown = || Refusal::not_found("sku_unknown", format!("there is no product {id}"));
    let found = match id.parse::<SkuId>() {
        Ok(id) => resources::get::<Sku>(control, id).await?,
        Err(_) => resources::by_name::<Sku>(control, "", id).await?,
    };
    Ok(found.ok_or_else(unknown)?)
}

pub(super) async fn list(State(control): Shared, Params(query): Params<PageQuery>) -> Result<Json<Page<dto::Sku>>, Rejected> {
    let limit = page_limit(query.limit)?;
    if let Some(after) = &query.after {
        parse_id::<SkuId>(after)?;
    }
    let filter = ResourceFilter::default();
    let found: Vec<Sku> = resources::list(&control, &filter, query.after.as_deref(), false, limit.saturating_add(1)).await?;
    let found = page(found, limit, |sku| sku.id.to_string());
    Ok(Json(Page { items: found.items.into_iter().map(to_dto).collect(), next: found.next }))
}

pub(super) async fn create(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(wanted): JsonBody<SkuCreate>,
) -> Result<(StatusCode, Location, Tagged<dto::Sku>), Rejected> {
    let product = match (wanted.kind, wanted.slots) {
        (ProductKind::Slice, slots) => Product::Slice { slots: slots.unwrap_or(1) },
        (ProductKind::BareMetal, None) => Product::BareMetal,
        (ProductKind::BareMetal, Some(_)) => {
            let message = "a whole host has no number of slots; leave `slots` out";
            return Err(Refusal::invalid("sku_invalid", message).into());
        }
    };
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
        created_at: Timestamp::now(),
        retired_at: None,
    };
    let context = caller.context();
    let made = transact(&control, || async {
        free_name::<Sku>(&control, "", &sku.name).await?;
        Ok(catalog::create_sku(sku.id, sku.clone(), &context)?)
    })
    .await?;
    let location = Location::of(routes::SKU, [&made.id]);
    Ok((StatusCode::CREATED, location, Tagged(etag_of(made.version), to_dto(made))))
}

pub(super) async fn change(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Segments(id): Segments<String>,
    JsonBody(wanted): JsonBody<dto::SkuChange>,
) -> Result<Tagged<dto::Sku>, Rejected> {
    let context = caller.context();
    let change = SkuChange { description: wanted.description, price_per_hour: wanted.price_per_hour, retired: wanted.retired };
    let id = transact(&control, || async {
        let sku = get(&control, &id).await?;
        if_match(&headers, &etag_of(sku.version))?;
        if sku.retired_at.is_some() && change.retired == Some(false) {
            free_name::<Sku>(&control, "", &sku.name).await?;
        }
        let (next, decision) = catalog::change_sku(&sku, &change, &context)?;
        Ok((next.id, decision))
    })
    .await?;
    let sku = get(&control, &id.to_string()).await?;
    Ok(Tagged(etag_of(sku.version), to_dto(sku)))
}

fn to_dto(sku: Sku) -> dto::Sku {
    dto::Sku {
        id: sku.id,
        product: product_shown(sku.product),
        etag: etag_of(sku.version),
        state: sku.state().into(),
        name: sku.name,
        description: sku.description,
        gpu_model: sku.gpu_model,
        min_vcpus: sku.min_vcpus,
        min_memory_mib: sku.min_memory_mib,
        price_per_hour: sku.price_per_hour,
        created_at: sku.created_at,
        retired_at: sku.retired_at,
    }
}
