//! The command line: `kvtide daemon`, `kvtide demo`, `kvtide bench`, and `kvtided`, which is `kvtide daemon` by another name.
//!
//! It parses and hands over. What a command does lives in its own room; errors end up on stderr here, in one form.

pub mod private_daemon;
