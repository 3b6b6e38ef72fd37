//! The packet filter, through `nft`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::exec::{Exec, ExecError, first_installed};

const NFT: &[&str] = &["/usr/sbin/nft", "/sbin/nft"];
/// A host with thousands of rules prints a few megabytes.
const STDOUT_CAP: usize = 16 * 1024 * 1024;
const DEADLINE: Duration = Duration::from_secs(20);

/// Why the packet filter failed.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// It is not installed.
    #[error("nft is not installed; install nftables")]
    Missing,
    /// It failed.
    #[error("nft did not list its rules")]
    Exec(#[from] ExecError),
    /// It did not load a file of rules.
    #[error("nft did not load {file}", file = .file.display())]
    Load {
        /// The file.
        file: PathBuf,
        /// The cause.
        #[source]
        source: ExecError,
    },
    /// It did not remove a table.
    #[error("nft did not remove the table inet {table}")]
    Remove {
        /// The table.
        table: String,
        /// The cause.
        #[source]
        source: ExecError,
    },
    /// Its output is not a list of rules.
    #[error("nft printed something that is not a list of rules")]
    Malformed(#[source] serde_json::Error),
}

/// The rules of this network namespace that matter for guests.
#[derive(Clone, Debug, Default)]
pub struct Ruleset {
    rules: Vec<Rule>,
    chains: Vec<Chain>,
}

#[derive(Clone, Debug, serde::Deserialize)]
struct Rule {
    family: String,
    #[serde(default)]
    table: String,
    #[serde(default)]
    expr: Vec<serde_json::Map<String, serde_json::Value>>,
}

#[derive(Clone, Debug, serde::Deserialize)]
struct Chain {
    family: String,
    #[serde(default)]
    table: String,
    #[serde(default)]
    name: String,
    hook: Option<String>,
    policy: Option<String>,
}

impl Rule {
    /// Returns whether the rule does source NAT. The kernel accepts such rules only for outgoing packets, so the chain need not
    /// be checked.
    fn is_source_nat(&self) -> bool {
        let hides = |part: &serde_json::Map<String, serde_json::Value>| {
            // Targets of iptables appear as `xt`, with their name.
            let foreign = part.get("xt").and_then(|xt| xt.get("name")).and_then(|name| name.as_str());
            part.contains_key("masquerade") || part.contains_key("snat") || matches!(foreign, Some("MASQUERADE" | "SNAT"))
        };
        matches!(self.family.as_str(), "ip" | "inet") && self.expr.iter().any(hides)
    }
}

impl Ruleset {
    /// Returns whether some rule does source NAT.
    pub fn has_source_nat(&self) -> bool {
        self.rules.iter().any(Rule::is_source_nat)
    }

    /// Returns whether some rule does source NAT, without those of one table of the family `inet`.
    pub fn has_source_nat_besides(&self, table: &str) -> bool {
        self.rules.iter().any(|rule| rule.is_source_nat() && !(rule.family == "inet" && rule.table == table))
    }

    /// Returns the number of rules of a table of the family `inet`, or `None` if it has no chain or does not exist.
    pub fn count(&self, table: &str) -> Option<usize> {
        let has_chain = self.chains.iter().any(|chain| chain.family == "inet" && chain.table == table);
        has_chain.then(|| self.rules.iter().filter(|rule| rule.family == "inet" && rule.table == table).count())
    }

    /// Returns the chains of other tables that drop forwarded packets by default, as `family table chain`.
    pub fn closed_forward_chains(&self, own_table: &str) -> Vec<String> {
        let closed = |chain: &&Chain| {
            let is_own = chain.family == "inet" && chain.table == own_table;
            let of_ipv4 = matches!(chain.family.as_str(), "ip" | "inet");
            !is_own && of_ipv4 && chain.hook.as_deref() == Some("forward") && chain.policy.as_deref() == Some("drop")
        };
        let name = |chain: &Chain| format!("{} {} {}", chain.family, chain.table, chain.name);
        self.chains.iter().filter(closed).map(name).collect()
    }
}

/// Reads the rules of this network namespace.
pub async fn ruleset() -> Result<Ruleset, NftError> {
    let program = first_installed(NFT).ok_or(NftError::Missing)?;
    let list = Exec::new(program).arg("--json").arg("list").arg("ruleset").deadline(DEADLINE).stdout_cap(STDOUT_CAP);
    parse_ruleset(&list.run().await?.stdout)
}

/// Returns whether some rule does source NAT.
pub async fn has_source_nat() -> Result<bool, NftError> {
    Ok(ruleset().await?.has_source_nat())
}

/// Loads a file of rules atomically.
pub async fn load(file: &Path) -> Result<(), NftError> {
    let program = first_installed(NFT).ok_or(NftError::Missing)?;
    let loaded = Exec::new(program).arg("--file").arg(file).deadline(DEADLINE).run().await;
    loaded.map(drop).map_err(|source| NftError::Load { file: file.to_owned(), source })
}

/// Removes an existing table of the family `inet`.
pub async fn remove_table(table: &str) -> Result<(), NftError> {
    let program = first_installed(NFT).ok_or(NftError::Missing)?;
    let exec = Exec::new(program).arg("delete").arg("table").arg("inet").arg(table).deadline(DEADLINE);
    exec.run().await.map(drop).map_err(|source| NftError::Remove { table: table.to_owned(), source })
}

/// Parses the output of `nft --json list ruleset`.
pub fn parse_ruleset(printed: &[u8]) -> Result<Ruleset, NftError> {
    #[derive(serde::Deserialize)]
    struct Listed {
        nftables: Vec<Item>,
    }
    #[derive(serde::Deserialize)]
    struct Item {
        rule: Option<Rule>,
        chain: Option<Chain>,
    }
    let listed: Listed = serde_json::from_slice(printed).map_err(NftError::Malformed)?;
    let mut ruleset = Ruleset::default();
    for item in listed.nftables {
        ruleset.rules.extend(item.rule);
        ruleset.chains.extend(item.chain);
    }
    Ok(ruleset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(printed: &[u8]) -> Ruleset {
        parse_ruleset(printed).expect("parses")
    }

    #[test]
    fn source_nat_is_found_where_it_is_and_only_there() {
        assert!(parsed(include_bytes!("../testdata/nft-masquerade.json")).has_source_nat());
        assert!(parsed(include_bytes!("../testdata/nft-iptables.json")).has_source_nat());
        assert!(!parsed(include_bytes!("../testdata/nft-filter-only.json")).has_source_nat());
        assert!(!parsed(br#"{"nftables":[]}"#).has_source_nat());
        assert!(matches!(parse_ruleset(b"table ip nat"), Err(NftError::Malformed(_))));
    }

    #[test]
    fn a_table_is_told_from_those_of_others() {
        let ruleset = parsed(include_bytes!("../testdata/nft-slices.json"));
        assert_eq!((ruleset.count("gpuaas_slices"), ruleset.count("nat")), (Some(2), None));
        assert!(ruleset.has_source_nat() && !ruleset.has_source_nat_besides("gpuaas_slices"));
        assert_eq!(ruleset.closed_forward_chains("gpuaas_slices"), ["ip filter FORWARD"]);
    }
}
