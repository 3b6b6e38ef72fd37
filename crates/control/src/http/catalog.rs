//! The catalog: products, with how many of each are available now.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use gpuaas_api::dto::{self, CatalogItem, Gpu, Page, PageQuery, SkuCreate};
use gpuaas_api::routes;
use gpuaas_domain::catalog::{Product, Sku, SkuChange};

use super::problem::{JsonBody, Params, Rejected, Segments};
use super::{Location, Tagged, page_request};
use crate::Control;
use crate::app::{Caller, IfMatch, catalog, etag_of};

type Shared = State<Arc<Control>>;

pub(super) fn product_to_dto(product: Product) -> dto::Product {
    dto::Product { kind: product.kind().into(), slots: product.slots() }
}

/// The products that tenants can lease.
pub(super) async fn offers(State(control): Shared) -> Result<Json<Page<CatalogItem>>, Rejected> {
    let offers = catalog::offers(&control).await?;
    let gpus = catalog::gpus(&control, offers.iter().filter_map(|(sku, _)| sku.gpu_model.as_deref()).collect()).await?;
    let offer_to_dto = |(sku, available): (Sku, u32)| CatalogItem {
        id: sku.id,
        gpu: gpu_of(&gpus, sku.gpu_model.as_deref()),
        product: product_to_dto(sku.product),
        name: sku.name,
        description: sku.description,
        gpu_model: sku.gpu_model,
        min_vcpus: sku.min_vcpus,
        min_memory_mib: sku.min_memory_mib,
        price_per_hour: sku.price_per_hour,
        available,
    };
    Ok(Json(Page::whole(offers.into_iter().map(offer_to_dto).collect())))
}

pub(super) async fn list(State(control): Shared, Params(query): Params<PageQuery>) -> Result<Json<Page<dto::Sku>>, Rejected> {
    let found = catalog::list(&control, &page_request(query.after.as_deref(), query.limit)?).await?;
    Ok(Json(Page { items: to_dtos(&control, found.items).await?, next: found.next }))
}

pub(super) async fn create(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    JsonBody(wanted): JsonBody<SkuCreate>,
) -> Result<(StatusCode, Location, Tagged<dto::Sku>), Rejected> {
    let made = catalog::create(&control, &caller, wanted).await?;
    let location = Location::of(routes::SKU, [&made.id]);
    Ok((StatusCode::CREATED, location, tagged(&control, made).await?))
}

pub(super) async fn change(
    State(control): Shared,
    Extension(caller): Extension<Caller>,
    if_match: IfMatch,
    Segments(name): Segments<String>,
    JsonBody(wanted): JsonBody<dto::SkuChange>,
) -> Result<Tagged<dto::Sku>, Rejected> {
    let change = SkuChange { description: wanted.description, price_per_hour: wanted.price_per_hour, retired: wanted.retired };
    let sku = catalog::change(&control, &caller, &name, &change, &if_match).await?;
    tagged(&control, sku).await
}

pub(super) fn gpu_of(gpus: &HashMap<String, Gpu>, gpu_model: Option<&str>) -> Option<Gpu> {
    gpu_model.and_then(|model| gpus.get(model).cloned())
}

async fn tagged(control: &Control, sku: Sku) -> Result<Tagged<dto::Sku>, Rejected> {
    let gpus = catalog::gpus(control, sku.gpu_model.as_deref().into_iter().collect()).await?;
    Ok(Tagged(etag_of(sku.version), to_dto(sku, &gpus)))
}

async fn to_dtos(control: &Control, skus: Vec<Sku>) -> Result<Vec<dto::Sku>, Rejected> {
    let gpus = catalog::gpus(control, skus.iter().filter_map(|sku| sku.gpu_model.as_deref()).collect()).await?;
    Ok(skus.into_iter().map(|sku| to_dto(sku, &gpus)).collect())
}

fn to_dto(sku: Sku, gpus: &HashMap<String, Gpu>) -> dto::Sku {
    dto::Sku {
        id: sku.id,
        gpu: gpu_of(gpus, sku.gpu_model.as_deref()),
        product: product_to_dto(sku.product),
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
