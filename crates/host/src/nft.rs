//! The packet filter, through `nft`.

use std::time::Duration;

use crate::exec::{Exec, ExecError, first_installed};

const NFT: &[&str] = &["/usr/sbin/nft", "/sbin/nft"];
/// A host with thousands of rules prints a few megabytes.
const STDOUT_CAP: usize = 16 * 1024 * 1024;
const DEADLINE: Duration = Duration::from_secs(20);

/// Why the packet filter did not answer.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// It is not installed.
    #[error("nft is not installed; install nftables")]
    Missing,
    /// It failed.
    #[error("nft did not list its rules")]
    Exec(#[from] ExecError),
    /// It printed something else than rules.
    #[error("nft printed something that is not a list of rules")]
    Malformed(#[source] serde_json::Error),
}

/// Whether some rule lets packets leave under the host's own address.
pub async fn has_source_nat() -> Result<bool, NftError> {
    let program = first_installed(NFT).ok_or(NftError::Missing)?;
    let list = Exec::new(program).arg("--json").arg("list").arg("ruleset").deadline(DEADLINE).stdout_cap(STDOUT_CAP);
    parse_source_nat(&list.run().await?.stdout)
}

/// Looks for such a rule in the output of `nft --json list ruleset`. The kernel takes them only where packets leave, so the chain need
/// not be looked at.
pub fn parse_source_nat(printed: &[u8]) -> Result<bool, NftError> {
    #[derive(serde::Deserialize)]
    struct Ruleset {
        nftables: Vec<Item>,
    }
    #[derive(serde::Deserialize)]
    struct Item {
        rule: Option<Rule>,
    }
    #[derive(serde::Deserialize)]
    struct Rule {
        family: String,
        #[serde(default)]
        expr: Vec<serde_json::Map<String, serde_json::Value>>,
    }
    let rules: Ruleset = serde_json::from_slice(printed).map_err(NftError::Malformed)?;
    let hides = |part: &serde_json::Map<String, serde_json::Value>| {
        // Targets of iptables appear as `xt`, with their name.
        let foreign = part.get("xt").and_then(|xt| xt.get("name")).and_then(|name| name.as_str());
        part.contains_key("masquerade") || part.contains_key("snat") || matches!(foreign, Some("MASQUERADE" | "SNAT"))
    };
    let of_ipv4 = |rule: &&Rule| matches!(rule.family.as_str(), "ip" | "inet");
    Ok(rules.nftables.iter().filter_map(|item| item.rule.as_ref()).filter(of_ipv4).any(|rule| rule.expr.iter().any(hides)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_nat_is_found_where_it_is_and_only_there() {
        assert!(parse_source_nat(include_bytes!("../testdata/nft-masquerade.json")).expect("parses"));
        assert!(parse_source_nat(include_bytes!("../testdata/nft-iptables.json")).expect("parses"));
        assert!(!parse_source_nat(include_bytes!("../testdata/nft-filter-only.json")).expect("parses"));
        assert!(!parse_source_nat(br#"{"nftables":[]}"#).expect("parses"));
        assert!(matches!(parse_source_nat(b"table ip nat"), Err(NftError::Malformed(_))));
    }
}
