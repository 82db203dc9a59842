//! Issuing, tokens, renewal and audit signatures: each rule and its refusals.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use fleet_core::name::{NodeName, UserName};
use fleet_core::node::{JoinToken as TokenRecord, MachineIdentity};
use fleet_core::time::{Millis, Timestamp};
use fleet_proto::transport::identity::{Identity, PeerCertificate, Role};
use fleet_proto::transport::keys::OwnKey;
use fleet_proto::transport::peer::CertifiedPeer;
use fleet_proto::transport::signature::{SignatureFault, verify_audit_signature};
use fleet_proto::transport::user::UserFolder;
use fleet_proto::transport::{
    Denials, Dialer, Gate, JoinToken, PeerIdentity, Revocations, SharedCredentials, TlsListener,
    UnixListener, server,
};
use fleet_proto::v1;
use fleet_proto::v1::enrollment_server::{Enrollment, EnrollmentServer};
use tonic::{Request, Response, Status};

use super::renewal::{RenewalRefused, check_renewal};
use super::token::{TokenError, join_line, mint_token, verify_secret};
use super::*;

const NOW: Timestamp = Timestamp(1_795_000_000_000);

fn node(name: &str) -> NodeName {
    NodeName::parse(name).unwrap()
}

fn authority() -> (tempfile::TempDir, Authority) {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::create(&folder.path().join("pki"), NOW).unwrap();
    (folder, authority)
}

fn request() -> SigningRequest {
    SigningRequest::parse(&OwnKey::generate().unwrap().signing_request().unwrap()).unwrap()
}

#[test]
fn a_cluster_is_made_once_and_its_key_is_private() {
    let (folder, made) = authority();
    let pki = folder.path().join("pki");
    let mode = |name: &str| pki.join(name).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("ca.key"), mode("ca.crt")), (0o600, 0o644));
    assert!(made.cluster().as_str().starts_with("fleet-"));

    let loaded = Authority::load(&pki).unwrap();
    assert_eq!((loaded.cluster(), loaded.pin()), (made.cluster(), made.pin()));
    let again = Authority::create(&pki, NOW);
    assert!(matches!(again, Err(PkiError::AlreadyInitialised { .. })), "{again:?}");
}

