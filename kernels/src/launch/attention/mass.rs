//! Attention mass per page: the largest shares of each sequence, as scores for the daemon.

use super::{Attention, Batch, clear, sources};
use crate::launch::check;
use crate::params::AttentionMassParams;
use crate::{Buffer, Device, Error, Function, Result, Shape, Stream};
use kvtide_wire::half::F16;
use kvtide_wire::score::{ScoreKind, Scores, Top};
use std::sync::Arc;

/// Maximum pages of a sequence in the kernel's output.
pub const TOP_MAX: usize = 36;
#[cfg(not(loom))] // models have slots of one entry
const _: () = assert!(TOP_MAX <= kvtide_wire::score::TOP_MAX, "the kernel's entries fit those of the score area");
/// 64-bit words of a sequence's entry.
pub const SCORE_WORDS: usize = 3 + TOP_MAX;
const THREADS: u32 = 256;
/// Pages of a block.
const PAGES: u32 = 64;

/// The kernel `attention_mass` with its workspace, for the batches of one [`Attention`].
#[derive(Debug)]
pub struct Mass {
    kernel: Function,
    workspace: Buffer,
    shares: u64,
}

impl Mass {
    /// Load the kernel and allocate its workspace: 4 bytes for each page that a batch of `attention` may have.
    ///
    /// # Errors
    /// The attention was set up without mass; the driver rejects the kernel; the device is full or lost.
    pub fn new(device: &Arc<Device>, attention: &Attention) -> Result<Self> {
        let config = attention.config();
        if !config.mass {
            return Err(Error::invalid("attention mass", "this attention was set up without it"));
        }
        let shares = (4 * u64::from(config.seqs)).next_multiple_of(256);
        let bytes = shares + 4 * u64::from(config.seqs) * u64::from(config.pages);
        let workspace = Buffer::new(device, usize::try_from(bytes).unwrap_or(usize::MAX))?;
        clear(device, workspace.address(), shares)?;
        Ok(Self { kernel: device.module(&sources::MASS)?.function("attention_mass")?, workspace, shares })
    }

    /// Return `f32[seqs][pages]` on the device: after [`Self::reduce`] the share of each page, for sequences with emitted
    /// attention.
    #[must_use]
    pub fn shares(&self) -> u64 {
        self.workspace.address() + self.shares
    }

    /// Reduce the result of the last [`Attention::whole`] or [`Attention::merge`] of `batch`. `out` is `u64[seqs][SCORE_WORDS]` on
    /// the device or in pinned host memory, 8-byte aligned, to be read with [`scores`]. `top` is the maximum number of entries per
    /// sequence, at most [`TOP_MAX`].
    ///
    /// # Errors
    /// An invalid number or address; the device is lost.
    ///
    /// # Safety
    /// As for [`Attention::whole`], and `attention` is the one that this was created for.
    pub unsafe fn reduce(
        &self,
        stream: &Stream,
        attention: &Attention,
        batch: &Batch,
        (plane, step): (u16, u64),
        top: u32,
        out: u64,
    ) -> Result<()> {
        let config = attention.config();
        check::address("scores", out, 8)?;
        check::within("entries", top.into(), 0, TOP_MAX as u64)?;
        let params = AttentionMassParams {
            attention: attention.params(batch)?,
            out,
            shares: self.workspace.address() + self.shares,
            tickets: self.workspace.address(),
            step,
            plane: plane.into(),
            top,
        };
        let pages = if batch.pages_longest == 0 { config.pages } else { batch.pages_longest };
        let blocks = pages.div_ceil(PAGES);
        let shape = Shape { grid: [blocks, batch.seqs, 1], block: [THREADS, 1, 1], shared_bytes: 0 };
        // SAFETY: checked; the caller guarantees the rest.
        unsafe { self.kernel.launch(stream, shape, &params) }
    }
}

/// Return an entry as [`Mass::reduce`] wrote it, for sequence slot `seq`; `None` if attention emitted nothing.
#[must_use]
pub fn scores(words: &[u64; SCORE_WORDS], seq: u32) -> Option<Scores> {
    let count = (words[0] >> 48) as usize;
    let mut top = [Top::default(); TOP_MAX];
    let used = words[3..].get(..count)?;
    for (top, word) in top.iter_mut().zip(used) {
        *top = Top { index: *word as u32, log_mass: F16((*word >> 32) as u16) };
    }
    Scores::new(ScoreKind::Mass, seq, (words[0] >> 32) as u16, words[1], &top[..count], F16(words[2] as u16))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_an_entry_and_silence_none() {
        let mut words = [0; SCORE_WORDS];
        words[0] = 5 | 7 << 32 | 2 << 48;
        words[1] = 99;
        words[2] = F16::nearest(-3.0).0.into();
        words[3] = 4 | u64::from(F16::nearest(-0.5).0) << 32;
        words[4] = 1 | u64::from(F16::nearest(-2.0).0) << 32;
        let read = scores(&words, 42).expect("two entries");
        assert_eq!((read.seq, read.plane, read.step, read.top().len()), (42, 7, 99, 2));
        assert_eq!(read.top()[1], Top { index: 1, log_mass: F16::nearest(-2.0) });
        assert_eq!(scores(&[u64::MAX; SCORE_WORDS], 0), None);
    }
}
