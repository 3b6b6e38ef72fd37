//! The public REST interface of gpuaas.
//!
//! [`dto`] holds every document that crosses it, [`routes`] every path, [`endpoints`] the table of who may do what with them, [`client`] a
//! typed client over real HTTP. The server is written against the same documents and paths, so the two cannot drift apart; [`openapi`] and
//! [`reference`] are made from them as well. [`asyncapi`] is the list of events.

pub mod asyncapi;
pub mod client;
pub mod dto;
pub mod endpoints;
pub mod openapi;
pub mod reference;
pub mod routes;

pub use client::{Client, ClientError, ClientOptions, tls_config};
