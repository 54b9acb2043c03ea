//! One sequence through the model: prefill in chunks, then greedy decoding, over any store.

use std::time::{Duration, Instant};

use crate::demo::kv::Kv;
use crate::demo::model::{Decoder, Scratch};
use crate::demo::sizes::CHUNK;

/// A sequence under way.
pub struct Run<'a, S> {
    decoder: &'a Decoder,
    store: S,
    logits: Vec<f32>,
    position: usize,
    next: u16,
    step_times: Vec<Duration>,
}

impl<'a, S: Kv> Run<'a, S> {
    /// A run over an empty `store`.
    pub fn new(decoder: &'a Decoder, store: S) -> Run<'a, S> {
        let logits = vec![0.0; CHUNK * decoder.config().vocab_size];
        Run { decoder, store, logits, position: 0, next: 0, step_times: Vec::new() }
    }

    /// Prefills `prompt`; `see(start, logits)` is called after each chunk. Returns the time it took, without `see`.
    ///
    /// # Errors
    /// What the store reports.
    pub fn prefill(
        &mut self,
        scratch: &mut Scratch,
        prompt: &[u16],
        mut see: impl FnMut(usize, &[f32]),
    ) -> Result<Duration, S::Error> {
        let mut time = Duration::ZERO;
        for chunk in prompt.chunks(CHUNK) {
            let logits = &mut self.logits[..chunk.len() * self.decoder.config().vocab_size];
            let began = Instant::now();
            self.decoder.forward(scratch, &mut self.store, chunk, self.position, logits)?;
            time += began.elapsed();
            see(self.position, logits);
            self.position += chunk.len();
            self.next = likeliest(&logits[logits.len() - self.decoder.config().vocab_size..]);
        }
        Ok(time)
    }

    /// Decodes one token: feeds the likeliest one, which it returns with its position and the logits that follow it.
    ///
    /// # Errors
    /// What the store reports.
    pub fn step(&mut self, scratch: &mut Scratch) -> Result<(u16, usize, &[f32]), S::Error> {
        let logits = &mut self.logits[..self.decoder.config().vocab_size];
        let (token, position) = (self.next, self.position);
        let (began, apart) = (Instant::now(), self.store.apart());
        self.decoder.forward(scratch, &mut self.store, &[token], position, logits)?;
        self.step_times.push(began.elapsed().saturating_sub(self.store.apart() - apart));
        self.position += 1;
        self.next = likeliest(logits);
        Ok((token, position, logits))
    }

    /// Tokens so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Goes back to `position`, which `token` is to be fed at, with a store that lets what follows be written again.
    pub fn rewind(&mut self, position: usize, token: u16) {
        (self.position, self.next) = (position, token);
        self.step_times.clear();
    }

    /// Has the next step feed `token`.
    pub fn feed(&mut self, token: u16) {
        self.next = token;
    }

    /// The token that the next step feeds.
    pub fn next(&self) -> u16 {
        self.next
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// How long each decode step took.
    pub fn step_times(&self) -> &[Duration] {
        &self.step_times
    }
}

/// The first of the largest logits.
fn likeliest(logits: &[f32]) -> u16 {
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = token;
        }
    }
    best as u16
}
