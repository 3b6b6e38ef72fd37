//! A real agent that is linked to a test double of the control plane.

use std::collections::HashMap;
use std::path::PathBuf;

use gpuaas_contract::id::{NodeId, TaskId};
use gpuaas_testkit::{Launch, PATIENCE, Program, TempDir, eventually};

use crate::cluster::write_private;
use crate::link_double::LinkDouble;

/// An agent, its folder and its process.
pub(crate) struct DoubledAgent {
    pub(crate) folder: PathBuf,
    pub(crate) node: NodeId,
    pub(crate) program: Program,
    launch: Launch,
}

impl DoubledAgent {
    /// Enrolls and starts an agent. `settings` are lines of its configuration.
    pub(crate) fn start(double: &LinkDouble, dir: &TempDir, transport: &str, settings: &str) -> Self {
        Self::start_with_policy(
            double,
            dir,
            transport,
            &format!("simulate = \"h100\"\n{settings}"),
            "allowed_tasks = [\"diag.ping\"]\n",
        )
    }

    /// The same on the kind of host that `settings` choose, with this host policy.
    pub(crate) fn start_with_policy(double: &LinkDouble, dir: &TempDir, transport: &str, settings: &str, policy: &str) -> Self {
        let folder = dir.join(transport);
        std::fs::create_dir(&folder).unwrap();
        let config = format!(
            "server = [\"{}\"]\nstate_dir = \"{}\"\npolicy_file = \"{}\"\ntransport = \"{transport}\"\n{settings}\n",
            double.address,
            folder.join("state").display(),
            folder.join("policy.toml").display(),
        );
        std::fs::write(folder.join("config.toml"), config).unwrap();
        write_private(&folder.join("policy.toml"), policy);
        let launch = Launch::new("gpuaas-agent").env("GPUAAS_AGENT_CONFIG", folder.join("config.toml"));
        let token = format!("gpj_double.{}", double.pin);
        let (status, _, stderr) = launch.clone().args(["enroll", "--token", &token]).run(&folder, PATIENCE);
        assert!(status.success(), "{stderr}");
        let identity = std::fs::read_to_string(folder.join("state/identity/identity.json")).unwrap();
        let node = serde_json::from_str::<serde_json::Value>(&identity).unwrap()["node_id"].as_str().unwrap().parse().unwrap();
        let launch = launch.args(["--json-logs", "run"]);
        let program = launch.start(&folder);
        Self { folder, node, program, launch }
    }

    /// Restarts the agent after it was killed. Returns once it is linked.
    pub(crate) fn restart(&mut self, double: &LinkDouble) {
        let before = double.sessions(self.node);
        self.program = self.launch.start(&self.folder);
        eventually(PATIENCE, "the agent is back", || {
            assert!(self.program.is_running(), "the agent ended: {}", self.program.stderr());
            (double.sessions(self.node) > before).then_some(())
        });
    }

    pub(crate) fn kill_and_restart(&mut self, double: &LinkDouble) {
        self.program.sigkill();
        self.restart(double);
    }

    /// Returns the number of effects on the host per task, counted independently of the agent.
    pub(crate) fn effects(&self) -> HashMap<TaskId, usize> {
        let mut counts = HashMap::new();
        for name in ["ping.log.1", "ping.log"] {
            let text = std::fs::read_to_string(self.folder.join("state/host").join(name)).unwrap_or_default();
            for line in text.lines() {
                let id = line.split(' ').next().and_then(|word| word.parse().ok());
                *counts.entry(id.unwrap_or_else(|| panic!("no task id in `{line}`"))).or_default() += 1;
            }
        }
        counts
    }
}

/// Pseudorandom numbers, the same in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((self.0 >> 33) % limit as u64).unwrap()
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}
