//! Configuration of an attention, and the derived tiles, chunks and workspace.

use crate::launch::check;
use crate::reference::{Element, attention::Layout};
use crate::{Error, Result};

/// Maximum tokens of a chosen chunk: a sequence of 16k tokens with 8 KV heads makes 256 units of work, for the 264 blocks that an
/// H200 runs at a time (132 multiprocessors, two blocks each), and a chunk's partial is 1/64 of the bytes that it reads (group 8).
const CHUNK_TOKENS_MAX: u32 = 512;
/// Minimum tokens of a chosen chunk: its partial is then 1/16 of the bytes that it reads (group 8).
const CHUNK_TOKENS_MIN: u32 = 128;
/// Tokens of a chunk for each unit of work that a chunk makes: a sequence of 16k tokens then makes 256.
const CHUNK_TOKENS_EACH: u32 = (16 << 10) / 256;
/// Maximum pages of a chunk: one for each lane of a warp.
const CHUNK_PAGES_MAX: u32 = 32;
/// Rows of a KV head (query tokens × group) beyond which the kernel for many queries is used.
pub const DECODE_ROWS_MAX: u32 = 64;
/// Pages of a chunk that a block computes at a time: one for each warp.
const STREAMS: u32 = 4;
/// Maximum rows of a tile of latent attention.
const LATENT_ROWS_MAX: u32 = 32;
/// Chunks that are combined at once.
const COMBINED: u32 = 16;
/// Maximum tasks and pages of a launch, so that the kernels' 32-bit indices suffice.
const INDEX_MAX: u64 = 1 << 31;
/// Dims of the latent kernel: DeepSeek-V2, V3, R1.
const LATENT: Layout = Layout::Latent { latent: 512, rope: 64 };

/// Configuration of an attention: geometry, and the maxima of a launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Type of queries, keys, values and outputs.
    pub element: Element,
    /// Pages of [`Layout::Heads`] with a head dim of 32, 64, 128 or 256, or of [`Layout::Latent`] with 512 + 64.
    pub layout: Layout,
    /// KV heads; 1 for latent pages.
    pub kv_heads: u32,
    /// Query heads of a KV head: 1 to 16; to 128 for latent pages.
    pub group: u32,
    /// Tokens of a page: a multiple of 16 from 16 to 128.
    pub page_tokens: u32,
    /// Maximum tokens that a query sees; 0: all.
    pub window: u32,
    /// Factor of scores before the softmax; positive.
    pub scale: f32,
    /// Maximum sequences.
    pub seqs: u32,
    /// Maximum query tokens of a sequence: 1 for decode.
    pub q_tokens: u32,
    /// Maximum pages of a sequence.
    pub pages: u32,
    /// Tokens of a chunk; 0: chosen by the heads and the page size ([`Config::chosen_chunk`]). Results of different chunks differ in
    /// rounding.
    pub chunk_tokens: u32,
    /// Allow pages to be computed in passes. Needs workspace for each page's partial result.
    pub passes: bool,
    /// Keep each page's (m, l) for [`super::Mass`]: 8 bytes of workspace for each page, head and query token.
    pub mass: bool,
}

/// Kernels, their bounds, and the layout of the workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Many queries: in the whole path one block processes four row tiles.
    pub prefill: bool,
    pub tile_rows: u32,
    pub tiles: u32,
    pub streams: u32,
    pub chunk_pages: u32,
    pub chunks_max: u32,
    /// Offsets in the workspace, in bytes. Areas that must start as zero come first: queue, tickets, stamps.
    pub queue: u64,
    pub tickets: u64,
    pub stamps: u64,
    pub zeroed: u64,
    pub emitted: u64,
    pub page_ml: u64,
    pub page_o: u64,
    pub chunk_ml: u64,
    pub chunk_o: u64,
    pub bytes: u64,
}

impl Config {
    /// Return the bytes of device memory that an attention of this configuration needs.
    ///
    /// # Errors
    /// The kernels do not support the shape.
    pub fn workspace_bytes(&self) -> Result<u64> {
        Ok(self.plan()?.bytes)
    }

