//! Details of the last failure of a thread: `kvt_last_error`.
//!
//! A failed call stores its cause, unformatted, in a thread-local slot. `kvt_last_error` formats the text, so a
//! `KVT_EAGAIN` on a hot path costs no formatting.

use kvtide_client::Error;
use kvtide_wire::status::Status;
use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::fmt::Write as _;

/// Cause of a failed call: found at the C boundary, or reported by the client.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The C boundary rejected an argument or a handle; the client was not called.
    Edge(Status, Cow<'static, str>),
    /// Error of the client.
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

/// Last failure of a thread.
struct Last {
    call: &'static str,
    fault: Fault,
    /// Formatted on demand; `kvt_last_error` returns its address.
    text: Option<CString>,
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

/// Store the cause of a failure of `call` for this thread.
pub(crate) fn remember(call: &'static str, fault: Fault) {
    // A thread in teardown has no slot any more; its caller still gets the status code.
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

/// Return the details of the last failed call of this thread: the operation, its object and the reason.
///
/// A call that succeeds does not change the text.
///
/// @return A string, never NULL; "" if no call has failed yet. Valid until the next call fails on this thread, or the
///     thread ends.
/// Thread safety: any thread; each thread has its own text.
/// Example: `fprintf(stderr, "%s\n", kvt_last_error());`
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
