//! A private PostgreSQL server for one test, which may kill it.

use std::path::{Path, PathBuf};

use crate::{Launch, PATIENCE, Program, TempDir, eventually, free_port, skip};

/// A PostgreSQL server with its own folder and port. Killed and removed on drop.
#[derive(Debug)]
pub struct PrivatePostgres {
    launch: Launch,
    port: u16,
    program: Program,
    // Declared after the program, so that it is dropped after it.
    folder: TempDir,
}

impl PrivatePostgres {
    /// Creates and starts a server. Returns `None` and prints a line if PostgreSQL is not installed.
    pub fn start() -> Option<Self> {
        let Some(programs) = programs() else {
            skip("a test that kills PostgreSQL", "it is not installed; run `cargo xtask test`, which installs it");
            return None;
        };
        let folder = TempDir::new();
        let data = folder.join("data");
        let owner = Owner::choose();
        owner.give(folder.path());
        let initdb = owner.launch(&programs.join("initdb")).arg("--pgdata").arg(&data);
        let initdb = initdb.args(["--username", "postgres", "--auth", "trust", "--encoding", "UTF8", "--locale", "C"]);
        let (status, _, stderr) = initdb.run(folder.path(), PATIENCE);
        assert!(status.success(), "initdb failed: {stderr}");
        let port = free_port();
        let launch = owner.launch(&programs.join("postgres")).arg("-D").arg(&data).arg("-k").arg(folder.path());
        let launch = launch.args(["-h", "127.0.0.1", "-p", &port.to_string()]);
        let launch = ["fsync=on", "synchronous_commit=on", "max_connections=100"].iter().fold(launch, |l, s| l.args(["-c", s]));
        let program = Self::run(&launch, &folder);
        Some(Self { launch, port, program, folder })
    }

    /// Returns the URL of the server's database `postgres`.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Kills the postmaster. Its children notice that and exit.
    pub fn kill_postmaster(&mut self) {
        self.program.sigkill();
    }

    /// Kills the postmaster and all children at the same moment.
    pub fn kill_everything(&mut self) {
        self.program.sigkill_family();
    }

    /// Starts a killed server again. Returns when it accepts connections, and checks that it had to recover.
    #[track_caller]
    pub fn restart(&mut self) {
        assert!(!self.program.is_running(), "PostgreSQL was not killed");
        self.program = Self::run(&self.launch, &self.folder);
        let log = self.program.stderr();
        assert!(log.contains("was not properly shut down"), "PostgreSQL saw no crash: {log}");
    }

    fn run(launch: &Launch, folder: &TempDir) -> Program {
        eventually(PATIENCE, "PostgreSQL starts", || {
            let mut program = launch.start(folder.path());
            let ready = eventually(PATIENCE, "PostgreSQL is ready or ends", || {
                if !program.is_running() {
                    return Some(false);
                }
                // The file of a killed postmaster may still exist and also say `ready`, but with another process id.
                let state = std::fs::read_to_string(folder.join("data/postmaster.pid")).unwrap_or_default();
                let mut lines = state.lines();
                let ours = lines.next().is_some_and(|id| id.trim() == program.id().to_string());
                (ours && lines.nth(6).is_some_and(|line| line.trim() == "ready")).then_some(true)
            });
            // Retried if this fails: the children of a killed postmaster hold its shared memory until they notice.
            ready.then_some(program)
        })
    }
}

/// Returns the folder with `initdb` and `postgres` of the newest installed version.
fn programs() -> Option<PathBuf> {
    let complete = |folder: &PathBuf| folder.join("initdb").is_file() && folder.join("postgres").is_file();
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut numbered: Vec<(u32, PathBuf)> = versions
        .filter_map(|version| Some((version.file_name().to_str()?.parse().ok()?, version.path().join("bin"))))
        .filter(|(_, folder)| complete(folder))
        .collect();
    numbered.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    numbered.pop().map(|(_, folder)| folder).or_else(|| std::env::split_paths(&path).find(complete))
}

/// The user and group that run the server, because PostgreSQL refuses to run as root. `None` is the current user.
struct Owner(Option<(u32, u32)>);

impl Owner {
    fn choose() -> Self {
        if !rustix::process::geteuid().is_root() {
            return Self(None);
        }
        let users = std::fs::read_to_string("/etc/passwd").expect("/etc/passwd can be read");
        let find = |name: &str| {
            let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
            let mut fields = line.split(':').skip(2);
            Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
        };
        Self(Some(find("postgres").or_else(|| find("nobody")).expect("there is a user postgres or nobody")))
    }

    fn give(&self, folder: &Path) {
        if let Some((user, group)) = self.0 {
            std::os::unix::fs::chown(folder, Some(user), Some(group)).expect("the folder can be given away");
        }
    }

    /// Launches the program. `setpriv` replaces itself with the program, so that the process id is the program's own.
    fn launch(&self, program: &Path) -> Launch {
        let launch = match self.0 {
            None => Launch::at(program),
            Some((user, group)) => {
                let user = [format!("--reuid={user}"), format!("--regid={group}")];
                Launch::at("setpriv").args(user).args(["--clear-groups", "--"]).arg(program)
            }
        };
        launch.env("LC_ALL", "C")
    }
}
