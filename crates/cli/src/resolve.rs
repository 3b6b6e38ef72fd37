//! Resolves what people type to an id: a whole id, a unique prefix of one, or a unique name.

use gpuaas_api::Client;
use gpuaas_api::dto::{
    Enrollment, EnrollmentListQuery, Node, NodeListQuery, PageQuery, SliceListQuery, SlotListQuery, TaskListQuery,
};
use gpuaas_contract::id::{AllocationId, ApiTokenId, EnrollmentId, JoinTokenId, NodeId, SlotId, TaskId};
use gpuaas_contract::state::{EnrollmentState, NodeService};

use crate::error::CliError;
use crate::exit::Exit;
use crate::pages::{self, Collected, MAX_ITEMS};

/// Number of candidates to show if a name is ambiguous.
pub(crate) const MAX_CANDIDATES: usize = 10;

/// Something that can be named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) id: String,
    /// The name that people use; may be empty.
    pub(crate) name: String,
}

/// Describes a type of resource, for messages and for parsing ids.
#[derive(Clone, Copy)]
pub(crate) struct Noun {
    /// The noun, such as `node`.
    pub(crate) word: &'static str,
    /// Prefix of its ids.
    pub(crate) prefix: &'static str,
    /// The command that lists such resources.
    pub(crate) list: &'static str,
}

const NODE: Noun = Noun { word: "node", prefix: NodeId::PREFIX, list: "gpuaas node ls" };
const TASK: Noun = Noun { word: "task", prefix: TaskId::PREFIX, list: "gpuaas task ls" };
const SLOT: Noun = Noun { word: "slot", prefix: SlotId::PREFIX, list: "gpuaas slot ls" };
const SLICE: Noun = Noun { word: "slice", prefix: AllocationId::PREFIX, list: "gpuaas slice ls" };
const ENROLLMENT: Noun = Noun { word: "enrollment request", prefix: EnrollmentId::PREFIX, list: "gpuaas node requests" };
const JOIN_TOKEN: Noun = Noun { word: "join token", prefix: JoinTokenId::PREFIX, list: "gpuaas node token ls" };
const API_TOKEN: Noun = Noun { word: "API token", prefix: ApiTokenId::PREFIX, list: "gpuaas token ls" };
const SIGNING_KEY: Noun = Noun { word: "signing key", prefix: "key_", list: "gpuaas signing-key ls" };

/// Returns the id of the only candidate that `wanted` names.
pub(crate) fn pick(kind: Noun, wanted: &str, candidates: &[Candidate]) -> Result<String, CliError> {
    if let Some(exact) = candidates.iter().find(|candidate| candidate.id == wanted) {
        return Ok(exact.id.clone());
    }
    let named: Vec<&Candidate> = candidates.iter().filter(|candidate| candidate.name == wanted).collect();
    let found = if named.is_empty() {
        // A prefix needs at least one digit: nobody means `node_` alone.
        let begins = wanted.len() > kind.prefix.len() && wanted.starts_with(kind.prefix);
        candidates.iter().filter(|candidate| begins && candidate.id.starts_with(wanted)).collect()
    } else {
        named
    };
    match found.as_slice() {
        [one] => Ok(one.id.clone()),
        [] => Err(CliError::new(Exit::NotFound, "not_found", format!("there is no {} `{wanted}`", kind.word))
            .hint(suggestion(kind, wanted, candidates))),
        several => {
            let shown: Vec<String> = several.iter().take(MAX_CANDIDATES).map(|candidate| candidate.shown()).collect();
            let more = if several.len() > shown.len() { ", …" } else { "" };
            let message = format!("`{wanted}` is the name or prefix of {} {}s", several.len(), kind.word);
            Err(CliError::usage("ambiguous", message).hint(format!("choose one: {}{more}", shown.join(", "))))
        }
    }
}

impl Candidate {
    fn shown(&self) -> String {
        if self.name.is_empty() { self.id.clone() } else { format!("{} ({})", self.id, self.name) }
    }
}

fn suggestion(kind: Noun, wanted: &str, candidates: &[Candidate]) -> String {
    let lower = wanted.to_lowercase();
    let near: Vec<&str> = candidates
        .iter()
        .map(|candidate| candidate.name.as_str())
        .filter(|name| !name.is_empty() && (name.to_lowercase().contains(&lower) || lower.contains(&name.to_lowercase())))
        .take(3)
        .collect();
    if near.is_empty() { format!("`{}` lists them", kind.list) } else { format!("did you mean {}?", near.join(" or ")) }
}

/// Refuses the id of another type of resource with a message of its own, instead of "not found".
pub(crate) fn not_of_another_kind(kind: Noun, wanted: &str) -> Result<(), CliError> {
    let other = [NODE, TASK, SLOT, SLICE, ENROLLMENT, JOIN_TOKEN, API_TOKEN]
        .into_iter()
        .find(|other| other.prefix != kind.prefix && wanted.starts_with(other.prefix) && wanted.len() == other.prefix.len() + 32);
    match other {
        Some(other) => {
            Err(CliError::usage("wrong_kind", format!("`{wanted}` is the id of a {}, not of a {}", other.word, kind.word)))
        }
        None => Ok(()),
    }
}