    /// Return the elements of a key, and of a query's head.
    #[must_use]
    pub fn key(&self) -> u32 {
        self.layout.key() as u32
    }

    /// Return the elements of a value, and of an output's head.
    #[must_use]
    pub fn value(&self) -> u32 {
        self.layout.value() as u32
    }

    /// Return the number of query heads.
    #[must_use]
    pub fn heads(&self) -> u32 {
        self.kv_heads * self.group
    }

    /// Return the bytes of a page.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        2 * self.layout.page(self.kv_heads as usize, self.page_tokens as usize) as u64
    }

    /// Return the row tiles of a KV head: the last dimension of the flags `[seqs][kv_heads][tiles]` of emitted rows.
    ///
    /// # Errors
    /// The kernels do not support the shape.
    pub fn tiles(&self) -> Result<u32> {
        Ok(self.plan()?.tiles)
    }

    /// Return the tokens of a chunk that are used for `chunk_tokens` 0: 512, less for few KV heads, so that one sequence of 16k
    /// tokens gives each multiprocessor work.
    ///
    /// The maximum number of sequences and of queries has no influence. Attention set up for more of them, or for one that is
    /// computed in passes, gives the same bits.
    #[must_use]
    pub fn chosen_chunk(&self) -> u32 {
        let parts = if self.latent() { self.group.div_ceil(LATENT_ROWS_MAX) } else { self.kv_heads };
        let most = CHUNK_TOKENS_MAX / self.page_tokens;
        // At least one page for each of a block's streams.
        let least = self.streams().max(CHUNK_TOKENS_MIN.div_ceil(self.page_tokens)).min(most);
        let wanted = parts.saturating_mul(CHUNK_TOKENS_EACH) / self.page_tokens;
        wanted.clamp(least, most) * self.page_tokens
    }

    /// Return the warps of a block that take a chunk's pages in turn. A latent page is computed by all warps.
    fn streams(&self) -> u32 {
        if self.latent() { 1 } else { STREAMS }
    }

    pub(super) fn latent(&self) -> bool {
        matches!(self.layout, Layout::Latent { .. })
    }

    pub(super) fn plan(&self) -> Result<Plan> {
        self.check()?;
        let rows = self.q_tokens * self.group;
        let prefill = !self.latent() && rows > DECODE_ROWS_MAX;
        let tile_rows = match self.layout {
            Layout::Latent { .. } => {
                if rows <= 16 {
                    16
                } else {
                    LATENT_ROWS_MAX
                }
            }
            Layout::Heads { head_dim } => {
                if rows <= 8 || head_dim == 256 {
                    8
                } else {
                    16
                }
            }
        };
        let tiles = rows.div_ceil(tile_rows);
        let (chunk_pages, streams) = if prefill {
            (self.pages, 1) // one chunk: its blocks go through all pages
        } else {
            let tokens = if self.chunk_tokens == 0 { self.chosen_chunk() } else { self.chunk_tokens };
            (tokens / self.page_tokens, self.streams())
        };
        let mut chunks_max = self.pages.div_ceil(chunk_pages);
        if self.window != 0 {
            // Chunks that a window and the queries before it touch, wherever it begins.
            let seen = u64::from(self.window) + u64::from(self.q_tokens);
            let most = seen.div_ceil(u64::from(chunk_pages * self.page_tokens)) + 1;
            chunks_max = u64::from(chunks_max).min(most) as u32;
        }
        let tasks = u64::from(self.seqs) * u64::from(self.kv_heads) * u64::from(tiles);
        let pages = u64::from(self.seqs) * u64::from(self.pages);
        check::within("sequences × KV heads × row tiles", tasks, 1, INDEX_MAX)?;
        check::within("sequences × pages", pages, 1, INDEX_MAX)?;
        let units = tasks.saturating_mul(chunks_max.into());
        check::within("sequences × KV heads × row tiles × chunks", units, 1, INDEX_MAX)?;
        let page_rows = pages * u64::from(self.heads()) * u64::from(self.q_tokens);
        let groups = chunks_max.div_ceil(COMBINED);
        let partials = if chunks_max > 1 { tasks * u64::from(chunks_max + groups) * u64::from(tile_rows) } else { 0 };
        let value = u64::from(self.value());

        let mut end = 0;
        let mut place = |bytes: u64| {
            let at = end;
            end = (end + bytes).next_multiple_of(256);
            at
        };
        let queue = place(4 * 2);
        let tickets = place(4 * tasks * u64::from(groups + 1));
        let stamps = place(if self.passes { 4 * pages } else { 0 });
        let emitted = place(4 * tasks);
        let page_ml = place(if self.passes || self.mass { 8 * page_rows } else { 0 });
        let page_o = place(if self.passes { 4 * page_rows * value } else { 0 });
        let chunk_ml = place(8 * partials);
        let chunk_o = place(4 * partials * value);
        Ok(Plan {
            prefill,
            tile_rows,
            tiles,
            streams,
            chunk_pages,
            chunks_max,
            queue,
            tickets,
            stamps,
            zeroed: emitted,
            emitted,
            page_ml,
            page_o,
            chunk_ml,
            chunk_o,
            bytes: end,
        })
    }

    fn check(&self) -> Result<()> {
        match self.layout {
            Layout::Heads { head_dim } => {
                if ![32, 64, 128, 256].contains(&head_dim) {
                    return unsupported(format!("attention with a head dim of {head_dim}"), "32, 64, 128 or 256");
                }
                if !(1..=16).contains(&self.group) {
                    return unsupported(format!("a group of {} heads", self.group), "1 to 16");
                }
                check::within("KV heads", self.kv_heads.into(), 1, 1024)?;
            }
            layout => {
                if layout != LATENT {
                    return unsupported(format!("attention over {layout:?}"), "512 + 64 latent dims");
                }
                check::within("KV heads of latent pages", self.kv_heads.into(), 1, 1)?;
                check::within("heads of latent pages", self.group.into(), 1, 128)?;
            }
        }
        if !(16..=128).contains(&self.page_tokens) || !self.page_tokens.is_multiple_of(16) {
            return unsupported(format!("pages of {} tokens", self.page_tokens), "a multiple of 16 from 16 to 128");
        }
        if !(self.scale.is_finite() && self.scale > 0.0) {
            return Err(Error::invalid("scale", format!("{} is not positive", self.scale)));
        }
        check::within("sequences", self.seqs.into(), 1, 65535)?;
        check::within("query tokens", self.q_tokens.into(), 1, 1 << 20)?;
        check::within(
            "pages of a sequence",
            self.pages.into(),
            1,
            (i32::MAX as u64 - 127) / u64::from(self.page_tokens),
        )?;
        check::within("window", self.window.into(), 0, i32::MAX as u64)?;
        let (chunk, page) = (u64::from(self.chunk_tokens), u64::from(self.page_tokens));
        if chunk != 0 {
            check::within("tokens of a chunk", chunk, page, page * u64::from(CHUNK_PAGES_MAX))?;
            if !chunk.is_multiple_of(page) {
                return Err(Error::invalid("chunk", format!("{chunk} tokens are not a multiple of a page ({page})")));
            }
        }
        Ok(())
    }
}

