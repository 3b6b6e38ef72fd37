//! Maps errors to the command that helps. The server reports a stable code and knows nothing about the commands of this program.

use gpuaas_api::ClientError;
use gpuaas_api::client::{Distrust, SocketProblem};

/// Returns what to do about a failed connection, or `None` if the error is about something else.
pub(crate) fn of_connection(error: &ClientError) -> Option<&'static str> {
    match error {
        ClientError::Untrusted { why: Distrust::Authority, .. } => {
            Some("give the server's CA with --ca-file, or `ca_file` in the config file")
        }
        ClientError::Untrusted { why: Distrust::Name(_), .. } => {
            Some("use a name of the certificate in --url, or start the server with `--api-name NAME` for this one")
        }
        ClientError::Untrusted { why: Distrust::Time, .. } => {
            Some("compare `date -u` here and on the server; if both clocks are right, renew the server's certificate")
        }
        ClientError::WrongScheme { speaks_tls: true, .. } => Some("start the address with https:// instead of http://"),
        ClientError::WrongScheme { speaks_tls: false, .. } => Some("start the address with http:// instead of https://"),
        ClientError::Socket { problem: SocketProblem::Missing, .. } => {
            Some("the socket is `admin.sock` in the data folder of a running server; start it, or correct --socket")
        }
        ClientError::Socket { problem: SocketProblem::Forbidden, .. } => {
            Some("run the command as root or as the user that runs the server")
        }
        ClientError::Socket { problem: SocketProblem::Dead, .. } => Some("start the server; it makes the socket anew"),
        ClientError::ClockSkew { .. } => Some("set the clock of this machine, then sign in again"),
        ClientError::BadUrl { .. }
        | ClientError::BadToken
        | ClientError::CaFile { .. }
        | ClientError::Tls { .. }
        | ClientError::Setup { .. }
        | ClientError::BadName { .. }
        | ClientError::Unserializable { .. }
        | ClientError::Unreachable { .. }
        | ClientError::Timeout { .. }
        | ClientError::Broken { .. }
        | ClientError::Refused { .. }
        | ClientError::RateLimited { .. }
        | ClientError::Unexpected { .. }
        | ClientError::TooLarge { .. }
        | ClientError::Malformed { .. } => None,
    }
}

/// Returns what to do about a problem with this code.
pub(crate) fn of_code(code: &str) -> Option<&'static str> {
    HINTS.iter().find(|(known, _)| *known == code).map(|(_, hint)| *hint)
}

const HINTS: &[(&str, &str)] = &[
    ("allocation_stopped", "`gpuaas alloc start` starts it"),
    ("allocation_unknown", "`gpuaas alloc ls` lists yours"),
    ("api_token_unknown", "`gpuaas token ls` lists them"),
    ("budget_lift_needs_person", "sign in with `gpuaas login`"),
    ("destructive_budget_exhausted", "an administrator lifts it with `gpuaas cluster budget lift --count N --reason TEXT`"),
    ("enrollment_unknown", "`gpuaas node requests` lists them"),
    ("image_required", "`gpuaas image ls` lists them"),
    ("image_unknown", "`gpuaas image ls` lists them"),
    ("join_token_unknown", "`gpuaas node token ls` lists them"),
    ("leases_differ", "`gpuaas slot force-cleanup SLOT`"),
    ("machine_offered", "`gpuaas machine withdraw NODE` takes it back"),
    ("maintenance_unknown", "`gpuaas maintenance ls` lists them"),
    ("member_unknown", "`gpuaas member ls` lists them"),
    ("node_quarantined", "`gpuaas node unquarantine NODE`"),
    ("node_unknown", "`gpuaas node ls` lists them"),
    ("nothing_to_approve", "`gpuaas node topology show NODE` says why"),
    ("organization_in_use", "`gpuaas project ls --org ORGANIZATION` lists its projects"),
    ("organization_unknown", "`gpuaas org ls` lists yours"),
    ("project_in_use", "`gpuaas alloc ls` lists its allocations"),
    ("project_unknown", "`gpuaas project ls` lists yours"),
    ("proposal_outdated", "`gpuaas node topology show NODE` shows the newest"),
    ("replace_node_mismatch", "`gpuaas node requests` shows which node each host matches"),
    (
        "replaces_node",
        "if it is that machine: `gpuaas node approve ID --replace-node NODE`, or a join token made with `--replace-node NODE`",
    ),
    ("service_account_unknown", "`gpuaas service-account ls` lists them"),
    ("signing_key_unknown", "`gpuaas signing-key ls` lists them"),
    ("sku_retired", "`gpuaas catalog` lists what is on offer"),
    ("sku_unknown", "`gpuaas catalog` lists them"),
    ("slice_unknown", "`gpuaas slice ls` lists them"),
    ("slot_in_use", "`gpuaas slot show SLOT` says what holds it; `gpuaas slot force-cleanup SLOT` cleans up what is left"),
    ("slot_not_available", "`gpuaas slot ls --state available` lists free ones"),
    ("slot_unknown", "`gpuaas slot ls` lists them"),
    ("ssh_key_unknown", "`gpuaas ssh-key ls` lists them"),
    ("task_unknown", "`gpuaas task ls` lists them"),
    ("user_exists", "`gpuaas user ls` lists them"),
    ("user_unknown", "`gpuaas user ls` lists them"),
    ("webhook_off", "`gpuaas webhook change WEBHOOK --enable` turns it on"),
    ("webhook_unknown", "`gpuaas webhook ls` lists them"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_sorted_and_name_commands_that_exist() {
        assert!(HINTS.is_sorted_by(|(one, _), (other, _)| one < other), "keep the list sorted");
        let program = crate::args::command();
        for (code, hint) in HINTS {
            for quoted in hint.split('`').skip(1).step_by(2).filter(|quoted| quoted.starts_with("gpuaas ")) {
                let mut words = quoted.split(' ').skip_while(|word| *word == "gpuaas").peekable();
                let mut command = &program;
                while let Some(found) = words.peek().and_then(|word| command.find_subcommand(word)) {
                    command = found;
                    words.next();
                }
                assert!(!command.has_subcommands(), "{code}: `{quoted}` is no whole command");
            }
        }
    }

    #[test]
    fn every_hint_is_for_a_code_that_a_server_sends() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("crates");
        let mut sources = String::new();
        let mut folders: Vec<_> = ["control", "domain"].map(|name| root.join(name).join("src")).into();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    sources.push_str(&std::fs::read_to_string(path).expect("a source file"));
                }
            }
        }
        for (code, _) in HINTS {
            assert!(sources.contains(&format!("\"{code}\"")), "no server says {code}");
        }
    }
}
