//! Shared by the logs of the daemon and of the relay: the check of directives, and a limit on repeated lines.

mod directives;
mod limit;

pub use directives::{check, filter};
pub use limit::Limits;