/// Resolves a node to its id.
pub(crate) async fn node(client: &Client, wanted: &str) -> Result<String, CliError> {
    if wanted.parse::<NodeId>().is_ok() {
        return Ok(wanted.to_owned());
    }
    not_of_another_kind(NODE, wanted)?;
    let nodes = all_nodes(client, true, MAX_ITEMS).await?.items;
    // Another node may have taken the name of a retired one. Then the name means that other node.
    let is_retired = |node: &Node| node.service == NodeService::Retired;
    let is_taken = nodes.iter().any(|node| node.name == wanted && !is_retired(node));
    let name = |node: &Node| if is_retired(node) && is_taken { String::new() } else { node.name.clone() };
    let candidates: Vec<_> = nodes.iter().map(|node| Candidate { id: node.id.to_string(), name: name(node) }).collect();
    pick(NODE, wanted, &candidates)
}

/// Resolves the node that a host replaces, if one is named.
pub(crate) async fn node_to_replace(client: &Client, wanted: Option<&str>) -> Result<Option<NodeId>, CliError> {
    match wanted {
        Some(wanted) => Ok(node(client, wanted).await?.parse().ok()),
        None => Ok(None),
    }
}

/// Returns the first nodes, up to `limit`.
pub(crate) async fn all_nodes(client: &Client, retired_too: bool, limit: usize) -> Result<Collected<Node>, CliError> {
    let fetch = async |after, limit| {
        let query = NodeListQuery { all: Some(retired_too), after, limit: Some(limit), service: None };
        client.nodes(&query).await
    };
    Ok(pages::collect(limit, fetch).await?)
}

/// Resolves a task to its id. There are too many tasks to list, so the server searches for the prefix.
pub(crate) async fn task(client: &Client, wanted: &str) -> Result<String, CliError> {
    if wanted.parse::<TaskId>().is_ok() {
        return Ok(wanted.to_owned());
    }
    not_of_another_kind(TASK, wanted)?;
    let digits = wanted.strip_prefix(TaskId::PREFIX).unwrap_or("");
    let lower_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if digits.is_empty() || digits.len() > 32 || !digits.bytes().all(lower_hex) {
        let message = format!("`{wanted}` is not a task id: expected `task_` and up to 32 lower-case hex digits");
        return Err(CliError::usage("id_invalid", message).hint("`gpuaas task ls` lists them"));
    }
    let limit = u32::try_from(MAX_CANDIDATES).ok();
    let query = TaskListQuery { id_prefix: Some(wanted.to_owned()), limit, ..TaskListQuery::default() };
    let page = client.tasks(&query).await?;
    let candidates: Vec<_> = page
        .items
        .iter()
        .map(|task| Candidate { id: task.id.to_string(), name: format!("{} on {}", task.task_type, task.node_name) })
        .collect();
    pick(TASK, wanted, &candidates)
}

/// Resolves a slot to its id.
pub(crate) async fn slot(client: &Client, wanted: &str) -> Result<String, CliError> {
    if wanted.parse::<SlotId>().is_ok() {
        return Ok(wanted.to_owned());
    }
    not_of_another_kind(SLOT, wanted)?;
    let fetch = async |after, limit| client.slots(&SlotListQuery { after, limit: Some(limit), ..SlotListQuery::default() }).await;
    let candidates: Vec<_> = pages::collect(MAX_ITEMS, fetch)
        .await?
        .items
        .into_iter()
        .map(|slot| Candidate { id: slot.id.to_string(), name: format!("{}/{}", slot.node_name, slot.spec.slot_index) })
        .collect();
    pick(SLOT, wanted, &candidates)
}

/// Resolves a slice to its id. A prefix or a name is searched among the slices that hold slots.
pub(crate) async fn slice(client: &Client, wanted: &str) -> Result<String, CliError> {
    if wanted.parse::<AllocationId>().is_ok() {
        return Ok(wanted.to_owned());
    }
    not_of_another_kind(SLICE, wanted)?;
    let fetch =
        async |after, limit| client.slices(&SliceListQuery { after, limit: Some(limit), ..SliceListQuery::default() }).await;
    let candidates: Vec<_> = pages::collect(MAX_ITEMS, fetch)
        .await?
        .items
        .into_iter()
        .map(|slice| Candidate { id: slice.allocation_id.to_string(), name: slice.vm_name })
        .collect();
    pick(SLICE, wanted, &candidates)
}

/// Resolves an enrollment request to its id. A prefix or a name is searched among the pending requests.
pub(crate) async fn enrollment(client: &Client, wanted: &str) -> Result<String, CliError> {
    if wanted.parse::<EnrollmentId>().is_ok() {
        return Ok(wanted.to_owned());
    }
    not_of_another_kind(ENROLLMENT, wanted)?;
    let candidates: Vec<_> = enrollments(client, Some(EnrollmentState::Pending), MAX_ITEMS)
        .await?
        .items
        .into_iter()
        .map(|enrollment| Candidate { id: enrollment.id.to_string(), name: enrollment.facts.hostname })
        .collect();
    pick(ENROLLMENT, wanted, &candidates)
}

