//! An engine's own memory: blocks that it numbers itself, each plane of which lies in pieces.

use crate::{Error, Result, agent::protocol::Geometry};

/// One piece of a plane's part of every block: `bytes` bytes at `base + block × stride`.
///
/// The bytes of a page are those of its plane's pieces, one after another in the order in which they are given. So K and V may lie
/// apart or together, layers or blocks first, in one tensor or in one a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Plane.
    pub plane: u16,
    /// Address of the piece of block 0.
    pub base: usize,
    /// Bytes from a block's piece to that of the next block.
    pub stride: usize,
    /// Bytes of a piece.
    pub bytes: usize,
}

/// Where an engine's blocks are.
#[derive(Debug)]
pub struct EngineBlocks {
    count: u32,
    planes: Vec<Vec<Piece>>,
    /// The memory of each plane, if it is ours.
    own: Vec<Box<[u8]>>,
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
        for (plane, (spec, pieces)) in geometry.planes().iter().zip(&planes).enumerate() {
            let bytes: usize = pieces.iter().map(|piece| piece.bytes).sum();
            if bytes != spec.page_bytes as usize {
                let (count, page) = (pieces.len(), spec.page_bytes);
                return bad(format!("plane {plane}: {count} pieces of {bytes} bytes, a page has {page}"));
            }
        }
        Ok(EngineBlocks { count, planes, own: Vec::new() })
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
            pieces.push(Piece { plane: plane as u16, base, stride: bytes, bytes });
            own.push(memory);
        }
        Ok(EngineBlocks { own, ..EngineBlocks::new(geometry, count, &pieces)? })
    }

    /// A block's bytes in a plane, of memory that is ours.
    pub(super) fn own(&mut self, block: u32, plane: u16) -> Option<&mut [u8]> {
        let bytes = self.planes.get(usize::from(plane))?.first()?.bytes;
        let at = (block as usize).checked_mul(bytes)?;
        self.own.get_mut(usize::from(plane))?.get_mut(at..at.checked_add(bytes)?)
    }

    /// The pieces of a plane in a block, in order: where each is, and its bytes. `None`: no such block or plane.
    pub(super) fn pieces(&self, block: u32, plane: u16) -> Option<impl Iterator<Item = (*mut u8, usize)> + Clone> {
        let pieces = self.planes.get(usize::from(plane)).filter(|_| block < self.count)?;
        Some(pieces.iter().map(move |piece| {
            let at = piece.base + block as usize * piece.stride;
            (std::ptr::with_exposed_provenance_mut(at), piece.bytes)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::protocol::geometry::Bounds;
    use kvtide_wire::geometry::{PlaneKind, PlaneSpec};

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
        let piece = |plane, base, stride, bytes| Piece { plane, base, stride, bytes };
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
        let piece = |plane, stride, bytes| Piece { plane, base: 4096, stride, bytes };
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
}
