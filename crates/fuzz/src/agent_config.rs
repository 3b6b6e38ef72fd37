//! Target `agent_config`: every value of the agent's configuration is validated, whatever its source, and survives being written back.

use std::path::Path;
use std::time::Duration;

use gpuaas_agent::config::{self, Config, ConfigError, Key, Loaded, Source};

use crate::input::Input;

/// Returns true if the input configures anything.
pub fn agent_config(data: &[u8]) -> bool {
    let mut input = Input::new(data);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("config.toml");
    let variables: Vec<(String, String)> = (0..input.byte() % 4).map(|_| variable(&mut input)).collect();
    let (key, value) = (input.choose(Key::ALL), input.short_text());
    let text = input.rest();
    std::fs::write(&path, text).expect("written");
    let from_file = Config::load(&path, true, std::iter::empty());
    let changed = check_loaded(&path, text, &from_file);
    check_variables(&path, &from_file, &variables);
    check_set(&path, text, key, &value, &from_file);
    changed
}

/// Returns an environment variable: that of a known key, or one with an arbitrary name.
fn variable(input: &mut Input<'_>) -> (String, String) {
    let name = match input.byte() % 4 {
        0 => format!("{}{}", config::ENV_PREFIX, input.short_text()),
        _ => input.choose(Key::ALL).variable(),
    };
    (name, input.short_text())
}

/// Checks the result of loading the file. Returns whether the file configures anything.
fn check_loaded(path: &Path, text: &[u8], loaded: &Result<Loaded, ConfigError>) -> bool {
    let table: Option<toml::Table> = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            assert!(!gpuaas_agent::error_chain::chain(error).is_empty());
            assert!(table.is_none_or(|table| !table.is_empty()), "an empty file is a good one");
            return false;
        }
    };
    let table = table.expect("what is not TOML was loaded");
    for name in table.keys() {
        assert!(Key::ALL.iter().any(|key| key.name() == name), "the unknown key {name} was taken");
    }
    for key in Key::ALL {
        let source = if table.contains_key(key.name()) { Source::File } else { Source::Default };
        assert_eq!(loaded.source(key), source);
        assert!(source == Source::File || loaded.config.get(key) == Config::default().get(key));
    }
    check_values(&loaded.config);
    assert!(loaded.found && loaded.path == path);
    !table.is_empty()
}

/// Checks that every value is within its limits and that its displayed form parses to the same value.
fn check_values(config: &Config) {
    let seconds = |duration: Duration, least, most| {
        assert!((Duration::from_secs(least)..=Duration::from_secs(most)).contains(&duration), "{duration:?}");
    };
    seconds(config.heartbeat_interval, 1, 300);
    seconds(config.metrics_interval, 1, 3600);
    seconds(config.request_timeout, 1, 300);
    seconds(config.task_timeout, 1, 7 * 86_400);
    seconds(config.shutdown_timeout, 0, 3600);
    seconds(config.log_drain_timeout, 0, 300);
    assert!((1..=64).contains(&config.max_tasks));
    assert!((1 << 20..=1 << 36).contains(&config.log_buffer_bytes));
    assert!((4 << 20..=1 << 32).contains(&config.journal_bytes));
    assert!(config.state_dir.is_absolute() && config.policy_file.is_absolute());
    assert!(config.server.len() <= 16);
    for server in &config.server {
        let (host, port) = server.rsplit_once(':').expect("a server has a port");
        assert!(
            !host.is_empty() && host.is_ascii() && port.parse::<u16>().is_ok_and(|port| port > 0),
            "{server:?} cannot be dialed"
        );
    }
    let mut copy = Config::default();
    for key in Key::ALL {
        copy.set(key, &config.get(key)).expect("what is shown can be set");
    }
    assert_eq!(copy, *config);
}

/// Checks that environment variables override the file, in order, and that they are validated in the same way.
fn check_variables(path: &Path, from_file: &Result<Loaded, ConfigError>, variables: &[(String, String)]) {
    let both = Config::load(path, true, variables.iter().cloned());
    let Ok(from_file) = from_file else {
        assert!(both.is_err(), "variables have hidden what is wrong with the file");
        return;
    };
    let mut expected = from_file.config.clone();
    let ours = variables.iter().filter_map(|(name, value)| Some((name.strip_prefix(config::ENV_PREFIX)?, value)));
    let good = ours.filter(|(name, _)| *name != "CONFIG").try_for_each(|(name, value)| {
        let key = Key::parse(&name.to_ascii_lowercase())?;
        expected.set(key, value)
    });
    match (good, both) {
        (Ok(()), Ok(both)) => {
            assert_eq!(both.config, expected);
            check_values(&both.config);
        }
        (Err(_), Err(_)) => {}
        (good, both) => panic!("{good:?}, but {both:?}"),
    }
}

/// Checks that setting one value changes that value and nothing else, or nothing at all.
fn check_set(path: &Path, text: &[u8], key: Key, value: &str, before: &Result<Loaded, ConfigError>) {
    let mut wanted = before.as_ref().map_or_else(|_| Config::default(), |loaded| loaded.config.clone());
    let good_value = wanted.set(key, value).is_ok();
    match config::set_in_file(path, key, value) {
        Ok(()) => {
            assert!(good_value);
            let after = Config::load(path, true, std::iter::empty()).expect("what was set can be loaded");
            if before.is_ok() {
                assert_eq!(after.config, wanted, "{} = {value:?}", key.name());
            } else {
                assert_eq!(after.config.get(key), wanted.get(key));
            }
        }
        Err(_) => {
            assert!(!good_value || before.is_err(), "a good value cannot be set in a good file: {} = {value:?}", key.name());
            assert_eq!(std::fs::read(path).expect("read"), text, "a value was refused and the file changed");
        }
    }
}