/// Returns the first enrollment requests in this state, up to `limit`.
pub(crate) async fn enrollments(
    client: &Client,
    state: Option<EnrollmentState>,
    limit: usize,
) -> Result<Collected<Enrollment>, CliError> {
    let fetch = async |after, limit| client.enrollments(&EnrollmentListQuery { state, after, limit: Some(limit) }).await;
    Ok(pages::collect(limit, fetch).await?)
}

/// Resolves a join token to its id.
pub(crate) async fn join_token(client: &Client, wanted: &str) -> Result<String, CliError> {
    if wanted.parse::<JoinTokenId>().is_ok() {
        return Ok(wanted.to_owned());
    }
    if wanted.starts_with("gpj_") {
        return Err(CliError::usage("secret_given", "that is the secret of a join token; give its id (`join_…`)")
            .hint("`gpuaas node token ls` lists them"));
    }
    not_of_another_kind(JOIN_TOKEN, wanted)?;
    let collected =
        pages::collect(MAX_ITEMS, async |after, limit| client.join_tokens(&PageQuery { after, limit: Some(limit) }).await)
            .await?;
    let candidates: Vec<_> =
        collected.items.into_iter().map(|token| Candidate { id: token.id.to_string(), name: token.note }).collect();
    pick(JOIN_TOKEN, wanted, &candidates)
}

/// Resolves an API token to its id.
pub(crate) async fn api_token(client: &Client, wanted: &str) -> Result<String, CliError> {
    if wanted.parse::<ApiTokenId>().is_ok() {
        return Ok(wanted.to_owned());
    }
    not_of_another_kind(API_TOKEN, wanted)?;
    let collected =
        pages::collect(MAX_ITEMS, async |after, limit| client.api_tokens(&PageQuery { after, limit: Some(limit) }).await).await?;
    let live = collected.items.into_iter().filter(|token| token.revoked_at.is_none());
    let candidates: Vec<_> = live.map(|token| Candidate { id: token.id.to_string(), name: token.name }).collect();
    pick(API_TOKEN, wanted, &candidates)
}

/// Resolves a signing key to its id.
pub(crate) async fn signing_key(client: &Client, wanted: &str) -> Result<String, CliError> {
    let keys = client.signing_keys().await?;
    let candidates: Vec<_> =
        keys.items.into_iter().map(|key| Candidate { id: key.key_id.to_string(), name: String::new() }).collect();
    pick(SIGNING_KEY, wanted, &candidates)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates() -> Vec<Candidate> {
        [("node_aa11", "rack-1"), ("node_aa22", "rack-2"), ("node_bb33", "twin"), ("node_bb44", "twin"), ("node_cc55", "node_aa")]
            .map(|(id, name)| Candidate { id: id.to_owned(), name: name.to_owned() })
            .to_vec()
    }

    fn picked(wanted: &str) -> Result<String, CliError> {
        pick(NODE, wanted, &candidates())
    }

    #[test]
    fn ids_unique_beginnings_and_unique_names_are_taken() {
        assert_eq!(picked("node_aa22").expect("an id"), "node_aa22");
        assert_eq!(picked("rack-1").expect("a name"), "node_aa11");
        assert_eq!(picked("node_aa1").expect("a beginning"), "node_aa11");
        assert_eq!(picked("node_aa").expect("a name goes before a beginning"), "node_cc55");
    }

    #[test]
    fn what_is_ambiguous_lists_its_candidates() {
        for (wanted, one, two) in [("twin", "node_bb33 (twin)", "node_bb44 (twin)"), ("node_b", "node_bb33", "node_bb44")] {
            let failure = picked(wanted).expect_err("ambiguous");
            let hint = failure.hint.expect("a hint");
            assert!(failure.exit == Exit::Usage && hint.contains(one) && hint.contains(two), "{wanted}: {hint}");
        }
    }

    #[test]
    fn what_is_not_there_is_not_found_with_a_hint() {
        let failure = picked("rack").expect_err("not a whole name");
        assert_eq!((failure.exit, failure.hint.as_deref()), (Exit::NotFound, Some("did you mean rack-1 or rack-2?")));
        assert_eq!(picked("node_").expect_err("a bare prefix").exit, Exit::NotFound);
        for wanted in ["aa11", "zzz"] {
            let failure = picked(wanted).expect_err("not found");
            assert_eq!(
                (failure.exit, failure.hint.as_deref()),
                (Exit::NotFound, Some("`gpuaas node ls` lists them")),
                "{wanted}"
            );
        }
    }

    #[test]
    fn an_id_of_another_kind_is_told_apart() {
        let task = TaskId::generate().to_string();
        assert_eq!(not_of_another_kind(NODE, &task).expect_err("told").code, "wrong_kind");
        assert!(not_of_another_kind(TASK, &task).is_ok());
        assert!(not_of_another_kind(NODE, "task_force").is_ok());
    }
}
