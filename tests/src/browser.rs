//! A browser, as far as a controller's page can tell: HTTPS with the fleet's own authority, a cookie, and the headers that
//! say where a request comes from. Scripts are another matter: `make web` runs a real one.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http::header::{CONTENT_TYPE, COOKIE, HOST, IF_NONE_MATCH, ORIGIN, SET_COOKIE};
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::wait::SOON;

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

impl Answer {
    /// The body as JSON, of an answer with this status.
    pub fn json(&self, status: u16) -> Result<Value> {
        ensure!(self.status == status, "{} and not {status}: {}", self.status, self.body);
        serde_json::from_str(&self.body).with_context(|| self.body.clone())
    }

    /// The code of a refusal with this status.
    pub fn refused(&self, status: u16) -> Result<String> {
        let json = self.json(status)?;
        Ok(json["error"]["code"].as_str().context("no code")?.to_owned())
    }
}

/// One at the page of one controller.
#[derive(Debug, Clone)]
pub struct Browser {
    /// `127.0.0.1:8443`.
    host: String,
    tls: Arc<rustls::ClientConfig>,
    cookie: Option<String>,
    /// From whose page its requests come.
    origin: Option<String>,
}

impl Browser {
    /// At `https://HOST:PORT`, trusting the authority of this file.
    pub fn at(url: &str, ca: &Path) -> Result<Self> {
        let host = url.strip_prefix("https://").context("no https")?.to_owned();
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(ca)? {
            roots.add(certificate?)?;
        }
        let provider = fleet_proto::transport::crypto_provider();
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let origin = Some(url.to_owned());
        Ok(Self { host, tls: Arc::new(config), cookie: None, origin })
    }

    /// The same one with the cookie that this one has, at another page.
    pub fn elsewhere(&self, url: &str) -> Result<Self> {
        let host = url.strip_prefix("https://").context("no https")?.to_owned();
        Ok(Self { host, origin: Some(url.to_owned()), ..self.clone() })
    }

    /// The same one, whose requests come from a page of `origin`, or from none.
    pub fn coming_from(&self, origin: Option<&str>) -> Self {
        Self { origin: origin.map(str::to_owned), ..self.clone() }
    }

    /// The same one without its cookie.
    pub fn logged_out(&self) -> Self {
        Self { cookie: None, ..self.clone() }
    }

    /// The same one with another secret in its cookie.
    pub fn with_cookie(&self, cookie: &str) -> Self {
        Self { cookie: Some(cookie.to_owned()), ..self.clone() }
    }

    /// Shows a code; keeps the cookie.
    pub fn log_in(&mut self, code: &str) -> Result<Answer> {
        let answer = self.post("/login", &serde_json::json!({ "code": code }))?;
        if let Some(cookie) = answer.headers.get(SET_COOKIE) {
            let pair = cookie.to_str()?.split(';').next().context("an empty cookie")?;
            self.cookie = Some(pair.to_owned());
        }
        Ok(answer)
    }

    pub fn get(&self, path: &str) -> Result<Answer> {
        self.ask(Method::GET, path, String::new())
    }

    /// Asks as a program that has the answer with this tag already.
    pub fn get_unless(&self, path: &str, tag: &str) -> Result<Answer> {
        let mut request = self.request(Method::GET, path, String::new())?;
        request.headers_mut().insert(IF_NONE_MATCH, tag.parse()?);
        self.answer_to(request, path)
    }

    pub fn post(&self, path: &str, body: &Value) -> Result<Answer> {
        self.ask(Method::POST, path, body.to_string())
    }

    /// Sends these bytes as they are.
    pub fn post_bytes(&self, path: &str, body: String) -> Result<Answer> {
        self.ask(Method::POST, path, body)
    }

    /// Reads an answer that the controller ends by itself within `limit`, after what `then` does once it has sent so many
    /// parts.
    pub fn until_it_ends(
        &self,
        path: &str,
        limit: Duration,
        parts: usize,
        then: impl FnOnce() -> Result<()>,
    ) -> Result<String> {
        let request = self.request(Method::GET, path, String::new());
        within(limit, path, async {
            let mut body = self.send(request?).await?.into_body();
            let mut said = Vec::new();
            let (mut then, mut heard) = (Some(then), 0);
            while let Some(frame) = body.frame().await {
                said.extend_from_slice(&frame?.into_data().unwrap_or_default());
                heard += 1;
                if heard >= parts {
                    then.take().map_or(Ok(()), |then| then())?;
                }
            }
            Ok(String::from_utf8(said)?)
        })
    }

    fn ask(&self, method: Method, path: &str, body: String) -> Result<Answer> {
        self.answer_to(self.request(method, path, body)?, path)
    }

    fn answer_to(&self, request: Request<Full<Bytes>>, path: &str) -> Result<Answer> {
        within(SOON, path, async {
            let answer = self.send(request).await?;
            let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
            let whole = answer.into_body().collect().await?.to_bytes();
            Ok(Answer { status, headers, body: String::from_utf8(whole.to_vec())? })
        })
    }

    fn request(&self, method: Method, path: &str, body: String) -> Result<Request<Full<Bytes>>> {
        let mut request = Request::builder().method(method).uri(path).header(HOST, &self.host);
        if let Some(origin) = &self.origin {
            request = request.header(ORIGIN, origin);
        }
        if let Some(cookie) = &self.cookie {
            request = request.header(COOKIE, cookie);
        }
        let request = request.header(CONTENT_TYPE, "application/json");
        Ok(request.body(Full::new(Bytes::from(body)))?)
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<http::Response<Incoming>> {
        let connector = TlsConnector::from(Arc::clone(&self.tls));
        let name = self.host.rsplit_once(':').context("no port")?.0.to_owned();
        let stream = TcpStream::connect(&self.host).await.with_context(|| self.host.clone())?;
        let stream = connector.connect(ServerName::try_from(name)?, stream).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        // It lives on its own until the answer is read, and ends with the runtime.
        tokio::spawn(connection);
        Ok(sender.send_request(request).await?)
    }
}

fn within<T>(limit: Duration, path: &str, asked: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        tokio::time::timeout(limit, asked).await.with_context(|| format!("{path}: no answer"))?
    })
}
