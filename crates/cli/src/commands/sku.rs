//! `gpuaas sku`: the products of the catalog, for operators.

use clap::Subcommand;
use gpuaas_api::dto::{ProductKind, Sku, SkuChange, SkuCreate};
use gpuaas_contract::money::{Amount, Currency, Money};

use super::alloc_view::size;
use super::moment;
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::{Details, Table, View};
use crate::{price, tenants};

/// Products. One is named by its name, its id or a unique beginning of it.
#[derive(Debug, Subcommand)]
pub(crate) enum SkuCommand {
    /// Make a product.
    ///
    /// Examples:
    ///   gpuaas sku create h100-1x --slots 1 --gpu 10de:2330 --price 2.50
    ///   gpuaas sku create h100-metal --bare-metal --gpu 10de:2330 --price 20
    #[command(verbatim_doc_comment)]
    Create {
        /// What people type: lower-case letters, digits and single dashes.
        name: String,
        /// How many slots of one host it is.
        #[arg(long, value_name = "COUNT", required_unless_present = "bare_metal", conflicts_with = "bare_metal")]
        slots: Option<u32>,
        /// A whole host instead of slots.
        #[arg(long)]
        bare_metal: bool,
        /// The GPU, as hosts name it or as `vendor:device`; without it, any slot will do.
        #[arg(long, value_name = "MODEL")]
        gpu: Option<String>,
        /// Accept a GPU that no node has reported yet, for hardware that arrives later.
        #[arg(long, requires = "gpu")]
        allow_unknown_gpu: bool,
        /// vCPUs of each slot at least.
        #[arg(long, value_name = "COUNT", default_value_t = 0)]
        min_vcpus: u32,
        /// Memory of each slot at least, in MiB.
        #[arg(long, value_name = "MIB", default_value_t = 0)]
        min_memory_mib: u64,
        /// Price per hour, such as 2.50.
        #[arg(long)]
        price: Amount,
        /// The currency of the price, as three letters.
        #[arg(long, default_value = "USD")]
        currency: Currency,
        /// In words.
        #[arg(long, default_value = "")]
        description: String,
    },
    /// List products, those that are no longer on offer, too.
    #[command(alias = "list")]
    Ls,
    /// Change a product. What was leased goes on at its price.
    Change {
        /// The product.
        sku: String,
        /// Another price per hour, for what is leased from now on.
        #[arg(long)]
        price: Option<Amount>,
        /// The currency of that price, as three letters.
        #[arg(long, default_value = "USD", requires = "price")]
        currency: Currency,
        /// Other words.
        #[arg(long)]
        description: Option<String>,
        /// On offer again.
        #[arg(long)]
        offer_again: bool,
    },
    /// Take a product off the catalog. What was leased goes on.
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
        SkuCommand::Ls => {
            let skus = tenants::skus(client).await?;
            session.output.print(&skus, |skus: &Vec<Sku>| table(skus))?;
            if skus.is_empty() {
                session.output.hint("there are no products yet; `gpuaas sku create` makes one");
            }
            return Ok(Exit::Done);
        }
        SkuCommand::Change { sku, price, currency, description, offer_again } => {
            let change = SkuChange {
                description,
                price_per_hour: price.map(|amount| Money { amount, currency }),
                retired: offer_again.then_some(false),
            };
            if change == SkuChange::default() {
                return Err(CliError::usage("nothing_to_change", "say what to change: --price, --description or --offer-again"));
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
