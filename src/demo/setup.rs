//! The tiers of one demo, from its flags.

use super::args::Args;
use super::attention::Page;
use super::error::DemoError;
use super::kv::{DEVICE_PAGE_BYTES, digests};
use super::model::Config;
use super::sizes::{HOST_SCAN_FRAMES, Sizes};
use kvtide_client::Contract;

/// Slabs of the host tier: several, so that granting them is part of what is shown.
const SLABS: u32 = 8;
/// Percent of the pages that the host tier holds over NVMe, if nothing else is asked for.
const HOST_PERCENT: u32 = 30;
/// Blocks of one slab on NVMe: several slabs, as in host memory.
const SLAB_BLOCKS: u64 = 16;
/// Blocks beyond those of the text: one in reserve, one that is being written while another is given up.
const SPARE_BLOCKS: u64 = 2;
/// Slabs are whole MiB.
const MIB: u64 = 1 << 20;

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
    /// Of them, those whose place digests take at most, in runs by contracts that need some.
    pub digest_frames: u32,
    /// Window frames beside it.
    pub host_windows: u32,
    /// Size asked for, or what is needed.
    pub host_percent: u32,
    /// Frames of the host tier: a whole number in each of its slabs, at least one.
    pub host_frames: u32,
    /// The third tier, if there is one.
    pub nvme: Option<NvmeSetup>,
}

/// The NVMe tier: room for every block, as a block that is written is written whole.
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
    /// Tiers for `args`.
    ///
    /// # Errors
    /// There are three and the first two already hold everything; or the contract bounded with tier 0 on a device.
    pub fn new(args: &Args, config: &Config) -> Result<Setup, DemoError> {
        let (prefill, decode) = (args.prefill as usize, args.decode as usize);
        let bounded = |contract: &&Contract| matches!(contract, Contract::Bounded { .. });
        if let Some(contract) = args.inexact().iter().find(bounded).filter(|_| !args.device.is_host()) {
            return Err(DemoError::OnDevice(contract.to_string()));
        }
        let page_bytes = if args.device.is_host() { Page::BYTES } else { DEVICE_PAGE_BYTES };
        let sizes = Sizes { planes: config.num_hidden_layers, prefill, decode, page_bytes };
        let digests = args
            .inexact()
            .into_iter()
            .filter_map(|contract| digests(contract, sizes.digest_pages(), !args.device.is_host()));
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

    /// Bytes of that many pages.
    #[must_use]
    pub fn bytes_of(&self, pages: u64) -> u64 {
        pages * self.sizes.page_bytes as u64
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
        let remedy = match self.nvme {
            Some(_) => format!(
                "--host-percent must leave room for the {HOST_SCAN_FRAMES} frames that pages from NVMe stream through, and for a \
                 block of every lane"
            ),
            None => {
                let needed = self.sizes.host_percent_needed(self.tier0_percent, self.digest_frames);
                format!("with this tier 0, --host-percent {needed} would do")
            }
        };
        format!(
            "tier 0 had {} frames ({} %) and host {} frames ({} %) for {} pages; {remedy}, \
             and --tier0-percent must leave room for a block being filled, a block in reserve and the frames of a scan: {} would do",
            self.tier0_frames,
            self.tier0_percent,
            self.host_frames,
            self.host_percent,
            self.sizes.pages(),
            self.sizes.tier0_percent_needed(self.digest_frames),
        )
    }
}
