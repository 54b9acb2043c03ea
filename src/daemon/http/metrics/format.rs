//! The two text formats of a scrape, and the choice between them.

use std::borrow::Cow;

/// Text format of a scrape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum Format {
    /// Prometheus text format 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// Choose the format for the values of the header `Accept`: OpenMetrics if the client accepts it, and prefers no other text.
    pub fn accepted<'a>(accept: impl IntoIterator<Item = &'a str>) -> Format {
        let (mut open_metrics, mut text) = (0.0, 0.0);
        for range in accept.into_iter().flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default();
            let parameters: Vec<(&str, &str)> = parts.filter_map(|part| part.split_once('=')).collect();
            let parameter = |name: &str| {
                let found = parameters.iter().find(|(key, _)| key.trim().eq_ignore_ascii_case(name));
                found.map(|(_, value)| value.trim().trim_matches('"'))
            };
            let weight = parameter("q").and_then(|q| q.parse().ok()).unwrap_or(1.0);
            let version = parameter("version");
            if media_type.eq_ignore_ascii_case("application/openmetrics-text")
                && matches!(version, None | Some("1.0.0"))
            {
                open_metrics = weight;
            } else if media_type.eq_ignore_ascii_case("text/plain") && matches!(version, None | Some("0.0.4")) {
                text = weight;
            }
        }
        if open_metrics > 0.0 && open_metrics >= text { Format::OpenMetrics } else { Format::Prometheus }
    }

    /// Return the content type.
    pub const fn content_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Return the suffix of a counter's name in its description. The samples have it in both formats.
    pub(super) const fn counter_suffix(self) -> &'static str {
        match self {
            Format::Prometheus => "_total",
            Format::OpenMetrics => "",
        }
    }

    /// Escape a help text.
    pub(super) fn help(self, text: &str) -> Cow<'_, str> {
        match self {
            Format::Prometheus => text.into(),
            Format::OpenMetrics if text.contains('"') => text.replace('"', "\\\"").into(),
            Format::OpenMetrics => text.into(),
        }
    }

    /// Return the last line.
    pub(super) const fn end(self) -> &'static str {
        match self {
            Format::Prometheus => "",
            Format::OpenMetrics => "# EOF\n",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_the_format_that_they_accept() {
        let format = |accept: &str| Format::accepted([accept]);
        let (text, open_metrics) = (Format::Prometheus, Format::OpenMetrics);
        assert_eq!(Format::accepted([]), text, "no header");
        // curl, a browser, Prometheus 2.42, Prometheus 3.
        assert_eq!(format("*/*"), text);
        assert_eq!(format("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"), text);
        let prometheus_2 = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                            text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(format(prometheus_2), open_metrics);
        let prometheus_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                            application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;q=0.3,\
                            text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        assert_eq!(format(prometheus_3), open_metrics);
        assert_eq!(format("Application/OpenMetrics-Text; Version=\"1.0.0\"; Q=0.2"), open_metrics);
        assert_eq!(format("application/openmetrics-text"), open_metrics);
        assert_eq!(Format::accepted(["text/plain;q=0.1", "application/openmetrics-text"]), open_metrics, "two headers");
        for other in [
            "application/openmetrics-text;version=0.0.1",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=0.3, text/plain;version=0.0.4;q=0.5",
            "text/plain;version=0.0.4",
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited",
            ",;=,;;q=,",
        ] {
            assert_eq!(format(other), text, "{other}");
        }
    }
}
