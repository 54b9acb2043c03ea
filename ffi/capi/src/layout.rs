//! Addresses of pages, for kernels that compute addresses themselves.

use super::client::{enter, kvt_client};
use super::entry::{check_out, entry, write};
use super::error::Fault;
use super::sized::{self, Sized32};
use super::status::kvt_status;
use kvtide_client::Client;
use kvtide_wire::status::Status;
use std::ffi::c_void;

/// Memory of one plane. Frame `f` is at `base + (f - first_frame) * stride`.
///
/// Mapped frames, which follow the `frames` with memory, have no memory of their own: each makes a page readable in
/// host memory. `kvt_view_page` handles both.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_plane_layout {
    /// Address of the first frame of the plane's size class.
    pub base: *mut u8,
    /// Number of that frame.
    pub first_frame: u32,
    /// Bytes from one frame to the next; a multiple of 64.
    pub stride: u32,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Number of frames of the class.
    pub frames: u32,
    /// Size class.
    pub size_class: u32,
    /// Number of mapped frames of the class, numbered from `first_frame + frames` (`kvt_options.mapped_frames`).
    pub mapped_frames: u32,
    /// Address of `uint64_t[mapped_frames]`, in the same memory as tier 0: the page address of each mapped frame. An
    /// entry is valid while a lane's table shows the frame. 0 without mapped frames.
    pub mapped_pages: u64,
}

/// Memory layout of a session's tier 0. Set `struct_size` before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvt_layout {
    /// `sizeof(kvt_layout)`: later versions are longer.
    pub struct_size: u32,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// First byte of tier 0.
    pub tier0: *mut u8,
    /// Bytes of tier 0.
    pub tier0_bytes: u64,
    /// `planes_count` planes, in step order. Valid while the client is open.
    pub planes: *const kvt_plane_layout,
    /// Number of planes.
    pub planes_count: u32,
    /// Block ids are below this number: a lane's table has `blocks_max * planes_count` entries. 0 without tier 0,
    /// because there is no table then.
    pub blocks_max: u32,
}

// SAFETY: repr(C), `struct_size` first, integers and raw pointers only.
unsafe impl Sized32 for kvt_layout {
    const BYTES_MIN: usize = 40;
}
const _: () = assert!(size_of::<kvt_layout>() == 40 && size_of::<kvt_plane_layout>() == 40);

/// The layout as C sees it; a lane's handle shares it with its client's.
pub(crate) struct Layout {
    pub(crate) whole: kvt_layout,
    /// `whole.planes` points here.
    _planes: Box<[kvt_plane_layout]>,
}

// SAFETY: never written after its creation; only the program uses the pointers in it.
unsafe impl Send for Layout {}
// SAFETY: as above.
unsafe impl Sync for Layout {}

impl Layout {
    pub(crate) fn of(client: &Client) -> Layout {
        let layout = client.layout();
        let plane = |p: &kvtide_client::PlaneLayout| kvt_plane_layout {
            base: layout.tier0.wrapping_add(p.offset as usize),
            first_frame: p.first_frame,
            stride: p.stride,
            page_bytes: p.page_bytes,
            frames: p.frames,
            size_class: p.class,
            mapped_frames: p.mapped_frames,
            mapped_pages: p.aliases,
        };
        let planes: Box<[kvt_plane_layout]> = layout.planes.iter().map(plane).collect();
        let whole = kvt_layout {
            struct_size: 0,
            page_tokens: layout.page_tokens,
            tier0: layout.tier0,
            tier0_bytes: layout.bytes as u64,
            planes: planes.as_ptr(),
            planes_count: planes.len() as u32,
            blocks_max: layout.blocks_max,
        };
        Layout { whole, _planes: planes }
    }
}

/// Return the memory layout of tier 0. It does not change during the session.
///
/// @param client  Session.
/// @param layout  Set `struct_size` before the call; receives the layout.
/// @return `KVT_OK`; `KVT_EINVAL` if `struct_size` is not a valid size.
/// Thread safety: any thread.
/// Example: `kvt_layout layout = {.struct_size = sizeof layout}; kvt_client_get_layout(client, &layout);`
///
/// # Safety
/// `layout` must be valid for reads and writes of `layout->struct_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_client_get_layout(client: *const kvt_client, layout: *mut kvt_layout) -> kvt_status {
    entry("kvt_client_get_layout", || {
        let client = enter(client)?;
        // SAFETY: the caller's contract.
        unsafe { sized::fill("layout", layout, &client.layout.whole) }
    })
}

/// Return the address of a frame of tier 0. It is valid while any handle of the session is open.
///
/// The lanes determine which frames may be read or written, and when.
///
/// @param client  Session.
/// @param frame  Frame number, as in `kvt_ready.frame`.
/// @param address  Receives the address.
/// @return `KVT_OK`; `KVT_ERANGE` if there is no such frame.
/// Thread safety: any thread.
/// Example: `kvt_client_get_frame(client, pass.ready[i].frame, &page);`
///
/// # Safety
/// `address` must be valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvt_client_get_frame(
    client: *const kvt_client,
    frame: u32,
    address: *mut *mut c_void,
) -> kvt_status {
    entry("kvt_client_get_frame", || {
        check_out("address", address)?;
        let found = enter(client)?.client.frame_ptr(frame);
        let found = found.ok_or_else(|| Fault::new(Status::Range, format!("tier 0 has no frame {frame}")))?;
        // SAFETY: the caller's contract.
        unsafe { write("address", address, found.cast()) }
    })
}
