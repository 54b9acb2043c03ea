//! Conversion of client errors to exceptions: the status selects the class, the text is the client's.

use kvtide_client::Error;
use kvtide_wire::status::Status;
use pyo3::{exceptions::PyValueError, prelude::*, sync::PyOnceLock};

/// `kvtide.errors.from_code(code, text)`, which creates the exception of a status.
static FROM_CODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Create an exception of `status` with this text.
pub fn raise(status: Status, text: &str) -> PyErr {
    Python::attach(|py| {
        let from_code =
            FROM_CODE.get_or_try_init(py, || Ok(py.import("kvtide.errors")?.getattr("from_code")?.unbind()));
        match from_code.and_then(|from_code| from_code.bind(py).call1((status.code(), text))) {
            Ok(exception) => PyErr::from_value(exception),
            Err(error) => error,
        }
    })
}

/// Convert a client error to its exception.
pub fn from(error: &Error) -> PyErr {
    raise(error.status(), &error.to_string())
}

/// Create a `ValueError`, for arguments without a status of their own.
pub fn value(text: impl Into<String>) -> PyErr {
    PyValueError::new_err(text.into())
}

/// Return name, code and text of every status, for the test that each has an exception class.
pub fn statuses() -> Vec<(String, i32, String)> {
    let words = |status: &Status| status.message().to_string_lossy().into_owned();
    Status::ALL.iter().map(|status| (format!("{status:?}"), status.code(), words(status))).collect()
}
