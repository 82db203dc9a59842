//! How the agent authenticates to a registry: the node's credentials, and tokens got with them or anonymously.
//!
//! Called by [`super::remote`]. The agent sends secrets only to the registry and to the token server that the registry
//! names, over TLS unless the registry is configured without; it never shows them.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{Method, StatusCode, Uri};
use nix::fcntl::OFlag;
use serde::Deserialize;

use super::http::{Ask, Site, ask};
use super::settings::host_of;
use crate::error::registry::{RegistryError, words};

/// Largest credentials file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Largest answer of a token server.
const TOKEN_BYTES_MAX: usize = 64 * 1024;
/// What docker writes for its own registry.
const DOCKER_HUB_KEY: &str = "index.docker.io/v1";

/// `USER:PASSWORD` in base64, as it is sent.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credentials(String);

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials(…)")
    }
}

impl Credentials {
    pub(super) fn basic(&self) -> String {
        format!("Basic {}", self.0)
    }
}

#[derive(Deserialize)]
struct ConfigFile {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    auth: String,
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

/// The credentials for a registry in docker's `config.json`, if it has any.
pub(super) fn find(path: &Path, registry: &str) -> Result<Option<Credentials>, RegistryError> {
    let failed = |why: String| RegistryError::Credentials { path: path.display().to_string(), why };
    let text = read(path).map_err(failed)?;
    // Not the parser's own words: they may quote the file.
    let file: ConfigFile = serde_json::from_slice(&text)
        .map_err(|e| failed(format!("line {}: it is not docker's config.json", e.line())))?;
    let entry = file.auths.into_iter().find(|(key, _)| names(key, registry));
    let Some((key, entry)) = entry else { return Ok(None) };
    let credentials = match entry {
        Entry { auth, .. } if !auth.is_empty() => auth,
        Entry { username, password, .. } if !username.is_empty() => {
            STANDARD.encode(format!("{username}:{password}"))
        }
        _ => {
            return Err(failed(format!(
                "{key} has neither auth nor username (helpers are not asked)"
            )));
        }
    };
    let decoded = STANDARD.decode(credentials.trim()).unwrap_or_default();
    if !decoded.contains(&b':') {
        return Err(failed(format!("auth of {key} is not USER:PASSWORD in base64")));
    }
    Ok(Some(Credentials(STANDARD.encode(decoded))))
}

/// Only root may access the file: a user who can write it chooses which registries the node trusts, and a user who can
/// read it has the passwords.
fn read(path: &Path) -> Result<Vec<u8>, String> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = file.map_err(|error| error.to_string())?;
    let meta = file.metadata().map_err(|error| error.to_string())?;
    let me = nix::unistd::geteuid().as_raw();
    if !meta.is_file() || (meta.uid() != 0 && meta.uid() != me) {
        return Err("it must be a file of root's".to_owned());
    }
    if meta.mode() & 0o077 != 0 {
        return Err(format!("its mode is {:o}; nobody else may read it: 600", meta.mode() & 0o777));
    }
    let mut text = Vec::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text);
    read.map_err(|error| error.to_string())?;
    if text.len() > usize::try_from(FILE_BYTES_MAX).unwrap_or(usize::MAX) {
        return Err(format!("it has more than {FILE_BYTES_MAX} bytes"));
    }
    Ok(text)
}

/// Whether a key of the file means this registry.
fn names(key: &str, registry: &str) -> bool {
    let bare = key.trim_start_matches("https://").trim_start_matches("http://");
    let bare = bare.trim_end_matches('/');
    bare == registry
        || bare == host_of(registry)
        || (bare == DOCKER_HUB_KEY && registry == fleet_core::image::DEFAULT_REGISTRY)
}

/// What a registry demands of its clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Demand {
    Basic,
    /// A token from elsewhere.
    Bearer {
        realm: String,
        service: Option<String>,
        scope: Option<String>,
    },
}

/// Reads one `WWW-Authenticate`.
pub(super) fn demand(header: &str) -> Option<Demand> {
    let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
    if scheme.eq_ignore_ascii_case("basic") {
        return Some(Demand::Basic);
    }
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let fields = fields(rest);
    let get = |name: &str| fields.get(name).cloned();
    Some(Demand::Bearer { realm: get("realm")?, service: get("service"), scope: get("scope") })
}

/// `name="value",name=value`; a value may hold commas.
fn fields(text: &str) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    let mut rest = text;
    while let Some((name, after)) = rest.split_once('=') {
        let (value, left) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => after.split_once(',').unwrap_or((after, "")),
        };
        let name = name.trim_matches([' ', ',']).to_ascii_lowercase();
        fields.insert(name, value.to_owned());
        rest = left;
    }
    fields
}

/// Gets a token. `plain`: the registry is spoken to without TLS, so its token server may be too.
pub(super) async fn token(
    registry: &Site,
    (realm, service, scope): (&str, Option<&str>, &str),
    credentials: Option<&Credentials>,
) -> Result<String, RegistryError> {
    let senseless = |why: String| RegistryError::Senseless { host: registry.host.clone(), why };
    let uri: Uri = realm.parse().map_err(|_| senseless(format!("token server {realm:?}")))?;
    let host = uri.authority().map(ToString::to_string);
    let host = host.ok_or_else(|| senseless(format!("token server {realm:?}")))?;
    let plain = uri.scheme_str() == Some("http");
    if plain && !registry.plain {
        return Err(senseless(format!("its token server {realm:?} speaks no TLS")));
    }
    let site = registry.beside(host, plain);
    let mut path = format!("{}?scope={}", uri.path(), escaped(scope));
    if let Some(service) = service {
        path.push_str(&format!("&service={}", escaped(service)));
    }
    let basic = credentials.map(Credentials::basic);
    let asked = Ask {
        method: Method::GET,
        path: &path,
        accept: "application/json",
        authorization: basic.as_deref(),
        from: 0,
    };
    let mut answer = ask(&site, &asked).await?;
    let body = answer.whole(TOKEN_BYTES_MAX).await?;
    let (host, name, words) = (site.host.clone(), scope.to_owned(), words(&body));
    match answer.status {
        StatusCode::OK => {}
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            return Err(RegistryError::Unauthorized { host, name, known: basic.is_some(), words });
        }
        StatusCode::TOO_MANY_REQUESTS => return Err(RegistryError::TooMany { host, words }),
        status if status.is_server_error() => {
            return Err(RegistryError::Unreachable { host, why: format!("status {status}") });
        }
        status => {
            return Err(RegistryError::Refused { host, name, status: status.as_u16(), words });
        }
    }
    #[derive(Deserialize)]
    struct Given {
        token: Option<String>,
        access_token: Option<String>,
    }
    let given: Given = serde_json::from_slice(&body)
        .map_err(|_| senseless("its token server answers no JSON".to_owned()))?;
    let token = given.token.or(given.access_token).filter(|token| !token.is_empty());
    token.ok_or_else(|| senseless("its token server gives no token".to_owned()))
}

/// For the query of a URI.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'/' | b':' => {
                out.push(char::from(byte));
            }
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use fleet_hostile_bytes::throw_text_at;

    use super::*;

    #[test]
    fn hostile_demands_of_registries() {
        let good = [
            "Bearer realm=\"https://a.b/token\",service=\"a.b\",scope=\"repository:x:pull,push\"",
            "Basic realm=\"x\"",
        ];
        assert!(matches!(demand(good[0]), Some(Demand::Bearer { .. })));
        throw_text_at(&good, |text| demand(text).is_some());
    }
}
