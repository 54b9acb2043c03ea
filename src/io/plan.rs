//! Which requests carry a transfer out: pages that stand behind one another in the slot move in one, as far as the kernel takes
//! them. Pure.
//!
//! Direct I/O moves whole units of the device between addresses of its liking. Pages that are such units go straight between
//! slot and frame. The others are **staged**: they go through memory of the disk's own, in a range rounded outward to whole
//! units. A read then copies the pages out. A write must not lose what else stands in these units, so it is one of three:
//! the pages cover the range; or the transfer is all that the slot shall hold, and the rest is written as zeros; or the range is
//! **filled** first by reading it.

use super::store::Align;
use kvtide_tiering::api::IoKind;

/// Pages of one vectored request, at most; the kernel takes 1024.
pub(super) const PIECES_MAX: usize = 256;
/// Bytes of one request, at most: what a device needs to be busy, and short enough for others to come in between.
pub(super) const REQUEST_BYTES_MAX: u64 = 4 << 20;

/// Bytes of a page: where they stand in the slot, and where in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// Where it begins in the slot.
    pub at: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Its address: of its frame in host memory, or of what is stored in its stead.
    pub address: usize,
    /// The registered buffer that holds it.
    pub buffer: Option<u16>,
}

/// A request: bytes of the slot that stand behind one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Where it begins in the slot.
    pub at: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The first page that it has a part of.
    pub first: usize,
    /// How many pages it has a part of.
    pub pages: usize,
    /// Through memory of the disk's own.
    pub staged: bool,
    /// It must be read before it is written.
    pub fill: bool,
}

/// What a plan depends on besides the pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// What the kernel asks for.
    pub align: Align,
    /// Bytes of a staged run, at most; a multiple of the unit.
    pub chunk_bytes: u64,
}

impl Rules {
    fn is_straight(&self, span: &Span) -> bool {
        let Align { offset, memory } = self.align;
        span.at.is_multiple_of(offset)
            && span.bytes.is_multiple_of(offset)
            && (span.address as u64).is_multiple_of(memory)
    }

    /// Appends the requests for `spans`, which are ascending and apart.
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
            // Pages whose units touch are one range.
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

/// Whole pages behind one another; one that is larger than a request has one of its own.
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
