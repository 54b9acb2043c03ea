//! A trace of requests, as Mooncake's are published: one JSON object a line with `timestamp` (milliseconds) and `hash_ids`, the
//! request's prefix blocks in order. Equal ids are equal blocks behind equal prefixes. Other fields are not looked at.

use super::super::BenchError;
use serde::Deserialize;
use std::path::Path;

/// Requests of one trace: more is a mistake.
const REQUESTS_MAX: usize = 10_000_000;
/// Blocks of one request.
const BLOCKS_MAX: usize = 1 << 20;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Request {
    /// When it came, in milliseconds from the trace's beginning.
    pub(super) timestamp: u64,
    /// Its blocks, first to last.
    pub(super) hash_ids: Vec<u64>,
}

/// Reads a trace; requests come in the order of time.
pub(super) fn read(path: &Path) -> Result<Vec<Request>, BenchError> {
    let tried = || format!("read {}", path.display());
    let text = std::fs::read_to_string(path).map_err(|source| BenchError::System { tried: tried(), source })?;
    parse(&text).map_err(|(line, why)| BenchError::Odd(format!("cannot {}: line {line}: {why}", tried())))
}

/// The requests of a text, or the line that is none and why.
fn parse(text: &str) -> Result<Vec<Request>, (usize, String)> {
    let mut requests: Vec<Request> = Vec::new();
    for (line, number) in text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty()) {
        let request: Request = serde_json::from_str(line).map_err(|error| (number, error.to_string()))?;
        if requests.last().is_some_and(|before| before.timestamp > request.timestamp) {
            return Err((number, "its timestamp is before that of the request before".into()));
        }
        if request.hash_ids.len() > BLOCKS_MAX || requests.len() == REQUESTS_MAX {
            return Err((number, format!("more than {BLOCKS_MAX} blocks or {REQUESTS_MAX} requests")));
        }
        requests.push(request);
    }
    match requests.iter().any(|request| !request.hash_ids.is_empty()) {
        true => Ok(requests),
        false => Err((0, "there is no request with blocks".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read_line_by_line() {
        let text =
            "{\"timestamp\": 0, \"input_length\": 9, \"hash_ids\": [0, 7]}\n\n{\"timestamp\": 5, \"hash_ids\": []}\n";
        let expected = [Request { timestamp: 0, hash_ids: vec![0, 7] }, Request { timestamp: 5, hash_ids: vec![] }];
        assert_eq!(parse(text), Ok(expected.to_vec()));
    }

    #[test]
    fn what_is_no_trace_is_refused_with_its_line() {
        let cases = [
            ("", 0),
            ("{\"timestamp\": 0, \"hash_ids\": []}", 0),
            ("{\"timestamp\": 0, \"hash_ids\": [1]}\nnonsense", 2),
            ("{\"timestamp\": 0}", 1),
            ("{\"timestamp\": 9, \"hash_ids\": [1]}\n{\"timestamp\": 8, \"hash_ids\": [1]}", 2),
            ("{\"timestamp\": 0, \"hash_ids\": [-1]}", 1),
        ];
        for (text, line) in cases {
            assert_eq!(parse(text).map_err(|(line, _)| line), Err(line), "{text}");
        }
    }
}
