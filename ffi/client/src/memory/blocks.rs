//! An engine's own memory: blocks that it numbers itself, each plane of which lies in pieces.

use super::names::{MEMBERS_MAX, Names};
use crate::{Error, Result, agent::protocol::Geometry};
use std::{any::Any, fmt, sync::Arc};

/// What keeps an engine's memory where it is.
pub type Owner = Box<dyn Any + Send>;

/// One piece of a plane's part of every block: `bytes` bytes at `base + block × stride`.
///
/// The bytes of a page are those of its plane's pieces, one after another in the order in which they are given. So K and V may lie
/// apart or together, layers or blocks first, in one tensor or in one a layer.
///
/// An engine whose cache groups number their blocks apart has blocks of several members: a piece lies at `base + id × stride`, the id
/// being that of its member, which [`crate::Client::name_blocks`] gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Plane.
    pub plane: u16,
    /// Which of a block's ids it goes by; 0 where blocks are numbered once.
    pub member: u16,
    /// Address of the piece of block 0.
    pub base: usize,
    /// Bytes from a block's piece to that of the next block.
    pub stride: usize,
    /// Bytes of a piece.
    pub bytes: usize,
}

/// Where an engine's blocks are.
pub struct EngineBlocks {
    count: u32,
    planes: Vec<Vec<Piece>>,
    /// The memory of each plane, if it is ours.
    own: Vec<Box<[u8]>>,
    /// What the numbers of blocks stand for; `None`: themselves.
    names: Option<Arc<Names>>,
    /// Dropped when nothing reads or writes there any more.
    _owner: Option<Owner>,
}

impl fmt::Debug for EngineBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineBlocks").field("count", &self.count).field("planes", &self.planes).finish_non_exhaustive()
    }
}

impl EngineBlocks {
    /// `count` blocks in these pieces, which together are what the pages of `geometry` hold.
    ///
    /// # Errors
    /// [`Error::Options`]: names the plane whose pieces are not its page's bytes, or the piece that does not fit into addresses.
    pub(crate) fn new(geometry: &Geometry, count: u32, pieces: &[Piece]) -> Result<EngineBlocks> {
        let bad = |why: String| Err(Error::Options { option: "blocks", why });
        let mut planes = vec![Vec::new(); geometry.planes().len()];
        for (index, piece) in pieces.iter().enumerate() {
            let Some(plane) = planes.get_mut(usize::from(piece.plane)) else {
                return bad(format!("piece {index} is of plane {} of {}", piece.plane, geometry.planes().len()));
            };
            let last = (count.max(1) as usize - 1).checked_mul(piece.stride);
            let end = last.and_then(|last| last.checked_add(piece.base)?.checked_add(piece.bytes));
            if piece.base == 0 || piece.bytes == 0 || end.is_none_or(|end| end > isize::MAX as usize) {
                return bad(format!("piece {index} of plane {}: {piece:x?} is no memory", piece.plane));
            }
            if count > 1 && piece.stride < piece.bytes {
                let Piece { plane, stride, bytes, .. } = piece;
                return bad(format!("piece {index} of plane {plane}: {bytes} bytes every {stride} bytes overlap"));
            }
            plane.push(*piece);
        }
        let members = pieces.iter().map(|piece| piece.member).max().unwrap_or(0).saturating_add(1);
        if members > MEMBERS_MAX {
            return bad(format!("member {}: blocks have at most {MEMBERS_MAX}", members - 1));
        }
        if let Some(none) = (0..members).find(|member| pieces.iter().all(|piece| piece.member != *member)) {
            return bad(format!("member {none} of {members} has no pieces"));
        }
        for (plane, (spec, pieces)) in geometry.planes().iter().zip(&planes).enumerate() {
            let bytes: usize = pieces.iter().map(|piece| piece.bytes).sum();
            if bytes != spec.page_bytes as usize {
                let (count, page) = (pieces.len(), spec.page_bytes);
                return bad(format!("plane {plane}: {count} pieces of {bytes} bytes, a page has {page}"));
            }
        }
        let names = (members > 1).then(|| Arc::new(Names::new(members, count)));
        Ok(EngineBlocks { count, planes, own: Vec::new(), names, _owner: None })
    }

    /// The same, with what is to live as long as they are shown.
    pub(crate) fn owned(self, owner: Option<Owner>) -> EngineBlocks {
        EngineBlocks { _owner: owner, ..self }
    }

