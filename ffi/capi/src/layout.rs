//! Addresses of pages, for kernels that compute addresses themselves.

use kvtide_client::Client;

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

const _: () = assert!(size_of::<kvt_plane_layout>() == 40);

/// The planes as C sees them; a lane's handle shares them with its client's.
pub(crate) struct Layout {
    pub(crate) planes: Box<[kvt_plane_layout]>,
    pub(crate) page_tokens: u32,
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
        Layout { planes: layout.planes.iter().map(plane).collect(), page_tokens: layout.page_tokens }
    }
}
