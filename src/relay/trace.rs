//! Spans of engines' questions that carry a trace context: `remote`, with what came from the store.

use crate::queue::Outcome;
use kvtide_trace::{Finished, Span, Spans};
use kvtide_wire::hello::What;
use kvtide_wire::trace::TraceContext;
use std::time::SystemTime;

/// The thread that sends the spans.
pub type Exporter = kvtide_trace::Exporter<RemoteSpan>;

/// A question that has ended.
#[derive(Clone, Debug)]
pub struct RemoteSpan {
    context: TraceContext,
    began: SystemTime,
    ended: SystemTime,
    what: &'static str,
    status: &'static str,
    domain: String,
    /// Name of the space, and tokens of a block; `None` if it was not served.
    space: Option<(String, u32)>,
    asked: usize,
    outcome: Option<Outcome>,
}

impl Finished for RemoteSpan {
    fn span(self) -> Span {
        let RemoteSpan { context, began, ended, what, status, domain, space, asked, outcome } = self;
        let mut attributes = vec![
            ("kvtide.question", what.into()),
            ("kvtide.domain", domain.into()),
            ("kvtide.status", status.into()),
            ("kvtide.asked_blocks", (asked as i64).into()),
        ];
        if let Some((space, page_tokens)) = space {
            let tokens = |blocks: usize| (blocks as i64 * i64::from(page_tokens)).into();
            attributes.extend([("kvtide.space", space.into()), ("kvtide.asked_tokens", tokens(asked))]);
            if let Some(outcome) = outcome {
                attributes.push(("kvtide.hit_tokens", tokens(outcome.blocks)));
                attributes.push(("kvtide.hit_tokens_remote", tokens(outcome.brought)));
            }
        }
        attributes.extend(outcome.and_then(|outcome| outcome.missing).map(|why| ("kvtide.miss_reason", why.into())));
        // A question without its answer is a miss, which is no error.
        Span { context, name: "remote", began, ended, error: None, attributes }
    }
}

/// A question in flight. Its span is sent when it is dropped, which an engine that forgets it causes too.
#[derive(Debug)]
pub struct OpenSpan {
    spans: Spans<RemoteSpan>,
    span: RemoteSpan,
}

impl OpenSpan {
    /// Open the span of a question.
    pub fn new(spans: Spans<RemoteSpan>, context: TraceContext, what: What, asked: usize, domain: &str) -> OpenSpan {
        let what = match what {
            What::Recall => "recall",
            What::Share => "share",
            What::Await => "await",
        };
        let (domain, began) = (domain.to_owned(), SystemTime::now());
        let (ended, status, space, outcome) = (began, "Forgotten", None, None);
        OpenSpan { spans, span: RemoteSpan { context, began, ended, what, status, domain, space, asked, outcome } }
    }

    /// Note the space that the question is about: its name, and the tokens of a block.
    pub fn about(&mut self, space: Option<(String, u32)>) {
        self.span.space = space;
    }

    /// Note how the question ended. Without an answer in time, what has come by then is not known.
    pub fn ended(&mut self, status: &'static str, outcome: Option<Outcome>) {
        (self.span.status, self.span.outcome) = (status, outcome);
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        self.span.ended = SystemTime::now();
        self.spans.send(self.span.clone());
    }
}
