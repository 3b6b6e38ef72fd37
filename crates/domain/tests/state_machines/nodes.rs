//! Nodes: whether they accept work, and whether their link is open.

use gpuaas_contract::Digest;
use gpuaas_domain::decision::Context;
use gpuaas_domain::node::{self, Admission, Certificate, Node, NodeService, Operation};
use gpuaas_domain::{Decision, OutboxEvent};

use crate::diagram::assert_drawn;
use crate::observed::{BEGINNING, Observed};
use crate::support::{context, later, node, node_of, session};

const OPERATIONS: [Operation; 5] =
    [Operation::Drain, Operation::Undrain, Operation::Quarantine, Operation::Unquarantine, Operation::Retire];

/// Exhaustive, so that a new operation needs a name here. It must be added to the list above as well.
const fn name(operation: Operation) -> &'static str {
    match operation {
        Operation::Drain => "drain",
        Operation::Undrain => "undrain",
        Operation::Quarantine => "quarantine",
        Operation::Unquarantine => "unquarantine",
        Operation::Retire => "retire",
    }
}

fn admission() -> Admission {
    let node = node();
    Admission {
        fingerprint: node.fingerprint,
        receipt_key: node.receipt_key,
        tls_key_digest: Digest::of(b"another"),
        facts: node.facts,
    }
}

fn certificate() -> Certificate {
    let node = node();
    Certificate {
        serial: "01".to_owned(),
        node_id: node.id,
        node_epoch: node.epoch,
        not_before: later(0),
        not_after: later(3600),
        revoked_at: None,
    }
}

/// Everything that can be decided about a node: the cause, the node afterwards, and the events.
fn decided(before: &Node, context: &Context) -> Vec<(&'static str, Node, Vec<OutboxEvent>)> {
    let mut all = Vec::new();
    let mut take = |by, decision: Decision| {
        if !decision.is_empty() {
            all.push((by, node_of(&decision), decision.events));
        }
    };
    for operation in OPERATIONS {
        if let Ok(decision) = node::operate(before, operation, "because", context) {
            take(name(operation), decision);
        }
    }
    take("lock", node::lock(before, context));
    let others = [
        ("connected", node::connected(before, session(), None, context)),
        ("renewed", node::renewed(before, certificate(), context)),
        ("rejoined", node::rejoined(before, certificate(), context)),
        ("rename", node::rename(before, "another", context)),
    ];
    for (by, decision) in others {
        decision.into_iter().for_each(|decision| take(by, decision));
    }
    if let Some(live) = &before.session {
        take("disconnected", node::disconnected(before, live.id, "cut", context));
    }
    let mut facts = before.facts.clone();
    facts.kernel = "another".to_owned();
    take("facts_changed", node::facts_changed(before, facts, context));
    let (after, decision) = node::enroll(Some(before.clone()), admission(), before.id, context);
    all.push(("enroll", after, decision.events));
    all
}

fn observe(state: impl Fn(&Node) -> &'static str) -> Observed {
    let mut observed = Observed::default();
    let (first, decision) = node::enroll(None, admission(), node().id, &context());
    observed.note(BEGINNING, state(&first), "enroll", &decision.events);
    for service in NodeService::ALL {
        for session in [None, Some(session()).filter(|_| service.may_connect())] {
            let before = Node { service, session, ..node() };
            for (by, after, events) in decided(&before, &context()) {
                observed.note(state(&before), state(&after), by, &events);
            }
        }
    }
    observed
}

#[test]
fn the_diagram_of_nodes_is_what_the_code_decides() {
    assert_drawn("Node", &NodeService::ALL.map(NodeService::as_str), &observe(|node| node.service.as_str()));
}

#[test]
fn the_diagram_of_links_is_what_the_code_decides() {
    let online = |node: &Node| if node.session.is_some() { "online" } else { "offline" };
    assert_drawn("Link of a node", &["offline", "online"], &observe(online));
}
