//! `gpuaas sku`: the products of the catalog, for operators.

use clap::Subcommand;
use gpuaas_api::dto::{ProductKind, Sku, SkuChange, SkuCreate};
use gpuaas_contract::money::{Amount, Currency, Money};

use super::alloc_view::size;
use super::moment;
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::list::{Changes, List, ListArgs, when_empty};
use crate::output::{Details, Table, View};
use crate::pages::MAX_ITEMS;
use crate::{price, tenants};

/// Products. A product is named by its name, its id or a unique prefix of it.
#[derive(Debug, Subcommand)]
pub(crate) enum SkuCommand {
    /// Create a product.
    ///
    /// Examples:
    ///   gpuaas sku create h100-1x --slots 1 --gpu 10de:2330 --price 2.50
    ///   gpuaas sku create h100-metal --bare-metal --gpu 10de:2330 --price 20
    #[command(verbatim_doc_comment)]
    Create {
        /// Name: lower-case letters, digits and single dashes.
        name: String,
        /// Number of slots on one host.
        #[arg(long, value_name = "COUNT", required_unless_present = "bare_metal", conflicts_with = "bare_metal")]
        slots: Option<u32>,
        /// A whole host instead of slots.
        #[arg(long)]
        bare_metal: bool,
        /// GPU model, as hosts name it or as `vendor:device` [default: any].
        #[arg(long, value_name = "MODEL")]
        gpu: Option<String>,
        /// Accept a GPU that no node has reported yet, for hardware that arrives later.
        #[arg(long, requires = "gpu")]
        allow_unknown_gpu: bool,
        /// Minimum number of vCPUs of each slot.
        #[arg(long, value_name = "COUNT", default_value_t = 0)]
        min_vcpus: u32,
        /// Minimum memory of each slot, in MiB.
        #[arg(long, value_name = "MIB", default_value_t = 0)]
        min_memory_mib: u64,
        /// Price per hour, such as 2.50.
        #[arg(long)]
        price: Amount,
        /// Currency of the price, as three letters.
        #[arg(long, default_value = "USD")]
        currency: Currency,
        /// Description.
        #[arg(long, default_value = "")]
        description: String,
    },
    /// List products, including retired ones.
    #[command(alias = "list")]
    Ls(ListArgs),
    /// Change a product. Existing leases keep their price.
    Change {
        /// The product.
        sku: String,
        /// New price per hour, for new leases.
        #[arg(long)]
        price: Option<Amount>,
        /// Currency of that price, as three letters.
        #[arg(long, default_value = "USD", requires = "price")]
        currency: Currency,
        /// New description.
        #[arg(long)]
        description: Option<String>,
        /// Offer a retired product again.
        #[arg(long)]
        offer_again: bool,
    },
    /// Retire a product from the catalog. Existing leases are not affected.
    Retire {
        /// The product.
        sku: String,
    },
}

pub(super) async fn run(session: &CommandContext, command: SkuCommand) -> Result<Exit, CliError> {
    let client = session.client()?;
    let sku = match command {
        SkuCommand::Create {
            name,
            slots,
            bare_metal,
            gpu,
            allow_unknown_gpu,
            min_vcpus,
            min_memory_mib,
            price,
            currency,
            description,
        } => {
            let kind = if bare_metal { ProductKind::BareMetal } else { ProductKind::Slice };
            let create = SkuCreate {
                name,
                description,
                kind,
                slots,
                gpu_model: gpu,
                allow_unknown_gpu,
                min_vcpus,
                min_memory_mib,
                price_per_hour: Money { amount: price, currency },
            };
            client.sku_create(&create, None).await?
        }
        SkuCommand::Ls(args) => {
            let list = List {
                changes: Changes::Platform("sku"),
                time: |sku: &Sku| Some(sku.created_at),
                limit: MAX_ITEMS,
                view: table,
                advice: when_empty("there are no products yet; `gpuaas sku create` creates one"),
            };
            return list.run(session, args, async |limit| tenants::skus(client, limit).await).await;
        }
        SkuCommand::Change { sku, price, currency, description, offer_again } => {
            let change = SkuChange {
                description,
                price_per_hour: price.map(|amount| Money { amount, currency }),
                retired: offer_again.then_some(false),
            };
            if change == SkuChange::default() {
                return Err(CliError::usage(
                    "nothing_to_change",
                    "nothing to change: give --price, --description or --offer-again",
                ));
            }
            change_to(session, &sku, &change).await?
        }
        SkuCommand::Retire { sku } => {
            change_to(session, &sku, &SkuChange { retired: Some(true), ..SkuChange::default() }).await?
        }
    };
    session.output.print(&sku, |sku| View::Details(details(sku)))?;
    Ok(Exit::Done)
}

async fn change_to(session: &CommandContext, sku: &str, change: &SkuChange) -> Result<Sku, CliError> {
    let client = session.client()?;
    let sku = tenants::sku(client, sku).await?;
    let seen = Some(sku.etag.as_str()).filter(|etag| !etag.is_empty());
    Ok(client.sku_change(&sku.id.to_string(), change, seen).await?)
}

fn details(sku: &Sku) -> Details {
    Details::default()
        .field("id", sku.id)
        .field("name", &sku.name)
        .field("description", &sku.description)
        .field("size", size(&sku.product, sku.gpu_model.as_deref()))
        .field("vCPUs of a slot", at_least(u64::from(sku.min_vcpus), ""))
        .field("memory of a slot", at_least(sku.min_memory_mib, " MiB"))
        .field("price", price::per_hour(sku.price_per_hour))
        .field("state", &sku.state)
        .field("created", moment(sku.created_at))
        .maybe("retired", sku.retired_at.map(moment))
}

fn at_least(number: u64, unit: &str) -> String {
    if number == 0 { String::new() } else { format!("at least {number}{unit}") }
}

fn table(skus: &[Sku]) -> View {
    if skus.is_empty() {
        return View::Nothing;
    }
    let mut table = Table::new(["SKU", "GPU", "SIZE", "PRICE", "STATE", "DESCRIPTION"]);
    for sku in skus {
        table.row([
            sku.name.clone(),
            sku.gpu_model.clone().unwrap_or_default(),
            size(&sku.product, None),
            price::per_hour(sku.price_per_hour),
            sku.state.to_string(),
            sku.description.clone(),
        ]);
    }
    View::Table(table)
}
