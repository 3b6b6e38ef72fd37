//! A task runs at most once per node, no matter what is duplicated, reordered, replayed or restarted.

use std::collections::HashMap;

use gpuaas_contract::id::{NodeId, TaskId};
use gpuaas_testkit::{PATIENCE, TempDir, eventually, proof_count};

use crate::doubled_agent::{DoubledAgent, Random};
use crate::link_double::LinkDouble;

/// How often each agent is killed during a round.
const RESTARTS: usize = 5;
/// Number of tasks that wait for an agent at the same time, few enough that none expires before its turn.
const ROUND: usize = 1250;

/// Task ids and envelopes, by node.
type Signed = HashMap<NodeId, Vec<(TaskId, Vec<u8>)>>;

/// Signs tasks for both agents and delivers each twice, in random order and mixed with duplicates of the previous round, while
/// the agents are killed again and again. Returns what was signed.
fn round(double: &LinkDouble, agents: &mut [DoubledAgent; 2], before: &Signed, random: &mut Random) -> Signed {
    let mut tasks = Signed::new();
    for agent in agents.iter() {
        let signed: Vec<_> = (0..ROUND).map(|_| double.sign_ping(agent.node)).collect();
        let late = before.get(&agent.node).into_iter().flat_map(|tasks| tasks.iter().take(ROUND / 10));
        let mut deliveries: Vec<_> = signed.iter().chain(&signed).chain(late).cloned().collect();
        random.shuffle(&mut deliveries);
        tasks.insert(agent.node, signed);
        double.deliver(agent.node, deliveries);
    }
    let waiting: HashMap<NodeId, usize> = agents.iter().map(|agent| (agent.node, double.deliveries(agent.node).1)).collect();
    for restart in 1..=RESTARTS {
        for agent in agents.iter_mut() {
            let (node, all) = (agent.node, waiting[&agent.node]);
            eventually(PATIENCE * 4, "a part of the deliveries went out", || {
                (double.deliveries(node).1 <= all - restart * all / (RESTARTS + 2)).then_some(())
            });
            agent.kill_and_restart(double);
        }
    }
    for agent in agents.iter() {
        let (node, signed) = (agent.node, &tasks[&agent.node]);
        // What was in flight when an agent was killed is lost, so everything is delivered once more.
        double.deliver(node, signed.iter().cloned());
        eventually(PATIENCE * 4, "every task has a receipt", || {
            let done = double.receipts(node);
            (double.deliveries(node).1 == 0 && signed.iter().all(|(id, _)| done.contains_key(id))).then_some(())
        });
    }
    tasks
}

fn check(double: &LinkDouble, agent: &DoubledAgent, tasks: &[(TaskId, Vec<u8>)]) {
    let (effects, receipts) = (agent.effects(), double.receipts(agent.node));
    for (id, _) in tasks {
        assert_eq!(effects.get(id), Some(&1), "effects of {id}");
        assert_eq!(receipts.get(id), Some(&1), "different receipts of {id}");
    }
}

#[test]
fn thousands_of_deliveries_with_duplicates_and_restarts_have_one_effect_per_task() {
    // There are two agents, and each of their tasks is delivered twice before the last redelivery.
    let rounds = proof_count(5_000, 100_000).div_ceil(4 * ROUND);
    let double = LinkDouble::start();
    let dir = TempDir::new();
    let mut agents = ["stream", "poll"].map(|transport| DoubledAgent::start(&double, &dir, transport, "log_level = \"warn\""));
    let mut random = Random(7);
    let mut before = Signed::new();
    for number in 1..=rounds {
        let tasks = round(&double, &mut agents, &before, &mut random);
        for agent in &agents {
            check(&double, agent, &tasks[&agent.node]);
            check(&double, agent, before.get(&agent.node).map_or(&[], Vec::as_slice));
        }
        before = tasks;
        eprintln!("round {number} of {rounds}: {} deliveries", agents.iter().map(|a| double.deliveries(a.node).0).sum::<usize>());
    }
    let mut delivered = 0;
    for agent in &mut agents {
        agent.program.sigterm();
        assert!(agent.program.wait(PATIENCE).success(), "{}", agent.program.stderr());
        check(&double, agent, &before[&agent.node]);
        let effects = agent.effects();
        assert!(effects.values().all(|count| *count == 1), "a task left two marks");
        assert_eq!(double.rejections(agent.node), Vec::<String>::new());
        delivered += double.deliveries(agent.node).0;
    }
    assert!(delivered >= 4 * ROUND * rounds, "only {delivered} deliveries");
}
