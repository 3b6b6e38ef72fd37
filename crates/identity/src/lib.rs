//! Authentication: OIDC tokens of any issuer, and the core of the built-in issuer. No store, and no API endpoints.
//!
//! [`verifier`] checks bearer tokens: issuer, audience, time, key and signature in one call. [`signing`], [`oauth`], [`password`]
//! and [`pages`] form the built-in issuer. They make decisions but write nothing, so that the control plane can put each decision
//! into its own transaction. [`browser_client`] is the client side, for `gpuaas login`, and works with any issuer.

#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

pub mod browser_client;
mod fetch;
pub mod form;
mod jwk;
mod jwks;
pub mod oauth;
pub mod pages;
pub mod password;
pub mod pkce;
pub mod secrets;
pub mod signing;
mod token;
pub mod user_code;
pub mod verifier;

pub use jwk::{Jwk, JwkSet};
