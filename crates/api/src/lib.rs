//! The public REST interface of gpuaas.
//!
//! [`dto`] holds every document that crosses it, [`routes`] every path, [`client`] a typed client over real HTTP. The
//! server is written against the same documents and paths, so the two cannot drift apart.

pub mod client;
pub mod dto;
pub mod routes;

pub use client::{Client, ClientError, ClientOptions};
