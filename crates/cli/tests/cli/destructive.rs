//! Commands that cannot be undone need a confirmation: a name typed on a terminal, or `--yes`.

use crate::program::gpuaas;

/// Every destructive command, with enough arguments to be parsed.
const DESTRUCTIVE: &[&[&str]] = &[
    &["alloc", "release", "trainer"],
    &["image", "delete", "ubuntu"],
    &["key", "revoke", "ci", "key"],
    &["machine", "withdraw", "rack-1"],
    &["member", "remove", "ada@example.com"],
    &["node", "retire", "rack-1"],
    &["node", "token", "revoke", "join_1"],
    &["org", "delete", "acme"],
    &["project", "delete", "acme/training"],
    &["service-account", "delete", "ci"],
    &["signing-key", "revoke", "key_1"],
    &["slice", "release", "trainer"],
    &["slot", "force-cleanup", "rack-1/0"],
    &["slot", "withdraw", "rack-1/0"],
    &["ssh-key", "delete", "laptop"],
    &["token", "revoke", "dashboards"],
    &["user", "deactivate", "ada@example.com"],
    &["user", "delete", "ada@example.com"],
    &["webhook", "delete", "whk_1"],
];

/// Words that mark a command as destructive.
const WORDS: [&str; 8] = ["delete", "remove", "revoke", "retire", "withdraw", "release", "deactivate", "force-cleanup"];

#[tokio::test]
async fn without_a_terminal_nothing_is_destroyed_unless_it_is_confirmed() {
    // Nothing listens there: a command that contacts a server would exit with 6.
    let url = ["--url", "http://127.0.0.1:1", "--token", "gpt_x", "-o", "json"];
    for command in DESTRUCTIVE {
        let refused = gpuaas(&[*command, &url[..]].concat()).await;
        let error: serde_json::Value =
            serde_json::from_str(&refused.stderr).unwrap_or_else(|error| panic!("{error}: {refused:?}"));
        assert_eq!((refused.code, error["error"]["code"].as_str()), (2, Some("confirmation_required")), "{command:?}");
        assert!(error["error"]["hint"].as_str().expect("a hint").contains("--yes"), "{command:?}");
        let confirmed = gpuaas(&[*command, &["--yes"][..], &url[..]].concat()).await;
        assert_eq!(confirmed.code, 6, "{command:?}: {confirmed:?}");
    }
}

#[tokio::test]
async fn every_command_with_a_destructive_name_is_among_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let pages = gpuaas(&["man", "--dir", folder.path().to_str().expect("text")]).await;
    assert_eq!(pages.code, 0, "{pages:?}");
    let known: Vec<String> = DESTRUCTIVE
        .iter()
        .map(|words| words.iter().take_while(|word| !word.contains(['@', '/', '_']) && **word != "trainer"))
        .map(|words| words.copied().collect::<Vec<_>>().join("-"))
        .collect();
    for entry in std::fs::read_dir(folder.path()).expect("lists") {
        let name = entry.expect("an entry").file_name().into_string().expect("text");
        let command = name.trim_start_matches("gpuaas-").trim_end_matches(".1").to_owned();
        let destroys = WORDS.iter().any(|word| command.ends_with(&format!("-{word}")));
        // `sku change --offer-again` undoes `sku retire`.
        if destroys && command != "sku-retire" {
            assert!(
                known.iter().any(|known| known.starts_with(&command)),
                "`{command}` does not ask before it destroys something"
            );
        }
    }
}
