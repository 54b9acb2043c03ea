//! The digests of keys that a lane builds while pages are in its table.

use super::{
    Pass, Sketched,
    attention::{page_of, pages_of},
};
use crate::agent::{
    attention::Known,
    protocol::{Geometry, step::Reader},
    session::Session,
};
use kvtide_wire::geometry::PlaneKind;

pub(super) fn has_keys(geometry: &Geometry, plane: u16) -> bool {
    geometry.planes().get(usize::from(plane)).is_some_and(|spec| spec.kind != PlaneKind::State)
}

/// Whether the open step's pages owe digests. The digests themselves are the session's.
#[derive(Default)]
pub(super) struct OwedDigests {
    /// True if a sequence of the open step has pages that owe digests.
    owing: bool,
    /// Kept between boundaries to reuse its memory.
    pages: Vec<Known>,
}

impl OwedDigests {
    /// Prepare for a step that has begun.
    pub fn begin(&mut self, session: &Session, reader: &Reader) {
        let seqs = session.shared.seqs();
        let blocks = |seq| (0..seqs.len(seq)).filter_map(move |index| seqs.block(seq, index));
        self.owing = session.attention.owing(reader.members().flat_map(blocks));
    }

    /// Build owed digests of pages that a boundary hands out. A step that does not fit into tier 0 has these pages only for this
    /// pass.
    pub fn build(&mut self, session: &Session, reader: &Reader, sketched: &mut Sketched, plane: u16, pass: Pass) {
        if !self.owing {
            return;
        }
        let page_tokens = u64::from(session.shared.geometry().bounds().page_tokens);
        let seqs = session.shared.seqs();
        let mut pages = std::mem::take(&mut self.pages);
        pages.clear();
        let mut handed = |seq: u32, index: u32| {
            let sealed = u64::from(index) < seqs.committed(seq) / page_tokens;
            let page = page_of(session, seq, index, plane).filter(|_| sealed);
            pages.extend(page.map(Known::Sealed));
        };
        match pass {
            Pass::Part { .. } => reader.ready().iter().for_each(|ready| {
                reader.member(ready.position).inspect(|step| handed(step.seq, ready.index));
            }),
            Pass::All => (0..reader.members().len() as u32).filter_map(|at| reader.member(at)).for_each(|step| {
                pages_of(session, step, plane).0.for_each(|index| handed(step.seq, index));
            }),
        }
        if let Some(digests) = session.attention.digests() {
            pages.retain(|known| matches!(known, Known::Sealed(page) if digests.owes(*page)));
        }
        self.build_readable(session, reader, sketched, &pages);
        self.pages = pages;
    }

    /// Build digests before the step ends: owed ones of all pages in the lane's table, needed for boundaries that its stream waited
    /// for, where the host found no page readable; and those of the pages that the step filled.
    pub fn end(&mut self, session: &Session, reader: &Reader, sketched: &mut Sketched) {
        if self.owing && session.attention.owes() {
            let planes = session.shared.geometry().plane_count() as u16;
            (0..planes).for_each(|plane| self.build(session, reader, sketched, plane, Pass::All));
        }
        build_filled(session, reader, sketched);
    }

    /// Build missing digests of sealed pages that are readable. Such pages came with an attached prefix.
    pub fn build_readable(&mut self, session: &Session, reader: &Reader, sketched: &mut Sketched, pages: &[Known]) {
        let planes = session.shared.geometry().plane_count();
        let lacking = {
            let Some(digests) = session.attention.digests() else { return };
            let lacks = |known: &Known| matches!(known, Known::Sealed(page) if !digests.has(*page));
            pages.iter().any(lacks)
        };
        let sealed = pages.iter().filter_map(|known| if let Known::Sealed(page) = known { Some(*page) } else { None });
        if lacking && !session.tier0.is_host() {
            self.owing |= !sketched.build(session, reader, sealed, false);
            return;
        }
        let Some(mut digests) = session.attention.digests_mut().filter(|_| lacking) else { return };
        for page in sealed {
            if !digests.has(page)
                && let Some(bytes) = readable(session, reader, page / planes, (page % planes) as u16)
            {
                digests.build(page, bytes);
            }
        }
    }
}

/// Return the bytes of a page in the lane's table.
fn readable<'a>(session: &Session, reader: &'a Reader, block: u32, plane: u16) -> Option<&'a [u8]> {
    if !session.tier0.is_host() {
        return None;
    }
    let (at, bytes) = session.tier0.frame(reader.view().frame(block, plane)?)?;
    // SAFETY: the lane is in a step and its table contains the page in this frame of tier 0, so it is initialised and not
    // overwritten before this lane's next boundary or end (protocol rule 5), which need `&mut Reader`. The engine writes unsealed
    // pages only through `Lane::page_mut`, which needs the lane too.
    Some(unsafe { std::slice::from_raw_parts(at, bytes) })
}

/// Build digests of the pages that the step filled. A page filled again before its commit gets new digests; a page that is no
/// longer full loses them.
fn build_filled(session: &Session, reader: &Reader, sketched: &mut Sketched) {
    if !session.attention.keeps_digests() {
        return;
    }
    let geometry = session.shared.geometry();
    let page_tokens = u64::from(geometry.bounds().page_tokens);
    let mut filled = Vec::new();
    for position in 0..reader.members().len() as u32 {
        let Some(step) = reader.member(position) else { continue };
        let sealed = session.shared.seqs().committed(step.seq) / page_tokens;
        let full = step.tokens / page_tokens;
        for index in sealed..step.tokens.div_ceil(page_tokens) {
            let Some(block) = session.shared.seqs().block(step.seq, index as u32) else { continue };
            if index < full && session.tier0.is_host() {
                build_block(session, reader, block);
            } else if index < full {
                let planes = (0..geometry.plane_count() as u16).filter(|plane| has_keys(geometry, *plane));
                filled.extend(planes.filter_map(|plane| geometry.page(block, plane)));
            } else {
                session.attention.unfilled(block);
            }
        }
    }
    if !filled.is_empty() {
        sketched.build(session, reader, filled.into_iter(), true);
    }
}

fn build_block(session: &Session, reader: &Reader, block: u32) {
    let geometry = session.shared.geometry();
    let Some(mut digests) = session.attention.digests_mut() else { return };
    for plane in (0..geometry.plane_count() as u16).filter(|plane| has_keys(geometry, *plane)) {
        if let (Some(page), Some(bytes)) = (geometry.page(block, plane), readable(session, reader, block, plane)) {
            digests.build(page, bytes);
        }
    }
}
