//! Attention over pages that come in any order, at once or in passes.
//!
//! A row folds its pages in index order, whatever the order in which they come. A page that comes too early is kept until those before
//! it have come: its partial result or a copy of the page, whichever is smaller. So what is kept never exceeds the pages themselves.

use super::batch::{Batch, Unit};
use super::{Partials, Room, Rows, threads};
use std::collections::BTreeMap;

/// Query rows of a unit at most, unless one token has more.
const ROWS_MAX: usize = 128;
/// Pages computed at once if there are fewer units than threads. Their partial results are kept until they are folded.
const PAGES_AT_ONCE: usize = 64;

/// A page of the batch: position of the sequence, block index, address.
pub type Page = (usize, usize, usize);

/// Contribution of a page to a unit's rows: block index, largest scores, sums of weights.
type Seen = (usize, Vec<f32>, Vec<f32>);

/// State of a page that the queries of a sequence see.
#[derive(Debug)]
enum Slot {
    Missing,
    /// Readable at this address during the current pass.
    At(usize),
    Copy(Box<[u16]>),
    /// Of each unit of the sequence.
    Partials(Vec<Partials>),
}

/// Some query rows, and the sum over the pages folded so far.
#[derive(Debug)]
struct Part {
    unit: Unit,
    rows: Rows,
    sum: Partials,
    /// Contributions of single pages, if requested.
    seen: Vec<Seen>,
}

#[derive(Debug)]
struct Seq {
    parts: Vec<Part>,
    /// Index of the first page that the queries see. `slots` are the pages from there on.
    first: usize,
    slots: Vec<Slot>,
    /// Number of slots that are folded.
    folded: usize,
    /// True if contributions of single pages are recorded.
    records: bool,
}

/// Attention of a batch, in progress.
#[derive(Debug)]
pub struct Fold<'a> {
    batch: &'a Batch,
    seqs: Vec<Seq>,
}

