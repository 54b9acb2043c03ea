//! Which published blocks are worth writing to NVMe: the rule. A pure function of what is known of a block and of how full the
//! bucket of bytes a day is; `admit` applies it to whole prefix runs.

use super::budget::FULL;
use crate::api::Admission;

/// A prefix's blocks are ranked by their depth in units of so many tokens: the block of the trace that the steps were measured on.
const DEPTH_TOKENS: u64 = 512;
/// Fill that the first block of a prefix takes that was never used before, and that each doubling of the depth takes more.
const FRESH: (u32, u32) = (FULL / 8, FULL * 3 / 32);
/// Fill at which every block is admitted: not quite full, or bytes would be lost at the brim.
const ALL: u32 = FULL * 15 / 16;
/// Fill that a block takes that was used once before.
const SECOND: u32 = FULL / 16;
/// Fill that `all` leaves to blocks that were used before.
const RESERVE: u32 = FULL / 4;

/// Whether a block is worth its bytes that was used `touches` times before and stands `tokens` deep in its prefix, while the bucket
/// is filled to `fill` of [`FULL`]. Whether there are so many bytes is another question.
pub(crate) fn worthy(rule: Admission, touches: u8, tokens: u64, fill: u32) -> bool {
    match rule {
        Admission::All => touches > 0 || fill >= RESERVE,
        Admission::SecondTouch => touches > 0,
        Admission::Budget => fill >= least_fill(touches, tokens),
    }
}

/// The threshold of `budget`.
///
/// 1. What was used before is most likely to be used again, the more often the more: twice or more needs no fill at all, once a
///    sixteenth of the bucket.
/// 2. Of what is new, the beginnings of prefixes come first: an eighth for the first block, more with each doubling of the depth.
/// 3. A full bucket admits everything: bytes that are not spent are lost.
/// 4. What is admitted takes its bytes out at once, so the fill comes to rest where just so much is worthy as accrues.
/// 5. A block comes with its ancestors or not at all.
///
/// Steps are from a replay of a chat trace (`docs/decisions/0014`): of its blocks 24 % are used again; 42 % of those that were used
/// twice are used a third time, 50 and 58 % after that; of new blocks 28 % of the first four of a prefix, 22 % beyond the twentieth.
fn least_fill(touches: u8, tokens: u64) -> u32 {
    match touches {
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
        /// More uses, less depth and a fuller bucket never turn a yes into a no; a full bucket says yes to all.
        #[test]
        fn what_is_worth_more_is_never_refused_for_less(
            touches in 0u8..8, more in 0u8..8, tokens in any::<u64>(), deeper in any::<u64>(), fill in 0u32..=FULL, fuller in 0u32..=FULL,
        ) {
            for rule in [Admission::All, Admission::SecondTouch, Admission::Budget] {
                if worthy(rule, touches, tokens.max(deeper), fill.min(fuller)) {
                    prop_assert!(worthy(rule, touches.max(more), tokens, fill.max(fuller)));
                }
            }
            prop_assert!(worthy(Admission::Budget, touches, tokens, FULL));
            prop_assert_eq!(worthy(Admission::All, touches, tokens, fill), touches > 0 || fill >= RESERVE);
            prop_assert_eq!(worthy(Admission::SecondTouch, touches, tokens, fill), touches > 0);
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
        for (touches, tokens, fill) in table {
            assert_eq!(least_fill(touches, tokens), fill, "{touches} touches, {tokens} tokens");
            assert!(worthy(Admission::Budget, touches, tokens, fill));
            assert!(fill == 0 || !worthy(Admission::Budget, touches, tokens, fill - 1));
        }
    }
}
