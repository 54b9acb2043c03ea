//! The agent's protocol: page tables, jobs and steps as pure memory.

pub mod step;
