//! A private PostgreSQL server, with a folder and a port of its own. It is removed afterwards.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::guard::Guard;
use crate::requirements::{in_path, is_root};

/// How long a fresh PostgreSQL server may take to accept connections.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the folder with `initdb` and `postgres`: the newest version in Debian's folders, or from `PATH`.
pub(crate) fn programs() -> Option<PathBuf> {
    let complete = |folder: &PathBuf| folder.join("initdb").is_file() && folder.join("postgres").is_file();
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut numbered: Vec<(u32, PathBuf)> = versions
        .filter_map(|version| Some((version.file_name().to_str()?.parse().ok()?, version.path().join("bin"))))
        .filter(|(_, folder)| complete(folder))
        .collect();
    numbered.sort();
    let newest = numbered.pop().map(|(_, folder)| folder);
    newest.or_else(|| in_path("initdb")?.parent().map(Path::to_path_buf).filter(complete))
}

/// Starts a server under `folder` and returns its URL. The guard stops it.
pub(crate) fn start(folder: &Path, guard: &mut Guard) -> Result<String, String> {
    let programs = programs().ok_or("initdb and postgres are not installed")?;
    let owner = Owner::choose()?;
    let data = folder.join("postgres");
    owner.give(folder)?;

    let mut initdb = owner.command(&programs.join("initdb"));
    initdb.arg("--pgdata").arg(&data).args(["--username", "postgres", "--auth", "trust", "--encoding", "UTF8", "--locale", "C"]);
    let output = initdb.current_dir(folder).output().map_err(|error| format!("initdb cannot be started: {error}"))?;
    if !output.status.success() {
        return Err(format!("initdb failed: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }

    let mut last_error = String::new();
    // Another program may take the port before PostgreSQL binds it, so several ports are tried.
    for _ in 0..5 {
        let port = free_port()?;
        let log = std::fs::File::create(folder.join("postgres.log")).map_err(|error| format!("postgres.log: {error}"))?;
        let mut postgres = owner.command(&programs.join("postgres"));
        postgres.arg("-D").arg(&data).arg("-k").arg(folder).args(["-h", "127.0.0.1", "-p", &port.to_string()]);
        for setting in ["fsync=on", "synchronous_commit=on", "max_connections=300", "log_min_messages=warning"] {
            postgres.args(["-c", setting]);
        }
        detach(&mut postgres);
        let log_too = log.try_clone().map_err(|error| format!("postgres.log: {error}"))?;
        postgres.stdin(Stdio::null()).stdout(log).stderr(log_too).current_dir(folder);
        let child = postgres.spawn().map_err(|error| format!("postgres cannot be started: {error}"))?;
        match wait_until_ready(child, &data, guard) {
            Ok(()) => return Ok(format!("postgres://postgres@127.0.0.1:{port}/postgres")),
            Err(error) => {
                let log = std::fs::read_to_string(folder.join("postgres.log")).unwrap_or_default();
                last_error = format!("{error}: {}", log.trim());
            }
        }
    }
    Err(last_error)
}

/// Waits until the server is ready. PostgreSQL writes its state to the eighth line of `postmaster.pid`.
fn wait_until_ready(mut child: Child, data: &Path, guard: &mut Guard) -> Result<(), String> {
    // Registered immediately, so that the server is stopped even if this program is killed while waiting. (`setpriv` replaces
    // itself with the server, so the id is right.)
    guard.postgres(child.id())?;
    let started = Instant::now();
    while started.elapsed() < START_TIMEOUT {
        if let Ok(Some(status)) = child.try_wait() {
            return Err(format!("postgres ended at once ({status})"));
        }
        let state = std::fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
        if state.lines().nth(7).is_some_and(|line| line.trim() == "ready") {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let _ = child.kill();
    Err(format!("postgres was not ready after {} s", START_TIMEOUT.as_secs()))
}

/// Gives the command a process group of its own. Ctrl-C does not reach it then, so the guard decides the order in which things stop.
fn detach(command: &mut Command) {
    use std::os::unix::process::CommandExt as _;
    command.process_group(0);
}

/// Returns a free port below the range that the system uses for outgoing connections.
pub(crate) fn free_port() -> Result<u16, String> {
    let offset = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.subsec_nanos() % 10_000);
    let first = 20_000 + u16::try_from(offset).unwrap_or(0);
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (first..32_000).chain(20_000..first).find(free).ok_or_else(|| "no free port between 20000 and 32000".to_owned())
}

/// The user that runs PostgreSQL. PostgreSQL refuses to run as root, so root switches to an unprivileged user.
enum Owner {
    /// The current user, if that is not root.
    Ourselves,
    /// An unprivileged user, by numeric id.
    Unprivileged { user: u32, group: u32 },
}

impl Owner {
    fn choose() -> Result<Self, String> {
        if !is_root() {
            return Ok(Self::Ourselves);
        }
        if in_path("setpriv").is_none() {
            return Err("PostgreSQL refuses root and there is no setpriv (package util-linux) to change the user".to_owned());
        }
        let users = std::fs::read_to_string("/etc/passwd").map_err(|error| format!("/etc/passwd: {error}"))?;
        let find = |name: &str| {
            let mut fields =
                users.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| fields[0] == name)?.into_iter();
            Some((fields.nth(2)?.parse().ok()?, fields.next()?.parse().ok()?))
        };
        let (user, group) = find("postgres").or_else(|| find("nobody")).ok_or("there is neither a user postgres nor nobody")?;
        Ok(Self::Unprivileged { user, group })
    }

    /// Transfers the ownership of a folder to this user.
    fn give(&self, folder: &Path) -> Result<(), String> {
        match self {
            Self::Ourselves => Ok(()),
            Self::Unprivileged { user, group } => std::os::unix::fs::chown(folder, Some(*user), Some(*group))
                .map_err(|error| format!("{} cannot be given to user {user}: {error}", folder.display())),
        }
    }

    /// Returns a command that runs `program` as this user.
    fn command(&self, program: &Path) -> Command {
        let mut command = match self {
            Self::Ourselves => Command::new(program),
            Self::Unprivileged { user, group } => {
                let mut command = Command::new("setpriv");
                command
                    .arg(format!("--reuid={user}"))
                    .arg(format!("--regid={group}"))
                    .arg("--clear-groups")
                    .arg("--")
                    .arg(program);
                command
            }
        };
        // Keep the settings of the developer's own PostgreSQL out.
        for variable in ["PGDATA", "PGHOST", "PGPORT", "PGUSER", "PGOPTIONS"] {
            command.env_remove(variable);
        }
        command.env("LC_ALL", "C");
        command
    }
}
