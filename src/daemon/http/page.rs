//! The web page: static files in the binary. It reads `/v1/status`, `/v1/history` and `/v1/cache/search`, and acts with the operator's
//! token; it knows nothing that these paths do not tell.

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest, Sha256};

/// Nothing is loaded from elsewhere, and no script runs that is not one of these files.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Name, content type and text of each file.
const FILES: [(&str, &str, &str); 6] = [
    ("index.html", "text/html; charset=utf-8", include_str!("page/index.html")),
    ("style.css", "text/css; charset=utf-8", include_str!("page/style.css")),
    ("page.js", "text/javascript; charset=utf-8", include_str!("page/page.js")),
    ("charts.js", "text/javascript; charset=utf-8", include_str!("page/charts.js")),
    ("uplot.js", "text/javascript; charset=utf-8", include_str!("page/uplot/uplot.js")),
    ("uplot.css", "text/css; charset=utf-8", include_str!("page/uplot/uplot.css")),
];

/// Build the routes of the files below `/page/`.
pub(super) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new().route(
        "/page/{file}",
        get(|Path(file): Path<String>, headers: HeaderMap| async move { answer(&file, &headers) }),
    )
}

/// Return the page, if the client wants HTML: a browser does, curl does not.
pub(super) fn index(headers: &HeaderMap) -> Option<Response> {
    let accepts = headers.get(header::ACCEPT)?.to_str().ok()?;
    accepts.contains("text/html").then(|| answer("index.html", headers))
}

fn answer(file: &str, headers: &HeaderMap) -> Response {
    let Some((_, kind, text)) = FILES.iter().find(|(name, ..)| *name == file) else {
        return (StatusCode::NOT_FOUND, "not found; GET / is the page\n").into_response();
    };
    let digest: [u8; 32] = Sha256::digest(text).into();
    let tag = format!("\"{}\"", digest[..8].iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    let mut common = HeaderMap::new();
    let fixed: [(HeaderName, &'static str); 5] = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-cache"),
        (header::VARY, "accept"),
    ];
    for (name, value) in fixed {
        common.insert(name, HeaderValue::from_static(value));
    }
    if let Ok(value) = HeaderValue::from_str(&tag) {
        common.insert(header::ETAG, value);
    }
    if headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        return (StatusCode::NOT_MODIFIED, common).into_response();
    }
    common.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    (common, *text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_are_small_and_name_nothing_elsewhere() {
        let bytes: usize = FILES.iter().map(|(.., text)| text.len()).sum();
        assert!(bytes <= 150 << 10, "{bytes} bytes");
        for (name, _, text) in FILES.iter().filter(|(name, ..)| !name.starts_with("uplot")) {
            assert!(!text.contains("innerHTML") && !text.contains("http://") && !text.contains("https://"), "{name}");
            assert!(!text.contains(" style=") && !text.contains(" onclick="), "{name}: the policy forbids it");
        }
    }

    #[test]
    fn a_file_that_is_known_is_not_sent_again() {
        let first = answer("page.js", &HeaderMap::new());
        assert_eq!(first.status(), StatusCode::OK);
        let mut known = HeaderMap::new();
        known.insert(header::IF_NONE_MATCH, first.headers()[header::ETAG].clone());
        assert_eq!(answer("page.js", &known).status(), StatusCode::NOT_MODIFIED);
        assert_eq!(answer("../routes.rs", &known).status(), StatusCode::NOT_FOUND);
        let mut browser = HeaderMap::new();
        assert!(index(&browser).is_none());
        browser.insert(header::ACCEPT, HeaderValue::from_static("text/html,application/xhtml+xml,*/*;q=0.8"));
        let page = index(&browser).unwrap();
        assert!(page.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap().starts_with("default-src 'none'"));
    }
}
