//! Tests of the transport as a whole: real sockets on loopback, real TLS, a small real service.

#![allow(clippy::unwrap_used, reason = "tests")]

mod bad_certificates;
mod connections;
mod fixture;
mod hostile;
mod hostile_bytes;
mod rotation;
mod texts;
mod unix_sockets;
