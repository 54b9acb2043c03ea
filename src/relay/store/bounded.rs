//! Bounds on what an object store answers: the crate reserves the length that an answer claims, and collects bodies without a limit.

use super::OBJECT_BYTES_MAX;
use bytes::Bytes;
use http_body::{Body, Frame};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
    ReqwestConnector,
};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// Maximum bytes of an answer that is an error. Those of S3, GCS and Azure have a few hundred.
const ERROR_BYTES_MAX: u64 = 1 << 20;

/// Connects as the crate does, and bounds the answers.
#[derive(Debug, Default)]
pub struct BoundedConnector(ReqwestConnector);

impl HttpConnector for BoundedConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(BoundedService(self.0.connect(options)?)))
    }
}

#[derive(Debug)]
struct BoundedService(HttpClient);

#[async_trait::async_trait]
impl HttpService for BoundedService {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let response = self.0.execute(request).await?;
        let left = if response.status().is_success() { OBJECT_BYTES_MAX } else { ERROR_BYTES_MAX };
        Ok(response.map(|body| HttpResponseBody::new(BoundedBody { body, left })))
    }
}

/// A body that ends with an error behind its bound. It does not pass on the length that the store claims: the crate would reserve it.
struct BoundedBody {
    body: HttpResponseBody,
    left: u64,
}

impl Body for BoundedBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame {
            let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
            let Some(left) = self.left.checked_sub(bytes) else {
                let why = io::Error::other("the answer is longer than any object or error of a store");
                return Poll::Ready(Some(Err(HttpError::new(HttpErrorKind::Decode, why))));
            };
            self.left = left;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
