//! The peer: etcd from Debian's packages, three members below a folder of ours, on the loopback interface.
//!
//! Members among themselves and clients speak mutual TLS, as fleet's do. Nothing else differs from what etcd does
//! by itself: each write is on the disks of a majority (fdatasync) before it is acknowledged. The machine's own
//! etcd, if it has one, is neither used nor touched.

use std::{
    fs::{self, File},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use prost::Message;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::{
    Request,
    client::Grpc,
    transport::{Channel, Endpoint, Uri},
};
use tonic_prost::ProstCodec;

use crate::daemons::{self, DIRECTORIES, Daemons};

/// What has to be installed.
const PROGRAMS: [&str; 1] = ["etcd"];
const MEMBERS: usize = 3;
/// Longest single call.
const CALL_MAX: Duration = Duration::from_secs(30);
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// The programs that are missing, for the one line that says so.
pub(crate) fn missing() -> Vec<&'static str> {
    daemons::missing(&PROGRAMS)
}

/// A running etcd; ends with this value.
#[derive(Debug)]
pub(crate) struct Etcd {
    dir: PathBuf,
    /// Of the clients, one per member.
    ports: Vec<u16>,
    tls: Arc<ClientConfig>,
    daemons: Daemons,
}

impl Etcd {
    /// Starts it and waits until all members follow one leader.
    pub(crate) fn start(dir: &Path) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        fs::create_dir_all(dir)?;
        let tls = Arc::new(certificates(dir)?);
        // All are held until all are known, so that none is given twice.
        let held: Vec<TcpListener> =
            (0..2 * MEMBERS).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
        let ports = held.iter().map(|held| Ok(held.local_addr()?.port()));
        let ports: Vec<u16> = ports.collect::<Result<_>>()?;
        drop(held);
        let (ports, peers) = ports.split_at(MEMBERS);
        let daemons = Daemons::default();
        let mut etcd = Self { dir: dir.to_owned(), ports: ports.to_vec(), tls, daemons };
        let all: Vec<String> = peers.iter().enumerate().map(|(n, port)| named(n, *port)).collect();
        for (number, (port, peer)) in ports.iter().zip(peers).enumerate() {
            let command = etcd.member(number, *port, *peer, &all.join(","))?;
            etcd.daemons.start(command)?;
        }
        let Self { dir, ports, tls, daemons } = &mut etcd;
        daemons
            .wait("etcd's leader", dir, || Ok(runtime.block_on(leader(ports, tls)).is_some()))?;
        Ok(etcd)
    }

    fn member(&self, number: usize, port: u16, peer: u16, all: &str) -> Result<Command> {
        let path = |name: &str| self.dir.join(name).display().to_string();
        let url = |port: u16| format!("https://127.0.0.1:{port}");
        let log = File::create(self.dir.join(format!("etcd{number}.out")))?;
        let mut command = Command::new("etcd");
        let options = [
            ("name", format!("m{number}")),
            ("data-dir", path(&format!("m{number}"))),
            ("listen-client-urls", url(port)),
            ("advertise-client-urls", url(port)),
            ("listen-peer-urls", url(peer)),
            ("initial-advertise-peer-urls", url(peer)),
            ("initial-cluster", all.to_owned()),
            ("initial-cluster-state", "new".to_owned()),
            ("initial-cluster-token", "fleet-bench".to_owned()),
            ("trusted-ca-file", path("ca.pem")),
            ("cert-file", path("leaf.pem")),
            ("key-file", path("leaf.key")),
            ("peer-trusted-ca-file", path("ca.pem")),
            ("peer-cert-file", path("leaf.pem")),
            ("peer-key-file", path("leaf.key")),
            ("logger", "zap".to_owned()),
        ];
        for (option, value) in options {
            command.arg(format!("--{option}={value}"));
        }
        command.args(["--client-cert-auth", "--peer-client-cert-auth"]);
        // Its settings can come from variables too.
        command.env_clear().env("PATH", DIRECTORIES).current_dir(&self.dir);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(command)
    }

    /// A connection of its own to the member that leads: there a write has the shortest way.
    pub(crate) async fn client(&self) -> Result<EtcdClient> {
        let leader = leader(&self.ports, &self.tls).await.context("etcd has no leader")?;
        Ok(EtcdClient(channel(leader, &self.tls)))
    }
}

/// A connection; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct EtcdClient(Channel);

impl EtcdClient {
    pub(crate) async fn put(&mut self, key: &str, value: Vec<u8>) -> Result<()> {
        let message = PutRequest { key: key.as_bytes().to_vec(), value };
        let path = PathAndQuery::from_static("/etcdserverpb.KV/Put");
        call::<_, PutResponse>(&self.0, message, path).await.map(|_| ())
    }

