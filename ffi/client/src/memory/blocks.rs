//! An engine's own memory: blocks numbered by the engine; each plane of a block consists of pieces.

use super::names::{MEMBERS_MAX, Names, Numbering};
use crate::{Error, Result, agent::protocol::Geometry};
use std::{any::Any, fmt, sync::Arc};

/// Owner of an engine's memory; the memory stays valid until it is dropped.
pub type Owner = Box<dyn Any + Send>;

/// One piece of a plane in every block: `bytes` bytes at `base + block × stride`.
///
/// A page consists of its plane's pieces, concatenated in the order in which they are given. So K and V may be separate or
/// together, the layer or the block may be the outer dimension, and there may be one tensor in all or one for each layer.
///
/// An engine with separate block numbers in its cache groups uses blocks with several members: a piece then lies at
/// `base + id × stride`, with the id of its member from [`crate::Client::name_blocks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Plane.
    pub plane: u16,
    /// The id of this member locates the piece; 0 if blocks have one number.
    pub member: u16,
    /// Address of the piece of block 0.
    pub base: usize,
    /// Bytes from a block's piece to the next block's piece.
    pub stride: usize,
    /// Bytes of a piece.
    pub bytes: usize,
}

/// An engine's blocks.
pub struct EngineBlocks {
    count: u32,
    planes: Vec<Vec<Piece>>,
    /// The memory of each plane, if the session allocated it.
    own: Vec<Box<[u8]>>,
    /// The ids of named blocks; `None`: a block's number is its id.
    names: Option<Arc<Names>>,
    /// Dropped when nothing reads or writes the memory any more.
    _owner: Option<Owner>,
}

impl fmt::Debug for EngineBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineBlocks").field("count", &self.count).field("planes", &self.planes).finish_non_exhaustive()
    }
}

