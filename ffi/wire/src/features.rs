//! Feature bits of the handshake: [`Hello`](crate::hello::Hello) says what the client can, [`Welcome`](crate::hello::Welcome) what
//! the daemon wants of it.

/// Requests carry the trace context of the engine's request ([`TRACED`](crate::entry::TRACED)).
pub const TRACE: u64 = 1;
