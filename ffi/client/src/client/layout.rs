//! Where the pages of a session are in memory, for engines whose kernels compute addresses themselves.

/// Tier 0 of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// First byte of tier 0.
    pub tier0: *mut u8,
    /// Bytes of tier 0.
    pub bytes: usize,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// A lane's table has `blocks_max × planes.len()` entries: block ids are below this. 0 without tier 0, where there is no table.
    pub blocks_max: u32,
    /// The planes, in step order.
    pub planes: Vec<PlaneLayout>,
}

// SAFETY: the pointer is an address to compute with; who may read or write through it, and when, the lanes say.
unsafe impl Send for Layout {}
// SAFETY: as above.
unsafe impl Sync for Layout {}

/// One plane: frame `f` of its class's `frames` is at byte `offset + (f - first_frame) × stride` of tier 0.
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
    /// Window frames of the class: frames `first_frame + frames ..` have no memory, they show a page where it is in host memory.
    pub windows: u32,
    /// Address, in the memory that tier 0 is in, of one address for each window frame of the class: where its page is. 0 without
    /// windows. It is to be believed when a lane's table shows the frame.
    pub aliases: u64,
}
