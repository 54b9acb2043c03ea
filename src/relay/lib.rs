//! The relay: copies KV-cache blocks between the daemons of several machines, through a store that the user already runs (S3, GCS,
//! Azure, a directory, Valkey, Redis). To a daemon it is a process that attaches like an engine.
//!
//! | module | contents |
//! | --- | --- |
//! | [`relay`], `spaces` | the running relay; the spaces of the daemon that it serves |
//! | `space` | one space: its sessions, the feed, threads that copy |
//! | `chains`, `queue` | the cached blocks of the space; the runs to copy |
//! | `adapters`, `places` | the socket where engines ask; bounds on connections |
//! | `http`, `requests` | metrics, recalls, and tokens of blocks; the bodies of these requests |
//! | [`events`] | KV events for routers |
//! | [`command`], [`config`], [`error`] | flags and manual pages; the TOML file; errors |
//! | [`name`] | keys of a space, and names of runs, which reveal nothing |
//! | [`run`] | the format of a run; verification of every byte that is read |
//! | [`store`] | the trait [`Store`](store::Store), its errors, and two implementations |
//! | [`breaker`] | the circuit breaker, as a function of outcomes and time |
//! | [`budget`], `spending` | bytes and requests a day, as a function of costs and time; the budget with a clock |
//! | [`endpoint`] | a store with deadlines, circuit breaker, hedged reads, a bound on bytes in flight, counters |
//! | [`presence`] | which runs of a prefix a store holds, as a hint that is cached |
//!
//! A remote store is a cache. Every error is a miss to the caller, and no bytes reach it that were not verified.
//! docs/design/relay.md has the format in bytes and the reasons for the crates used.

mod adapters;
pub mod breaker;
pub mod budget;
mod chains;
pub mod command;
pub mod config;
pub mod endpoint;
pub mod error;
pub mod events;
mod http;
pub mod name;
mod pace;
mod places;
pub mod presence;
mod queue;
pub mod relay;
mod requests;
pub mod run;
mod space;
mod spaces;
mod spending;
pub mod store;
mod trace;
