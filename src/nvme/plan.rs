//! Plan the requests of a transfer: adjacent pages of a slot go in one request, within the kernel's limits. Pure functions.
//!
//! Direct I/O requires whole units of the device and aligned addresses. Pages that satisfy this are transferred directly between
//! slot and frame. Other pages are **staged**: they go through a buffer of the disk, in a range rounded outward to whole units. A
//! staged read then copies the pages out. A staged write must preserve the other bytes in these units. There are three cases: the
//! pages cover the range; the transfer has all pages that the slot will hold, so the rest is written as zeros; or the range is read
//! first (**filled**).

use super::store::Align;
use kvtide_types::IoKind;

/// Maximum pages per vectored request; the kernel allows 1024.
pub(super) const PIECES_MAX: usize = 256;
/// Maximum bytes per request: enough to keep a device busy, small enough that other requests need not wait long.
pub(super) const REQUEST_BYTES_MAX: u64 = 4 << 20;

/// A page: its range in the slot, and its address in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// Offset in the slot.
    pub at: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Address of its frame in host memory, or of its stored form.
    pub address: usize,
    /// The registered buffer that contains it.
    pub buffer: Option<u16>,
}

/// A request for a contiguous range of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Offset in the slot.
    pub at: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Index of the first page in the range.
    pub first: usize,
    /// Number of pages at least partly in the range.
    pub pages: usize,
    /// Staged: goes through the disk's buffer.
    pub staged: bool,
    /// The range must be read before it is written.
    pub fill: bool,
}

/// Constraints of a plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// Alignment required by the kernel.
    pub align: Align,
    /// Maximum bytes of a staged request; a multiple of the unit.
    pub chunk_bytes: u64,
}

impl Rules {
    fn is_straight(&self, span: &Span) -> bool {
        let Align { offset, memory } = self.align;
        span.at.is_multiple_of(offset)
            && span.bytes.is_multiple_of(offset)
            && (span.address as u64).is_multiple_of(memory)
    }

    /// Append the requests for `spans`, which are ascending and disjoint.
    pub fn plan(&self, kind: IoKind, whole: bool, spans: &[Span], runs: &mut Vec<Run>) {
        let mut first = 0;
        while first < spans.len() {
            let straight = self.is_straight(&spans[first]);
            let same = spans[first..].iter().take_while(|span| self.is_straight(span) == straight).count();
            let group = &spans[first..first + same];
            if straight {
                plan_straight(group, first, runs);
            } else {
                self.plan_staged(kind, whole, group, first, runs);
            }
            first += same;
        }
    }

    fn plan_staged(&self, kind: IoKind, whole: bool, spans: &[Span], base: usize, runs: &mut Vec<Run>) {
        let unit = self.align.offset;
        let mut first = 0;
        while first < spans.len() {
            // Pages in touching units form one range.
            let begin = spans[first].at / unit * unit;
            let (mut end, mut next) = (begin, first);
            while next < spans.len() && (next == first || spans[next].at / unit * unit <= end) {
                end = (spans[next].at + spans[next].bytes).next_multiple_of(unit);
                next += 1;
            }
            let mut at = begin;
            while at < end {
                let bytes = (end - at).min(self.chunk_bytes);
                let within = |span: &Span| span.at < at + bytes && span.at + span.bytes > at;
                let skipped = spans[first..next].iter().take_while(|span| !within(span)).count();
                let here = spans[first + skipped..next].iter().take_while(|span| within(span));
                let (pages, covered) = here.fold((0, 0), |(pages, covered), span| {
                    let overlap = (span.at + span.bytes).min(at + bytes) - span.at.max(at);
                    (pages + 1, covered + overlap)
                });
                let fill = kind == IoKind::Write && !whole && covered < bytes;
                runs.push(Run { at, bytes, first: base + first + skipped, pages, staged: true, fill });
                at += bytes;
            }
            first = next;
        }
    }
}

/// Plan unstaged pages; adjacent ones share a request. A page larger than a request gets its own.
fn plan_straight(spans: &[Span], base: usize, runs: &mut Vec<Run>) {
    let mut open: Option<Run> = None;
    for (index, span) in spans.iter().enumerate() {
        match &mut open {
            Some(run)
                if run.at + run.bytes == span.at
                    && run.pages < PIECES_MAX
                    && run.bytes + span.bytes <= REQUEST_BYTES_MAX =>
            {
                run.bytes += span.bytes;
                run.pages += 1;
            }
            _ => {
                let run =
                    Run { at: span.at, bytes: span.bytes, first: base + index, pages: 1, staged: false, fill: false };
                runs.extend(open.replace(run));
            }
        }
    }
    runs.extend(open);
}
