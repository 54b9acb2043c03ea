//! The answer of a request: what a session sends, and what a span says of it.

use kvtide_tiering::api::Status;

/// The answer to a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer<'a> {
    /// Channel of the request.
    pub channel: u16,
    /// Its tag.
    pub tag: u16,
    /// Status of the request.
    pub status: Status,
    /// Result value.
    pub value: u64,
    /// Result list.
    pub words: &'a [u32],
}
