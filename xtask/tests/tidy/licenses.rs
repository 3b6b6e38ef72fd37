//! Every package has a license under which it may be shipped.

use crate::expect_none;
use crate::metadata::TREE;

#[test]
fn every_license_is_on_the_list() {
    let deny = crate::files::deny();
    let allowed: Vec<&str> =
        deny["licenses"]["allow"].as_array().expect("licenses in deny.toml").iter().filter_map(toml::Value::as_str).collect();
    let mut broken = vec![];
    for package in TREE.values().filter(|package| package.is_compiled()) {
        match &package.license {
            Some(license) if permits(license, &allowed) => {}
            Some(license) => broken.push(format!("{} {}: {license}", package.name, package.version)),
            None => broken.push(format!("{} {} names no license", package.name, package.version)),
        }
    }
    expect_none(&broken, "Choose another crate, or add the license to deny.toml after reading it.");
}

/// Returns whether an SPDX expression can be satisfied with the allowed licenses alone.
fn permits(expression: &str, allowed: &[&str]) -> bool {
    // Old manifests write `MIT/Apache-2.0` for `MIT OR Apache-2.0`.
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    any_of(&mut rest, allowed) && rest.is_empty()
}

fn any_of(words: &mut &[&str], allowed: &[&str]) -> bool {
    let mut permitted = all_of(words, allowed);
    while words.first() == Some(&"OR") {
        *words = &words[1..];
        // No short-circuiting: both sides must be parsed, so that `words` ends up behind them.
        permitted |= all_of(words, allowed);
    }
    permitted
}

fn all_of(words: &mut &[&str], allowed: &[&str]) -> bool {
    let mut permitted = one(words, allowed);
    while words.first() == Some(&"AND") {
        *words = &words[1..];
        permitted &= one(words, allowed);
    }
    permitted
}

fn one(words: &mut &[&str], allowed: &[&str]) -> bool {
    let Some((first, rest)) = words.split_first() else { return false };
    *words = rest;
    if *first == "(" {
        let permitted = any_of(words, allowed);
        let closed = words.first() == Some(&")");
        *words = words.get(1..).unwrap_or_default();
        return permitted && closed;
    }
    let mut name = (*first).to_owned();
    if let ["WITH", exception, rest @ ..] = *words {
        name = format!("{name} WITH {exception}");
        *words = rest;
    }
    allowed.contains(&name.as_str())
}

#[test]
fn license_expressions_are_understood() {
    let allowed = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "ISC"];
    for (expression, permitted) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("MIT OR GPL-3.0", true),
        ("GPL-3.0/MIT", true),
        ("MIT AND GPL-3.0", false),
        ("ISC AND (Apache-2.0 OR OpenSSL)", true),
        ("ISC AND (GPL-2.0 OR OpenSSL)", false),
        ("(MIT OR Apache-2.0) AND GPL-3.0", false),
        ("Apache-2.0 WITH LLVM-exception OR GPL-3.0", true),
        ("GPL-2.0 WITH Classpath-exception-2.0", false),
        ("", false),
        ("MIT GPL-3.0", false),
    ] {
        assert_eq!(permits(expression, &allowed), permitted, "{expression}");
    }
}