fn unsupported(what: String, needs: &str) -> Result<()> {
    Err(Error::Unsupported { what, needs: format!("these kernels take {needs}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECODE: Config = Config {
        element: Element::Bf16,
        layout: Layout::Heads { head_dim: 128 },
        kv_heads: 8,
        group: 4,
        page_tokens: 64,
        window: 0,
        scale: 0.088,
        seqs: 1,
        q_tokens: 1,
        pages: 256,
        chunk_tokens: 0,
        passes: false,
        mass: false,
    };

    #[test]
    fn sixteen_thousand_tokens_fill_the_places_of_an_h200_once() {
        let plan = DECODE.plan().unwrap();
        assert_eq!(plan.chunks_max * DECODE.kv_heads * plan.tiles, 256);
        assert_eq!((plan.tile_rows, plan.chunk_pages, plan.streams), (8, 8, 4));
        // 32 chunks and 2 groups of sixteen, 8 rows, 8 heads: partials are a fiftieth of the 64 MiB that are read.
        assert_eq!(plan.bytes - plan.chunk_o, 4 * 8 * 34 * 8 * 128);
        assert!(DECODE.workspace_bytes().unwrap() * 50 < DECODE.page_bytes() * 256);
    }

    #[test]
    fn few_heads_get_short_chunks_and_more_sequences_change_nothing() {
        let chosen = |kv_heads, page_tokens| Config { kv_heads, page_tokens, ..DECODE }.chosen_chunk();
        assert_eq!([1, 2, 4, 8, 64].map(|heads| chosen(heads, 16)), [128, 128, 256, 512, 512]);
        // Four pages, one for each warp.
        assert_eq!([1, 4, 8].map(|heads| chosen(heads, 64)), [256, 256, 512]);
        assert_eq!([1, 8].map(|heads| chosen(heads, 128)), [512, 512]);
        assert_eq!([1, 8].map(|heads| chosen(heads, 112)), [448, 448]);
        let latent = |group| Config { layout: LATENT, kv_heads: 1, group, ..DECODE }.chosen_chunk();
        assert_eq!([16, 128].map(latent), [128, 256]);
        for other in [Config { seqs: 64, ..DECODE }, Config { q_tokens: 4, passes: true, ..DECODE }] {
            assert_eq!(other.plan().unwrap().chunk_pages, DECODE.plan().unwrap().chunk_pages, "{other:?}");
        }
    }

    #[test]
    fn a_window_needs_few_chunks_however_long_the_sequence() {
        let plan = Config { window: 4096, pages: 1 << 14, ..DECODE }.plan().unwrap();
        assert_eq!(plan.chunks_max, 10);
    }

    #[test]
    fn passes_and_mass_cost_memory_only_when_asked_for() {
        let plain = DECODE.workspace_bytes().unwrap();
        let mass = Config { mass: true, ..DECODE }.workspace_bytes().unwrap();
        let passes = Config { passes: true, ..DECODE }.workspace_bytes().unwrap();
        assert_eq!(mass - plain, 256 * 32 * 8);
        assert_eq!(passes - mass, 256 * 32 * 128 * 4 + 256 * 4);
        let prefill = Config { q_tokens: 512, ..DECODE };
        let with = Config { mass: true, ..prefill }.workspace_bytes().unwrap();
        assert_eq!(with - prefill.workspace_bytes().unwrap(), 256 * 32 * 512 * 8);
    }

    #[test]
    fn what_the_kernels_do_not_take_is_refused_by_name() {
        let refused = |config: Config| config.workspace_bytes().unwrap_err().to_string();
        let said = refused(Config { layout: Layout::Heads { head_dim: 96 }, ..DECODE });
        assert_eq!(said, "attention with a head dim of 96 is not supported: these kernels take 32, 64, 128 or 256");
        assert!(refused(Config { group: 17, ..DECODE }).contains("a group of 17 heads"));
        assert!(refused(Config { page_tokens: 24, ..DECODE }).contains("pages of 24 tokens"));
        assert!(refused(Config { page_tokens: 144, ..DECODE }).contains("pages of 144 tokens"));
        assert!(refused(Config { scale: 0.0, ..DECODE }).contains("scale"));
        assert!(refused(Config { chunk_tokens: 4096, ..DECODE }).contains("tokens of a chunk"));
        assert!(refused(Config { chunk_tokens: 500, ..DECODE }).contains("not a multiple of a page"));
        assert!(
            refused(Config { layout: Layout::Latent { latent: 256, rope: 64 }, kv_heads: 1, ..DECODE })
                .contains("512 + 64")
        );
    }
}
