//! TLS for tests of streams: any certificate is believed, since who is at the other end is not the streams' business.

use std::sync::Arc;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureScheme};

/// That of the node whose key is made of 32 twos.
const CERTIFICATE: &str = include_str!("../../../identity/src/golden.hex");
const KEY: [u8; 32] = [2; 32];
const PKCS8: [u8; 16] = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

#[derive(Debug)]
struct Believe(Arc<CryptoProvider>);

impl ServerCertVerifier for Believe {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("an old version".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

pub fn name() -> ServerName<'static> {
    ServerName::try_from("node.freebs").unwrap()
}

pub fn client() -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]).unwrap();
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(Believe(provider())));
    Arc::new(builder.with_no_client_auth())
}

pub fn server() -> Arc<ServerConfig> {
    let digits: Vec<u8> = CERTIFICATE.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    let certificate: Vec<u8> = digits.chunks(2).map(byte).collect();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from([&PKCS8[..], &KEY].concat()));
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]).unwrap();
    Arc::new(builder.with_no_client_auth().with_single_cert(vec![certificate.into()], key).unwrap())
}