    /// `count` blocks of zeroes in memory that goes with them: one tensor a plane, blocks first.
    ///
    /// # Errors
    /// [`Error::Options`]: the system has no memory for so many.
    pub(crate) fn allocate(geometry: &Geometry, count: u32) -> Result<EngineBlocks> {
        let mut own = Vec::with_capacity(geometry.planes().len());
        let mut pieces = Vec::with_capacity(own.capacity());
        for (plane, spec) in geometry.planes().iter().enumerate() {
            let bytes = spec.page_bytes as usize;
            let all = bytes.checked_mul(count as usize).filter(|all| *all <= isize::MAX as usize);
            let mut memory: Vec<u8> = Vec::new();
            let reserved = all.is_some_and(|all| memory.try_reserve_exact(all).is_ok());
            if !reserved || count == 0 {
                let why = format!("there is no memory for {count} blocks of {bytes} bytes in plane {plane}");
                return Err(Error::Options { option: "blocks", why });
            }
            memory.resize(all.unwrap_or_default(), 0);
            let mut memory = memory.into_boxed_slice();
            let base = memory.as_mut_ptr().expose_provenance();
            pieces.push(Piece { plane: plane as u16, member: 0, base, stride: bytes, bytes });
            own.push(memory);
        }
        Ok(EngineBlocks { own, ..EngineBlocks::new(geometry, count, &pieces)? })
    }

    /// What the numbers of blocks stand for; `None`: themselves.
    pub(crate) fn names(&self) -> Option<&Arc<Names>> {
        self.names.as_ref()
    }

    /// A block's bytes in a plane, of memory that is ours.
    pub(super) fn own(&mut self, block: u32, plane: u16) -> Option<&mut [u8]> {
        let bytes = self.planes.get(usize::from(plane))?.first()?.bytes;
        let at = (block as usize).checked_mul(bytes)?;
        self.own.get_mut(usize::from(plane))?.get_mut(at..at.checked_add(bytes)?)
    }

