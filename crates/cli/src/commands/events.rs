//! `gpuaas events`: the events of a project or of the platform, stored and live.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::time::Duration;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use futures::StreamExt as _;
use gpuaas_api::client::HeardEvent;
use gpuaas_api::dto::{CloudEvent, EventsQuery};
use gpuaas_contract::event::{EventKind, short_kind};
use gpuaas_contract::time::Timestamp;

use crate::context::CommandContext;
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::text::printable;
use crate::{tenants, time};

/// Without `--follow`, the end of the stream is assumed after this much silence.
const SILENCE: Duration = Duration::from_secs(2);

/// Fields that only repeat the subject or the project, and are not printed.
const PLACES: [&str; 3] = ["allocation_id", "project_id", "organization_id"];

/// Which events to print.
#[derive(Debug, clap::Args)]
pub(crate) struct EventsArgs {
    /// Continue with new events until Ctrl-C. Without it, only stored events are printed.
    #[arg(short, long)]
    follow: bool,
    /// Print the events of the whole platform, for operators.
    #[arg(long)]
    platform: bool,
    /// Only events after this position [default: 0, the oldest stored event; with --follow, only new events].
    #[arg(long, value_name = "POSITION")]
    after: Option<i64>,
    /// Only events from this time on: a duration before now such as `2h` or `3d`, or UTC such as 2027-03-01T08:00Z.
    #[arg(long, value_name = "TIME", value_parser = time::parse_past)]
    since: Option<Timestamp>,
    /// Only events of this kind, such as `allocation` or `allocation.active`; repeatable.
    #[arg(long = "kind", value_name = "KIND", value_parser = KindParser, hide_possible_values = true)]
    kinds: Vec<String>,
}

/// Event kinds for shell completion. Other values are accepted too, because the server may be newer.
#[derive(Clone, Debug)]
pub(super) struct KindParser;

impl TypedValueParser for KindParser {
    type Value = String;

    fn parse_ref(&self, command: &clap::Command, arg: Option<&clap::Arg>, value: &OsStr) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let groups: BTreeSet<&str> = EventKind::ALL.iter().filter_map(|kind| kind.short().split('.').next()).collect();
        let groups = groups.into_iter().map(PossibleValue::new);
        Some(Box::new(groups.chain(EventKind::ALL.into_iter().map(|kind| PossibleValue::new(kind.short()).help(kind.summary())))))
    }
}

pub(super) async fn run(session: &CommandContext, args: EventsArgs) -> Result<Exit, CliError> {
    let client = session.client()?;
    // The server filters by position only, so stored events are read from the start and older ones are dropped here.
    let after = args.after.or((!args.follow || args.since.is_some()).then_some(0));
    let query = EventsQuery { after, kinds: (!args.kinds.is_empty()).then(|| args.kinds.join(",")) };
    let mut heard = if args.platform {
        client.events(&query).boxed()
    } else {
        client.project_events(&tenants::project(session).await?.id.to_string(), &query).boxed()
    };
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    let mut nothing_yet = true;
    loop {
        let silence = async { if args.follow { std::future::pending().await } else { tokio::time::sleep(SILENCE).await } };
        let event = tokio::select! {
            biased;
            _ = &mut interrupted => return Ok(Exit::Done),
            event = heard.next() => event,
            () = silence => None,
        };
        match event.transpose()? {
            Some(HeardEvent::Event(event)) if is_before(&event, args.since) => {}
            Some(HeardEvent::Event(event)) => {
                nothing_yet = false;
                session.output.print_item(event.as_ref(), line)?;
            }
            Some(HeardEvent::Reconnecting) => session.output.hint("lost the server; trying again"),
            None => break,
        }
    }
    if nothing_yet {
        session.output.hint("there are no stored events; --follow waits for new ones");
    }
    Ok(Exit::Done)
}

/// Returns whether an event is older than `since`.
fn is_before(event: &CloudEvent, since: Option<Timestamp>) -> bool {
    since.zip(Timestamp::parse_rfc3339(&event.time)).is_some_and(|(since, time)| time < since)
}

fn line(event: &CloudEvent) -> String {
    let line = format!("{} {} {} {}", event.time, short_kind(event.kind.as_str()), event.subject, facts(&event.data, &PLACES));
    printable(line.trim_end())
}

/// Returns the scalar fields of an event as `name=value`, without the `known` ones.
pub(super) fn facts(data: &serde_json::Value, known: &[&str]) -> String {
    let fields = data.as_object().into_iter().flatten().filter(|(name, _)| !known.contains(&name.as_str()));
    let words = fields.filter_map(|(name, value)| match value {
        serde_json::Value::String(text) if text.is_empty() => None,
        serde_json::Value::String(text) => Some(format!("{name}={text}")),
        serde_json::Value::Number(_) | serde_json::Value::Bool(_) => Some(format!("{name}={value}")),
        serde_json::Value::Null | serde_json::Value::Array(_) | serde_json::Value::Object(_) => None,
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: EventsArgs,
    }

    #[test]
    fn kinds_are_completed_and_those_of_other_versions_are_taken() {
        let kinds: Vec<String> = KindParser.possible_values().expect("kinds").map(|value| value.get_name().to_owned()).collect();
        assert!(kinds.contains(&"allocation".to_owned()) && kinds.contains(&"node.online".to_owned()), "{kinds:?}");
        let Line { args } = clap::Parser::try_parse_from(["events", "--kind", "cluster.moved"]).expect("any kind");
        assert_eq!(args.kinds, ["cluster.moved"]);
    }

    #[test]
    fn facts_leave_out_what_is_known_and_what_is_no_single_word() {
        let data = serde_json::json!({ "name": "a", "code": "no_capacity", "n": 3, "list": [1], "empty": "", "none": null });
        assert_eq!(facts(&data, &["name"]), "code=no_capacity n=3");
    }
}