impl<'a> Fold<'a> {
    /// Begin. `records`: whether the contributions of a sequence's pages are recorded, for [`Fold::shares`].
    #[must_use]
    pub fn new(batch: &'a Batch, records: impl Fn(usize) -> bool) -> Fold<'a> {
        let units: Vec<Unit> = (0..batch.seqs()).flat_map(|seq| units(batch, seq)).collect();
        let queries = batch.starts.last().unwrap_or(&0) * batch.heads;
        let parts = threads::map(units, queries * batch.head_dim, |_, unit| {
            let rows = batch.rows(&unit);
            let sum = Partials::new(rows.len(), batch.value_dim);
            Part { unit, rows, sum, seen: Vec::new() }
        });
        let mut seqs: Vec<Seq> = (0..batch.seqs())
            .map(|seq| {
                let needed = batch.needed(seq);
                let slots = needed.clone().map(|_| Slot::Missing).collect();
                Seq { parts: Vec::new(), first: needed.start, slots, folded: 0, records: records(seq) }
            })
            .collect();
        for part in parts {
            seqs[part.unit.seq].parts.push(part);
        }
        Fold { batch, seqs }
    }

    /// Add pages that are readable until this returns.
    ///
    /// # Safety
    /// A page of the batch's shape is at each address, and no thread writes to it during the call.
    pub unsafe fn add(&mut self, pages: impl IntoIterator<Item = Page>) {
        for (seq, block, address) in pages {
            let seq = &mut self.seqs[seq];
            let slot = block.checked_sub(seq.first).filter(|at| *at >= seq.folded);
            if let Some(slot) = slot.and_then(|at| seq.slots.get_mut(at)) {
                *slot = Slot::At(address);
            }
        }
        // SAFETY: the caller's contract.
        unsafe {
            self.fold(|seq| {
                let run = seq.slots[seq.folded..].iter().take_while(|slot| !matches!(slot, Slot::Missing));
                seq.folded + run.count()
            });
            self.keep();
        }
    }

    /// Fold the pages that are left and write the results. `may_miss`: whether pages of a sequence may be missing.
    ///
    /// # Errors
    /// The first page that must not be missing, and is: sequence, block index.
    pub fn finish(&mut self, may_miss: impl Fn(usize) -> bool) -> Result<(), (usize, usize)> {
        for (index, seq) in self.seqs.iter().enumerate().filter(|(index, _)| !may_miss(*index)) {
            if let Some(slot) = seq.slots[seq.folded..].iter().position(|slot| matches!(slot, Slot::Missing)) {
                return Err((index, seq.first + seq.folded + slot));
            }
        }
        // SAFETY: `add` has left no addresses.
        unsafe { self.fold(|seq| seq.slots.len()) };
        let batch = self.batch;
        let parts: Vec<&Part> = self.seqs.iter().flat_map(|seq| &seq.parts).collect();
        let rows: usize = parts.iter().map(|part| part.rows.len()).sum();
        threads::map(parts, batch.multiplications(rows), |_, part| {
            for row in 0..part.rows.len() {
                batch.write(&part.unit, row, part.sum.l[row], part.sum.o(row));
            }
        });
        Ok(())
    }

    /// Return the share of each page that was read, the mean over a sequence's queries and heads. The shares of a row add up to 1.
    #[must_use]
    pub fn shares(&self, seq: usize) -> BTreeMap<usize, f64> {
        let rows = (self.batch.queries(seq) * self.batch.heads) as f64;
        let mut all = BTreeMap::new();
        for Part { sum, seen, .. } in &self.seqs[seq].parts {
            for (block, m, l) in seen {
                let rows = m.iter().zip(l).zip(sum.m.iter().zip(&sum.l));
                let shares = rows.filter(|((_, l), _)| **l > 0.0).map(|((m, l), (all_m, all_l))| {
                    (f64::from(*m) - f64::from(*all_m)).exp() * f64::from(*l) / f64::from(*all_l)
                });
                *all.entry(*block).or_default() += shares.sum::<f64>();
            }
        }
        all.values_mut().for_each(|share| *share /= rows);
        all
    }

    /// Return, for each query head of a sequence with one query, the logarithm of the sum of exponentials of its scores.
    #[must_use]
    pub fn sums(&self, seq: usize) -> Vec<f32> {
        let mut sums = vec![0.0; self.batch.heads];
        for Part { unit, sum, .. } in &self.seqs[seq].parts {
            let heads = &mut sums[unit.head * self.batch.group()..];
            for ((to, m), l) in heads.iter_mut().zip(&sum.m).zip(&sum.l) {
                *to = m + l.ln();
            }
        }
        sums
    }

    /// Fold the slots of each sequence up to the one that `end` returns, without the missing ones.
    ///
    /// # Safety
    /// Pages are readable at the slots' addresses.
    unsafe fn fold(&mut self, end: impl Fn(&Seq) -> usize) {
        let batch = self.batch;
        let mut tasks = Vec::new();
        let mut pairs = 0;
        for seq in &mut self.seqs {
            let run = seq.folded..end(seq);
            let first = seq.first + run.start;
            let slots = &seq.slots[run.clone()];
            seq.folded = run.end;
            for (index, part) in seq.parts.iter_mut().enumerate().filter(|_| !run.is_empty()) {
                pairs += part.rows.len() * slots.len();
                tasks.push(Task { batch, index, part, first, slots, records: seq.records });
            }
        }
        if tasks.len() >= threads::threads() {
            // SAFETY: the caller's contract.
            threads::map(tasks, batch.multiplications(pairs), |room, mut task| unsafe { task.fold(room) });
        } else {
            for mut task in tasks {
                // SAFETY: the caller's contract.
                unsafe { task.fold_by_pages() };
            }
        }
        for seq in &mut self.seqs {
            let folded = seq.folded;
            for slot in &mut seq.slots[..folded] {
                *slot = Slot::Missing; // frees what was kept
            }
        }
    }

    /// Replace addresses by partial results or copies.
    ///
    /// # Safety
    /// Pages are readable at the slots' addresses.
    unsafe fn keep(&mut self) {
        let batch = self.batch;
        for seq in &mut self.seqs {
            let rows: usize = seq.parts.iter().map(|part| part.rows.len()).sum();
            let copies = rows * (batch.value_dim + 2) * size_of::<f32>() > batch.page_numbers() * size_of::<u16>();
            let (first, parts, folded) = (seq.first, &seq.parts, seq.folded);
            let early: Vec<(usize, &mut Slot)> = seq.slots.iter_mut().enumerate().skip(folded).collect();
            let early: Vec<_> = early.into_iter().filter(|(_, slot)| matches!(slot, Slot::At(_))).collect();
            let work = batch.multiplications(early.len() * rows);
            threads::map(early, work, |room, (at, slot)| {
                let Slot::At(address) = *slot else { return };
                // SAFETY: the caller's contract.
                *slot = unsafe {
                    if copies {
                        let page = std::ptr::with_exposed_provenance::<u16>(address);
                        Slot::Copy(std::slice::from_raw_parts(page, batch.page_numbers()).into())
                    } else {
                        Slot::Partials(
                            parts.iter().map(|part| partials(batch, part, first + at, address, room)).collect(),
                        )
                    }
                };
            });
        }
    }
}

/// Return the units of a sequence.
fn units(batch: &Batch, seq: usize) -> impl Iterator<Item = Unit> {
    let (queries, heads) = (batch.queries(seq), batch.kv_heads);
    let step = (ROWS_MAX / batch.group()).max(1);
    (0..queries).step_by(step).flat_map(move |first| {
        let tokens = first..queries.min(first + step);
        (0..heads).map(move |head| Unit { seq, head, tokens: tokens.clone() })
    })
}

/// Compute a page's contribution to a part.
///
/// # Safety
/// As for [`Fold::add`].
unsafe fn partials(batch: &Batch, part: &Part, block: usize, address: usize, room: &mut Room) -> Partials {
    let head = batch.head(address, part.unit.head);
    // SAFETY: the caller's contract.
    unsafe { batch.shape().partials(head, block * batch.page_tokens, &part.rows, room) }
}

/// Pages to fold into one part.
struct Task<'a> {
    batch: &'a Batch,
    /// Index of the part in its sequence.
    index: usize,
    part: &'a mut Part,
    /// Block index of the first slot.
    first: usize,
    slots: &'a [Slot],
    records: bool,
}

