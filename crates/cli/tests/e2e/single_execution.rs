//! A task runs at most once per node, whatever is delivered twice, reordered, replayed or restarted.

use std::collections::HashMap;
use std::path::PathBuf;

use gpuaas_contract::id::{NodeId, TaskId};
use gpuaas_testkit::{Launch, PATIENCE, Program, TempDir, eventually};

use crate::cluster::write_private;
use crate::link_double::LinkDouble;

/// Different tasks per agent; each is delivered at least twice.
const TASKS: usize = 1250;
/// How often each agent is killed on the way.
const RESTARTS: usize = 5;

struct Agent {
    folder: PathBuf,
    launch: Launch,
    node: NodeId,
    program: Program,
}

impl Agent {
    fn start(double: &LinkDouble, dir: &TempDir, transport: &str) -> Self {
        let folder = dir.join(transport);
        std::fs::create_dir(&folder).unwrap();
        let config = format!(
            "server = [\"{}\"]\nstate_dir = \"{}\"\npolicy_file = \"{}\"\ntransport = \"{transport}\"\nsimulate = \"h100\"\nlog_level = \"warn\"\n",
            double.address,
            folder.join("state").display(),
            folder.join("policy.toml").display(),
        );
        std::fs::write(folder.join("config.toml"), config).unwrap();
        write_private(&folder.join("policy.toml"), "allowed_tasks = [\"diag.ping\"]\n");
        let launch = Launch::new("gpuaas-agent").env("GPUAAS_AGENT_CONFIG", folder.join("config.toml"));
        let token = format!("gpj_double.{}", double.pin);
        let (status, _, stderr) = launch.clone().args(["enroll", "--token", &token]).run(&folder, PATIENCE);
        assert!(status.success(), "{stderr}");
        let identity = std::fs::read_to_string(folder.join("state/identity/identity.json")).unwrap();
        let node = serde_json::from_str::<serde_json::Value>(&identity).unwrap()["node_id"].as_str().unwrap().parse().unwrap();
        let program = launch.clone().arg("run").start(&folder);
        Self { folder, launch, node, program }
    }

    fn kill_and_restart(&mut self, double: &LinkDouble) {
        self.program.sigkill();
        let before = double.sessions(self.node);
        self.program = self.launch.clone().arg("run").start(&self.folder);
        eventually(PATIENCE, "the agent is back", || (double.sessions(self.node) > before).then_some(()));
    }

    /// Marks on the host per task, counted from outside the agent.
    fn effects(&self) -> HashMap<TaskId, usize> {
        let mut counts = HashMap::new();
        for name in ["ping.log.1", "ping.log"] {
            let text = std::fs::read_to_string(self.folder.join("state/host").join(name)).unwrap_or_default();
            for line in text.lines() {
                let id =
                    line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').find_map(|word| word.parse::<TaskId>().ok());
                *counts.entry(id.unwrap_or_else(|| panic!("no task id in `{line}`"))).or_default() += 1;
            }
        }
        counts
    }
}

/// A shuffle that is the same in every run.
fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut state = seed;
    for i in (1..items.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let j = usize::try_from((state >> 33) % (i as u64 + 1)).unwrap();
        items.swap(i, j);
    }
}

#[test]
fn five_thousand_deliveries_with_duplicates_and_restarts_have_one_effect_per_task() {
    let double = LinkDouble::start();
    let dir = TempDir::new();
    let mut agents = [Agent::start(&double, &dir, "stream"), Agent::start(&double, &dir, "poll")];
    let mut tasks: HashMap<NodeId, Vec<(TaskId, Vec<u8>)>> = HashMap::new();
    for (seed, agent) in agents.iter().enumerate() {
        let signed: Vec<_> = (0..TASKS).map(|_| double.sign_ping(agent.node)).collect();
        // Every task twice, in any order: half of all deliveries are duplicates.
        let mut deliveries: Vec<_> = signed.iter().chain(&signed).cloned().collect();
        shuffle(&mut deliveries, 7 + seed as u64);
        tasks.insert(agent.node, signed);
        double.deliver(agent.node, deliveries);
    }
    for restart in 1..=RESTARTS {
        for agent in &mut agents {
            let node = agent.node;
            eventually(PATIENCE * 4, "a part of the deliveries went out", || {
                (double.deliveries(node).0 >= restart * 2 * TASKS / (RESTARTS + 2)).then_some(())
            });
            agent.kill_and_restart(&double);
        }
    }
    for agent in &agents {
        let (node, signed) = (agent.node, &tasks[&agent.node]);
        // What was on the wire when the agent was killed is lost there: everything once more.
        double.deliver(node, signed.iter().cloned());
        eventually(PATIENCE * 4, "every task has a receipt", || {
            let done = double.receipts(node);
            (double.deliveries(node).1 == 0 && signed.iter().all(|(id, _)| done.contains_key(id))).then_some(())
        });
    }
    let mut delivered = 0;
    for agent in &mut agents {
        agent.program.sigterm();
        assert!(agent.program.wait(PATIENCE).success(), "{}", agent.program.stderr());
        let effects = agent.effects();
        let receipts = double.receipts(agent.node);
        for (id, _) in &tasks[&agent.node] {
            assert_eq!(effects.get(id), Some(&1), "effects of {id}");
            assert_eq!(receipts.get(id), Some(&1), "different receipts of {id}");
        }
        assert_eq!(effects.len(), TASKS);
        assert_eq!(double.rejections(agent.node), Vec::<String>::new());
        delivered += double.deliveries(agent.node).0;
    }
    assert!(delivered >= 4 * TASKS, "only {delivered} deliveries");
}
