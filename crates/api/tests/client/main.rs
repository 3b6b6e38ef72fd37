//! The client against small real HTTP servers that behave well or badly.

mod answers;
mod server;
mod streams;
mod tenants;
mod tls;
