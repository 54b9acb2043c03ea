//! Steps over tier 0 in host memory: each layer is one call.

use crate::{
    error::{self, raise, value},
    lane::{Held, Lane as LaneObject},
};
use kvtide_client::{
    Contract, Lane, Pass, StepSeq,
    cuda::{
        cpu::{Batch, Fold, Page, Vectors},
        reference::Element,
    },
};
use kvtide_wire::status::Status;
use pyo3::prelude::*;
use std::{
    ptr::with_exposed_provenance as at,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// Attention over the pages of a lane's steps, in host memory: `kvtide.PagedAttention`.
#[pyclass(frozen, module = "kvtide")]
pub struct PagedAttention {
    lane: Arc<Held>,
    kv_heads: usize,
    page_tokens: usize,
    head_dim: usize,
    element: Element,
    /// For each plane the maximum tokens that a query sees; 0: all.
    windows: Vec<usize>,
    rows: Mutex<Vec<Row>>,
    /// A layer of the step failed: pages that it was handed are lost to it.
    failed: AtomicBool,
}

/// A sequence of the step.
#[derive(Clone, Copy)]
struct Row {
    seq: u32,
    /// Tokens that attention covers, and the new ones among them.
    tokens: usize,
    new: usize,
    /// Pages that were needed and not read so far, over all planes, and the sum over planes of the share of attention that they
    /// would have had.
    needed: u64,
    omitted: u64,
    share: f64,
}

/// Omissions of a sequence: its number, needed pages, omitted pages, share of attention.
type Omitted = (u32, u64, u64, f64);

/// Reason why a layer failed.
enum Failure {
    Client(kvtide_client::Error),
    State(String),
}

impl From<kvtide_client::Error> for Failure {
    fn from(error: kvtide_client::Error) -> Failure {
        Failure::Client(error)
    }
}

impl PagedAttention {
    fn rows(&self) -> MutexGuard<'_, Vec<Row>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Return the numbers of a token's head in a page.
    fn place(&self, token: usize, head: usize) -> usize {
        (head * self.page_tokens + token) * self.head_dim
    }

    /// Write the new tokens' keys and values into their pages.
    fn append(&self, lane: &mut Lane, plane: u16, rows: &[Row], new: [Vectors; 2]) -> Result<(), Failure> {
        let mut first = 0;
        for row in rows {
            let mut token = 0;
            while token < row.new {
                let position = row.tokens - row.new + token;
                let (index, slot) = (position / self.page_tokens, position % self.page_tokens);
                let count = (self.page_tokens - slot).min(row.new - token);
                let page = lane.page_mut(row.seq, index as u32, plane).ok_or_else(|| {
                    let seq = row.seq;
                    Failure::State(format!("write page {index} of sequence {seq} in plane {plane}: no frame has it; reserve its tokens first"))
                })?;
                for (half, vectors) in page.chunks_exact_mut(page.len() / 2).zip(new) {
                    for (offset, head) in
                        (0..count).flat_map(|offset| (0..self.kv_heads).map(move |head| (offset, head)))
                    {
                        let from = (first + token + offset) * vectors.stride + head * self.head_dim;
                        let to = self.place(slot + offset, head) * size_of::<u16>();
                        let bytes = self.head_dim * size_of::<u16>();
                        // SAFETY: `layer`'s caller: the tensors have a vector of this length for each new token and head.
                        let vector =
                            unsafe { std::slice::from_raw_parts(at::<u16>(vectors.at).add(from).cast(), bytes) };
                        half[to..to + bytes].copy_from_slice(vector);
                    }
                }
                token += count;
            }
            first += row.new;
        }
        Ok(())
    }

    /// Report the last token's queries of each sequence under `approx`.
    fn report_queries(&self, lane: &mut Lane, plane: u16, batch: &Batch, rows: &[Row]) -> Result<(), Failure> {
        for (row, starts) in rows.iter().zip(batch.starts.windows(2)) {
            if lane.contract(row.seq) != Contract::Exact {
                lane.query(row.seq, plane, &queries(batch, starts[1] - 1))?;
            }
        }
        Ok(())
    }

    /// Return the page of each sequence that its queries see.
    fn all(lane: &Lane, plane: u16, batch: &Batch, rows: &[Row]) -> Result<Vec<Page>, Failure> {
        let needed =
            rows.iter().enumerate().flat_map(|(at, row)| batch.needed(at).map(move |block| (at, row.seq, block)));
        needed.map(|(at, seq, block)| Self::page(lane, plane, (at, seq, block))).collect()
    }

    fn page(lane: &Lane, plane: u16, (at, seq, block): (usize, u32, usize)) -> Result<Page, Failure> {
        let page = lane.page(seq, block as u32, plane).ok_or_else(|| {
            Failure::State(format!(
                "read page {block} of sequence {seq} in plane {plane}: no frame has it after its boundary"
            ))
        })?;
        Ok((at, block, page.as_ptr().expose_provenance()))
    }

    /// Attend over the pages of a plane as they become readable. Return the number of passes; 0: all pages were readable at once.
    fn attend(&self, lane: &mut Lane, plane: u16, batch: &Batch, rows: &mut [Row]) -> Result<u32, Failure> {
        let inexact: Vec<bool> = rows.iter().map(|row| lane.contract(row.seq) != Contract::Exact).collect();
        let wants = |row: &Row| lane.wants_mass(row.seq);
        let wanted = rows.iter().map(wants).collect::<Result<Vec<bool>, _>>()?;
        let mut fold = Fold::new(batch, |at| wanted[at]);
        let mut passes = 0;
        loop {
            let pass = lane.boundary(plane)?;
            let pages = match pass {
                Pass::All => Self::all(lane, plane, batch, rows)?,
                Pass::Part { .. } => {
                    passes += 1;
                    let of = |at: u32| (at as usize, rows[at as usize].seq);
                    let ready = lane.ready().iter().map(|ready| (of(ready.position), ready.index as usize));
                    ready
                        .map(|((at, seq), block)| Self::page(lane, plane, (at, seq, block)))
                        .collect::<Result<_, _>>()?
                }
            };
            // SAFETY: the lane's table has the pages, so they are not overwritten before its next boundary.
            unsafe { fold.add(pages) };
            if matches!(pass, Pass::All | Pass::Part { last: true, .. }) {
                break;
            }
        }
        fold.finish(|at| inexact[at]).map_err(|(at, block)| {
            Failure::State(format!(
                "attend over sequence {}: plane {plane} is complete without page {block}",
                rows[at].seq
            ))
        })?;
        for (at, row) in rows.iter_mut().enumerate().filter(|(at, _)| inexact[*at]) {
            if wanted[at] {
                let mut masses = vec![f32::NAN; row.tokens.div_ceil(self.page_tokens)];
                masses[..batch.needed(at).start].fill(0.0); // behind the window
                fold.shares(at).into_iter().for_each(|(block, share)| masses[block] = share as f32);
                if row.new == 1 {
                    lane.sums(row.seq, plane, &fold.sums(at))?;
                }
                lane.mass(row.seq, plane, &masses)?;
            }
            if let Some(found) = lane.omission(row.seq, plane) {
                row.needed += u64::from(found.needed);
                row.omitted += u64::from(found.omitted);
                row.share += f64::from(found.share);
            }
        }
        Ok(passes)
    }
}

/// Return the queries of a token with the scale applied, `[heads][channels]`.
fn queries(batch: &Batch, token: usize) -> Vec<f32> {
    let scale = batch.scale as f32;
    (0..batch.heads).flat_map(|head| batch.query(token, head)).map(|number| number * scale).collect()
}

#[pymethods]
impl PagedAttention {
    /// Create it for the steps of a lane. `shape`: KV heads, channels, and whether numbers are bfloat16. `windows`: for each plane the
    /// maximum tokens that a query sees, 0 for all.
    #[new]
    fn new(lane: &LaneObject, shape: (usize, usize, bool), windows: Vec<usize>) -> PyResult<PagedAttention> {
        let (layout, (kv_heads, head_dim, bf16)) = (lane.layout(), shape);
        let (page_tokens, element) = (layout.page_tokens as usize, if bf16 { Element::Bf16 } else { Element::F16 });
        let bytes = 2 * kv_heads * page_tokens * head_dim * size_of::<u16>();
        if windows.len() != layout.planes.len() {
            return Err(value(format!(
                "{} windows for the {} planes of the space",
                windows.len(),
                layout.planes.len()
            )));
        }
        if let Some(plane) = layout.planes.iter().position(|plane| plane.page_bytes as usize != bytes || bytes == 0) {
            return Err(value(format!(
                "plane {plane} has pages of {} bytes; keys and values of {kv_heads} heads, {page_tokens} tokens and {head_dim} \
                 channels take {bytes}",
                layout.planes[plane].page_bytes
            )));
        }
        Ok(PagedAttention {
            lane: lane.held()?,
            kv_heads,
            page_tokens,
            head_dim,
            element,
            windows,
            rows: Mutex::default(),
            failed: AtomicBool::new(false),
        })
    }

    /// Begin a step over `(sequence, tokens that attention covers, new tokens among them)`.
    fn begin(&self, py: Python<'_>, rows: Vec<(u32, usize, usize)>) -> PyResult<()> {
        if let Some((seq, tokens, new)) = rows.iter().find(|(_, tokens, new)| *new == 0 || new > tokens) {
            return Err(value(format!("sequence {seq}: {new} new tokens of {tokens}; there must be 1 to all")));
        }
        let seqs: Vec<StepSeq> =
            rows.iter().map(|(seq, tokens, _)| StepSeq { seq: *seq, tokens: *tokens as u64 }).collect();
        let mut lane = self.lane.lock()?;
        let lane = &mut *lane;
        py.detach(|| lane.begin(&seqs)).map_err(|e| error::from(&e))?;
        self.failed.store(false, Ordering::Relaxed);
        *self.rows() = rows
            .into_iter()
            .map(|(seq, tokens, new)| Row { seq, tokens, new, needed: 0, omitted: 0, share: 0.0 })
            .collect();
        Ok(())
    }

    /// Write the new tokens' keys and values of a plane, and attend. Tensors are `[tokens, heads, head_dim]`, each given as its address
    /// and the numbers from token to token.
    #[allow(clippy::too_many_arguments)] // Python passes them by position
    fn layer(
        &self,
        py: Python<'_>,
        plane: u16,
        tokens: usize,
        heads: usize,
        scale: f64,
        query: (usize, usize),
        key: (usize, usize),
        value: (usize, usize),
        out: (usize, usize),
    ) -> PyResult<u32> {
        let Some(&window) = self.windows.get(usize::from(plane)) else {
            return Err(raise(Status::Range, &format!("plane {plane}: the space has {} planes", self.windows.len())));
        };
        // In the order of the other calls: the first lock fails if another thread is in a call, and does not wait for it.
        let mut lane = self.lane.lock()?;
        let mut rows = self.rows();
        let vectors = |(at, stride)| Vectors { at, stride };
        let mut starts = vec![0];
        starts.extend(rows.iter().scan(0, |end, row| {
            *end += row.new;
            Some(*end)
        }));
        let batch = Batch {
            query: vectors(query),
            out: vectors(out),
            heads,
            kv_heads: self.kv_heads,
            page_tokens: self.page_tokens,
            head_dim: self.head_dim,
            value_dim: self.head_dim,
            element: self.element,
            lengths: rows.iter().map(|row| row.tokens).collect(),
            starts,
            scale,
            window,
        };
        batch.check(tokens).map_err(crate::error::value)?;
        if self.failed.swap(true, Ordering::Relaxed) {
            return Err(raise(Status::State, "a layer of this step failed after pages were read: end the step"));
        }
        let (lane, rows, new) = (&mut *lane, &mut *rows, [vectors(key), vectors(value)]);
        let done = py.detach(|| {
            self.append(lane, plane, rows, new)?;
            self.report_queries(lane, plane, &batch, rows)?;
            self.attend(lane, plane, &batch, rows)
        });
        self.failed.store(done.is_err(), Ordering::Relaxed);
        done.map_err(|failure| match failure {
            Failure::Client(error) => error::from(&error),
            Failure::State(text) => raise(Status::State, &text),
        })
    }

    /// End the step, complete or not. Return for each sequence under `approx`: its number, the pages needed over all
    /// planes, those that were not read, and the mean share of attention that they would have had, as estimated.
    fn end(&self, py: Python<'_>) -> PyResult<Vec<Omitted>> {
        let mut lane = self.lane.lock()?;
        let lane = &mut *lane;
        py.detach(|| lane.end()).map_err(|e| error::from(&e))?;
        let rows = std::mem::take(&mut *self.rows());
        let planes = self.windows.len() as f64;
        let inexact = rows.into_iter().filter(|row| row.needed > 0);
        Ok(inexact.map(|row| (row.seq, row.needed, row.omitted, row.share / planes)).collect())
    }
}
