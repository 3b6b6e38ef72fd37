//! The steps of a newcomer: `gpuaas dev`, the printed commands, `kill -9`, a restart, and nothing is lost.

use std::path::Path;

use gpuaas_testkit::{Launch, PATIENCE, Program, TempDir, eventually, free_port};
use serde_json::Value;

struct Dev {
    dir: TempDir,
    api_port: u16,
    link_port: u16,
}

impl Dev {
    fn launch(&self, more: &[&str]) -> Launch {
        let (api, link) = (self.api_port.to_string(), self.link_port.to_string());
        Launch::new("gpuaas").args(["dev", "--api-port", &api, "--link-port", &link]).args(more)
    }

    fn start(&self) -> Program {
        let data = self.dir.join("data").display().to_string();
        let mut program = self.launch(&["--data-dir", &data]).start(self.dir.path());
        program.wait_for_line("Try", PATIENCE);
        program
    }
}

/// Returns the commands between the printed markers, with the path of the program as printed.
fn printed_commands(stdout: &str) -> Vec<String> {
    let lines = stdout.lines().map(str::trim);
    lines
        .filter(|line| line.contains("gpuaas ") && !line.starts_with('#'))
        .filter(|l| l.contains("node ls") || l.contains("task "))
        .map(str::to_owned)
        .collect()
}

fn shell(dir: &Path, exports: &str, command: &str) -> String {
    let script = format!("{exports}\n{command}");
    let (status, stdout, stderr) = Launch::at("/bin/sh").arg("-c").arg(script).run(dir, PATIENCE);
    assert!(status.success(), "`{command}` failed: {stderr}");
    stdout
}

#[test]
fn everything_is_there_again_after_kill_9() {
    let dev = Dev { dir: TempDir::new(), api_port: free_port(), link_port: free_port() };
    let mut program = dev.start();
    let block = program.stdout();
    let exports = block.lines().map(str::trim).filter(|line| line.starts_with("export ")).collect::<Vec<_>>().join("\n");
    assert!(exports.contains("GPUAAS_URL") && exports.contains("GPUAAS_TOKEN"), "{block}");
    assert!(block.to_lowercase().contains("simulated"), "{block}");
    let commands = printed_commands(&block);
    assert_eq!(commands.len(), 3, "three commands to try: {block}");
    for command in &commands {
        shell(dev.dir.path(), &exports, command);
    }
    let program_path = commands[0].split_whitespace().next().unwrap().to_owned();
    let ask = |what: &str| -> Value {
        serde_json::from_str(&shell(dev.dir.path(), &exports, &format!("{program_path} {what} -o json"))).unwrap()
    };
    let ids = |list: &Value| -> Vec<String> {
        let items = list["items"].as_array().or(list.as_array()).unwrap();
        let mut ids: Vec<String> = items.iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect();
        ids.sort();
        ids
    };
    let (nodes, tasks) = (ids(&ask("node ls")), ids(&ask("task ls")));
    assert_eq!(nodes.len(), 2);
    assert!(!tasks.is_empty());
    program.sigkill();

    let mut program = dev.start();
    assert!(program.stdout().contains(&exports.lines().next().unwrap()[..20]), "same address and token");
    eventually(PATIENCE, "both hosts are online again", || {
        let list = ask("node ls");
        let items = list["items"].as_array().or(list.as_array()).unwrap().clone();
        items.iter().all(|node| node["online"] == true).then_some(())
    });
    assert_eq!(ids(&ask("node ls")), nodes, "the same two nodes, enrolled once");
    assert_eq!(ids(&ask("task ls")), tasks);
    shell(dev.dir.path(), &exports, &commands[1]);
    shell(dev.dir.path(), &exports, &format!("{program_path} audit verify"));
    program.sigterm();
    assert!(program.wait(PATIENCE).success());
}

#[test]
fn an_ephemeral_cluster_leaves_nothing_behind() {
    let dev = Dev { dir: TempDir::new(), api_port: free_port(), link_port: free_port() };
    let temporary = dev.dir.join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let mut program = dev.launch(&["--ephemeral"]).env("TMPDIR", &temporary).start(dev.dir.path());
    program.wait_for_line("Try", PATIENCE);
    assert_ne!(std::fs::read_dir(&temporary).unwrap().count(), 0);
    program.sigterm();
    assert!(program.wait(PATIENCE).success(), "{}", program.stderr());
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0);
}
