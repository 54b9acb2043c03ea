//! Estimates of the shipped sketches for a trace's queries: each page's share of a plane's attention, as reported by an agent.

use super::super::ReplayError;
use super::super::progress::Progress;
use super::super::trace::Attention;
use kvtide_wire::digest::sketch;

/// Estimated shares of every page at every step and plane.
pub(super) struct Estimates {
    /// Bytes of a page's digests.
    pub(super) digest_bytes: usize,
    planes: usize,
    pages: usize,
    /// From the step's own query, and from the look-ahead query.
    shares: [Vec<f32>; 2],
}

impl Estimates {
    /// Return each page's share at a step, in the order of pages. `ahead`: from the look-ahead query, which plane 0 does not have.
    pub(super) fn at(&self, step: usize, plane: usize, ahead: bool, pages: usize) -> &[f32] {
        let first = (step * self.planes + plane) * self.pages;
        &self.shares[usize::from(ahead)][first..first + pages]
    }

    /// Compute the estimates for all queries of a trace.
    pub(super) fn new(trace: &Attention, page_bytes: u32) -> Result<Estimates, ReplayError> {
        let mut book = Book::new(trace, page_bytes)?;
        let size = trace.steps * trace.planes * trace.pages;
        let (planes, pages) = (trace.planes, trace.pages);
        let digest_bytes = book.stride * trace.kv_heads;
        let mut estimates = Estimates { digest_bytes, planes, pages, shares: [vec![0.0; size], vec![0.0; size]] };
        let mut progress = Progress::new("digests", trace.steps as u64);
        for step in 0..trace.steps {
            progress.at(step as u64);
            for plane in 0..trace.planes {
                for ahead in [false, true] {
                    if ahead && plane == 0 {
                        continue;
                    }
                    let first = (step * planes + plane) * pages;
                    let shares = &mut estimates.shares[usize::from(ahead)][first..first + trace.pages_at(step)];
                    book.shares(trace, step, plane, ahead, shares)?;
                }
            }
        }
        Ok(estimates)
    }
}

/// The digests of a trace's pages.
struct Book {
    /// Bytes of one digest.
    stride: usize,
    /// By plane, page, KV head; whole pages only.
    bytes: Vec<u8>,
    queries: Vec<f32>,
    sums: Vec<f32>,
    rows: Vec<f32>,
    keys: Vec<f32>,
}

fn refused(error: kvtide_wire::Error) -> ReplayError {
    ReplayError::Odd(format!("digests of this trace: {error}"))
}

impl Book {
    fn new(trace: &Attention, page_bytes: u32) -> Result<Book, ReplayError> {
        let (channels, tokens) = (trace.head_dim, trace.page_tokens);
        let token_bytes = page_bytes as usize / (trace.kv_heads * tokens);
        let groups = sketch::groups(channels, tokens, token_bytes);
        if groups == 0 {
            let expected = "pages of which 5 % hold a digest".into();
            return Err(ReplayError::Setting { what: "the page size", value: page_bytes.to_string(), expected });
        }
        let stride = sketch::bytes(channels, groups);
        let mut scratch = vec![0.0; sketch::scratch(tokens, channels, groups)];
        let mut bytes = vec![0; trace.planes * trace.pages * trace.kv_heads * stride];
        let mut keys = Vec::new();
        let whole = (trace.context_start + trace.steps) / tokens;
        for plane in 0..trace.planes {
            for page in 0..whole.min(trace.pages) {
                for head in 0..trace.kv_heads {
                    trace.keys(plane, head, page, &mut keys);
                    let at = ((plane * trace.pages + page) * trace.kv_heads + head) * stride;
                    let out = &mut bytes[at..at + stride];
                    sketch::build(&keys, channels, &mut scratch, out).map_err(refused)?;
                }
            }
        }
        let (queries, sums, rows) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Book { stride, bytes, queries, sums, rows, keys })
    }

    /// Return each page's share for one step's query: the softmax over pages of each query head, averaged over heads.
    fn shares(
        &mut self,
        trace: &Attention,
        step: usize,
        plane: usize,
        ahead: bool,
        shares: &mut [f32],
    ) -> Result<(), ReplayError> {
        let (pages, channels) = (shares.len(), trace.head_dim);
        let group = trace.q_heads / trace.kv_heads;
        let mut queries = std::mem::take(&mut self.queries);
        trace.queries(step, plane, ahead, &mut queries);
        shares.fill(0.0);
        for head in 0..trace.kv_heads {
            let own = &queries[head * group * channels..(head + 1) * group * channels];
            // By query head of the group, then page.
            self.rows.clear();
            self.rows.resize(group * pages, f32::NEG_INFINITY);
            self.sums.resize(group, 0.0);
            for page in 0..pages {
                if page + 1 == pages && !trace.tokens_at(step).is_multiple_of(trace.page_tokens) {
                    self.tail(trace, (step, plane, head), own);
                } else {
                    self.sealed(trace, (plane, page, head), own)?;
                }
                for (query, sum) in self.sums.iter().enumerate() {
                    self.rows[query * pages + page] = *sum;
                }
            }
            for row in self.rows.chunks_exact(pages) {
                sketch::add_shares(row, 1.0 / trace.q_heads as f32, shares);
            }
        }
        self.queries = queries;
        Ok(())
    }

    /// Return the score of a sealed page from its digest.
    fn sealed(
        &mut self,
        trace: &Attention,
        (plane, page, head): (usize, usize, usize),
        queries: &[f32],
    ) -> Result<(), ReplayError> {
        let at = ((plane * trace.pages + page) * trace.kv_heads + head) * self.stride;
        let digest = &self.bytes[at..at + self.stride];
        sketch::score(queries, trace.head_dim, digest, trace.softmax_scale, &mut self.sums).map_err(refused)
    }

    /// Return the score of the unsealed page from its keys, which the engine has.
    fn tail(&mut self, trace: &Attention, (step, plane, head): (usize, usize, usize), queries: &[f32]) {
        let page = trace.pages_at(step) - 1;
        trace.keys(plane, head, page, &mut self.keys);
        let tokens = trace.tokens_at(step) - page * trace.page_tokens;
        for (sum, query) in self.sums.iter_mut().zip(queries.chunks_exact(trace.head_dim)) {
            let score = |key: &[f32]| trace.softmax_scale * key.iter().zip(query).map(|(k, q)| k * q).sum::<f32>();
            let scores = || self.keys.chunks_exact(trace.head_dim).take(tokens).map(score);
            let most = scores().fold(f32::NEG_INFINITY, f32::max);
            *sum = most + scores().map(|score| (score - most).exp()).sum::<f32>().ln();
        }
    }
}
