//! The second part of the demo: eight chats about a few long documents, in an engine whose memory holds the KV of three of them.
//!
//! The engine keeps its KV in blocks of its own, like vLLM, and uses the block API: it looks up the blocks of a prompt, leases and
//! loads them, computes the rest, and stores the blocks that it has filled. Each question goes to the chat that was used longest ago,
//! so its KV has already lost its memory. Later the daemon is killed with SIGKILL and started again over the same NVMe directory.
//!
//! `plan` says who asks what; `memory` is the engine's KV; `engine` is its process (`kvtide demo-chats`); `supervise` runs the daemons.

pub mod engine;
mod memory;
mod plan;
pub(super) mod supervise;

use serde::{Deserialize, Serialize};

use super::engine::Comparison;
use super::report::thousands;

pub use engine::ChatArgs;
pub(super) use plan::{CHATS, DOCUMENT_TOKENS_MAX, DOCUMENTS, MEMORY_CHATS, Plan};

/// A question, and where the KV of its prompt came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Asked {
    /// Number of the chat.
    pub chat: usize,
    /// Number of the question in the chat.
    pub turn: usize,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens whose KV was still in the engine's memory.
    pub own: usize,
    /// Tokens loaded from host memory.
    pub host: usize,
    /// Tokens loaded from NVMe.
    pub nvme: usize,
    /// Time from the question to the first token of the answer.
    pub first_token_s: f64,
}

impl Asked {
    /// Return the tokens of the prompt that were computed.
    pub fn computed(&self) -> usize {
        self.prompt - self.own - self.host - self.nvme
    }
}

/// Measurements of the chats.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Measured {
    /// The first question of each chat without a cache: the whole prompt is computed.
    pub without: Vec<Asked>,
    /// With kvtide, before the daemon was killed.
    pub cached: Vec<Asked>,
    /// With kvtide, after the daemon was killed and started again.
    pub restarted: Vec<Asked>,
    /// Times that a chat lost its blocks in the engine's memory to another one.
    pub preempted: usize,
    /// Blocks that the cache did not take.
    pub not_stored: usize,
    /// Tokens of the answers, and those that differ from the answers without a cache.
    pub tokens: usize,
    pub tokens_different: usize,
    /// The logits of these tokens, compared bit for bit.
    pub logits: Comparison,
}

/// Results of the second part.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Results {
    /// Bytes of all chats' KV at the end, without sharing.
    pub kv_bytes: u64,
    /// Bytes of the engine's memory for KV.
    pub engine_bytes: u64,
    /// Bytes of the daemon's host memory.
    pub host_bytes: u64,
    /// Tokens of a document.
    pub document_tokens: usize,
    /// Time from the start of the new daemon until it served, its index read from NVMe.
    pub restart_s: f64,
    #[serde(flatten)]
    pub measured: Measured,
    /// Questions, and logits of an answer, that were planned.
    #[serde(skip)]
    pub planned: (usize, usize),
}

impl Results {
    /// Return true if every answer was compared and none differs from the answers without a cache.
    pub fn identical(&self) -> bool {
        let (questions, logits) = self.planned;
        let Measured { cached, restarted, tokens_different, logits: comparison, .. } = &self.measured;
        questions > 0
            && cached.len() + restarted.len() == questions
            && *tokens_different == 0
            && comparison.identical(questions * logits)
    }
}

/// Return the median time to the first token in seconds.
pub(super) fn first_token_s(asked: &[Asked]) -> f64 {
    let mut times: Vec<f64> = asked.iter().map(|asked| asked.first_token_s).collect();
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}

/// Return where the tokens of the prompts came from, in words.
pub(super) fn hits(asked: &[Asked]) -> String {
    let sum = |of: fn(&Asked) -> usize| asked.iter().map(of).sum::<usize>();
    let prompt = sum(|asked| asked.prompt).max(1);
    let percent = |of| 100.0 * sum(of) as f64 / prompt as f64;
    format!(
        "{} prompt tokens: {:.0} % from host memory, {:.0} % from NVMe, {:.0} % computed",
        thousands(prompt as u64),
        percent(|asked| asked.host),
        percent(|asked| asked.nvme),
        percent(Asked::computed),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Results {
        let asked = Asked { prompt: 130, host: 64, nvme: 64, first_token_s: 0.5, ..Asked::default() };
        let logits = Comparison { compared: 40, ..Comparison::default() };
        let measured = Measured { cached: vec![asked; 3], restarted: vec![asked], logits, ..Measured::default() };
        Results {
            kv_bytes: 0,
            engine_bytes: 0,
            host_bytes: 0,
            document_tokens: 0,
            restart_s: 0.0,
            measured,
            planned: (4, 10),
        }
    }

    #[test]
    fn every_way_to_differ_counts() {
        assert!(results().identical());
        let broken: [fn(&mut Results); 5] = [
            |r| r.measured.tokens_different = 1,
            |r| r.measured.logits.different = 1,
            |r| r.measured.logits.compared = 39,
            |r| r.measured.restarted.clear(),
            |r| r.planned = (0, 0),
        ];
        for breaks in broken {
            let mut results = results();
            breaks(&mut results);
            assert!(!results.identical(), "{results:?}");
        }
    }

    #[test]
    fn the_rest_of_a_prompt_is_computed_and_the_median_is_of_times() {
        let asked = |seconds| Asked { first_token_s: seconds, prompt: 100, host: 64, ..Asked::default() };
        assert_eq!(asked(0.0).computed(), 36);
        assert_eq!(first_token_s(&[asked(3.0), asked(1.0), asked(2.0)]), 2.0);
        assert_eq!(first_token_s(&[]), 0.0);
    }
}
