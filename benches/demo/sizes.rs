//! Size of the demo's KV and of its tiers, and the minimum of bytes that must move between them.

use super::attention::{PAGE_TOKENS, pages_of};
use crate::scan::excess;

/// Frames for a cyclic scan: enough copies in flight to hide the latency of one copy behind the attention of earlier pages, few
/// enough to leave most of a small tier 0 resident.
pub const SCAN_FRAMES: u32 = 8;

/// Host frames for streaming from NVMe: two blocks of the demo's model, so that one can be read from the disk while the other is
/// copied.
pub const HOST_SCAN_FRAMES: u32 = 12;

/// Tokens of a prefill step: one page, the least that tier 0 must hold unsealed.
pub const CHUNK: usize = PAGE_TOKENS;

/// The demo's KV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Planes of the space: layers of the model.
    pub planes: usize,
    /// Tokens of the prompt.
    pub prefill: usize,
    /// Tokens decoded after it.
    pub decode: usize,
    /// Bytes of a page.
    pub page_bytes: usize,
}

impl Sizes {
    /// Return the tokens at the end.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.prefill + self.decode
    }

    /// Return the pages of all planes at the end.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.planes * pages_of(self.tokens())
    }

    /// Return the frames that hold `percent` of all pages.
    #[must_use]
    pub fn frames(&self, percent: u32) -> u32 {
        (self.pages() as u64 * u64::from(percent)).div_ceil(100) as u32
    }

    /// Return a sufficient size of tier 0 in percent: a block being filled, the block before it until it is in host memory, the frames
    /// of a scan, and `digest_frames` frames for digests.
    #[must_use]
    pub fn tier0_percent_needed(&self, digest_frames: u32) -> u32 {
        let frames = u64::from(SCAN_FRAMES + digest_frames) + 2 * self.planes as u64;
        (frames * 100).div_ceil(self.pages() as u64) as u32
    }

    /// Return the size of the host tier in percent that a tier 0 of `tier0_percent` requires: the pages that do not fit, and one
    /// frame for each tier-0 frame without a settled page. These are the frames for streaming, of the block being filled, of the
    /// block before it, and those that digests occupy.
    #[must_use]
    pub fn host_percent_needed(&self, tier0_percent: u32, digest_frames: u32) -> u32 {
        let unsettled = u64::from(SCAN_FRAMES + digest_frames) + 2 * self.planes as u64;
        let pages = self.pages() as u64 + unsettled;
        let missing = pages.saturating_sub(u64::from(self.frames(tier0_percent)));
        (missing * 100).div_ceil(self.pages() as u64) as u32
    }

    /// Return the frames of a tier 0 in which everything stays resident: all pages, and enough free frames that the daemon's low
    /// watermark (10 % free) never triggers a write-back.
    #[must_use]
    pub fn frames_resident(&self) -> u32 {
        self.frames(125) + SCAN_FRAMES + self.planes as u32
    }

    /// Iterate over the tokens that each step of a run covers: prefill in chunks, then one by one.
    pub fn steps(&self) -> impl Iterator<Item = usize> {
        let prefill = self.prefill;
        let chunks = (0..prefill.div_ceil(CHUNK)).map(move |chunk| ((chunk + 1) * CHUNK).min(prefill));
        chunks.chain(prefill + 1..=self.tokens())
    }

    /// Return the bytes that an exact read loads from host memory into `frames` frames over all steps, with exclusive tiers, if frames
    /// for streaming hold nothing that the next step needs: at each step, max(0, pages − frames + frames for streaming) pages.
    #[must_use]
    pub fn optimum_host_to_tier0(&self, frames: u32) -> u64 {
        self.steps().map(|tokens| self.excess(tokens, frames)).sum::<u64>() * self.page_bytes as u64
    }

    /// Return the minimum of bytes that must leave tier 0: each page without a frame at the end, once.
    #[must_use]
    pub fn optimum_tier0_to_host(&self, frames: u32) -> u64 {
        self.excess(self.tokens(), frames) * self.page_bytes as u64
    }

    /// Return the bytes that an exact read loads from NVMe over all steps, in the same way: at each step, max(0, pages − tier-0 frames −
    /// host frames + frames of both for streaming) pages.
    #[must_use]
    pub fn optimum_nvme_to_host(&self, tier0_frames: u32, host_frames: u32) -> u64 {
        self.steps().map(|tokens| self.excess_of_both(tokens, tier0_frames, host_frames)).sum::<u64>()
            * self.page_bytes as u64
    }

    /// Return the minimum of bytes that must leave host memory: each page without a frame in either tier at the end, once.
    #[must_use]
    pub fn optimum_host_to_nvme(&self, tier0_frames: u32, host_frames: u32) -> u64 {
        self.excess_of_both(self.tokens(), tier0_frames, host_frames) * self.page_bytes as u64
    }

    fn excess_of_both(&self, tokens: usize, tier0_frames: u32, host_frames: u32) -> u64 {
        excess(self.pages_at(tokens), &[(tier0_frames, SCAN_FRAMES), (host_frames, HOST_SCAN_FRAMES)])
    }

    fn excess(&self, tokens: usize, frames: u32) -> u64 {
        excess(self.pages_at(tokens), &[(frames, SCAN_FRAMES)])
    }

    /// Return the pages of all planes at a step.
    fn pages_at(&self, tokens: usize) -> u64 {
        (self.planes * pages_of(tokens)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEMO: Sizes = Sizes { planes: 6, prefill: 3584, decode: 256, page_bytes: 32 << 10 };

    #[test]
    fn ten_percent_is_less_than_a_plane() {
        assert_eq!((DEMO.pages(), DEMO.frames(10)), (360, 36));
        assert!((DEMO.frames(10) as usize) < pages_of(DEMO.tokens()));
        assert_eq!((DEMO.host_percent_needed(10, 0), DEMO.host_percent_needed(10, 3)), (96, 97));
        assert_eq!((DEMO.tier0_percent_needed(0), DEMO.tier0_percent_needed(3)), (6, 7));
        assert_eq!(Sizes { prefill: 1024, ..DEMO }.tier0_percent_needed(0), 17);
    }

    #[test]
    fn steps_cover_every_token_once() {
        let odd = Sizes { planes: 2, prefill: 130, decode: 3, page_bytes: 1 };
        assert_eq!(odd.steps().collect::<Vec<_>>(), [64, 128, 130, 131, 132, 133]);
        assert_eq!(DEMO.steps().count(), 56 + 256);
    }

    #[test]
    fn the_optimum_is_nothing_when_all_fits_and_counts_streamed_frames_otherwise() {
        let small = Sizes { planes: 2, prefill: 128, decode: 1, ..DEMO }; // steps of 2, 4 and 6 pages
        assert_eq!(small.optimum_host_to_tier0(6), 0);
        let page = DEMO.page_bytes as u64;
        // Nine frames are missing, eight of which are for streaming: one page stays.
        let larger = Sizes { planes: 2, prefill: 384, decode: 0, ..DEMO }; // steps of 2, 4, 6, 8, 10, 12 pages
        assert_eq!(larger.optimum_host_to_tier0(9), (9 + 11) * page);
        assert_eq!(larger.optimum_tier0_to_host(9), 11 * page);
        // One page stays in tier 0, and two in host memory.
        let largest = Sizes { planes: 2, prefill: 768, decode: 0, ..DEMO }; // steps of 2, 4, ... 24 pages
        assert_eq!(largest.optimum_nvme_to_host(9, 14), (24 - 3) * page);
        assert_eq!(largest.optimum_host_to_nvme(9, 14), (24 - 3) * page);
        assert_eq!(largest.optimum_nvme_to_host(9, 15), 0);
    }
}
