//! TLS with certificates on both sides. Who is on the other side is known when a handshake ends: a node that the
//! authority has certified. Whether it is still a member is for whoever knows the control state.

use crate::SigningKey;
use crate::certificate::{WITHIN, anchor, any_node};
use freebs_types::{ClusterId, Error, HostPublic, Result};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::fmt;
use std::sync::Arc;

/// The bytes before the 32 of a secret half in PKCS #8 (RFC 8410).
const PKCS8: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// How others are called: they have to show a certificate of the cluster.
#[derive(Clone)]
pub struct Caller {
    config: Arc<ClientConfig>,
    any_node: ServerName<'static>,
}

impl Caller {
    /// Of somebody who has no certificate yet, and may only join.
    pub fn to_join(cluster: ClusterId, authority: &HostPublic) -> Result<Self> {
        let mut config = checking(cluster, authority)?.with_no_client_auth();
        config.resumption = Resumption::disabled();
        Ok(Self { config: Arc::new(config), any_node: any_node(cluster)? })
    }

    /// For each connection.
    #[must_use]
    pub fn config(&self) -> Arc<ClientConfig> {
        self.config.clone()
    }

    /// The name that the other side must have a certificate of.
    #[must_use]
    pub fn any_node(&self) -> ServerName<'static> {
        self.any_node.clone()
    }
}

/// How a node speaks with others: both sides of the handshake.
#[derive(Clone)]
pub struct Tls {
    server: Arc<ServerConfig>,
    caller: Caller,
    cluster: ClusterId,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tls of {}", self.cluster)
    }
}

