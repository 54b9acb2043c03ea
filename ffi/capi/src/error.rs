//! The detail behind a status code: `kvt_last_error`.
//!
//! A failed call leaves its cause in a slot of its thread, unformatted: `KVT_EAGAIN` on a hot path costs no text unless
//! somebody asks for it.

use kvtide_client::Error;
use kvtide_wire::status::Status;
use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::fmt::Write as _;

/// Why a call failed, found at the edge itself or by the client.
#[derive(Debug)]
pub(crate) enum Fault {
    /// An argument or a handle that the client never got to see.
    Edge(Status, Cow<'static, str>),
    /// The client's own error.
    Client(Error),
}

impl Fault {
    pub(crate) fn new(status: Status, what: impl Into<Cow<'static, str>>) -> Fault {
        Fault::Edge(status, what.into())
    }

    pub(crate) fn status(&self) -> Status {
        match self {
            Fault::Edge(status, _) => *status,
            Fault::Client(error) => error.status(),
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Client(error)
    }
}

/// The last failure of a thread.
struct Last {
    call: &'static str,
    fault: Fault,
    /// Made when it was asked for; `kvt_last_error` hands out its address.
    text: Option<CString>,
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// Remembers why `call` failed on this thread.
pub(crate) fn remember(call: &'static str, fault: Fault) {
    // A thread that is being torn down has no slot any more; its status code still tells the kind.
    let _ = LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            *last = Some(Last { call, fault, text: None });
        }
    });
}

fn format(call: &str, fault: &Fault) -> CString {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = match fault {
        Fault::Edge(_, what) => write!(text, "{call}: {what}"),
        Fault::Client(error) => {
            let mut cause = std::error::Error::source(error);
            let mut result = write!(text, "{call}: {error}");
            while let Some(next) = cause {
                result = result.and_then(|()| write!(text, ": {next}"));
                cause = next.source();
            }
            result
        }
    };
    text.retain(|c| c != '\0');
    CString::new(text).unwrap_or_default()
}

/// What the last call that failed on this thread tried, on what, and why it failed; "" if none failed yet. Never NULL.
///
/// The text is valid until the next call fails on the same thread, or the thread ends. A call that succeeds leaves it alone. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn kvt_last_error() -> *const c_char {
    super::entry::guard_or(c"".as_ptr(), || {
        LAST.try_with(|last| {
            let Ok(mut last) = last.try_borrow_mut() else { return c"".as_ptr() };
            last.as_mut().map_or(c"".as_ptr(), |last| {
                let Last { call, fault, text } = last;
                let text: &CStr = text.get_or_insert_with(|| format(call, fault));
                text.as_ptr()
            })
        })
        .unwrap_or(c"".as_ptr())
    })
}
