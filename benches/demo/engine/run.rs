//! One sequence through the model: prefill in chunks, then greedy decoding, over any store.

use std::time::{Duration, Instant};

use crate::demo::kv::Kv;
use crate::demo::model::{Decoder, Scratch};
use crate::demo::sizes::CHUNK;

/// A sequence in progress.
pub struct Run<'a, S> {
    decoder: &'a Decoder,
    store: S,
    logits: Vec<f32>,
    position: usize,
    next: u16,
    step_times: Vec<Duration>,
}

impl<'a, S: Kv> Run<'a, S> {
    /// Create a run over an empty `store`.
    pub fn new(decoder: &'a Decoder, store: S) -> Run<'a, S> {
        let logits = vec![0.0; CHUNK * decoder.config().vocab_size];
        Run { decoder, store, logits, position: 0, next: 0, step_times: Vec::new() }
    }

    /// Prefill `prompt`; `see(start, logits)` is called after each chunk. Return the time without `see`.
    ///
    /// # Errors
    /// Errors of the store.
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

    /// Decode one token: feed the most likely one. Return it with its position and the logits after it.
    ///
    /// # Errors
    /// Errors of the store.
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

    /// Return the number of tokens so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Go back to `position`, where `token` is fed next. The store must allow later positions to be rewritten.
    pub fn rewind(&mut self, position: usize, token: u16) {
        (self.position, self.next) = (position, token);
        self.step_times.clear();
    }

    /// Set the token for the next step.
    pub fn feed(&mut self, token: u16) {
        self.next = token;
    }

    /// Return the token for the next step.
    pub fn next(&self) -> u16 {
        self.next
    }

    /// Return the store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Return the store, to prepare it between runs.
    pub fn store_mut(&mut self) -> &mut S {
        &mut self.store
    }

    /// Return the logits of a token.
    pub fn vocabulary(&self) -> usize {
        self.decoder.config().vocab_size
    }

    /// Return the time of each decode step.
    pub fn step_times(&self) -> &[Duration] {
        &self.step_times
    }
}

/// Return the first of the largest logits.
fn likeliest(logits: &[f32]) -> u16 {
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = token;
        }
    }
    best as u16
}