    /// The pieces of a plane in a block, in order: where each is, and its bytes. `None`: no such block or plane, or a name that stands
    /// for none.
    pub(super) fn pieces(&self, block: u32, plane: u16) -> Option<impl Iterator<Item = (*mut u8, usize)> + Clone> {
        let pieces = self.planes.get(usize::from(plane))?;
        let mut ids = [block; MEMBERS_MAX as usize];
        let known = match &self.names {
            Some(names) => names.ids(block, &mut ids), // each below `count`
            None => block < self.count,
        };
        known.then(|| {
            pieces.iter().map(move |piece| {
                let at = piece.base + ids[usize::from(piece.member)] as usize * piece.stride;
                (std::ptr::with_exposed_provenance_mut(at), piece.bytes)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::protocol::geometry::Bounds;
    use kvtide_wire::geometry::{PlaneKind, PlaneSpec};
    use proptest::prelude::*;

    fn geometry() -> Geometry {
        let bounds = Bounds {
            page_tokens: 4,
            blocks_max: 8,
            seqs_max: 2,
            seq_blocks_max: 8,
            lanes: 1,
            jobs_max: 4,
            log_entries: 64,
            pins_max: 4,
        };
        let full = |page_bytes| PlaneSpec { page_bytes, kind: PlaneKind::Full as u16, reserved: 0, window_tokens: 0 };
        let planes = [full(96), full(32)];
        Geometry::new(&planes, &[0, 0], bounds).unwrap()
    }

    #[test]
    fn pieces_make_up_a_page_in_their_order() {
        let piece = |plane, base, stride, bytes| Piece { plane, member: 0, base, stride, bytes };
        let pieces = [piece(0, 1000, 64, 64), piece(1, 5000, 100, 32), piece(0, 9000, 40, 32)];
        let blocks = EngineBlocks::new(&geometry(), 4, &pieces).unwrap();
        let of = |block, plane| -> Option<Vec<_>> {
            Some(blocks.pieces(block, plane)?.map(|(at, bytes)| (at.addr(), bytes)).collect())
        };
        assert_eq!(of(0, 0), Some(vec![(1000, 64), (9000, 32)]));
        assert_eq!(of(3, 0), Some(vec![(1192, 64), (9120, 32)]));
        assert_eq!(of(3, 1), Some(vec![(5300, 32)]));
        assert_eq!((of(4, 0), of(0, 2)), (None, None));
    }

    #[test]
    fn what_does_not_add_up_is_named() {
        let piece = |plane, stride, bytes| Piece { plane, member: 0, base: 4096, stride, bytes };
        let why = |pieces: &[Piece]| EngineBlocks::new(&geometry(), 4, pieces).unwrap_err().to_string();
        let good = [piece(0, 96, 96), piece(1, 32, 32)];
        assert!(EngineBlocks::new(&geometry(), 4, &good).is_ok());
        assert!(why(&good[..1]).contains("plane 1: 0 pieces of 0 bytes, a page has 32"));
        assert!(why(&[piece(0, 96, 95), good[1]]).contains("plane 0: 1 pieces of 95 bytes, a page has 96"));
        assert!(why(&[piece(0, 95, 96), good[1]]).contains("overlap"));
        assert!(why(&[piece(2, 96, 96), good[1]]).contains("piece 0 is of plane 2 of 2"));
        assert!(why(&[Piece { base: 0, ..good[0] }, good[1]]).contains("no memory"));
        assert!(why(&[Piece { base: usize::MAX, ..good[0] }, good[1]]).contains("no memory"));
    }
    #[test]
    fn members_go_by_their_own_ids() {
        let piece = |plane, member, base, stride, bytes| Piece { plane, member, base, stride, bytes };
        let pieces = [piece(0, 1, 1000, 64, 64), piece(0, 0, 9000, 40, 32), piece(1, 2, 5000, 100, 32)];
        let blocks = EngineBlocks::new(&geometry(), 4, &pieces).unwrap();
        let of =
            |block, plane| -> Option<Vec<_>> { Some(blocks.pieces(block, plane)?.map(|(at, _)| at.addr()).collect()) };
        assert_eq!((of(0, 0), of(700, 1)), (None, None), "nothing is named yet");
        blocks.names().unwrap().set(700, &[3, 1, 0]).unwrap();
        assert_eq!((of(700, 0), of(700, 1), of(699, 1)), (Some(vec![1064, 9120]), Some(vec![5000]), None));
        let why = |pieces: &[Piece]| EngineBlocks::new(&geometry(), 4, pieces).unwrap_err().to_string();
        assert!(why(&[Piece { member: 3, ..pieces[0] }, pieces[1], pieces[2]]).contains("member 1 of 4 has no pieces"));
        assert!(why(&[Piece { member: u16::MAX, ..pieces[0] }, pieces[1], pieces[2]]).contains("at most 64"));
    }

    proptest! {
        /// What is gathered through names is what a plain model of the engine's memory holds, and scattering through others puts it there.
        #[test]
        fn copies_through_names_are_those_of_a_plain_model(
            from in prop::collection::vec([0u32..6, 0..6], 1..6),
            to in [0u32..6, 0..6],
            at in 0usize..5,
            split in 1usize..95,
        ) {
            // Plane 0 in two members' tensors, one of them blocks last; plane 1 in the second member's.
            let mut tensors = [vec![0u8; 6 * 96], vec![0u8; 6 * 96], vec![0u8; 6 * 40]];
            for (tensor, bytes) in tensors.iter_mut().enumerate() {
                bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 7 + tensor * 91 + i / 250) as u8);
            }
            let base = tensors.each_mut().map(|tensor| tensor.as_mut_ptr().expose_provenance());
            let piece = |plane, member, base, stride, bytes| Piece { plane, member, base, stride, bytes };
            let pieces = [piece(0, 1, base[1], 96, split), piece(1, 1, base[2], 40, 32), piece(0, 0, base[0], 96, 96 - split)];
            let model = tensors.clone();
            let blocks = EngineBlocks::new(&geometry(), 6, &pieces).unwrap();
            let names = blocks.names().unwrap();
            names.set(10, &from.concat()).unwrap();
            names.set(3, &to).unwrap();
            let name = at % from.len();
            let [zero, one] = from[name].map(|id| id as usize);
            let page = |tensors: &[Vec<u8>; 3], [zero, one]: [usize; 2]| {
                [&tensors[1][one * 96..][..split], &tensors[0][zero * 96..][..96 - split]].concat()
            };
            let read = |block| -> Vec<u8> {
                // SAFETY: the pieces lie in the tensors.
                blocks.pieces(block, 0).unwrap().flat_map(|(at, bytes)| unsafe { std::slice::from_raw_parts(at, bytes) }.to_vec()).collect()
            };
            let gathered = read(10 + name as u32);
            prop_assert_eq!(&gathered, &page(&model, [zero, one]));
            let mut rest = gathered.as_slice();
            for (at, bytes) in blocks.pieces(3, 0).unwrap() {
                let (now, later) = rest.split_at(bytes);
                // SAFETY: as above; what is copied was read before.
                unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), at, bytes) };
                rest = later;
            }
            let target = to.map(|id| id as usize);
            let mut expected = model.clone();
            expected[1][target[1] * 96..][..split].copy_from_slice(&gathered[..split]);
            expected[0][target[0] * 96..][..96 - split].copy_from_slice(&gathered[split..]);
            prop_assert_eq!(&tensors, &expected);
        }
    }
}
