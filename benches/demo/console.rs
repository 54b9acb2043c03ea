//! Console output while the demo runs.

use std::io::{self, IsTerminal, Write};
use std::time::Instant;

use super::engine::{Measured, Stage};
use super::report::{mib, thousands};
use super::setup::Setup;
use crate::private_daemon::PrivateDaemon;

/// Destination of progress and text: stdout, or stderr if stdout is reserved for JSON.
pub struct Console {
    out: Box<dyn Write>,
    /// Lines can be overwritten.
    terminal: bool,
    /// Print everything, not only the summary.
    details: bool,
    began: Instant,
    /// End of the prompt, in bytes, shown before the decoded text.
    tail: String,
    texting: bool,
    /// First error of a write.
    failed: Option<io::Error>,
}

impl Console {
    /// Create the console of a run. `tail`: the end of the prompt.
    #[must_use]
    pub fn new(json: bool, details: bool, tail: &[u16]) -> Console {
        let (out, terminal): (Box<dyn Write>, bool) = if json {
            (Box::new(io::stderr()), io::stderr().is_terminal())
        } else {
            (Box::new(io::stdout()), io::stdout().is_terminal())
        };
        let tail = tail.iter().map(|token| shown(*token)).collect();
        let details = details || json;
        Console { out, terminal, details, began: Instant::now(), tail, texting: false, failed: None }
    }

    /// Write `text`. Errors do not end the demo before its clean-up.
    pub fn say(&mut self, text: &str) {
        if let Err(error) = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush()) {
            self.failed.get_or_insert(error);
        }
    }

    /// Write `text` if details were requested.
    pub fn details(&mut self, text: &str) {
        if self.details {
            self.say(text);
        }
    }

    /// Overwrite the line of progress on a terminal; an empty `text` removes it.
    fn overwrite(&mut self, text: &str) {
        if self.terminal {
            self.say(&format!("\r{text}\x1b[K"));
        }
    }

    /// Return the first error of a write, if any.
    pub fn written(&mut self) -> io::Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }

    pub(super) fn began(&mut self, setup: &Setup, daemon: &PrivateDaemon) {
        let pages = setup.sizes.pages();
        let passes = if (setup.tier0_frames as usize) < pages / setup.sizes.planes {
            ", less than one plane: each plane is read in several passes"
        } else {
            ""
        };
        let nvme = match (&setup.nvme, daemon.nvme_dir()) {
            (Some(nvme), Some(dir)) => format!("all other pages, {} in {}", mib(nvme.bytes), dir.display()),
            _ => "none".into(),
        };
        self.details(&format!(
            "kvtide demo: prefill {} tokens, decode {} tokens (greedy)\n\
             KV      {} pages of {} KiB in {} planes ({})\n\
             tier 0  {} frames ({} %){passes}\n\
             host    {} frames ({} %)\n\
             nvme    {nvme}\n\
             files   {}\n",
            thousands(setup.sizes.prefill as u64),
            thousands(setup.sizes.decode as u64),
            pages,
            setup.sizes.page_bytes >> 10,
            setup.sizes.planes,
            mib(setup.bytes_of(pages as u64)),
            setup.tier0_frames,
            setup.tier0_percent,
            setup.host_frames,
            setup.host_percent,
            daemon.dir().display(),
        ));
    }

    pub(super) fn device(&mut self, name: &str) {
        let real = if is_stand_in(name) { "; NO GPU: CPU stand-in, times are not meaningful" } else { "" };
        self.details(&format!("device  {name}{real}\n"));
    }

    pub(super) fn started(&mut self, daemon: u32, engine: u32) {
        self.details(&format!("pids    daemon {daemon}, engine {engine}\n\n"));
    }

    pub(super) fn progress(&mut self, setup: &Setup, stage: Stage, tokens: usize, token: Option<u16>) {
        if let Some(token) = token.filter(|_| self.details) {
            if !std::mem::replace(&mut self.texting, true) {
                let head = format!("\n--- end of the prompt ---\n{}\n--- decoded ---\n", self.tail);
                self.say(&head);
            }
            self.say(&shown(token));
        } else if self.terminal {
            let of = thousands(setup.sizes.tokens() as u64);
            let seconds = self.began.elapsed().as_secs_f64();
            let tokens = thousands(tokens as u64);
            self.overwrite(&format!("[{seconds:5.1} s] {:<28}{tokens:>6} of {of} tokens", stage.name()));
        }
    }

    /// Show how many of the chats' answers were given.
    pub(super) fn chats(&mut self, answers: usize, of: usize) {
        let seconds = self.began.elapsed().as_secs_f64();
        let text = format!("[{seconds:5.1} s] chats, without and with cache    {answers:>3} of {of} answers");
        self.overwrite(if answers == of { "" } else { &text });
    }

    pub(super) fn ended(&mut self, setup: &Setup, stage: Stage, measured: &Measured) {
        if !self.details {
            return self.overwrite("");
        }
        if stage == Stage::Rehearsal {
            return self.say("capacity check passed\n");
        }
        let line = format!(
            "[{:5.1} s] {:<28}prefill {:.2} s, decode {:.2} s",
            self.began.elapsed().as_secs_f64(),
            stage.name(),
            measured.prefill_s,
            measured.decode_s,
        );
        let verdict = match stage {
            Stage::Plain => String::new(),
            Stage::Inexact => measured.reading.as_ref().map_or_else(String::new, |reading| {
                let without = if reading.prefetch { "" } else { ", no prefetch" };
                format!(": {}{without}", reading.contract)
            }),
            _ if measured.distance.is_some() => {
                format!(", logits within {:.3} of the plain array", measured.distance.unwrap_or_default())
            }
            _ if measured.comparison.identical(setup.logits()) => ", all logits bit-identical".into(),
            _ => format!(", {} LOGITS DIFFER", thousands(measured.comparison.different)),
        };
        let (before, after) = match (self.texting, self.terminal) {
            (true, _) => ("\n--- end ---\n\n", ""),
            (false, true) => ("\r", "\x1b[K"),
            (false, false) => ("", ""),
        };
        self.say(&format!("{before}{line}{verdict}{after}\n"));
    }
}

/// Return true for the name of the tests' stand-in driver, which runs kernels on the CPU.
pub(super) fn is_stand_in(name: &str) -> bool {
    name.contains("stand-in")
}

/// Return a token as text: printable ASCII unchanged, others as a middle dot, so that no control character reaches the terminal.
fn shown(token: u16) -> String {
    match u8::try_from(token) {
        Ok(byte @ (b'\n' | b'\t' | b' '..=b'~')) => char::from(byte).to_string(),
        _ => "·".into(),
    }
}
