//! `gpuaas catalog`.

use gpuaas_api::dto::{CatalogItem, PageQuery};

use super::alloc_view::size;
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::{Table, View};
use crate::pages;
use crate::price;

pub(super) async fn run(session: &CommandContext) -> Result<Exit, CliError> {
    let client = session.client()?;
    let fetch = async |after, limit| client.catalog(&PageQuery { after, limit: Some(limit) }).await;
    let items = pages::collect(session.limit(), fetch).await?.items;
    session.output.print(&items, |items: &Vec<CatalogItem>| table(items))?;
    if items.is_empty() {
        session.output.hint("nothing is on offer yet; operators make products with `gpuaas sku create`");
    }
    Ok(Exit::Done)
}

fn table(items: &[CatalogItem]) -> View {
    if items.is_empty() {
        return View::Nothing;
    }
    let mut table = Table::new(["SKU", "GPU", "SIZE", "PRICE", "AVAILABLE", "DESCRIPTION"]);
    for item in items {
        table.row([
            item.name.clone(),
            item.gpu_model.clone().unwrap_or_default(),
            size(&item.product, None),
            price::per_hour(item.price_per_hour),
            item.available.to_string(),
            item.description.clone(),
        ]);
    }
    View::Table(table)
}
