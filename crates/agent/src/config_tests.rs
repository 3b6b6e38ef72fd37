//! Tests of the configuration.

use super::*;

fn load(text: &str, variables: &[(&str, &str)]) -> Result<Loaded, ConfigError> {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("config.toml");
    private_file::write_with_mode(&path, text.as_bytes(), 0o644).expect("written");
    Config::load(&path, true, variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
}

fn whole_message(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}

#[test]
fn the_environment_wins_over_the_file_and_the_file_over_defaults() {
    let loaded = load("max_tasks = 7\nheartbeat_interval = \"30s\"\n", &[("GPUAAS_AGENT_MAX_TASKS", "9")]).expect("loads");
    assert_eq!((loaded.config.max_tasks, loaded.source(Key::MaxTasks)), (9, Source::Environment));
    assert_eq!(loaded.config.heartbeat_interval, Duration::from_secs(30));
    assert_eq!(loaded.source(Key::HeartbeatInterval), Source::File);
    assert_eq!(loaded.source(Key::StateDir), Source::Default);
}

#[test]
fn an_unknown_key_names_itself_and_the_known_ones() {
    let error = whole_message(&load("max_task = 7\n", &[]).expect_err("refused"));
    assert!(error.contains("`max_task`") && error.contains("max_tasks") && error.contains("config.toml"), "{error}");
    let error = whole_message(&load("", &[("GPUAAS_AGENT_MAXTASKS", "1")]).expect_err("refused"));
    assert!(error.contains("GPUAAS_AGENT_MAXTASKS"), "{error}");
    let error = whole_message(&load("[link]\nx = 1\n", &[]).expect_err("refused"));
    assert!(error.contains("`link`"), "{error}");
}

#[test]
fn bad_values_say_what_would_be_right() {
    for (text, hint) in [
        ("heartbeat_interval = \"soon\"", "15s"),
        ("heartbeat_interval = \"0s\"", "choose 1s to 5m"),
        ("max_tasks = 0", "1 to 64"),
        ("max_tasks = true", "a number"),
        ("transport = \"carrier-pigeon\"", "auto, stream or poll"),
        ("state_dir = \"relative\"", "absolute"),
        ("server = \"http://x:1\"", "TLS"),
        ("server = \"x\"", "host:port"),
        ("server = [\"a:1\", \"b:0\"]", "port 0"),
        ("simulate = \"h200\"", "mi300x"),
        ("journal_bytes = 100", "4194304"),
        ("log_level = \"loud\"", "debug"),
        ("max_tasks = ", "TOML"),
    ] {
        let error = whole_message(&load(text, &[]).expect_err(text));
        assert!(error.contains(hint), "{text}: {error}");
    }
}

#[test]
fn servers_are_addresses_or_https_urls() {
    let servers = |text| parse_servers(text).expect(text);
    assert_eq!(servers("a.example:7443, https://b.example/, [::1]:9"), ["a.example:7443", "b.example:443", "[::1]:9"]);
}

#[test]
fn setting_a_value_keeps_comments_and_other_keys() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("config.toml");
    let before = "# how often\nheartbeat_interval = \"30s\" # slow link\n\nmax_tasks = 2\n";
    private_file::write_with_mode(&path, before.as_bytes(), 0o644).expect("written");
    set_in_file(&path, Key::HeartbeatInterval, "45s").expect("set");
    set_in_file(&path, Key::Server, "a:1,b:2").expect("set");
    let after = std::fs::read_to_string(&path).expect("read");
    assert!(after.contains("# how often\nheartbeat_interval = \"45s\" # slow link\n\nmax_tasks = 2\n"), "{after}");
    let loaded = Config::load(&path, true, std::iter::empty()).expect("loads");
    assert_eq!(loaded.config.server, ["a:1", "b:2"]);
}

#[test]
fn a_bad_value_or_a_broken_file_is_left_as_it_was() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("config.toml");
    private_file::write_with_mode(&path, b"wrong_key = 1\n", 0o644).expect("written");
    assert!(set_in_file(&path, Key::MaxTasks, "a lot").is_err());
    assert!(set_in_file(&path, Key::MaxTasks, "3").is_err(), "the file has an unknown key");
    assert_eq!(std::fs::read_to_string(&path).expect("read"), "wrong_key = 1\n");
}

#[test]
fn a_named_file_must_exist_and_the_default_one_need_not() {
    let path = Path::new("/nowhere/config.toml");
    assert!(matches!(Config::load(path, true, std::iter::empty()), Err(ConfigError::Missing { .. })));
    assert_eq!(Config::load(path, false, std::iter::empty()).expect("defaults").config, Config::default());
}

#[test]
fn every_value_reads_back_as_it_is_shown() {
    let config = Config { server: vec!["a:1".to_owned()], ..Config::default() };
    for key in Key::ALL {
        let mut other = Config::default();
        other.set(key, &config.get(key)).expect("what is shown can be set");
        assert_eq!(other.get(key), config.get(key));
    }
}
