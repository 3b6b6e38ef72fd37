//! `gpuaas webhook`: addresses that receive the events of a project.

use std::time::Duration;

use clap::Subcommand;
use gpuaas_api::dto::{Delivery, DeliveryListQuery, Webhook, WebhookChange, WebhookCreate};
use gpuaas_contract::event::short_kind;
use gpuaas_contract::state::DeliveryState;

use super::confirm::ConfirmArgs;
use super::events::KindParser;
use super::{age, moment, webhook_test};
use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::list::{Changes, List, ListArgs, when_empty};
use crate::output::{Details, Table, View, text};
use crate::pages::{self, MAX_ITEMS};
use crate::{duration, tenants};

/// Number of deliveries to list without `--limit`.
const DELIVERIES_SHOWN: usize = 50;

/// Webhooks of a project. A webhook is named by its id, a unique prefix of it, or its address.
#[derive(Debug, Subcommand)]
pub(crate) enum WebhookCommand {
    /// Create a webhook. The secret that signs its deliveries is shown once.
    ///
    /// For example: gpuaas webhook create https://example.com/hook --kind allocation.active --kind allocation.failed
    Create {
        /// URL; starts with https://.
        address: String,
        /// Description.
        #[arg(long, default_value = "")]
        description: String,
        /// Kind of event, such as `allocation` or `allocation.active`; repeatable [default: all].
        #[arg(long = "kind", value_name = "KIND", value_parser = KindParser, hide_possible_values = true)]
        kinds: Vec<String>,
    },
    /// List webhooks.
    #[command(alias = "list")]
    Ls(ListArgs),
    /// Show a webhook.
    #[command(alias = "get")]
    Show {
        /// The webhook.
        webhook: String,
    },
    /// Change a webhook.
    Change {
        /// The webhook.
        webhook: String,
        /// New URL.
        #[arg(long, value_name = "URL")]
        address: Option<String>,
        /// New description.
        #[arg(long)]
        description: Option<String>,
        /// Kind of event; replaces the existing kinds; repeatable.
        #[arg(long = "kind", value_name = "KIND", value_parser = KindParser, hide_possible_values = true)]
        kinds: Vec<String>,
        /// Send every kind of event.
        #[arg(long, conflicts_with = "kinds")]
        all_kinds: bool,
        /// Enable the webhook.
        #[arg(long, conflicts_with = "disable")]
        enable: bool,
        /// Disable the webhook.
        #[arg(long)]
        disable: bool,
        /// Create a new secret, which is shown once. For 24 hours, deliveries are signed with both secrets.
        #[arg(long)]
        rotate_secret: bool,
    },
    /// Delete a webhook. Asks for its id first.
    #[command(alias = "rm")]
    Delete {
        /// The webhook.
        webhook: String,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
    /// List the deliveries to a webhook, newest first.
    Deliveries {
        /// The webhook.
        webhook: String,
        /// Only deliveries in this state: pending, delivered, failed.
        #[arg(long)]
        state: Option<DeliveryState>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Send a test event to a webhook, and show the result. Exits with 1 if the delivery fails.
    ///
    /// The event is `gpuaas.webhook.test.v1`: signed and sent like any other, once every 10 seconds at most.
    Test {
        /// The webhook.
        webhook: String,
        /// How long to wait for the result.
        #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration::parse)]
        timeout: Duration,
    },
    /// Send a delivery again.
    Replay {
        /// The delivery's id.
        delivery: String,
    },
}

pub(super) async fn run(session: &CommandContext, command: WebhookCommand) -> Result<Exit, CliError> {
    let client = session.client()?;
    match command {
        WebhookCommand::Create { address, description, kinds } => {
            let project = tenants::project(session).await?.id.to_string();
            let created = client.webhook_create(&project, &WebhookCreate { url: address, description, kinds }, None).await?;
            session.output.print(&created, |made| View::Details(details(&made.webhook).field("secret", &made.secret)))?;
            session.output.hint("store the secret now: it is not shown again");
        }
        WebhookCommand::Ls(args) => {
            let project = tenants::project(session).await?.id.to_string();
            let list = List {
                changes: Changes::Project(project.clone(), "webhook"),
                time: |webhook: &Webhook| Some(webhook.created_at),
                limit: MAX_ITEMS,
                view: table,
                advice: when_empty("there are no webhooks; `gpuaas webhook create https://…` creates one"),
            };
            return list.run(session, args, async |limit| tenants::webhooks(client, &project, limit).await).await;
        }
        WebhookCommand::Show { webhook } => {
            let webhook = client.webhook(&tenants::webhook(session, &webhook).await?).await?;
            session.output.print(&webhook, |webhook| View::Details(details(webhook)))?;
        }
        WebhookCommand::Change { webhook, address, description, kinds, all_kinds, enable, disable, rotate_secret } => {
            let enabled = if enable { Some(true) } else { disable.then_some(false) };
            let kinds = (all_kinds || !kinds.is_empty()).then_some(kinds);
            let change = WebhookChange { url: address, description, kinds, enabled, rotate_secret };
            if change == WebhookChange::default() {
                return Err(CliError::usage(
                    "nothing_to_change",
                    "nothing to change; `gpuaas webhook change --help` lists the options",
                ));
            }
            let changed = client.webhook_change(&tenants::webhook(session, &webhook).await?, &change, None).await?;
            session
                .output
                .print(&changed, |changed| View::Details(details(&changed.webhook).maybe("secret", changed.secret.as_deref())))?;
            if changed.secret.is_some() {
                session.output.hint("store the secret now: it is not shown again");
            }
        }
        WebhookCommand::Delete { webhook, confirm } => {
            let id = tenants::webhook(session, &webhook).await?;
            confirm.ask_for_name(&format!("Delete the webhook {id}?"), &id)?;
            let gone = client.webhook_delete(&id, None).await?;
            session.output.print(&gone, |webhook| View::Details(details(webhook)))?;
        }
        WebhookCommand::Deliveries { webhook, state, list: args } => {
            let webhook = tenants::webhook(session, &webhook).await?;
            let list = List {
                changes: Changes::Unannounced,
                time: |delivery: &Delivery| Some(delivery.created_at),
                limit: DELIVERIES_SHOWN,
                view: deliveries_table,
                advice: when_empty("there are no deliveries; they are kept for a week"),
            };
            let fetch = async |after, limit| {
                client.webhook_deliveries(&webhook, &DeliveryListQuery { state, after, limit: Some(limit) }).await
            };
            let newest = async |limit| {
                let is_wanted = |delivery: &Delivery| args.includes(delivery.created_at);
                Ok(pages::collect_newest(limit, is_wanted, &fetch).await?)
            };
            return list.run(session, args, newest).await;
        }
        WebhookCommand::Test { webhook, timeout } => {
            let webhook = tenants::webhook(session, &webhook).await?;
            return webhook_test::run(session, &webhook, timeout).await;
        }
        WebhookCommand::Replay { delivery } => {
            let delivery = client.delivery_replay(&delivery).await?;
            session.output.print(&delivery, |delivery| View::Details(delivery_details(delivery)))?;
        }
    }
    Ok(Exit::Done)
}

pub(super) fn delivery_details(delivery: &Delivery) -> Details {
    let took = delivery.delivered_at.map(|at| u64::try_from(at.since(delivery.created_at).as_millis()).unwrap_or(u64::MAX));
    Details::default()
        .field("id", delivery.id)
        .field("event", delivery.event_id)
        .field("kind", &delivery.kind)
        .field("state", &delivery.state)
        .field("attempts", delivery.attempts)
        .field("result", &delivery.last)
        .maybe("took", took.map(text::milliseconds))
        .maybe("next attempt", delivery.due_at.map(moment))
}

fn kinds(webhook: &Webhook) -> String {
    if webhook.kinds.is_empty() { "all".to_owned() } else { webhook.kinds.join(", ") }
}

fn state(webhook: &Webhook) -> &'static str {
    if webhook.enabled { "active" } else { "off" }
}

fn details(webhook: &Webhook) -> Details {
    Details::default()
        .field("id", webhook.id)
        .field("address", &webhook.url)
        .field("description", &webhook.description)
        .field("kinds", kinds(webhook))
        .field("state", state(webhook))
        .maybe("disabled because", webhook.disabled_reason.as_deref())
        .field("failures in a row", webhook.failed)
        .field("created", moment(webhook.created_at))
        .maybe("deleted", webhook.deleted_at.map(moment))
}

fn table(webhooks: &[Webhook]) -> View {
    if webhooks.is_empty() {
        return View::Nothing;
    }
    let ids = text::short_ids(&webhooks.iter().map(|webhook| webhook.id.to_string()).collect::<Vec<_>>());
    let mut table = Table::new(["ID", "ADDRESS", "KINDS", "STATE", "FAILED", "AGE"]);
    for (webhook, id) in webhooks.iter().zip(ids) {
        let age = age(Some(webhook.created_at));
        let state = state(webhook).to_owned();
        table.row([id, webhook.url.clone(), kinds(webhook), state, webhook.failed.to_string(), age]);
    }
    View::Table(table)
}

fn deliveries_table(deliveries: &[Delivery]) -> View {
    if deliveries.is_empty() {
        return View::Nothing;
    }
    // Whole ids, because `webhook replay` accepts nothing else.
    let mut table = Table::new(["ID", "KIND", "STATE", "ATTEMPTS", "LAST", "AGE"]);
    for delivery in deliveries {
        table.row([
            delivery.id.to_string(),
            short_kind(&delivery.kind).to_owned(),
            delivery.state.to_string(),
            delivery.attempts.to_string(),
            delivery.last.clone(),
            age(Some(delivery.created_at)),
        ]);
    }
    View::Table(table)
}