impl Task<'_> {
    /// Return the address of a slot's page, if there is one.
    fn address(slot: &Slot) -> Option<usize> {
        match slot {
            Slot::At(address) => Some(*address),
            Slot::Copy(page) => Some(page.as_ptr().expose_provenance()),
            Slot::Missing | Slot::Partials(_) => None,
        }
    }

    /// Fold all pages.
    ///
    /// # Safety
    /// Pages are readable at the slots' addresses.
    unsafe fn fold(&mut self, room: &mut Room) {
        let (batch, shape) = (self.batch, self.batch.shape());
        let mut block = self.first;
        for run in self.slots.chunk_by(|a, b| Self::address(a).is_some() && Self::address(b).is_some()) {
            match &run[0] {
                Slot::Missing => {}
                Slot::Partials(kept) => self.add(block, &kept[self.index]),
                _ if self.records => {
                    for (at, address) in run.iter().filter_map(Self::address).enumerate() {
                        // SAFETY: the caller's contract.
                        let page = unsafe { partials(batch, self.part, block + at, address, room) };
                        self.add(block + at, &page);
                    }
                }
                _ => {
                    let head = self.part.unit.head;
                    let pages = run.iter().filter_map(Self::address).enumerate();
                    let pages = pages.map(|(at, address)| (block + at, batch.head(address, head)));
                    // SAFETY: the caller's contract.
                    unsafe { shape.add(pages, &self.part.rows, room, &mut self.part.sum) };
                }
            }
            block += run.len();
        }
    }

    /// Fold all pages, with several threads.
    ///
    /// # Safety
    /// Pages are readable at the slots' addresses.
    unsafe fn fold_by_pages(&mut self) {
        let batch = self.batch;
        for (at, some) in self.slots.chunks(PAGES_AT_ONCE).enumerate() {
            let first = self.first + at * PAGES_AT_ONCE;
            let (part, work) = (&*self.part, batch.multiplications(some.len() * self.part.rows.len()));
            let computed = threads::map(some.iter().enumerate().collect(), work, |room, (at, slot)| {
                // SAFETY: the caller's contract.
                Self::address(slot).map(|address| unsafe { partials(batch, part, first + at, address, room) })
            });
            for (at, (slot, computed)) in some.iter().zip(&computed).enumerate() {
                match (slot, computed) {
                    (Slot::Partials(kept), _) => self.add(first + at, &kept[self.index]),
                    (_, Some(page)) => self.add(first + at, page),
                    (_, None) => {}
                }
            }
        }
    }

    /// Add a page's contribution.
    fn add(&mut self, block: usize, page: &Partials) {
        self.part.sum.fold(self.batch.shape().unit, page);
        if self.records {
            self.part.seen.push((block, page.m.clone(), page.l.clone()));
        }
    }
}
