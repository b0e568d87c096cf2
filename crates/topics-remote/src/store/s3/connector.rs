//! HTTP for `object_store`, over hyper-util's pool of connections and rustls.
//!
//! An attempt without progress ends: no part of the body taken by the connection, no part of the
//! answer arrived, for as long as [`super::S3Options::stall_timeout`].

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, SizeHint};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector as TcpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpResponseBody, HttpService,
};
use rustls::{ClientConfig, RootCertStore};
use tokio::sync::watch;
use tokio::time::timeout;

/// A status after which it is not known whether the request had its effect, or (429) after which it
/// may be repeated. Other statuses reach `object_store`.
#[derive(Debug)]
pub(super) struct ServerStatus(pub u16);

impl fmt::Display for ServerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server answered with status {}", self.0)
    }
}

impl std::error::Error for ServerStatus {}

#[derive(Debug)]
struct Stalled(Duration);

impl fmt::Display for Stalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the connection made no progress for {:?}", self.0)
    }
}

impl std::error::Error for Stalled {}

/// Makes clients that share one pool.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    service: Service,
}

impl Connector {
    /// A pool whose attempts may stall for this time. Called within the runtime. Without TLS
    /// (`is_plain`) no CA certificates are needed.
    pub fn new(stall_timeout: Duration, is_plain: bool) -> Self {
        let mut tcp = TcpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(stall_timeout));
        let roots = if is_plain { RootCertStore::empty() } else { trusted_roots() };
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let tls = HttpsConnectorBuilder::new().with_tls_config(config);
        let tls = tls.https_or_http().enable_http1().wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(60))
            // The caller repeats what may be repeated.
            .retry_canceled_requests(false)
            .build(tls);
        Self { service: Service { client, stall_timeout } }
    }
}

/// The CA certificates of the machine; those of Mozilla where it has none, as in a minimal container.
fn trusted_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    roots
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.service.clone()))
    }
}

#[derive(Clone, Debug)]
struct Service {
    client: Client<HttpsConnector<TcpConnector>, ObservedBody>,
    stall_timeout: Duration,
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (progress, mut observed) = watch::channel(());
        let (parts, body) = request.into_parts();
        let request = http::Request::from_parts(parts, ObservedBody { body, progress });
        let limit = self.stall_timeout;
        let sent = self.client.request(request);
        tokio::pin!(sent);
        let response = loop {
            tokio::select! {
                biased;
                response = &mut sent => break response.map_err(send_error)?,
                // The sender is dropped when the body was sent: then only the answer is awaited.
                step = timeout(limit, observed.changed()) => match step {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => break match timeout(limit, &mut sent).await {
                        Ok(response) => response.map_err(send_error)?,
                        Err(_) => return Err(stalled(limit)),
                    },
                    Err(_) => return Err(stalled(limit)),
                },
            }
        };
        let status = response.status();
        if status == 429 || status == 408 || (status.is_server_error() && status != 501) {
            return Err(HttpError::new(HttpErrorKind::Unknown, ServerStatus(status.as_u16())));
        }
        let (parts, body) = response.into_parts();
        let body = body.map_err(|e| HttpError::new(HttpErrorKind::Interrupted, e));
        let body = StallBody { body, stall: Box::pin(tokio::time::sleep(limit)), limit };
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)))
    }
}

fn send_error(e: hyper_util::client::legacy::Error) -> HttpError {
    let kind = if e.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Interrupted };
    HttpError::new(kind, e)
}

fn stalled(limit: Duration) -> HttpError {
    HttpError::new(HttpErrorKind::Timeout, Stalled(limit))
}

/// A request body that reports each part that the connection takes.
struct ObservedBody {
    body: HttpRequestBody,
    progress: watch::Sender<()>,
}

impl Body for ObservedBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        self.progress.send_replace(());
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A response body that fails when nothing arrives for a time.
struct StallBody<B> {
    body: B,
    stall: Pin<Box<tokio::time::Sleep>>,
    limit: Duration,
}

impl<B: Body<Data = Bytes, Error = HttpError> + Unpin> Body for StallBody<B> {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            let next = tokio::time::Instant::now() + self.limit;
            self.stall.as_mut().reset(next);
            return Poll::Ready(frame);
        }
        let limit = self.limit;
        self.stall.as_mut().poll(cx).map(|()| Some(Err(stalled(limit))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
