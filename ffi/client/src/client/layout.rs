//! Memory layout of a session's pages, for engines with kernels that compute addresses themselves.

/// Tier 0 of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// First byte of tier 0.
    pub tier0: *mut u8,
    /// Bytes of tier 0.
    pub bytes: usize,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// Upper bound of block ids: a lane's table has `blocks_max × planes.len()` entries. 0 without tier 0: there is no table.
    pub blocks_max: u32,
    /// The planes, in step order.
    pub planes: Vec<PlaneLayout>,
}

// SAFETY: the pointer is only an address to compute with; the lanes' rules define when memory there may be read or written.
unsafe impl Send for Layout {}
// SAFETY: as above.
unsafe impl Sync for Layout {}

/// A plane: frame `f` of its class's `frames` is at byte `offset + (f - first_frame) × stride` of tier 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaneLayout {
    /// Size class.
    pub class: u32,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Bytes from one frame to the next.
    pub stride: u32,
    /// First frame of the class.
    pub first_frame: u32,
    /// Frames of the class.
    pub frames: u32,
    /// Byte offset of the class in tier 0.
    pub offset: u64,
    /// Mapped frames of the class: frames `first_frame + frames ..` have no memory of their own; they show a page in host memory.
    pub mapped_frames: u32,
    /// Address of an array in tier 0's kind of memory: for each mapped frame of the class, the address of its page. 0 without
    /// mapped frames. An entry is valid while a lane's table contains its frame.
    pub aliases: u64,
}
