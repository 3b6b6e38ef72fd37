//! Salt as a peer: a master, some minions and a persistent client.

use std::path::Path;
use std::time::Duration;

use futures::future::BoxFuture;

use crate::child::{self, Companion, Server};
use crate::measure::{Round, Side};
use crate::times::Times;
use crate::{Result, Setup};

/// How long minions may take to create keys, be accepted and answer. The script gives up a little earlier and prints why.
const START: Duration = Duration::from_secs(320);

/// A running Salt installation. All its processes end when this is dropped.
pub(crate) struct Salt {
    name: &'static str,
    client: Companion,
    _master: Server,
    _minions: Vec<Server>,
}

impl Salt {
    pub(crate) async fn start(setup: &Setup, name: &'static str, minions: usize) -> Result<Self> {
        let programs = setup.peers.join("py/bin");
        if !programs.join("salt-master").is_file() {
            return Err("salt is not installed".into());
        }
        let home = setup.disk.join(format!("salt-{minions}"));
        let (publish, answer) = (child::free_port()?, child::free_port()?);
        let place = |folder: &Path, file: &str, text: &str| -> Result<()> {
            std::fs::create_dir_all(folder)?;
            Ok(std::fs::write(folder.join(file), format!("root_dir: {}\n{text}", folder.display()))?)
        };
        let start = async |folder: &Path, program: &str, name: String| {
            let mut command = child::command(programs.join(program), folder);
            command.arg("-c").arg(folder).args(["-l", "error"]);
            // Salt prints nothing when it is ready; the first answered ping shows that it is.
            Server::start(&name, command, &setup.folder, "").await
        };
        let folder = home.join("master");
        let config = "interface: 127.0.0.1\nauto_accept: True\nworker_threads: 3\nuser: root\n";
        place(&folder, "master", &format!("{config}publish_port: {publish}\nret_port: {answer}\n"))?;
        let master = start(&folder, "salt-master", format!("salt master {minions}")).await?;
        let mut running = Vec::new();
        for number in 0..minions {
            let folder = home.join(format!("minion-{number}"));
            let config =
                format!("master: 127.0.0.1\nid: m{number}\nuser: root\nmaster_port: {answer}\npublish_port: {publish}\n");
            place(&folder, "minion", &config)?;
            running.push(start(&folder, "salt-minion", format!("salt minion {minions}-{number}")).await?);
        }
        let mut command = child::command(programs.join("python"), &folder);
        command.arg(setup.scripts.join("salt_ping.py")).arg(&folder).arg(minions.to_string());
        let mut client = Companion::start(&format!("salt client {minions}"), command, &setup.folder)?;
        let ready = client.hear_within(START).await?;
        if let Some(error) = ready["error"].as_str() {
            return Err(error.into());
        }
        Ok(Self { name, client, _master: master, _minions: running })
    }
}

impl Side for Salt {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn round(&mut self, time: Duration) -> BoxFuture<'_, Result<Round>> {
        Box::pin(async move {
            let answer = self.client.ask(&time.as_millis().to_string()).await?;
            if let Some(error) = answer["error"].as_str() {
                return Err(error.into());
            }
            let times = Times::from_microseconds(&answer["us"])?;
            // Salt reports only one time, from the call to the answer, so it counts for both metrics.
            Ok(Round::times(vec![times.clone(), times]))
        })
    }
}
