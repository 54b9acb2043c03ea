//! The base URL of a collector, as configurations have it.

use http::Uri;

/// Path of spans below it (OTLP/HTTP).
pub(crate) const PATH: &str = "/v1/traces";

/// Check the base URL of a collector.
///
/// # Errors
/// What is expected in its place.
pub fn check_url(url: &str) -> Result<(), &'static str> {
    let uri = url.parse::<Uri>().ok().filter(|uri| uri.host().is_some_and(|host| !host.is_empty()));
    if uri.as_ref().and_then(Uri::authority).is_some_and(|authority| authority.as_str().contains('@')) {
        return Err("a URL without a user and password: they would be logged, and are not sent");
    }
    match uri.as_ref().map(|uri| (uri.scheme_str(), uri.path().trim_end_matches('/'), uri.query())) {
        Some((Some("http"), path, None)) if !path.ends_with(PATH) => Ok(()),
        Some((Some("http"), _, None)) => Err("a URL without /v1/traces, which is appended"),
        Some((Some("https"), ..)) => {
            Err("a URL with http: spans are sent without TLS. Run a collector on this machine, which forwards over TLS")
        }
        _ => Err("a URL such as \"http://127.0.0.1:4318\", or \"\" to disable tracing"),
    }
}
