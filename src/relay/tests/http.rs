//! Object stores over HTTP against a small server in this file: the requests of S3, GCS and Azure, and what each status means.
#![allow(clippy::unwrap_used)] // tests may unwrap

mod common;

use kvtide_relay::store::{ErrorKind, ObjectStore, Put, Store, StoreError};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

struct Request {
    method: String,
    path: String,
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

fn answer(status: u16, body: &[u8]) -> Answer {
    Answer { status, headers: vec![], body: body.to_vec() }
}

/// Start a server that gives each request to a function.
async fn serve(handle: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let handle = Arc::new(handle);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let handle = handle.clone();
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                while let Some(request) = read(&mut stream).await {
                    let Answer { status, headers, body } = handle(&request);
                    let mut head = format!("HTTP/1.1 {status} Status\r\n");
                    if !headers.iter().any(|(name, _)| *name == "Content-Length") {
                        head += &format!("Content-Length: {}\r\n", body.len());
                    }
                    for (name, value) in headers {
                        head += &format!("{name}: {value}\r\n");
                    }
                    let sent =
                        [head.as_bytes(), b"\r\n", if request.method == "HEAD" { &[] } else { &body[..] }].concat();
                    if stream.write_all(&sent).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    addr
}

async fn read(stream: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut lines = vec![];
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let mut first = lines[0].split(' ').map(str::to_owned);
    let headers: HashMap<_, _> = lines[1..]
        .iter()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let mut body = vec![0; headers.get("content-length").map_or(0, |len| len.parse().unwrap())];
    stream.read_exact(&mut body).await.ok()?;
    Some(Request { method: first.next()?, path: first.next()?, headers, body })
}

/// The vendors' behaviour for the requests of a store: objects by path, conditional writes, ranges.
#[derive(Default)]
struct Objects(Mutex<HashMap<String, Vec<u8>>>);

impl Objects {
    fn handle(&self, request: &Request) -> Answer {
        let mut objects = self.0.lock().unwrap();
        if request.path.contains("comp=batch") {
            return batch(&mut objects, request);
        }
        let path = request.path.split('?').next().unwrap().to_owned();
        match request.method.as_str() {
            "PUT" => {
                let conditional = request.headers.get("if-none-match").is_some_and(|value| value == "*")
                    || request.headers.get("x-goog-if-generation-match").is_some_and(|value| value == "0");
                if conditional && objects.contains_key(&path) {
                    let azure = request.headers.contains_key("x-ms-version");
                    return answer(if azure { 409 } else { 412 }, b"");
                }
                objects.insert(path, request.body.clone());
                with_metadata(answer(200, b""))
            }
            "GET" | "HEAD" => match objects.get(&path) {
                None => answer(404, b"<Error><Code>NoSuchKey</Code></Error>"),
                Some(object) => found(request, object),
            },
            "DELETE" => answer(if objects.remove(&path).is_some() { 204 } else { 404 }, b""),
            _ => answer(405, b""),
        }
    }
}

/// A part of an object or all of it.
fn found(request: &Request, object: &[u8]) -> Answer {
    let range = request.headers.get("range").or_else(|| request.headers.get("x-ms-range"));
    let Some((from, to)) = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-')) else {
        return with_metadata(answer(200, object));
    };
    let from: usize = from.parse().unwrap();
    if from >= object.len() {
        return answer(416, b"<Error><Code>InvalidRange</Code></Error>");
    }
    let end = (to.parse::<usize>().unwrap() + 1).min(object.len());
    let mut part = with_metadata(answer(206, &object[from..end]));
    part.headers.push(("Content-Range", format!("bytes {from}-{}/{}", end - 1, object.len())));
    part
}

fn with_metadata(mut answer: Answer) -> Answer {
    answer.headers.push(("ETag", "\"1\"".into()));
    answer.headers.push(("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT".into()));
    answer.headers.push(("x-goog-generation", "1".into()));
    answer
}

/// A batch of Azure: the relay sends one deletion in it.
fn batch(objects: &mut HashMap<String, Vec<u8>>, request: &Request) -> Answer {
    let text = String::from_utf8_lossy(&request.body);
    let path = text.lines().find_map(|line| line.strip_prefix("DELETE ")?.split(' ').next()).unwrap();
    let status = if objects.remove(path).is_some() { "202 Accepted" } else { "404 The specified blob does not exist" };
    let body = format!(
        "--b\r\nContent-Type: application/http\r\nContent-ID: 0\r\n\r\nHTTP/1.1 {status}\r\nx-ms-request-id: 1\r\n\r\n\r\n--b--\r\n"
    );
    let mut answer = answer(202, body.as_bytes());
    answer.headers.push(("Content-Type", "multipart/mixed; boundary=b".into()));
    answer
}

fn open(url: &str, addr: SocketAddr) -> ObjectStore {
    let server = format!("http://{addr}");
    let account = format!(
        r#"{{"gcs_base_url": "{server}", "disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}}"#
    );
    let options: &[(&str, &str)] = match url.split(':').next().unwrap() {
        "s3" => &[("aws_endpoint", &server), ("aws_skip_signature", "true"), ("allow_http", "true")],
        "gs" => &[("google_service_account_key", &account), ("allow_http", "true")],
        _ => &[
            ("azure_storage_account_name", "account"),
            ("azure_storage_endpoint", &server),
            ("azure_skip_signature", "true"),
            ("allow_http", "true"),
        ],
    };
    let options: Vec<_> = options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    ObjectStore::open(url, &options, Duration::from_secs(5)).unwrap()
}

#[tokio::test]
async fn three_vendors_conform() {
    for url in ["s3://bucket/prefix", "gs://bucket/prefix", "az://container/prefix"] {
        let objects = Objects::default();
        let addr = serve(move |request| objects.handle(request)).await;
        println!("{url}");
        common::conformance(&open(url, addr)).await;
    }
}

#[tokio::test]
async fn an_empty_object_is_replaced() {
    for url in ["s3://bucket/prefix", "gs://bucket/prefix", "az://container/prefix"] {
        let objects = Arc::new(Objects::default());
        let of_server = objects.clone();
        let store = Arc::new(open(url, serve(move |request| of_server.handle(request)).await));
        // The stores differ in the paths of their objects: a run of some bytes gets the path, and is emptied.
        common::no_runs_are_replaced(store.clone(), async |name| {
            store.put_run(name, b"bytes"[..].into()).await.unwrap();
            objects.0.lock().unwrap().values_mut().for_each(Vec::clear);
        })
        .await;
    }
}

/// What a store claims about its answer and what it sends reserve no memory beyond a bound. The crate would reserve 64 TiB here, and end the
/// process.
#[tokio::test]
async fn claims_and_endless_answers_of_a_store_are_errors() {
    const CLAIM: u64 = 1 << 46;
    let name = &common::names(1)[0];
    let more = || vec![b'x'; 3 << 20];
    for url in ["s3://bucket/prefix", "gs://bucket/prefix", "az://container/prefix"] {
        for status in [200, 206, 400, 404, 500] {
            let claims = move |request: &Request| {
                let mut claims = with_metadata(answer(status, &more()));
                claims.headers.push(("Content-Length", CLAIM.to_string()));
                if request.headers.contains_key("range") || request.headers.contains_key("x-ms-range") {
                    claims.headers.push(("Content-Range", format!("bytes 0-{}/{CLAIM}", CLAIM - 1)));
                }
                claims
            };
            let store = open(url, serve(claims).await);
            for range in [None, Some(0..1000)] {
                let error = store.get_run(name, range.clone()).await.unwrap_err();
                assert_ne!(error.kind, ErrorKind::TimedOut, "it is not read to its end: {url} {status} {range:?}");
            }
        }
        // The range is the one that was asked for, and the body goes on behind it.
        let endless = move |_: &Request| {
            let mut endless = with_metadata(answer(206, &more()));
            endless.headers.push(("Content-Length", CLAIM.to_string()));
            endless.headers.push(("Content-Range", "bytes 0-999/1000".into()));
            endless
        };
        let error = open(url, serve(endless).await).get_run(name, Some(0..1000)).await.unwrap_err();
        assert!(error.text.contains("at most 1000 were asked for"), "{url}: {error}");
    }
}

async fn write(store: &ObjectStore) -> Result<Put, StoreError> {
    store.put_run(&common::names(1)[0], b"bytes"[..].into()).await
}

async fn read_run(store: &ObjectStore) -> Result<Option<bytes::Bytes>, StoreError> {
    store.get_run(&common::names(1)[0], Some(0..5)).await
}

#[tokio::test]
async fn what_each_status_means() {
    for (status, body, kind) in [
        (401, "", ErrorKind::Refused),
        (403, "<Error><Code>AccessDenied</Code></Error>", ErrorKind::Refused),
        (403, "<Error><Code>RequestTimeTooSkewed</Code></Error>", ErrorKind::Clock),
        (400, "<Error><Code>ExpiredToken</Code></Error>", ErrorKind::Refused),
        (400, "<Error><Code>MalformedXML</Code></Error>", ErrorKind::Other),
        (404, "<Error><Code>NoSuchBucket</Code></Error>", ErrorKind::NoBucket),
        (404, "<Error><Code>ContainerNotFound</Code></Error>", ErrorKind::NoBucket),
        (429, "", ErrorKind::Busy),
        (500, "", ErrorKind::Other),
        (503, "<Error><Code>SlowDown</Code></Error>", ErrorKind::Busy),
        (507, "", ErrorKind::Full),
    ] {
        let addr = serve(move |_| answer(status, body.as_bytes())).await;
        for url in ["s3://bucket", "gs://bucket", "az://container"] {
            let store = open(url, addr);
            for (tried, error) in [("write", write(&store).await.err()), ("read", read_run(&store).await.err())] {
                let error = error.unwrap_or_else(|| panic!("{url}: {tried} with {status} is an error"));
                assert_eq!(error.kind, kind, "{tried} with {status}: {error}");
                assert!(error.text.starts_with(&format!("cannot {tried} a run at {url}")), "{error}");
            }
        }
    }
    let body = b"<Error><Code>RequestTimeTooSkewed</Code><Message>The difference is too large.</Message></Error>";
    let addr = serve(|_| answer(403, body)).await;
    let text = write(&open("s3://bucket", addr)).await.unwrap_err().text;
    assert!(text.contains("clocks") && text.contains("set-ntp") && !text.contains("check the credentials"), "{text}");
    let addr = serve(|_| answer(404, b"")).await;
    assert_eq!(read_run(&open("s3://bucket", addr)).await.unwrap(), None);
    assert_eq!(write(&open("s3://bucket", addr)).await.unwrap_err().kind, ErrorKind::NoBucket);
}

#[tokio::test]
async fn no_answer_or_a_wrong_one() {
    let nobody = SocketAddr::from(([127, 0, 0, 1], common::free_port()));
    let error = write(&open("s3://bucket", nobody)).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unreachable, "{error}");
    let cut = serve(|_| {
        let mut answer = with_metadata(answer(206, b"byt"));
        answer.headers.extend([
            ("Content-Length", "5".into()),
            ("Content-Range", "bytes 0-4/5".into()),
            ("Connection", "close".into()),
        ]);
        answer
    });
    let store = ObjectStore::open(
        "s3://bucket",
        &[
            ("aws_endpoint".into(), format!("http://{}", cut.await)),
            ("aws_skip_signature".into(), "true".into()),
            ("allow_http".into(), "true".into()),
        ],
        Duration::from_millis(300),
    );
    let error = read_run(&store.unwrap()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::TimedOut, "the rest of the body never comes: {error}");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let store = open("s3://bucket", listener.local_addr().unwrap());
    let other = async {
        let mut client = BufReader::new(listener.accept().await.unwrap().0);
        let _ = read(&mut client).await;
        client.write_all(b"+PONG\r\n-ERR unknown command\r\n\r\n").await.unwrap();
        client
    };
    let (error, _client) = tokio::join!(read_run(&store), other);
    let error = error.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Garbage, "{error}");
}

#[tokio::test]
async fn a_store_without_conditional_writes_is_asked_once() {
    let conditional = Arc::new(Mutex::new(0));
    let (objects, count) = (Objects::default(), conditional.clone());
    let addr = serve(move |request| {
        if request.headers.contains_key("if-none-match") {
            *count.lock().unwrap() += 1;
            return answer(501, b"<Error><Code>NotImplemented</Code></Error>");
        }
        objects.handle(request)
    });
    let store = open("s3://bucket", addr.await);
    for _ in 0..3 {
        assert_eq!(write(&store).await.unwrap(), Put::Stored);
    }
    assert_eq!(read_run(&store).await.unwrap().unwrap(), b"bytes"[..]);
    assert_eq!(*conditional.lock().unwrap(), 1);
}
