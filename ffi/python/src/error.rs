//! Conversion of client errors to exceptions: the status selects the class, the text is the client's.

use kvtide_client::Error;
use kvtide_wire::status::Status;
use pyo3::{
    exceptions::{PyOverflowError, PyTypeError, PyValueError},
    prelude::*,
    sync::PyOnceLock,
};

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

/// Characters of an argument that an error shows.
const SHOWN_MAX: usize = 80;

/// Convert an argument. An error names it, shows it and says what was `expected`.
///
/// # Errors
/// `TypeError` for another type; the exception of `range` for a number that is negative or too large.
pub fn argument<'py, T: FromPyObjectOwned<'py>>(
    name: &str,
    given: &Bound<'py, PyAny>,
    expected: &str,
    range: Status,
) -> PyResult<T> {
    let py = given.py();
    let cause: PyErr = match given.extract::<T>() {
        Ok(converted) => return Ok(converted),
        Err(error) => error.into(),
    };
    let shown: String = given.repr()?.to_string().chars().take(SHOWN_MAX).collect();
    let text = format!("{name} is {shown}; expected {expected}");
    let error =
        if cause.is_instance_of::<PyOverflowError>(py) { raise(range, &text) } else { PyTypeError::new_err(text) };
    error.set_cause(py, Some(cause));
    Err(error)
}

/// Return name, code and text of every status, for the test that each has an exception class.
pub fn statuses() -> Vec<(String, i32, String)> {
    let words = |status: &Status| status.message().to_string_lossy().into_owned();
    Status::ALL.iter().map(|status| (format!("{status:?}"), status.code(), words(status))).collect()
}
