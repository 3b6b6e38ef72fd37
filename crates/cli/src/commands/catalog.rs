//! `gpuaas catalog`.

use gpuaas_api::dto::{CatalogItem, PageQuery};

use super::alloc_view::size;
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::list::{Changes, List, WatchArgs, when_empty};
use crate::output::{Table, View};
use crate::pages::{self, MAX_ITEMS};
use crate::price;

pub(super) async fn run(session: &CommandContext, args: WatchArgs) -> Result<Exit, CliError> {
    let client = session.client()?;
    let fetch = async |after, limit| client.catalog(&PageQuery { after, limit: Some(limit) }).await;
    let list = List {
        // Availability depends on all tenants, and no event announces its changes.
        changes: Changes::Unannounced,
        time: |_: &CatalogItem| None,
        limit: MAX_ITEMS,
        view: table,
        advice: when_empty("nothing is on offer yet; operators create products with `gpuaas sku create`"),
    };
    list.run(session, args.into(), async |limit| Ok(pages::collect(limit, &fetch).await?)).await
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