fn bad(e: impl fmt::Display) -> Error {
    Error::invalid(format!("this node's key and certificate can't be used: {e}"))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The time at which certificates are looked at: the same one for ever, because a clock may be wrong, and they have no end that
/// could come while nobody looks.
#[derive(Debug)]
struct Whenever;

impl TimeProvider for Whenever {
    fn current_time(&self) -> Option<UnixTime> {
        Some(WITHIN)
    }
}

fn roots(cluster: ClusterId, authority: &HostPublic) -> Arc<RootCertStore> {
    Arc::new(RootCertStore { roots: vec![anchor(cluster, authority)] })
}

fn checking(
    cluster: ClusterId,
    authority: &HostPublic,
) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>> {
    let of_servers = WebPkiServerVerifier::builder_with_provider(roots(cluster, authority), provider());
    let of_servers = of_servers.build().map_err(bad)?;
    let builder = ClientConfig::builder_with_details(provider(), Arc::new(Whenever));
    let builder = builder.with_protocol_versions(&[&TLS13]).map_err(bad)?;
    Ok(builder.with_webpki_verifier(of_servers))
}

impl Tls {
    /// Of a node with this key and its certificate.
    pub fn new(cluster: ClusterId, authority: &HostPublic, key: &SigningKey, certificate: Vec<u8>) -> Result<Self> {
        let chain = vec![CertificateDer::from(certificate)];
        let secret = || {
            let bytes = [&PKCS8[..], key.seed()].concat();
            PrivateKeyDer::from(PrivatePkcs8KeyDer::from(bytes))
        };
        // One that has no certificate yet has to be heard, so that it can join.
        let of_clients = WebPkiClientVerifier::builder_with_provider(roots(cluster, authority), provider());
        let of_clients = of_clients.allow_unauthenticated().build().map_err(bad)?;
        let mut server = ServerConfig::builder_with_details(provider(), Arc::new(Whenever))
            .with_protocol_versions(&[&TLS13])
            .map_err(bad)?
            .with_client_cert_verifier(of_clients)
            .with_single_cert(chain.clone(), secret())
            .map_err(bad)?;
        // Each handshake is a whole one: nothing is remembered of somebody who may be a member no more.
        server.send_tls13_tickets = 0;
        let mut config = checking(cluster, authority)?.with_client_auth_cert(chain, secret()).map_err(bad)?;
        config.resumption = Resumption::disabled();
        let caller = Caller { config: Arc::new(config), any_node: any_node(cluster)? };
        Ok(Self { server: Arc::new(server), caller, cluster })
    }

    /// For connections that come in.
    #[must_use]
    pub fn server(&self) -> Arc<ServerConfig> {
        self.server.clone()
    }

    /// For connections to others.
    #[must_use]
    pub fn caller(&self) -> &Caller {
        &self.caller
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificate::certify_until;
    use crate::{CERTIFICATE_BYTES_MAX, certify, check_own, key_of};
    use freebs_types::{Hash32, NodeId};
    use rustls::{ClientConnection, Connection, ServerConnection};

    const CLUSTER: ClusterId = ClusterId([7; 16]);

    fn key(byte: u8) -> SigningKey {
        SigningKey::new(&Hash32([byte; 32])).unwrap()
    }

    /// The node with this number, whose key is that byte, certified by that authority for that cluster.
    fn node(number: u8, authority: u8, cluster: ClusterId) -> Tls {
        let certificate = certify(&key(authority), cluster, NodeId(number.into()), &key(number).public()).unwrap();
        Tls::new(CLUSTER, &key(100).public(), &key(number), certificate).unwrap()
    }

    /// Both ends behind the handshake, or why it failed.
    fn shake(caller: &Caller, server: &Tls) -> Result<(Connection, Connection), rustls::Error> {
        let mut client: Connection = ClientConnection::new(caller.config(), caller.any_node())?.into();
        let mut server: Connection = ServerConnection::new(server.server())?.into();
        while client.is_handshaking() || server.is_handshaking() || client.wants_write() || server.wants_write() {
            for (from, to) in [(&mut client, &mut server)] {
                let mut bytes = Vec::new();
                while from.wants_write() {
                    from.write_tls(&mut bytes).unwrap();
                }
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    to.read_tls(&mut rest).unwrap();
                    to.process_new_packets()?;
                }
            }
            std::mem::swap(&mut client, &mut server);
        }
        match client {
            Connection::Client(_) => Ok((client, server)),
            Connection::Server(_) => Ok((server, client)),
        }
    }

    fn key_on(side: &Connection, number: u64) -> Result<HostPublic> {
        key_of(&side.peer_certificates().unwrap()[0], CLUSTER, NodeId(number))
    }

    #[test]
    fn two_nodes_know_each_other() {
        let (a, b) = (node(1, 100, CLUSTER), node(2, 100, CLUSTER));
        let (client, server) = shake(a.caller(), &b).unwrap();
        assert_eq!(key_on(&client, 2).unwrap(), key(2).public());
        assert_eq!(key_on(&server, 1).unwrap(), key(1).public());
        assert!(key_on(&server, 2).unwrap_err().text.contains("not that of node 2"));
        assert!(key_on(&server, 10).is_err() && key_on(&server, 11).is_err());
    }

    #[test]
    fn whoever_joins_is_heard_and_known_to_be_nobody() {
        let caller = Caller::to_join(CLUSTER, &key(100).public()).unwrap();
        let (client, server) = shake(&caller, &node(2, 100, CLUSTER)).unwrap();
        assert!(server.peer_certificates().is_none_or(<[_]>::is_empty));
        assert_eq!(key_on(&client, 2).unwrap(), key(2).public());
        // A server of another authority does not get the token.
        let caller = Caller::to_join(CLUSTER, &key(101).public()).unwrap();
        assert!(shake(&caller, &node(2, 100, CLUSTER)).is_err());
    }

    /// A node that shows these bytes as its certificate, whatever they are.
    fn showing(number: u8, certificate: Vec<u8>) -> Result<Tls> {
        Tls::new(CLUSTER, &key(100).public(), &key(number), certificate)
    }

    fn refused_by_both(bad: &Tls, says: &str) {
        let good = node(1, 100, CLUSTER);
        for e in [shake(bad.caller(), &good).err(), shake(good.caller(), bad).err()] {
            let text = e.expect("refused").to_string();
            assert!(text.contains(says), "{says}: {text}");
        }
    }

    #[test]
    fn certificates_of_others_are_refused() {
        refused_by_both(&node(2, 101, CLUSTER), "BadSignature");
        refused_by_both(&node(2, 100, ClusterId([8; 16])), "UnknownIssuer");
    }

    #[test]
    fn an_end_that_has_come_counts() {
        let until = |end: &[u8]| {
            let certificate = certify_until(&key(100), CLUSTER, NodeId(2), &key(2).public(), end);
            showing(2, certificate.unwrap()).unwrap()
        };
        refused_by_both(&until(b"20200101000000Z"), "expired");
        let far = until(b"29990101000000Z");
        shake(far.caller(), &node(1, 100, CLUSTER)).unwrap();
        shake(node(1, 100, CLUSTER).caller(), &far).unwrap();
    }

    #[test]
    fn damaged_certificates_are_refused() {
        let whole = certify(&key(100), CLUSTER, NodeId(2), &key(2).public()).unwrap();
        let own = |bytes: &[u8]| check_own(bytes, CLUSTER, &key(100).public(), NodeId(2), &key(2).public());
        own(&whole).unwrap();
        for cut in 0..whole.len() {
            assert!(own(&whole[..cut]).is_err(), "{cut} bytes of it");
            // Either it can't even be shown, or the others refuse it.
            if let Ok(bad) = showing(2, whole[..cut].to_vec()) {
                assert!(shake(bad.caller(), &node(1, 100, CLUSTER)).is_err());
            }
        }
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x20;
            assert!(own(&bytes).is_err(), "byte {at}");
            if let Ok(bad) = showing(2, bytes) {
                assert!(shake(bad.caller(), &node(1, 100, CLUSTER)).is_err(), "byte {at}");
            }
        }
        assert!(own(&[7; 300]).is_err() && own(&[whole.clone(), vec![0]].concat()).is_err());
    }

    #[test]
    fn a_certificate_is_of_one_node_and_one_key() {
        let of = |node, key_of: u8| certify(&key(100), CLUSTER, NodeId(node), &key(key_of).public()).unwrap();
        let own = |bytes: &[u8]| check_own(bytes, CLUSTER, &key(100).public(), NodeId(2), &key(2).public());
        assert!(own(&of(3, 2)).unwrap_err().text.contains("not that of node 2"));
        assert!(own(&of(2, 3)).unwrap_err().text.contains("not of this node's key"));
        let other = certify(&key(101), CLUSTER, NodeId(2), &key(2).public()).unwrap();
        assert!(own(&other).unwrap_err().text.contains("authority"));
        // Another's certificate can't be shown without its key.
        assert!(showing(3, of(2, 2)).is_err());
        // Numbers and clusters of any length keep it below the maximum.
        let longest = certify(&key(100), ClusterId([0xff; 16]), NodeId(u64::MAX), &key(2).public()).unwrap();
        assert!(longest.len() <= CERTIFICATE_BYTES_MAX, "{}", longest.len());
    }

    #[test]
    fn garbage_is_no_handshake_and_takes_no_room() {
        let mut server = ServerConnection::new(node(1, 100, CLUSTER).server()).unwrap();
        let mut given = 0;
        // A handshake message that says it is as long as one may be, and goes on and on.
        let record = [&[0x16, 3, 1, 0x40, 0][..], &[1, 0xff, 0xff, 0xff], &[7; 0x4000 - 4]].concat();
        let end = loop {
            let mut rest = &record[..];
            match server.read_tls(&mut rest) {
                Ok(n) => given += n,
                Err(e) => break e.to_string(),
            }
            if let Err(e) = server.process_new_packets() {
                break e.to_string();
            }
            assert!(given < 1 << 18, "it takes {given} bytes and more");
        };
        assert!(!end.is_empty());
    }

    /// Old versions are not spoken, and nothing but this library's one provider is asked.
    #[test]
    fn only_the_newest_version_is_spoken() {
        let roots = RootCertStore { roots: vec![anchor(CLUSTER, &key(100).public())] };
        let builder = ClientConfig::builder_with_provider(provider());
        let Ok(builder) = builder.with_protocol_versions(&[&rustls::version::TLS12]) else { return };
        let config = builder.with_root_certificates(roots).with_no_client_auth();
        let caller = Caller { config: Arc::new(config), any_node: any_node(CLUSTER).unwrap() };
        let Err(e) = shake(&caller, &node(2, 100, CLUSTER)) else { panic!("it was let in") };
        assert!(e.to_string().contains("peer is incompatible"), "{e}");
    }
}
