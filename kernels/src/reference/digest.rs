//! Digests, bounds and choices. How a digest lies and what it promises is the wire's.

use super::Element;
use super::boundary::Batch;
use kvtide_wire::digest;

/// The digest of a head's keys, `channels` bits each, token after token.
///
/// # Errors
/// The wire's: the sizes do not fit.
pub fn build(element: Element, keys: &[u16], channels: usize) -> Result<Vec<u8>, kvtide_wire::error::Error> {
    let keys: Vec<f32> = keys.iter().map(|&bits| element.to_f32(bits)).collect();
    let mut bytes = vec![0; digest::bytes(channels)];
    digest::build(&keys, channels, &mut bytes)?;
    Ok(bytes)
}

/// The digests of a plane.
#[derive(Clone, Copy, Debug)]
pub struct Digests<'a> {
    /// `[blocks][kv_heads][4 × channels + 4]`.
    pub bytes: &'a [u8],
    /// KV heads.
    pub kv_heads: usize,
    /// Channels.
    pub channels: usize,
}

impl<'a> Digests<'a> {
    fn of(&self, block: i32, kv_head: usize) -> Option<&'a [u8]> {
        let size = digest::bytes(self.channels);
        let at = (usize::try_from(block).ok()? * self.kv_heads + kv_head) * size;
        self.bytes.get(at..at + size)
    }
}

/// What no product of `query` (one head's) with a page's keys exceeds, for every column of a sequence, in real arithmetic: +∞ where
/// nothing is known, −∞ outside of the sequence. `sealed` tokens have digests.
///
/// # Errors
/// The wire's: the query is as long as no head.
pub fn bounds(
    digests: &Digests<'_>,
    kv_head: usize,
    query: &[f32],
    batch: &Batch<'_>,
    seq: usize,
    page_tokens: usize,
    sealed: usize,
) -> Result<Vec<f64>, kvtide_wire::error::Error> {
    let mut bounds = vec![f64::NEG_INFINITY; batch.max_blocks];
    for index in batch.pages(seq, page_tokens) {
        let block = batch.block_ids[seq * batch.max_blocks + index];
        let known = (index + 1) * page_tokens <= sealed;
        bounds[index] = match digests.of(block, kv_head).filter(|_| known) {
            Some(bytes) => f64::from(digest::bound(query, bytes)?),
            None => f64::INFINITY,
        };
    }
    Ok(bounds)
}

/// What is to be read whatever its estimate, and how much may be.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// Most pages.
    pub budget: usize,
    /// Pages from the first.
    pub keep_first: usize,
    /// Pages from the last.
    pub keep_last: usize,
}

/// Estimates of one sequence: exp(bound − the head's largest finite bound), summed over `heads`' bounds.
#[must_use]
pub fn estimates(heads: &[&[f64]], choice: Choice) -> Vec<f64> {
    let columns = heads.first().map_or(0, |bounds| bounds.len());
    let inside: Vec<usize> = (0..columns).filter(|&i| heads[0][i] > f64::NEG_INFINITY).collect();
    let mut estimates = vec![f64::NEG_INFINITY; columns];
    for (rank, &i) in inside.iter().enumerate() {
        let kept = rank < choice.keep_first || rank + choice.keep_last >= inside.len();
        estimates[i] = if kept { f64::INFINITY } else { heads.iter().map(|bounds| share(bounds, i)).sum() };
    }
    estimates
}

fn share(bounds: &[f64], i: usize) -> f64 {
    let peak = bounds.iter().copied().filter(|b| b.is_finite()).fold(f64::NEG_INFINITY, f64::max);
    if bounds[i].is_finite() { (bounds[i] - peak).exp() } else { f64::INFINITY }
}

/// The pages with the largest estimates, in index order, and the share of the finite estimates that they leave out (1 if a page
/// of which nothing is known is left out). Of equal ones the first.
#[must_use]
pub fn choose(estimates: &[f64], budget: usize) -> (Vec<usize>, f64) {
    let mut order: Vec<usize> = (0..estimates.len()).filter(|&i| estimates[i] > f64::NEG_INFINITY).collect();
    order.sort_by(|&a, &b| estimates[b].total_cmp(&estimates[a]).then(a.cmp(&b)));
    let all: f64 = order.iter().map(|&i| estimates[i]).filter(|e| e.is_finite()).sum();
    let left: f64 = order.iter().skip(budget).map(|&i| estimates[i]).sum();
    order.truncate(budget);
    order.sort_unstable();
    let omitted = if left == 0.0 {
        0.0
    } else if left < all {
        left / all
    } else {
        1.0
    };
    (order, omitted)
}
