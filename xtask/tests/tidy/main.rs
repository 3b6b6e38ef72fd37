//! The rules of the repository, as tests. Every failure says what to change.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "asks cargo for its metadata")]

mod catalog;
mod dependencies;
mod documents;
mod files;
mod licenses;
mod manifests;
mod metadata;
mod metrics;
mod rust_code;
mod sources;
mod vocabulary;

/// Fails with one line per violation, followed by the remedy.
#[track_caller]
fn expect_none(broken: &[String], remedy: &str) {
    assert!(broken.is_empty(), "\n\n  {}\n\n{remedy}\n", broken.join("\n  "));
}
