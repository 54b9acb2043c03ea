//! The audit line of an action: client, request, result.

use std::fmt::Display;

/// Logs the line when it is dropped. HTTP drops the handler of a client that disconnects, while the action may go on: that is logged too.
#[derive(Debug)]
pub struct Audit {
    line: String,
    result: Option<String>,
}

impl Audit {
    /// Begin an action of a client. `request`: its path and what it asks for.
    #[must_use]
    pub fn begin(client: impl Display, request: impl Display) -> Audit {
        Audit { line: format!("{client}: {request}"), result: None }
    }

    /// Log the action with its result.
    pub fn end(mut self, result: impl Display) {
        self.result = Some(result.to_string());
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        let result = self.result.as_deref().unwrap_or("the client disconnected before the answer");
        tracing::info!("{}: {result}", self.line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::captured::Captured;

    #[test]
    fn an_action_is_logged_once_with_its_result_or_without() {
        let lines = Captured::default();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(lines.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            Audit::begin("uid 7", "/v1/drain \"{}\"").end("200 OK");
            drop(Audit::begin("uid 8", "/v1/purge"));
        });
        let text = lines.text();
        let logged: Vec<&str> = text.lines().collect();
        assert_eq!(logged.len(), 2, "{text}");
        assert!(logged[0].ends_with("uid 7: /v1/drain \"{}\": 200 OK"), "{text}");
        assert!(logged[1].ends_with("uid 8: /v1/purge: the client disconnected before the answer"), "{text}");
    }
}