impl EngineBlocks {
    /// Create `count` blocks from these pieces, which together must hold the pages of `geometry`.
    ///
    /// # Errors
    /// [`Error::Options`]: the pieces of a plane differ in size from its page, or a piece exceeds the address space. The error
    /// names the plane or the piece.
    pub(crate) fn new(geometry: &Geometry, count: u32, pieces: &[Piece]) -> Result<EngineBlocks> {
        let bad = |why: String| Err(Error::Options { option: "blocks", why });
        let mut planes = vec![Vec::new(); geometry.planes().len()];
        for (index, piece) in pieces.iter().enumerate() {
            let Some(plane) = planes.get_mut(usize::from(piece.plane)) else {
                return bad(format!("piece {index}: there is no plane {} of {}", piece.plane, geometry.planes().len()));
            };
            let last = (count.max(1) as usize - 1).checked_mul(piece.stride);
            let end = last.and_then(|last| last.checked_add(piece.base)?.checked_add(piece.bytes));
            if piece.base == 0 || piece.bytes == 0 || end.is_none_or(|end| end > isize::MAX as usize) {
                return bad(format!("piece {index} of plane {}: invalid memory {piece:x?}", piece.plane));
            }
            if count > 1 && piece.stride < piece.bytes {
                let Piece { plane, stride, bytes, .. } = piece;
                return bad(format!("piece {index} of plane {plane}: {bytes} bytes overlap at stride {stride}"));
            }
            plane.push(*piece);
        }
        let members = pieces.iter().map(|piece| piece.member).max().unwrap_or(0).saturating_add(1);
        if members > MEMBERS_MAX {
            return bad(format!("member {}: blocks have at most {MEMBERS_MAX} members", members - 1));
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

    /// Attach the owner of the memory.
    pub(crate) fn owned(self, owner: Option<Owner>) -> EngineBlocks {
        EngineBlocks { _owner: owner, ..self }
    }

    /// Allocate `count` zeroed blocks: one tensor for each plane, with the block as the outer dimension. The memory is freed with
    /// them.
    ///
    /// # Errors
    /// [`Error::Options`]: the memory cannot be allocated, or `count` is 0.
    pub(crate) fn allocate(geometry: &Geometry, count: u32) -> Result<EngineBlocks> {
        let mut own = Vec::with_capacity(geometry.planes().len());
        let mut pieces = Vec::with_capacity(own.capacity());
        for (plane, spec) in geometry.planes().iter().enumerate() {
            let bytes = spec.page_bytes as usize;
            let all = bytes.checked_mul(count as usize).filter(|all| *all <= isize::MAX as usize);
            let mut memory: Vec<u8> = Vec::new();
            let reserved = all.is_some_and(|all| memory.try_reserve_exact(all).is_ok());
            if !reserved || count == 0 {
                let why = format!("cannot allocate {count} blocks of {bytes} bytes for plane {plane}");
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

    /// Return how loads and stores refer to the blocks.
    pub(crate) fn numbering(&self) -> Numbering {
        self.names.clone().map_or(Numbering::Numbers(self.count), Numbering::Names)
    }

    /// Return a block's bytes in a plane, if the session allocated them.
    pub(super) fn own(&mut self, block: u32, plane: u16) -> Option<&mut [u8]> {
        let bytes = self.planes.get(usize::from(plane))?.first()?.bytes;
        let at = (block as usize).checked_mul(bytes)?;
        self.own.get_mut(usize::from(plane))?.get_mut(at..at.checked_add(bytes)?)
    }

    /// Return the address and size of each piece of a plane in a block, in order. `None`: no such block or plane, or an unassigned
    /// name.
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
    use kvtide_wire::geometry::Plane;
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
        let full = |page_bytes| Plane::full(page_bytes);
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
        assert!(why(&[piece(2, 96, 96), good[1]]).contains("piece 0: there is no plane 2 of 2"));
        assert!(why(&[Piece { base: 0, ..good[0] }, good[1]]).contains("invalid memory"));
        assert!(why(&[Piece { base: usize::MAX, ..good[0] }, good[1]]).contains("invalid memory"));
    }
    #[test]
    fn members_go_by_their_own_ids() {
        let piece = |plane, member, base, stride, bytes| Piece { plane, member, base, stride, bytes };
        let pieces = [piece(0, 1, 1000, 64, 64), piece(0, 0, 9000, 40, 32), piece(1, 2, 5000, 100, 32)];
        let blocks = EngineBlocks::new(&geometry(), 4, &pieces).unwrap();
        let of =
            |block, plane| -> Option<Vec<_>> { Some(blocks.pieces(block, plane)?.map(|(at, _)| at.addr()).collect()) };
        assert_eq!((of(0, 0), of(700, 1)), (None, None), "no name is assigned yet");
        blocks.numbering().names().unwrap().set(700, &[3, 1, 0]).unwrap();
        assert_eq!((of(700, 0), of(700, 1), of(699, 1)), (Some(vec![1064, 9120]), Some(vec![5000]), None));
        let why = |pieces: &[Piece]| EngineBlocks::new(&geometry(), 4, pieces).unwrap_err().to_string();
        assert!(why(&[Piece { member: 3, ..pieces[0] }, pieces[1], pieces[2]]).contains("member 1 of 4 has no pieces"));
        assert!(why(&[Piece { member: u16::MAX, ..pieces[0] }, pieces[1], pieces[2]]).contains("at most 64 members"));
    }

    proptest! {
        /// A gather through names reads what a plain model of the engine's memory holds, and a scatter through other names writes
        /// it there.
        #[test]
        fn copies_through_names_are_those_of_a_plain_model(
            from in prop::collection::vec([0u32..6, 0..6], 1..6),
            to in [0u32..6, 0..6],
            at in 0usize..5,
            split in 1usize..95,
        ) {
            // Plane 0 is split over the tensors of both members; plane 1 is in the second member's.
            let mut tensors = [vec![0u8; 6 * 96], vec![0u8; 6 * 96], vec![0u8; 6 * 40]];
            for (tensor, bytes) in tensors.iter_mut().enumerate() {
                bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 7 + tensor * 91 + i / 250) as u8);
            }
            let base = tensors.each_mut().map(|tensor| tensor.as_mut_ptr().expose_provenance());
            let piece = |plane, member, base, stride, bytes| Piece { plane, member, base, stride, bytes };
            let pieces = [piece(0, 1, base[1], 96, split), piece(1, 1, base[2], 40, 32), piece(0, 0, base[0], 96, 96 - split)];
            let model = tensors.clone();
            let blocks = EngineBlocks::new(&geometry(), 6, &pieces).unwrap();
            let numbering = blocks.numbering();
            let names = numbering.names().unwrap();
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
                // SAFETY: as above; the source is a separate buffer that was read before.
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
