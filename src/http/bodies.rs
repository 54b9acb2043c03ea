//! Bodies of requests, bounded in size, in time and in total: unfinished bodies cannot take more memory than a budget.

use crate::access::Refused;
use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::http::StatusCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// Limits on bodies.
#[derive(Clone, Copy, Debug)]
pub struct BodyBounds {
    /// Maximum bytes of one body; less than 4 GiB.
    pub each: usize,
    /// Maximum bytes of all bodies at a time; at least `each`.
    pub total: usize,
    /// Maximum time until a body has arrived, waiting for other bodies included.
    pub time: Duration,
}

/// Receives bodies. Clones share the budget.
#[derive(Clone, Debug)]
pub struct Bodies {
    bounds: BodyBounds,
    /// Bytes that are left.
    budget: Arc<Semaphore>,
}

/// A body that has arrived. Dropping it gives its bytes back to the budget.
#[derive(Debug)]
pub struct Received {
    /// The body.
    pub bytes: Bytes,
    _of_budget: OwnedSemaphorePermit,
}

impl Bodies {
    /// Receive bodies within these limits.
    #[must_use]
    pub fn new(bounds: BodyBounds) -> Bodies {
        Bodies { bounds, budget: Arc::new(Semaphore::new(bounds.total)) }
    }

    /// Receive a body. Before it reads, it takes the bytes that the request declares from the budget, or the maximum if it declares
    /// none. Call it after the client's access was checked: strangers must not use the budget.
    ///
    /// # Errors
    /// The body is too large, or did not arrive in time. The server then closes the connection, because the rest of the body is unread.
    pub async fn receive(&self, body: Body) -> Result<Received, Refused> {
        let BodyBounds { each, total, time } = self.bounds;
        let until = Instant::now() + time;
        let size = body.size_hint().exact().map_or(each, |size| usize::try_from(size).unwrap_or(usize::MAX));
        if size > each {
            let text = format!("the body has {size} bytes, the maximum is {each}; send several requests");
            return Err((StatusCode::PAYLOAD_TOO_LARGE, text));
        }
        let budget = timeout_at(until, Arc::clone(&self.budget).acquire_many_owned(size as u32));
        let Ok(Ok(mut of_budget)) = budget.await else {
            let text = format!("the bodies of other requests take {total} bytes, the maximum; try again");
            return Err((StatusCode::SERVICE_UNAVAILABLE, text));
        };
        match timeout_at(until, to_bytes(body, size)).await {
            Ok(Ok(bytes)) => {
                // A request that declared no size took the maximum.
                drop(of_budget.split(size - bytes.len()));
                Ok(Received { bytes, _of_budget: of_budget })
            }
            Ok(Err(error)) => Err((StatusCode::BAD_REQUEST, format!("cannot read the body: {error}"))),
            Err(_) => Err((StatusCode::REQUEST_TIMEOUT, format!("the body did not arrive within {time:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    const BOUNDS: BodyBounds = BodyBounds { each: 60, total: 100, time: Duration::from_secs(5) };

    /// A body that never arrives.
    struct Unfinished {
        declared: Option<u64>,
    }

    impl HttpBody for Unfinished {
        type Data = Bytes;
        type Error = std::io::Error;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<http_body::Frame<Bytes>, std::io::Error>>> {
            Poll::Pending
        }

        fn size_hint(&self) -> http_body::SizeHint {
            self.declared.map_or_else(http_body::SizeHint::new, http_body::SizeHint::with_exact)
        }
    }

    fn unfinished(declared: Option<u64>) -> Body {
        Body::new(Unfinished { declared })
    }

    async fn status(bodies: &Bodies, body: Body) -> u16 {
        bodies.receive(body).await.map_or_else(|(status, _)| status.as_u16(), |_| 200)
    }

    /// The clock is stopped: it jumps to the next timeout when nothing else can run.
    #[tokio::test(start_paused = true)]
    async fn unfinished_bodies_take_no_more_than_the_budget() {
        let bodies = Bodies::new(BOUNDS);
        let received = bodies.receive(Body::from(vec![1; 50])).await.unwrap();
        assert_eq!((received.bytes.len(), bodies.budget.available_permits()), (50, 50));
        let begun = Instant::now();
        for declared in [Some(51), Some(60), None] {
            assert_eq!(status(&bodies, unfinished(declared)).await, 503, "{declared:?}");
        }
        assert_eq!(status(&bodies, unfinished(Some(50))).await, 408);
        assert_eq!(begun.elapsed(), 4 * BOUNDS.time);
        drop(received);
        assert_eq!(bodies.budget.available_permits(), 100);
        for (size, expected) in [(0, 200), (60, 200), (61, 413)] {
            assert_eq!(status(&bodies, Body::from(vec![1; size])).await, expected, "{size}");
        }
        assert_eq!(bodies.budget.available_permits(), 100);
    }
}
