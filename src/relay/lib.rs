//! The remote side of the relay: copies runs of KV-cache blocks to a store that the user already runs (S3, GCS, Azure, a directory,
//! Valkey, Redis) and back.
//!
//! | module | contents |
//! | --- | --- |
//! | [`name`] | keys of a space, and names of runs, which reveal nothing |
//! | [`run`] | the format of a run; verification of every byte that is read |
//! | [`store`] | the trait [`Store`](store::Store), its errors, and two implementations |
//! | [`breaker`] | the circuit breaker, as a function of outcomes and time |
//! | [`endpoint`] | a store with deadlines, circuit breaker, hedged reads, a bound on bytes in flight, counters |
//! | [`presence`] | which runs of a prefix a store holds, as a hint that is cached |
//!
//! A remote store is a cache. Every error is a miss to the caller, and no bytes reach it that were not verified.
//! docs/design/relay.md has the format in bytes and the reasons for the crates used.

pub mod breaker;
pub mod endpoint;
pub mod name;
pub mod presence;
pub mod run;
pub mod store;
