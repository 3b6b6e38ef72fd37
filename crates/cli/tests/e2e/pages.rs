//! The pages that newcomers read first, run from their own text.

use std::path::Path;

use gpuaas_testkit::{Launch, PATIENCE, TempDir, free_port};

use crate::allocations::host;
use crate::cluster::{Cluster, Store};

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJwBQ0Rk5yyC9bmCK1Kf9gvvNQWYF3rPzqeQFZ0sWsWq ada";

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the lines of the fenced blocks whose info string is one of `wanted`, in the order of the page, each with its info string.
fn lines<'p>(page: &'p str, wanted: &[&str]) -> Vec<(&'p str, &'p str)> {
    let (mut found, mut block) = (Vec::new(), None);
    for line in page.lines() {
        match (block, line.strip_prefix("```")) {
            (None, Some(opening)) => block = Some(opening.trim()),
            (Some(_), Some(_)) => block = None,
            (Some(kind), None) if wanted.contains(&kind) && !line.trim().is_empty() => found.push((kind, line.trim())),
            (Some(_) | None, None) => {}
        }
    }
    found
}

/// Runs one command as it is on the page, with our programs in `PATH`.
fn shell(folder: &Path, environment: &[(&str, &str)], command: &str) -> String {
    let programs = Launch::new("gpuaas").program().parent().expect("a folder").display().to_string();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap_or_default());
    let launch = Launch::at("/bin/sh").args(["-c", command]).env("PATH", path).env("HOME", folder.display().to_string());
    let launch = environment.iter().fold(launch, |launch, (name, value)| launch.env(name, *value));
    let (status, stdout, stderr) = launch.run(folder, PATIENCE * 2);
    assert!(status.success(), "`{command}` of the page failed:\n{stderr}\n{stdout}");
    stdout
}

#[test]
fn the_first_day_is_as_its_page_says() {
    let Some(cluster) = Cluster::start(Store::Sqlite) else { return };
    let page = page("docs/first-day.md");
    let commands = lines(&page, &["sh operator", "sh tenant"]);
    assert!(commands.len() > 20, "{commands:?}");
    let home = cluster.dir.path();
    std::fs::create_dir(home.join(".ssh")).unwrap();
    std::fs::write(home.join(".ssh/id_ed25519.pub"), KEY).unwrap();
    let (url, token) = (cluster.url(), cluster.admin_token_file().display().to_string());
    let operator = [("GPUAAS_URL", url.as_str()), ("GPUAAS_TOKEN_FILE", token.as_str())];
    let tenant = [&operator[..], &[("GPUAAS_PROJECT", "acme/training")]].concat();
    let mut gpu7 = None;
    for (who, command) in commands {
        let printed = shell(home, if who == "sh tenant" { &tenant } else { &operator }, command);
        if command.starts_with("gpuaas node token create") {
            assert!(printed.contains("gpuaas-agent enroll"), "{printed}");
            // What the page tells the reader to do on the host.
            let (agent, node) = host(&cluster, "gpu7");
            // A simulated host has a name of its own.
            cluster.json(&["node", "rename", &node, "gpu7"]);
            gpu7 = Some(agent);
        }
    }
    assert!(gpu7.is_some(), "nobody enrolled a host");
    assert!(cluster.json(&["alloc", "ls", "--project", "acme/training"]).as_array().unwrap().is_empty());
}

#[test]
fn the_tour_of_the_readme_is_as_it_says() {
    let (dir, readme) = (TempDir::new(), page("README.md"));
    let (api, link) = (free_port().to_string(), free_port().to_string());
    let data = dir.join("data").display().to_string();
    let launch = Launch::new("gpuaas").args(["dev", "--api-port", &api, "--link-port", &link, "--data-dir", &data]);
    let mut program = launch.env("HOME", dir.path().display().to_string()).start(dir.path());
    program.wait_for_line("Ctrl-C stops it", PATIENCE);
    let printed = program.stdout();
    let exports = printed.lines().map(str::trim).find(|line| line.starts_with("export ")).expect("an export line").to_owned();
    // The output must match what the page shows, except for paths, ports and secrets, and every command on the page must work.
    let commands = |text: &str| -> Vec<String> {
        let lines = text.lines().map(str::trim);
        let shown = lines.filter_map(|line| line.strip_prefix("./target/release/gpuaas ").or(line.strip_prefix("$ gpuaas ")));
        shown.map(|command| format!("gpuaas {command}")).collect()
    };
    let on_the_page = commands(&readme);
    assert!(on_the_page.len() >= 8, "{on_the_page:?}");
    for command in &on_the_page {
        let name = command.strip_prefix("gpuaas ").unwrap_or(command);
        let is_printed = printed.lines().any(|line| line.trim().ends_with(name));
        assert!(is_printed || readme.contains(&format!("$ {command}")), "`{command}` is on the page and not printed:\n{printed}");
        // Ids differ in every run.
        let id = command.split(' ').find(|word| word.starts_with("task_"));
        let command = id.map_or_else(|| command.clone(), |id| command.replace(id, "$(gpuaas task ls -q --limit 1)"));
        shell(dir.path(), &[], &format!("{exports}\n{command}"));
    }
}
