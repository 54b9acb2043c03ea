//! Digests, bounds and choices. The wire crate defines the layout and the guarantees of digests.

use super::Element;
use super::boundary::Batch;
use kvtide_wire::digest;

/// Return the digest of a head's keys, `channels` bits each, token after token.
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

/// Return upper bounds of the product of `query` (of one head) with a page's keys, for every column of a sequence, in real
/// arithmetic: +∞ without a finite bound, −∞ outside the sequence. `sealed` tokens have digests.
///
/// # Errors
/// The wire's: the length of the query is not that of a head.
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

/// Pages that must be read, and the budget.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// Maximum pages.
    pub budget: usize,
    /// Number of first pages that must be read.
    pub keep_first: usize,
    /// Number of last pages that must be read.
    pub keep_last: usize,
}

/// Return the estimates of one sequence: exp(bound − the head's largest finite bound), summed over the bounds of `heads`.
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

/// Return the pages with the largest estimates, in index order, and the share of the finite estimates outside them (1 if a page
/// without a finite bound is left out). Ties go to the first page.
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
