//! The named limits of every connection between parts of fleet. Each says what it protects.

use std::time::Duration;

/// Connections one listener serves at a time: all agents of the largest fleet (`fleet_core::node::NODES_MAX`), and
/// as many again of everybody else as there are streams to jobs, users and other controllers.
pub const CONNECTIONS_MAX: usize = 12_288;
/// Beside these, connections without a certificate, from one address and from all: they can never crowd out the
/// others.
pub const ANONYMOUS_PER_SOURCE_MAX: usize = 16;
pub const ANONYMOUS_CONNECTIONS_MAX: usize = 256;
/// Of these, connections of one identity (or one local uid).
pub const CONNECTIONS_PER_PEER_MAX: usize = 128;
/// TLS handshakes in progress, from one address and from all strangers. As many again from the addresses of nodes
/// and controllers.
pub const HANDSHAKES_PER_SOURCE_MAX: usize = 64;
pub const HANDSHAKES_MAX: usize = 256;
/// Addresses of nodes and controllers that are remembered: those of the largest fleet, and room for moves.
pub const KNOWN_SOURCES_MAX: usize = 16_384;
/// Accepted connections waiting for the server loop.
pub const ACCEPT_QUEUE: usize = 64;

/// From TCP accept to a finished TLS handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// A refused peer is listened to this long, and this much, so that it hears the refusal.
pub const REFUSED_LINGER: Duration = Duration::from_millis(500);
pub const REFUSED_BYTES_MAX: usize = 128 * 1024;
/// A peer without a valid certificate has this long in all: enough to enrol.
pub const ANONYMOUS_LIFETIME: Duration = Duration::from_secs(30);
/// New calls of a revoked certificate are refused at once; its connections end after this time, in
/// which a call under way can still hear why.
pub const REVOKED_LINGER: Duration = Duration::from_millis(250);
/// After an accept error (no file descriptors left) the loop rests this long.
pub const ACCEPT_ERROR_PAUSE: Duration = Duration::from_millis(100);

/// Client: one address, from connect to a finished TLS handshake.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Client: all addresses together.
pub const CONNECT_ALL_TIMEOUT: Duration = Duration::from_secs(15);
/// Addresses a client may be given, and what a name may resolve to.
pub const ADDRESSES_MAX: usize = 16;
/// Deadline of a call that carries no other.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// HTTP/2 pings: a dead peer is noticed after interval + timeout.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Calls in progress on one connection.
pub const STREAMS_PER_CONNECTION_MAX: u32 = 64;
/// Headers (metadata) of one call.
pub const HEADER_BYTES_MAX: u32 = 16 * 1024;
/// Streams a peer may open and reset at once (rapid reset).
pub const PENDING_RESET_STREAMS_MAX: usize = 20;

/// Message limits, per service: `max_decoding_message_size` and `max_encoding_message_size`.
pub const ENROLL_MESSAGE_BYTES_MAX: usize = 16 * 1024;
pub const USER_MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// An answer to a user: a list of some 50,000 jobs.
pub const USER_ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
pub const AGENT_MESSAGE_BYTES_MAX: usize = 8 * 1024 * 1024;
pub const RAFT_MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A certificate or signing request, DER.
pub const CERTIFICATE_BYTES_MAX: usize = 8 * 1024;
/// Certificates in a presented chain.
pub const CHAIN_LENGTH_MAX: usize = 4;
/// A key, certificate or identity file.
pub const IDENTITY_FILE_BYTES_MAX: u64 = 64 * 1024;

/// How long a node's expired certificate still serves to renew it, and for nothing else.
pub const RENEW_EXPIRED_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// At most one log line per kind of refusal in this time; the rest are counted.
pub const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(10);
