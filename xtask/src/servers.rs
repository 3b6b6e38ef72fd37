//! The private PostgreSQL, NATS, Redis and Temporal servers of the tests: started once, announced to every call of cargo through
//! environment variables, and stopped by the guard.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::guard::Guard;
use crate::{nats, postgres, redis, requirements, step_ca, temporal};

/// A server that tests need, and that runs for as long as they do.
struct Server {
    name: &'static str,
    /// The environment variable with the server's URL, for the tests. If it is already set, that server is used instead.
    url_variable: &'static str,
    /// The environment variable with the path of the program, for tests that start and kill servers of their own.
    program_variable: Option<&'static str>,
    find: fn() -> Option<PathBuf>,
    /// Name of the server's folder under the temporary one.
    folder: &'static str,
    start: fn(&Path, &mut Guard) -> Result<String, String>,
}

const SERVERS: [Server; 4] = [
    Server {
        name: "PostgreSQL",
        url_variable: "GPUAAS_TEST_PG_URL",
        program_variable: None,
        find: postgres::programs,
        folder: "database",
        start: postgres::start,
    },
    Server {
        name: "NATS",
        url_variable: "GPUAAS_TEST_NATS_URL",
        program_variable: Some(nats::PROGRAM_VARIABLE),
        find: nats::program,
        folder: "nats",
        start: nats::start,
    },
    Server {
        name: "Redis",
        url_variable: "GPUAAS_TEST_REDIS_URL",
        program_variable: Some(redis::PROGRAM_VARIABLE),
        find: redis::program,
        folder: "redis",
        start: redis::start,
    },
    Server {
        name: "Temporal",
        url_variable: "GPUAAS_TEST_TEMPORAL_URL",
        program_variable: Some(temporal::PROGRAM_VARIABLE),
        find: temporal::program,
        folder: "temporal",
        start: temporal::start,
    },
];

/// The running servers, and a list of what is missing.
pub(crate) struct Servers {
    /// Environment variables to set for the tests.
    environment: Vec<(&'static str, OsString)>,
    missing: Vec<String>,
}

impl Servers {
    /// Installs what is missing and starts the servers under `folder`. Failures are recorded, and the tests run without those servers.
    pub(crate) fn start(folder: &Path, guard: &mut Guard) -> Self {
        let mut servers = Self { environment: vec![], missing: vec![] };
        let root = requirements::is_root();
        for requirement in requirements::ALL {
            if let Err(reason) = requirement.ensure(root) {
                servers.missing.push(format!("{}: {reason}", requirement.needed_for));
            }
        }
        // Tests start step-ca themselves, because each of them needs one of its own.
        servers.environment.extend(step_ca::program().map(|program| (step_ca::PROGRAM_VARIABLE, program.into())));
        for Server { name, url_variable, program_variable, find, folder: part, start } in SERVERS {
            let program = find();
            if let (Some(variable), Some(program)) = (program_variable, &program) {
                servers.environment.push((variable, program.into()));
            }
            let url = match std::env::var_os(url_variable) {
                Some(url) => Ok(url),
                // The missing requirement has already been recorded above.
                None if program.is_none() => continue,
                None => {
                    println!("starting a private {name}");
                    start(&folder.join(part), guard).map(OsString::from)
                }
            };
            match url {
                Ok(url) => servers.environment.push((url_variable, url)),
                Err(reason) => servers.missing.push(format!("every test on {name}: {reason}")),
            }
        }
        servers
    }

    /// Sets the environment variables of the running servers for a command, and removes inherited ones.
    pub(crate) fn tell(&self, command: &mut Command) {
        for Server { url_variable, program_variable, .. } in SERVERS {
            for variable in std::iter::once(url_variable).chain(program_variable) {
                command.env_remove(variable);
            }
        }
        command.env_remove(step_ca::PROGRAM_VARIABLE);
        command.envs(self.environment.iter().map(|(variable, value)| (variable, value)));
    }

    /// Returns whether a server with this name is running.
    pub(crate) fn has(&self, name: &str) -> bool {
        let is_told = |server: &Server| self.environment.iter().any(|(variable, _)| *variable == server.url_variable);
        SERVERS.iter().any(|server| server.name == name && is_told(server))
    }

    /// Returns what is not tested, and why.
    pub(crate) fn missing(&self) -> &[String] {
        &self.missing
    }
}
