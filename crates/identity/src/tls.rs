//! TLS with certificates on both sides. Who is on the other side is known when a handshake ends: a node that the
//! authority has certified. Whether it is still a member is for whoever knows the control state.

use crate::SigningKey;
use crate::certificate::{anchor, any_node};
use freebs_types::{ClusterId, Error, HostPublic, Result};
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::fmt;
use std::sync::Arc;

/// What comes before the 32 bytes of a secret half in PKCS #8 (RFC 8410).
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
        let config = checking(cluster, authority)?.with_no_client_auth();
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

fn roots(cluster: ClusterId, authority: &HostPublic) -> Arc<RootCertStore> {
    Arc::new(RootCertStore { roots: vec![anchor(cluster, authority)] })
}

fn checking(
    cluster: ClusterId,
    authority: &HostPublic,
) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>> {
    let of_servers = WebPkiServerVerifier::builder_with_provider(roots(cluster, authority), provider());
    let of_servers = of_servers.build().map_err(bad)?;
    let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]).map_err(bad)?;
    Ok(builder.with_webpki_verifier(of_servers))
}

impl Tls {
    /// Of a node with this key and its certificate.
    pub fn new(cluster: ClusterId, authority: &HostPublic, key: &SigningKey, certificate: Vec<u8>) -> Result<Self> {
        let chain = vec![CertificateDer::from(certificate)];
        let secret = || {
            let bytes = [&PKCS8[..], &key.seed().0].concat();
            PrivateKeyDer::from(PrivatePkcs8KeyDer::from(bytes))
        };
        // One that has no certificate yet has to be heard, so that it can join.
        let of_clients = WebPkiClientVerifier::builder_with_provider(roots(cluster, authority), provider());
        let of_clients = of_clients.allow_unauthenticated().build().map_err(bad)?;
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(bad)?
            .with_client_cert_verifier(of_clients)
            .with_single_cert(chain.clone(), secret())
            .map_err(bad)?;
        // Each handshake is a whole one: nothing is remembered of somebody who may be a member no more.
        server.send_tls13_tickets = 0;
        let config = checking(cluster, authority)?.with_client_auth_cert(chain, secret()).map_err(bad)?;
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
    use crate::{certify, key_of};
    use freebs_types::{Hash32, NodeId};
    use rustls::{ClientConnection, Connection, ServerConnection};

    const CLUSTER: ClusterId = ClusterId([7; 16]);

    fn key(byte: u8) -> SigningKey {
        SigningKey::new(Hash32([byte; 32])).unwrap()
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

    #[test]
    fn certificates_of_others_are_refused() {
        let good = node(1, 100, CLUSTER);
        for bad in [node(2, 101, CLUSTER), node(2, 100, ClusterId([8; 16]))] {
            assert!(shake(bad.caller(), &good).is_err(), "as a client");
            assert!(shake(good.caller(), &bad).is_err(), "as a server");
        }
    }
}
