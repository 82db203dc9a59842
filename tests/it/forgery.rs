//! Papers that nobody should believe: certificates and signing requests made wrong on purpose, and a peer that shows
//! them. Our own client would refuse most of them itself, so this one looks at nothing; `strangers.rs` uses it.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use fleet_proto::transport::Address;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{AlertDescription, ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// How HTTP/2 begins: the preface, and an empty frame of settings.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// What a certificate is to say.
#[derive(Debug, Clone)]
pub(crate) struct Leaf {
    pub(crate) uris: Vec<String>,
    pub(crate) usages: Vec<ExtendedKeyUsagePurpose>,
    /// Seconds from now.
    pub(crate) valid: (i64, i64),
    pub(crate) is_ca: bool,
}

impl Leaf {
    /// A good one for a client.
    pub(crate) fn of(uri: &str) -> Self {
        let usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        Self { uris: vec![uri.to_owned()], usages, valid: (-300, 3_600), is_ca: false }
    }

    pub(crate) fn but(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

/// What a peer shows.
#[derive(Debug)]
pub(crate) struct Papers {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
}

/// Signs whatever is asked.
pub(crate) struct Forge(Issuer<'static, KeyPair>);

impl Forge {
    /// With the authority's own key.
    pub(crate) fn with_key_of(pki: &Path) -> Result<Self> {
        let key = KeyPair::from_pem(&fs::read_to_string(pki.join("ca.key"))?)?;
        Ok(Self(Issuer::from_ca_cert_pem(&fs::read_to_string(pki.join("ca.crt"))?, key)?))
    }

    /// An impostor: the authority's name, and another key.
    pub(crate) fn named_like(pki: &Path) -> Result<Self> {
        let ca = fs::read_to_string(pki.join("ca.crt"))?;
        Ok(Self(Issuer::from_ca_cert_pem(&ca, KeyPair::generate()?)?))
    }

    pub(crate) fn papers(&self, leaf: &Leaf) -> Result<Papers> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let uris = leaf.uris.iter().map(|uri| Ok(SanType::URI(uri.as_str().try_into()?)));
        params.subject_alt_names = uris.collect::<Result<_>>()?;
        params.extended_key_usages.clone_from(&leaf.usages);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        if leaf.is_ca {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        let at = |seconds: i64| -> Result<_> {
            let now = i64::try_from(crate::door::now().0 / 1_000)?;
            Ok(epoch + std::time::Duration::from_secs(u64::try_from(now + seconds)?))
        };
        (params.not_before, params.not_after) = (at(leaf.valid.0)?, at(leaf.valid.1)?);
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.0)?;
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(|e| anyhow::anyhow!(e))?;
        Ok(Papers { chain: vec![certificate.der().clone()], key })
    }
}

/// A request for a certificate with names and rights that it should not get, by this key.
pub(crate) fn greedy_request(key: &KeyPair) -> Result<Vec<u8>> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "root");
    params.subject_alt_names =
        vec![SanType::URI("fleet://fleet-elsewhere/controller/controller-1".try_into()?)];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Ok(params.serialize_request(key)?.der().to_vec())
}

/// How the door answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Knock {
    LetIn,
    Refused(AlertDescription),
}

/// Shows the papers in a handshake of TLS, and says the first words of HTTP/2.
pub(crate) async fn knock(address: &Address, papers: Papers) -> Result<Knock> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
        .with_client_auth_cert(papers.chain, papers.key)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(address.to_string()).await?;
    let name = ServerName::try_from("localhost")?;
    let shaken = async {
        // The server looks at our certificate after we believe the handshake to be done.
        let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        stream.write_all(HELLO).await?;
        stream.read_u8().await
    };
    match shaken.await {
        Ok(_) => Ok(Knock::LetIn),
        Err(error) => {
            let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
            match tls {
                Some(rustls::Error::AlertReceived(alert)) => Ok(Knock::Refused(*alert)),
                Some(_) | None => bail!(error),
            }
        }
    }
}

/// Takes every server for the right one.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not spoken here".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            certificate,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A key in the form that TLS takes it.
pub(crate) fn private_key(pem: &str) -> Result<PrivateKeyDer<'static>> {
    use rustls::pki_types::pem::PemObject as _;
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).ok().context("a key")
}
