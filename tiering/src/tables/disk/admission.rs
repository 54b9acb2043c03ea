//! The rule which published blocks are worth writing to NVMe: a pure function of a block's history and of the fill level of the
//! write budget. `admit` applies it to whole prefix chains.

use super::bucket::FULL;
use crate::api::Admission;

/// Unit in tokens by which blocks are ranked by depth: the block size of the trace on which the steps were measured.
const DEPTH_TOKENS: u64 = 512;
/// Fill level required for the first block of a prefix without earlier use, and its increase with each doubling of the depth.
const FRESH: (u32, u32) = (FULL / 8, FULL * 3 / 32);
/// Fill level at which every block is admitted: slightly below full, because a full bucket loses bytes.
const ALL: u32 = FULL * 15 / 16;
/// Fill level required for a block that was used once before.
const SECOND: u32 = FULL / 16;
/// Fill level that `all` reserves for blocks that were used before.
const RESERVE: u32 = FULL / 4;

/// Return whether a block is worth its bytes that was used `uses` times before and is `tokens` deep in its prefix, while the
/// bucket is filled to `fill` of [`FULL`]. The caller checks whether enough bytes are left.
pub(crate) fn worthy(rule: Admission, uses: u8, tokens: u64, fill: u32) -> bool {
    match rule {
        Admission::All => uses > 0 || fill >= RESERVE,
        Admission::SecondTouch => uses > 0,
        Admission::Budget => fill >= least_fill(uses, tokens),
    }
}

/// Return the threshold of `budget`.
///
/// 1. Blocks that were used before are most likely to be used again, and more likely with more uses: with two or more uses no fill
///    is required, with one use a sixteenth of the bucket.
/// 2. Of new blocks, the beginnings of prefixes come first: an eighth for the first block, more with each doubling of the depth.
/// 3. A full bucket admits every block, because unspent bytes are lost.
/// 4. Admitted blocks take their bytes out at once. The fill level therefore settles where admissions match the accrual.
/// 5. A block is admitted together with its ancestors, or not at all.
///
/// The steps are from a replay of a chat trace (`docs/decisions/disks.md`, 14): 24 % of its blocks are used again; 42 % of those used
/// twice are used a third time, 50 and 58 % after that. Of new blocks, 28 % of the first four of a prefix are used again, 22 % beyond the
/// twentieth.
fn least_fill(uses: u8, tokens: u64) -> u32 {
    match uses {
        0 => {
            let doublings = u64::BITS - (tokens / DEPTH_TOKENS).leading_zeros();
            (FRESH.0 + FRESH.1 * doublings).min(ALL)
        }
        1 => SECOND,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// More uses, less depth and a fuller bucket never turn an admission into a rejection; a full bucket admits every block.
        #[test]
        fn what_is_worth_more_is_never_refused_for_less(
            uses in 0u8..8, more in 0u8..8, tokens in any::<u64>(), deeper in any::<u64>(), fill in 0u32..=FULL, fuller in 0u32..=FULL,
        ) {
            for rule in [Admission::All, Admission::SecondTouch, Admission::Budget] {
                if worthy(rule, uses, tokens.max(deeper), fill.min(fuller)) {
                    prop_assert!(worthy(rule, uses.max(more), tokens, fill.max(fuller)));
                }
            }
            prop_assert!(worthy(Admission::Budget, uses, tokens, FULL));
            prop_assert_eq!(worthy(Admission::All, uses, tokens, fill), uses > 0 || fill >= RESERVE);
            prop_assert_eq!(worthy(Admission::SecondTouch, uses, tokens, fill), uses > 0);
        }
    }

    #[test]
    fn the_threshold_of_budget() {
        // (uses before, depth in tokens, fill needed of 1,024)
        let table = [
            (0, 0, 128),
            (0, 511, 128),
            (0, 512, 224),
            (0, 1024, 320),
            (0, 2048, 416),
            (0, 32_768, 800),
            (0, 1 << 30, 960),
            (1, 1 << 30, 64),
            (2, 1 << 30, 0),
            (7, 0, 0),
        ];
        for (uses, tokens, fill) in table {
            assert_eq!(least_fill(uses, tokens), fill, "{uses} uses, {tokens} tokens");
            assert!(worthy(Admission::Budget, uses, tokens, fill));
            assert!(fill == 0 || !worthy(Admission::Budget, uses, tokens, fill - 1));
        }
    }
}
