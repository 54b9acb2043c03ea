//! Trace context of a request (W3C Trace Context): the engine's span, which the daemon's spans continue.
//!
//! It stands behind the list of a request, in the same area, if the entry says so ([`TRACED`](crate::entry::TRACED)). Lists leave
//! [`TRACE_WORDS`](crate::lists::TRACE_WORDS) words free for it.

/// A sampled span of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// Trace id, not 0.
    pub trace: u128,
    /// Span id, not 0: the parent of the daemon's spans.
    pub parent: u64,
}

/// The text is no header `traceparent` of W3C Trace Context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "traceparent must be VERSION-TRACE-PARENT-FLAGS in lower-case hexadecimal digits, 2, 32, 16 and 2 of them, \
     neither id 0, the version not ff"
)]
pub struct NoTraceparent;

impl TraceContext {
    /// Read the value of a header `traceparent`. `None`: its span is not sampled.
    ///
    /// # Errors
    /// It is none. As the specification demands, a version after 00 may be longer.
    pub fn from_traceparent(text: &str) -> Result<Option<TraceContext>, NoTraceparent> {
        let bytes = text.as_bytes();
        let digits = |from: usize, to: usize| {
            let digits = bytes.get(from..to)?.iter().map(|byte| match byte {
                b'0'..=b'9' => Some(u128::from(byte - b'0')),
                b'a'..=b'f' => Some(u128::from(byte - b'a') + 10),
                _ => None,
            });
            digits.into_iter().try_fold(0, |number, digit| Some(number << 4 | digit?))
        };
        let parts = (digits(0, 2), digits(3, 35), digits(36, 52), digits(53, 55));
        let (Some(version), Some(trace), Some(parent), Some(flags)) = parts else { return Err(NoTraceparent) };
        let ends = bytes.len() == 55 || version > 0 && bytes[55] == b'-';
        let dashes = [2, 35, 52].iter().all(|at| bytes[*at] == b'-');
        if !ends || !dashes || version == 0xff || trace == 0 || parent == 0 {
            return Err(NoTraceparent);
        }
        Ok((flags & 1 != 0).then_some(TraceContext { trace, parent: parent as u64 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lists::{HASHED_BLOCKS_MAX, HASHES_MAX, List, ListArea, WORDS_MAX};
    use alloc::string::String;
    use alloc::vec;

    #[test]
    fn the_longest_lists_leave_room_for_a_context() {
        let (area, mut list) = (ListArea::new(), List::default());
        let context = TraceContext { trace: 1 << 127 | 2, parent: 3 << 40 | 4 };
        let words = vec![5u32; WORDS_MAX];
        for (hashes, words) in [(HASHES_MAX, 0), (HASHED_BLOCKS_MAX, HASHED_BLOCKS_MAX), (0, WORDS_MAX), (0, 0)]
            .map(|(h, w)| (h, &words[..w]))
        {
            let len = area.write_hashes(&vec![6; hashes], words).unwrap();
            area.write_trace(len, &context).unwrap();
            area.copy_out(len + crate::lists::TRACE_WORDS as u32, &mut list).unwrap();
            assert_eq!((list.take_trace(), list.words().len()), (Some(context), len as usize));
            assert!(list.words().ends_with(words));
        }
        assert!(area.write_trace(WORDS_MAX as u32 + 1, &context).is_err());
        // Ids of 0 are none; neither are fewer words than a context has.
        for context in [TraceContext { trace: 0, ..context }, TraceContext { parent: 0, ..context }] {
            area.write_trace(0, &context).unwrap();
            area.copy_out(6, &mut list).unwrap();
            assert_eq!((list.take_trace(), list.words().len()), (None, 0));
        }
        area.copy_out(5, &mut list).unwrap();
        assert_eq!((list.take_trace(), list.words().len()), (None, 5));
    }

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_header_is_read_as_the_specification_says() {
        let context = TraceContext { trace: 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736, parent: 0xf0_67aa_0ba9_02b7 };
        let read = |text: &str| TraceContext::from_traceparent(text);
        let with = |at: usize, text: &str| {
            let mut header = String::from(GOOD);
            header.replace_range(at..at + text.len(), text);
            read(&header)
        };
        assert_eq!(read(GOOD), Ok(Some(context)));
        assert_eq!(with(53, "00"), Ok(None), "not sampled");
        assert_eq!(with(53, "03"), Ok(Some(context)), "flags of a later version");
        assert_eq!(read(&alloc::format!("{}-more", GOOD.replace("00-4b", "01-4b"))), Ok(Some(context)));
        for (at, wrong) in [(0, "ff"), (0, "0G"), (2, "_"), (35, "_"), (52, "_"), (3, "4BF9"), (53, "0 "), (3, "é")] {
            assert_eq!(with(at, wrong), Err(NoTraceparent), "{wrong} at {at}");
        }
        assert_eq!(with(3, &"0".repeat(32)), Err(NoTraceparent));
        assert_eq!(with(36, &"0".repeat(16)), Err(NoTraceparent));
        assert_eq!(read(&alloc::format!("{GOOD}-")), Err(NoTraceparent), "version 00 has 55 characters");
        assert_eq!(read(&alloc::format!("{}x", GOOD.replace("00-4b", "01-4b"))), Err(NoTraceparent));
        for len in 0..GOOD.len() {
            assert_eq!(read(&GOOD[..len]), Err(NoTraceparent));
        }
    }
}