    pub(crate) async fn delete(&mut self, key: &str) -> Result<()> {
        let message = DeleteRangeRequest { key: key.as_bytes().to_vec() };
        let path = PathAndQuery::from_static("/etcdserverpb.KV/DeleteRange");
        let answer: DeleteRangeResponse = call(&self.0, message, path).await?;
        ensure!(answer.deleted == 1, "etcd deleted {} keys named {key}", answer.deleted);
        Ok(())
    }
}

/// The port of the member that leads, once all members name the same.
async fn leader(ports: &[u16], tls: &Arc<ClientConfig>) -> Option<u16> {
    let (mut named, mut own) = (Vec::new(), Vec::new());
    for port in ports {
        let path = PathAndQuery::from_static("/etcdserverpb.Maintenance/Status");
        let status: StatusResponse =
            call(&channel(*port, tls), StatusRequest {}, path).await.ok()?;
        named.push(status.leader);
        own.push((status.header?.member_id, *port));
    }
    let first = named.first().filter(|first| named.iter().all(|other| other == *first))?;
    own.into_iter().find(|(member, _)| member == first).map(|(_, port)| port)
}

fn named(number: usize, port: u16) -> String {
    format!("m{number}=https://127.0.0.1:{port}")
}

fn channel(port: u16, tls: &Arc<ClientConfig>) -> Channel {
    let tls = Arc::clone(tls);
    let connector = tower::service_fn(move |_: Uri| {
        let tls = TlsConnector::from(Arc::clone(&tls));
        async move {
            let stream = TcpStream::connect(("127.0.0.1", port)).await?;
            stream.set_nodelay(true)?;
            let name = ServerName::from(std::net::IpAddr::from([127, 0, 0, 1]));
            tls.connect(name, stream).await.map(TokioIo::new)
        }
    });
    Endpoint::from_static("http://etcd.invalid")
        .connect_timeout(CONNECT_MAX)
        .connect_with_connector_lazy(connector)
}

async fn call<Q, A>(channel: &Channel, message: Q, path: PathAndQuery) -> Result<A>
where
    Q: Message + Send + Sync + 'static,
    A: Message + Default + Send + Sync + 'static,
{
    let mut client = Grpc::new(channel.clone());
    client.ready().await.context("etcd cannot be reached")?;
    let mut request = Request::new(message);
    request.set_timeout(CALL_MAX);
    Ok(client.unary(request, path, ProstCodec::<Q, A>::default()).await?.into_inner())
}

/// An authority and one certificate for everybody, below `dir`; gives what a client needs.
fn certificates(dir: &Path) -> Result<ClientConfig> {
    let mut ca = CertificateParams::new(Vec::new())?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    let ca_key = KeyPair::generate()?;
    let ca_pem = ca.self_signed(&ca_key)?.pem();
    let leaf_key = KeyPair::generate()?;
    let leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()])?
        .signed_by(&leaf_key, &Issuer::new(ca, ca_key))?;
    let (leaf_pem, key_pem) = (leaf.pem(), leaf_key.serialize_pem());
    for (name, pem) in [("ca.pem", &ca_pem), ("leaf.pem", &leaf_pem), ("leaf.key", &key_pem)] {
        fs::write(dir.join(name), pem)?;
    }
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca_pem.as_bytes())?)?;
    let chain = vec![CertificateDer::from_pem_slice(leaf_pem.as_bytes())?];
    let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes())?;
    let mut config = ClientConfig::builder_with_provider(fleet_proto::transport::crypto_provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

// The few messages of etcd's API (rpc.proto of 3.4) that are used here, with the fields that are read.

#[derive(Clone, PartialEq, Message)]
struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct PutResponse {}

#[derive(Clone, PartialEq, Message)]
struct DeleteRangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct DeleteRangeResponse {
    #[prost(int64, tag = "2")]
    deleted: i64,
}

#[derive(Clone, PartialEq, Message)]
struct StatusRequest {}

#[derive(Clone, PartialEq, Message)]
struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
    #[prost(uint64, tag = "4")]
    leader: u64,
}

#[derive(Clone, PartialEq, Message)]
struct ResponseHeader {
    #[prost(uint64, tag = "2")]
    member_id: u64,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::print_stdout)]

    use super::*;

    #[test]
    fn a_private_etcd_takes_writes_over_mutual_tls_and_goes_away() {
        if !missing().is_empty() {
            println!("SKIPPED: needs etcd ({})", missing().join(", "));
            return;
        }
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let etcd = Etcd::start(&folder.path().join("etcd")).unwrap();
        runtime.block_on(async {
            let mut client = etcd.client().await.unwrap();
            client.put("a", b"b".to_vec()).await.unwrap();
            client.delete("a").await.unwrap();
            assert!(client.delete("a").await.is_err(), "it is not there any more");
        });
        let pids = etcd.daemons.pids();
        assert_eq!(pids.len(), MEMBERS);
        drop(etcd);
        for pid in pids {
            assert!(!Path::new(&format!("/proc/{pid}")).exists(), "{pid}");
        }
    }
}