#[test]
fn a_damaged_or_exposed_ca_is_refused_with_its_path() {
    let (folder, _) = authority();
    let pki = folder.path().join("pki");
    let key = pki.join("ca.key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
    let error = Authority::load(&pki).unwrap_err().to_string();
    assert!(error.contains("ca.key") && error.contains("640"), "{error}");

    let (other, _) = authority();
    std::fs::copy(other.path().join("pki/ca.key"), &key).unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert!(matches!(Authority::load(&pki), Err(PkiError::Damaged { .. })));

    std::fs::write(pki.join("ca.crt"), "nonsense").unwrap();
    assert!(matches!(Authority::load(&pki), Err(PkiError::Damaged { .. })));
    let absent = Authority::load(&folder.path().join("none"));
    assert!(matches!(absent, Err(PkiError::NotInitialised { .. })));
}

#[test]
fn names_and_extensions_in_a_request_are_ignored() {
    let (_folder, authority) = authority();
    let mut params = rcgen::CertificateParams::new(vec!["evil.example".to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let uri = "fleet://fleet-other/controller/c1".try_into().unwrap();
    params.subject_alt_names.push(rcgen::SanType::URI(uri));
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let key = rcgen::KeyPair::generate().unwrap();
    let der = params.serialize_request(&key).unwrap().der().to_vec();

    let request = SigningRequest::parse(&der).unwrap();
    let issued = authority.issue_node(&request, &node("titan01"), NOW).unwrap();
    let leaf = PeerCertificate::parse(&issued.certificate_der).unwrap();
    assert_eq!(leaf.identity.role, Role::Node(node("titan01")));
    assert_eq!(leaf.identity.cluster, *authority.cluster());
    assert!(leaf.client_auth && !leaf.server_auth);
    assert_eq!(leaf.serial, issued.serial);
    assert_eq!(leaf.serial.len(), 2 * SERIAL_BYTES);
    assert_eq!(leaf.key_pin, request.key_pin());
    assert_eq!(
        (leaf.not_before, leaf.not_after),
        (issued.not_before.0 / 1000, issued.not_after.0 / 1000)
    );
    assert_eq!(leaf.not_after - NOW.0 / 1000, NODE_LIFE.as_secs());
    let text = String::from_utf8_lossy(&issued.certificate_der).into_owned();
    assert!(!text.contains("evil.example"));
}

#[test]
fn a_bad_request_says_what_is_wrong() {
    let good = OwnKey::generate().unwrap().signing_request().unwrap();
    let mut forged = good.clone();
    let last = forged.len() - 1;
    forged[last] ^= 1;
    let mut longer = good.clone();
    longer.push(0);
    let p384 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
    let params = rcgen::CertificateParams::default();
    let p384 = params.serialize_request(&p384).unwrap().der().to_vec();
    let table: [(&[u8], &str); 6] = [
        (b"", "PKCS#10"),
        (b"nonsense", "PKCS#10"),
        (&forged, ""),
        (&longer, "bytes after"),
        (&vec![0x30; REQUEST_BYTES_MAX + 1], "at most"),
        (&p384, "only P-256"),
    ];
    for (der, part) in table {
        let error = SigningRequest::parse(der).unwrap_err();
        assert!(matches!(error, PkiError::Request { .. }));
        assert!(error.to_string().contains(part), "{error} should mention {part:?}");
        assert_eq!(error.to_status().code(), tonic::Code::InvalidArgument);
    }
}

#[test]
fn every_cut_and_flip_of_a_request_is_answered() {
    let good = OwnKey::generate().unwrap().signing_request().unwrap();
    let key_pin = SigningRequest::parse(&good).unwrap().key_pin();
    for cut in 0..good.len() {
        assert!(SigningRequest::parse(&good[..cut]).is_err(), "cut at {cut}");
    }
    for index in 0..good.len() {
        let mut bytes = good.clone();
        bytes[index] ^= 0x55;
        // The name of the signature algorithm is not signed; the key always is.
        if let Ok(request) = SigningRequest::parse(&bytes) {
            assert_eq!(request.key_pin(), key_pin, "flipped at {index}");
        }
    }
}

#[test]
fn a_user_gets_at_most_twelve_hours() {
    let (_folder, authority) = authority();
    let user = UserName::parse("ada").unwrap();
    for ttl in [Duration::ZERO, USER_LIFE + Duration::from_secs(1), Duration::MAX] {
        let refused = authority.issue_user(&request(), &user, ttl, NOW);
        assert!(matches!(refused, Err(PkiError::Lifetime { .. })), "{refused:?}");
    }
    let issued = authority.issue_user(&request(), &user, USER_LIFE, NOW).unwrap();
    assert_eq!(issued.identity.role, Role::User(user));
}

#[test]
fn a_certificate_of_a_node_begins_at_the_earlier_of_two_times() {
    let (_folder, authority) = authority();
    let fleet = NOW - Millis::hours(5);
    let issued = authority.issue_node_from(&request(), &node("titan01"), fleet, NOW).unwrap();
    let plain = authority.issue_node(&request(), &node("titan01"), NOW).unwrap();
    assert_eq!(plain.not_before.since(issued.not_before), Millis::hours(5), "good by both");
    assert_eq!(issued.not_after, plain.not_after);
}

#[test]
fn nothing_outlives_the_authority() {
    let (_folder, authority) = authority();
    let late = Timestamp(NOW.0 + 1000 * (AUTHORITY_LIFE.as_secs() - 60));
    let refused = authority.issue_node(&request(), &node("titan01"), late);
    assert!(matches!(refused, Err(PkiError::AuthorityExpired { .. })), "{refused:?}");
}

#[test]
fn the_controllers_own_certificate_is_renewed_at_half_its_life() {
    let (folder, _) = authority();
    let pki = folder.path().join("pki");
    let serial = |now| {
        let own = Keyring::load(&pki).unwrap().own_credentials(&node("c1"), now).unwrap();
        own.leaf().serial.clone()
    };
    let first = serial(NOW);
    assert_eq!(serial(NOW), first, "kept while fresh");
    let later = Timestamp(NOW.0 + 1000 * (CONTROLLER_LIFE.as_secs() / 2 + 60));
    let second = serial(later);
    assert_ne!(second, first);
    std::fs::write(pki.join("server.crt"), "cut off").unwrap();
    assert_ne!(serial(later), second, "a damaged one is made again");
}

fn record(minted: &token::MintedToken) -> TokenRecord {
    TokenRecord {
        id: minted.command.id.clone(),
        secret_sha256: minted.command.secret_sha256.clone(),
        names: minted.command.names.clone(),
        used: BTreeMap::new(),
        created_by: UserName::parse("ada").unwrap(),
        expires_at: NOW + minted.command.ttl,
    }
}

fn machine(id: &str) -> MachineIdentity {
    MachineIdentity { machine_id: id.to_owned(), dmi_uuid: String::new() }
}

#[test]
fn a_token_opens_its_names_once_until_it_expires() {
    let (_folder, authority) = authority();
    let names = vec![node("titan01"), node("titan02")];
    let minted = mint_token(authority.pin(), names, Millis::minutes(15)).unwrap();
    let token: JoinToken = minted.text.expose().parse().unwrap();
    assert_eq!(token.pin, authority.pin());
    assert_eq!(token.id, minted.command.id);
    let secret = token.secret.expose();
    let mut record = record(&minted);
    let check = |record: &TokenRecord, secret: &str, name: &str, id: &str, now| {
        verify_secret(record, secret, &node(name), &machine(id), now)
    };
    assert_eq!(check(&record, secret, "titan01", "m1", NOW), Ok(()));
    assert_eq!(check(&record, "wrong", "titan01", "m1", NOW), Err(TokenError::Wrong));
    assert_eq!(check(&record, "", "titan01", "m1", NOW), Err(TokenError::Wrong));
    let other = check(&record, secret, "titan03", "m1", NOW);
    assert!(matches!(other, Err(TokenError::NameNotAllowed { .. })), "{other:?}");
    let end = record.expires_at;
    let late = check(&record, secret, "titan01", "m1", end);
    assert_eq!(late, Err(TokenError::Expired { ago: Millis::ZERO }));
    assert_eq!(check(&record, "wrong", "titan01", "m1", end), Err(TokenError::Wrong));

    record.used.insert(node("titan01"), machine("m1"));
    assert_eq!(check(&record, secret, "titan01", "m1", NOW), Ok(()), "a lost answer is repeated");
    let twice = check(&record, secret, "titan01", "m2", NOW);
    assert!(matches!(twice, Err(TokenError::AlreadyUsed { .. })), "{twice:?}");
    assert_eq!(check(&record, secret, "titan02", "m2", NOW), Ok(()));
}

#[test]
fn a_token_is_minted_within_bounds_and_shows_no_secret() {
    let (_folder, authority) = authority();
    let pin = authority.pin();
    let mint = |names: Vec<NodeName>, ttl| mint_token(pin, names, ttl).map(|_| ());
    assert_eq!(mint(vec![], Millis::hours(1)), Err(TokenError::Names { found: 0 }));
    let many: Vec<_> = (0..257).map(|n| node(&format!("n{n}"))).collect();
    assert_eq!(mint(many, Millis::hours(1)), Err(TokenError::Names { found: 257 }));
    let twice = mint(vec![node("a"), node("a")], Millis::hours(1));
    assert_eq!(twice, Err(TokenError::DuplicateName { name: node("a") }));
    assert_eq!(mint(vec![node("a")], Millis::ZERO), Err(TokenError::Ttl));
    assert_eq!(mint(vec![node("a")], Millis::days(8)), Err(TokenError::Ttl));

    let minted = mint_token(pin, vec![node("a")], token::TOKEN_TTL_DEFAULT).unwrap();
    let secret = minted.text.expose().split('.').nth(2).unwrap().to_owned();
    assert!(!format!("{minted:?}").contains(&secret));
    let line = join_line("fleet.lab:7443", &minted.text, &node("a"));
    assert!(line.expose().starts_with("fleet-agent join fleet.lab:7443 --token fleet1.token-"));
    assert!(!format!("{line:?}").contains(&secret));
}

fn peer_with(
    authority: &Authority,
    key: &OwnKey,
    issued_at: Timestamp,
    expired: bool,
) -> PeerIdentity {
    let request = SigningRequest::parse(&key.signing_request().unwrap()).unwrap();
    let issued = authority.issue_node(&request, &node("titan01"), issued_at).unwrap();
    let certificate = PeerCertificate::parse(&issued.certificate_der).unwrap();
    let address: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let peer = Arc::new(CertifiedPeer { address, certificate });
    if expired { PeerIdentity::Expired(peer) } else { PeerIdentity::Certified(peer) }
}

#[test]
fn an_expired_certificate_renews_for_its_own_key_within_thirty_days() {
    let (_folder, authority) = authority();
    let (own, other) = (OwnKey::generate().unwrap(), OwnKey::generate().unwrap());
    let request = |key: &OwnKey| SigningRequest::parse(&key.signing_request().unwrap()).unwrap();
    let none = Revocations::default();
    let check =
        |peer: &PeerIdentity, key: &OwnKey, now| check_renewal(peer, &request(key), &none, now);

    let valid = peer_with(&authority, &own, NOW, false);
    assert_eq!(check(&valid, &other, NOW), Ok(node("titan01")), "a valid one may change its key");
    let expired = peer_with(&authority, &own, NOW, true);
    let after = |days: u64| NOW + Millis::days(days);
    assert_eq!(check(&expired, &own, after(20)), Ok(node("titan01")));
    assert_eq!(check(&expired, &other, after(20)), Err(RenewalRefused::OtherKey));
    assert_eq!(check(&valid, &other, after(20)), Err(RenewalRefused::OtherKey));
    assert_eq!(check(&expired, &own, after(32)), Err(RenewalRefused::ExpiredTooLong));

    let serial = expired.serial().unwrap().to_owned();
    none.replace(BTreeSet::from([serial]));
    let revoked = check(&expired, &own, after(20));
    assert_eq!(revoked, Err(RenewalRefused::Certificate(CertificateFault::Revoked)));
    let local = PeerIdentity::Local { uid: 0, gid: 0, pid: None };
    assert_eq!(check(&local, &own, NOW), Err(RenewalRefused::NotANode));
}

#[test]
fn an_audit_signature_belongs_to_its_text_its_signer_and_its_fleet() {
    let (folder, fleet) = authority();
    let (other_folder, other) = authority();
    let signer = |authority: &Authority, folder: &tempfile::TempDir| {
        let pki = folder.path().join("pki");
        AuditSigner::load_or_create(authority, &pki, &node("c1"), NOW).unwrap()
    };
    let signed = signer(&fleet, &folder).sign(b"tail").unwrap();
    let again = signer(&fleet, &folder).sign(b"tail").unwrap();
    assert_eq!(signed.certificate_der, again.certificate_der, "the signer is kept");

    let verify = |ca: &Authority, signature: &AuditSignature, text: &[u8]| {
        let certificate = &signature.certificate_der;
        verify_audit_signature(ca.certificate_der(), certificate, text, &signature.signature)
    };
    let who = verify(&fleet, &signed, b"tail").unwrap();
    assert_eq!(who.identity.role, Role::AuditSigner(node("c1")));
    assert_eq!(verify(&fleet, &signed, b"tai1"), Err(SignatureFault::Mismatch));
    let foreign = signer(&other, &other_folder).sign(b"tail").unwrap();
    let refused = verify(&fleet, &foreign, b"tail");
    assert_eq!(refused, Err(CertificateFault::UntrustedIssuer.into()));
    let mixed = AuditSignature { signature: foreign.signature, ..signed };
    assert_eq!(verify(&fleet, &mixed, b"tail"), Err(SignatureFault::Mismatch));

    let issued = fleet.issue_node(&request(), &node("c1"), NOW).unwrap();
    let node_signed = AuditSignature { certificate_der: issued.certificate_der, ..mixed };
    let refused = verify(&fleet, &node_signed, b"tail");
    assert!(matches!(refused, Err(SignatureFault::Signer(CertificateFault::WrongRole { .. }))));
}

/// Issues to local users, as the API does.
struct Desk(Keyring);

#[tonic::async_trait]
impl Enrollment for Desk {
    async fn join(
        &self,
        _: Request<v1::JoinRequest>,
    ) -> Result<Response<v1::JoinResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn join_controller(
        &self,
        _: Request<v1::JoinControllerRequest>,
    ) -> Result<Response<v1::JoinControllerResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn renew(
        &self,
        _: Request<v1::RenewRequest>,
    ) -> Result<Response<v1::RenewResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn user_certificate(
        &self,
        request: Request<v1::UserCertificateRequest>,
    ) -> Result<Response<v1::UserCertificateResponse>, Status> {
        let PeerIdentity::Local { .. } = PeerIdentity::of(&request)? else {
            return Err(Status::permission_denied("local users only"));
        };
        let now = wall_clock();
        let user = UserName::parse("ada").unwrap();
        let issued = SigningRequest::parse(&request.into_inner().csr_der)
            .and_then(|request| self.0.signing().issue_user(&request, &user, USER_LIFE, now))
            .map_err(|error| error.to_status())?;
        let certificate = Some(self.0.reply(&issued, &self.0.signing(), now, Vec::new()));
        Ok(Response::new(v1::UserCertificateResponse { certificate }))
    }

    async fn vouch_user(
        &self,
        _: Request<v1::VouchUserRequest>,
    ) -> Result<Response<v1::UserCertificateResponse>, Status> {
        Err(Status::unimplemented("not here"))
    }
}

fn wall_clock() -> Timestamp {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Timestamp(u64::try_from(now.as_millis()).unwrap())
}

#[tokio::test]
async fn a_local_user_gets_a_certificate_that_works_over_the_network() {
    let folder = tempfile::tempdir().unwrap();
    let pki = folder.path().join("pki");
    let authority = Authority::create(&pki, wall_clock()).unwrap();
    let keyring = Keyring::load(&pki).unwrap();
    let own = keyring.own_credentials(&node("c1"), wall_clock()).unwrap();
    let cluster = authority.cluster().clone();
    let own = SharedCredentials::new(own).unwrap();
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp = TlsListener::start(socket, own, Denials::default()).unwrap();
    let address = tcp.local_addr().to_string().parse().unwrap();
    let path = folder.path().join("fleet.sock");
    let unix = UnixListener::bind(&path, 0o666).unwrap();
    // One server on both listeners.
    let router =
        server::server_builder(Gate::default()).add_service(EnrollmentServer::new(Desk(keyring)));
    let task = tokio::spawn(router.serve_with_incoming(tokio_stream::StreamExt::merge(tcp, unix)));

    let own_folder = UserFolder::new(&folder.path().join("ada"));
    own_folder.load().unwrap_err();
    let local = fleet_proto::transport::unix::channel(&path);
    let got = own_folder.renew(local).await.unwrap();
    let expected = Identity::new(cluster, Role::User(UserName::parse("ada").unwrap()));
    assert_eq!(got.leaf().identity, expected);
    let stored = own_folder.load().unwrap();
    assert_eq!(stored.leaf(), got.leaf());

    let dialer = Dialer::new(vec![address], SharedCredentials::new(stored).unwrap());
    let refused = own_folder.renew(dialer.channel()).await.unwrap_err();
    assert!(refused.to_string().contains("local users only"), "{refused}");
    assert!(dialer.last_error().is_none(), "the certificate was good for the connection");
    task.abort();
}
