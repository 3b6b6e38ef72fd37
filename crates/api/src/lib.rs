//! The public REST API of gpuaas.
//!
//! [`dto`] contains the documents of requests and responses. [`endpoints`] declares every endpoint once; the paths in [`routes`], the typed
//! [`client`], the server's router, [`openapi`] and [`reference`] are generated from the declarations, so they cannot drift apart.
//! [`asyncapi`] documents the events.

// A new variant of our own enums must be considered everywhere.
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

pub mod asyncapi;
pub mod client;
pub mod dto;
pub mod endpoints;
pub mod examples;
pub mod openapi;
pub mod reference;
pub mod routes;

pub use client::{Client, ClientError, ClientOptions, tls_config};
