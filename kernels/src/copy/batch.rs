//! Many copies by copy engines in one driver call.

use crate::{Error, Result, Stream, driver::Code};
use cudarc::driver::sys::{
    CUmemLocation, CUmemLocationType, CUmemcpyAttributes, CUmemcpyFlags, CUmemcpySrcAccessOrder,
};

/// One copy between addresses that the device knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub to: u64,
    pub from: u64,
    pub bytes: usize,
}

/// The lists of one call, reused by the next.
#[derive(Default)]
pub(crate) struct Lists {
    to: Vec<u64>,
    from: Vec<u64>,
    bytes: Vec<usize>,
}

/// Enqueue copies in one call; they have no order among themselves. The stream is not a default one. `overlap` asks for copies that
/// leave the multiprocessors to other work. Not for copies within the device: its copy engines are many times slower there.
///
/// # Safety
/// As for [`Stream::copy`], for each copy; and no two copies write the same bytes.
pub(crate) unsafe fn enqueue(stream: &Stream, pieces: &[Piece], overlap: bool, lists: &mut Lists) -> Result<()> {
    let device = stream.device();
    let Some(call) = device.api().cuMemcpyBatchAsync else {
        return Err(Error::Unsupported {
            what: format!("batched copies on {}", device.info().label()),
            needs: "the driver lacks cuMemcpyBatchAsync, which came with CUDA 12.8".to_owned(),
        });
    };
    if pieces.is_empty() {
        return Ok(());
    }
    lists.to.clear();
    lists.from.clear();
    lists.bytes.clear();
    lists.to.extend(pieces.iter().map(|p| p.to));
    lists.from.extend(pieces.iter().map(|p| p.from));
    lists.bytes.extend(pieces.iter().map(|p| p.bytes));
    // The driver derives the location from the addresses; a hint matters only for managed memory.
    let nowhere = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID, id: 0 };
    let mut attributes = CUmemcpyAttributes {
        // Sources are read in stream order, because earlier work of the stream may still write them.
        srcAccessOrder: CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
        srcLocHint: nowhere,
        dstLocHint: nowhere,
        flags: match overlap {
            true => CUmemcpyFlags::CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE as u32,
            false => CUmemcpyFlags::CU_MEMCPY_FLAG_DEFAULT as u32,
        },
    };
    let mut first = 0;
    let mut failed = usize::MAX;
    let _entered = device.enter()?;
    // SAFETY: three lists of the same length; one set of attributes, for all from the first on; the caller guarantees the ranges.
    let code = unsafe {
        call(
            lists.to.as_mut_ptr(),
            lists.from.as_mut_ptr(),
            lists.bytes.as_mut_ptr(),
            pieces.len(),
            &mut attributes,
            &mut first,
            1,
            &mut failed,
            stream.handle(),
        )
    };
    if code == Code::SUCCESS {
        return Ok(());
    }
    device.check(code, "cuMemcpyBatchAsync", || match pieces.get(failed) {
        Some(Piece { to, from, bytes }) => {
            format!("copy {failed} of {}: {bytes} bytes from {from:#x} to {to:#x}, {}", pieces.len(), stream.label())
        }
        None => format!("{} copies, {}", pieces.len(), stream.label()),
    })
}
