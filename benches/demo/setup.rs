//! The tiers of a demo, from its flags.

use super::args::Args;
use super::attention::Page;
use super::error::DemoError;
use super::kv::{DEVICE_PAGE_BYTES, digests};
use super::model::Config;
use super::sizes::{HOST_SCAN_FRAMES, Sizes};

/// Slabs of the host tier: several, so that the demo includes granting them.
const SLABS: u32 = 8;
/// Default size of the host tier above NVMe, in percent of the pages.
const HOST_PERCENT: u32 = 30;
/// Blocks of a slab on NVMe. Small, so that NVMe has several slabs.
const SLAB_BLOCKS: u64 = 16;
/// Blocks in addition to those of the text: one that is written while another is freed.
const SPARE_BLOCKS: u64 = 1;
/// Slabs are whole MiB.
const MIB: u64 = 1 << 20;

/// Settings of a demo.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Tokens and pages.
    pub sizes: Sizes,
    /// Logits of a token.
    pub vocabulary: usize,
    /// Requested size.
    pub tier0_percent: u32,
    /// Frames of the small tier 0.
    pub tier0_frames: u32,
    /// Maximum number of these frames that digests occupy, in runs with contracts that need digests.
    pub digest_frames: u32,
    /// Mapped frames in addition to them.
    pub host_windows: u32,
    /// Requested size, or the size needed.
    pub host_percent: u32,
    /// Frames of the host tier: a whole number per slab, at least one.
    pub host_frames: u32,
    /// The NVMe tier, if any.
    pub nvme: Option<NvmeSetup>,
}

/// The NVMe tier, with room for every block, because blocks are written as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmeSetup {
    /// Bytes of a slab.
    pub slab_bytes: u64,
    /// Bytes in all.
    pub bytes: u64,
}

impl NvmeSetup {
    fn new(sizes: &Sizes) -> NvmeSetup {
        let slot_bytes = sizes.planes as u64 * sizes.page_bytes as u64;
        let slab_bytes = (SLAB_BLOCKS * slot_bytes).next_multiple_of(MIB);
        let blocks = (sizes.pages() / sizes.planes) as u64 + SPARE_BLOCKS;
        NvmeSetup { slab_bytes, bytes: blocks.div_ceil(slab_bytes / slot_bytes) * slab_bytes }
    }
}

impl Setup {
    /// Compute the tiers for `args`.
    ///
    /// # Errors
    /// There are three tiers and the first two already hold everything.
    pub fn new(args: &Args, config: &Config) -> Result<Setup, DemoError> {
        let (prefill, decode) = (args.prefill as usize, args.decode as usize);
        let page_bytes = if args.device.is_host() { Page::BYTES } else { DEVICE_PAGE_BYTES };
        let sizes = Sizes { planes: config.num_hidden_layers, prefill, decode, page_bytes };
        let digests =
            args.inexact().into_iter().filter_map(|contract| digests(contract, sizes.pages(), !args.device.is_host()));
        let digest_frames = digests.map(|digests| digests.frames(page_bytes as u32)).max().unwrap_or(0);
        let host_default =
            if args.two_tiers { sizes.host_percent_needed(args.tier0_percent, digest_frames) } else { HOST_PERCENT };
        let (tier0_percent, host_percent) = (args.tier0_percent, args.host_percent.unwrap_or(host_default));
        if !args.two_tiers && tier0_percent + host_percent >= 100 {
            return Err(DemoError::NothingForNvme { tier0: tier0_percent, host: host_percent });
        }
        Ok(Setup {
            sizes,
            vocabulary: config.vocab_size,
            tier0_percent,
            tier0_frames: sizes.frames(tier0_percent),
            digest_frames,
            host_windows: args.host_windows,
            host_percent,
            host_frames: sizes.frames(host_percent).next_multiple_of(SLABS).max(SLABS),
            nvme: (!args.two_tiers).then(|| NvmeSetup::new(&sizes)),
        })
    }

    /// Return the share of the whole KV in percent; tiers are rounded up to whole slabs.
    #[must_use]
    pub fn percent_of_kv(&self, bytes: u64) -> u64 {
        let all = self.bytes_of(self.sizes.pages() as u64);
        (100 * bytes + all / 2) / all.max(1)
    }

    /// Return the bytes of `pages` pages.
    #[must_use]
    pub fn bytes_of(&self, pages: u64) -> u64 {
        pages * self.sizes.page_bytes as u64
    }

    /// Return the bytes of the host tier.
    #[must_use]
    pub fn host_bytes(&self) -> u64 {
        self.bytes_of(u64::from(self.host_frames))
    }

    /// Return the bytes of a host slab.
    #[must_use]
    pub fn slab_bytes(&self) -> u64 {
        self.host_bytes() / u64::from(SLABS)
    }

    /// Return the logits of a whole run.
    #[must_use]
    pub fn logits(&self) -> usize {
        self.sizes.tokens() * self.vocabulary
    }

    /// Return the sizes and sufficient ones, for a run without enough memory.
    #[must_use]
    pub fn advice(&self) -> String {
        let remedy = match self.nvme {
            Some(_) => format!(
                "--host-percent must leave room for the {HOST_SCAN_FRAMES} frames for streaming from NVMe and for a block of every \
                 lane"
            ),
            None => {
                let needed = self.sizes.host_percent_needed(self.tier0_percent, self.digest_frames);
                format!("with this tier 0, --host-percent {needed} is sufficient")
            }
        };
        format!(
            "tier 0 had {} frames ({} %) and host {} frames ({} %) for {} pages; {remedy}, and --tier0-percent must leave room \
             for a block being filled, the block before it and the frames of a scan: {} is sufficient",
            self.tier0_frames,
            self.tier0_percent,
            self.host_frames,
            self.host_percent,
            self.sizes.pages(),
            self.sizes.tier0_percent_needed(self.digest_frames),
        )
    }
}
