//! The tiers of one demo, from its flags.

use super::args::Args;
use super::attention::Page;
use super::model::Config;
use super::sizes::Sizes;

/// Slabs of the host tier: several, so that granting them is part of what is shown.
const SLABS: u32 = 8;

/// What one demo runs with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Tokens and pages.
    pub sizes: Sizes,
    /// Logits of a token.
    pub vocabulary: usize,
    /// Size asked for.
    pub tier0_percent: u32,
    /// Frames of the small tier 0.
    pub tier0_frames: u32,
    /// Size asked for, or what is needed.
    pub host_percent: u32,
    /// Frames of the host tier: a whole number in each of its slabs, at least one.
    pub host_frames: u32,
}

impl Setup {
    /// Tiers for `args`.
    #[must_use]
    pub fn new(args: &Args, config: &Config) -> Setup {
        let (prefill, decode) = (args.prefill as usize, args.decode as usize);
        let sizes = Sizes { planes: config.num_hidden_layers, prefill, decode };
        let host_percent = args.host_percent.unwrap_or_else(|| sizes.host_percent_needed(args.tier0_percent));
        Setup {
            sizes,
            vocabulary: config.vocab_size,
            tier0_percent: args.tier0_percent,
            tier0_frames: sizes.frames(args.tier0_percent),
            host_percent,
            host_frames: sizes.frames(host_percent).next_multiple_of(SLABS).max(SLABS),
        }
    }

    /// Bytes of that many pages.
    #[must_use]
    pub fn bytes_of(&self, pages: u64) -> u64 {
        pages * Page::BYTES as u64
    }

    /// Bytes of the host tier.
    #[must_use]
    pub fn host_bytes(&self) -> u64 {
        self.bytes_of(u64::from(self.host_frames))
    }

    /// Bytes of one of its slabs.
    #[must_use]
    pub fn slab_bytes(&self) -> u64 {
        self.host_bytes() / u64::from(SLABS)
    }

    /// Logits of a whole run.
    #[must_use]
    pub fn logits(&self) -> usize {
        self.sizes.tokens() * self.vocabulary
    }

    /// For those whose sizes were refused: what there was, and what would do.
    #[must_use]
    pub fn advice(&self) -> String {
        format!(
            "tier 0 had {} frames ({} %) and host {} frames ({} %) for {} pages; with this tier 0, --host-percent {} would do, \
             and --tier0-percent must leave room for a block being filled, a block in reserve and the frames of a scan",
            self.tier0_frames,
            self.tier0_percent,
            self.host_frames,
            self.host_percent,
            self.sizes.pages(),
            self.sizes.host_percent_needed(self.tier0_percent),
        )
    }
}
