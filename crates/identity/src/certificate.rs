//! Certificates of nodes: X.509, version 3, of one fixed shape, signed by the cluster's authority with Ed25519.
//!
//! Invariants: a certificate names one node of one cluster and its key. It has no end: whoever is no member any more is
//! known by the control state. The authority has no certificate, only a key; its name and that key are enough to check by.

use crate::SigningKey;
use core::time::Duration;
use freebs_types::{ClusterId, Error, HostPublic, NodeId, Result};
use rustls::pki_types::{CertificateDer, Der, ServerName, SubjectPublicKeyInfoDer, TrustAnchor, UnixTime};
use webpki::EndEntityCert;

/// Bytes of a certificate.
pub const CERTIFICATE_BYTES_MAX: usize = 1024;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OBJECT: u8 = 0x06;
const UTF8: u8 = 0x0c;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// 1.3.101.112, the algorithm Ed25519 (RFC 8410).
const ED25519: [u8; 3] = [0x2b, 0x65, 0x70];
/// 2.5.4.3, the name of something.
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
/// 2.5.29.17, names of who has the key.
const ALT_NAME: [u8; 3] = [0x55, 0x1d, 0x11];
/// The date that says that a certificate has no end (RFC 5280, 4.1.2.5).
const NO_END: &[u8] = b"99991231235959Z";
const BEGIN: &[u8] = b"000101000000Z";
/// A time at which every certificate is good that has no end: whether this machine's clock is right is not asked here.
pub(crate) const WITHIN: UnixTime = UnixTime::since_unix_epoch(Duration::from_secs(1_700_000_000));
/// Bytes before the key in a public key's encoding.
const KEY_AT: usize = 12;

/// One value of DER.
fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let len: usize = parts.iter().map(|p| p.len()).sum();
    let mut out = vec![tag];
    match len {
        0..0x80 => out.push(len as u8),
        0x80..0x100 => out.extend([0x81, len as u8]),
        _ => {
            out.push(0x82);
            out.extend((len as u16).to_be_bytes());
        }
    }
    parts.iter().for_each(|p| out.extend_from_slice(p));
    out
}

fn algorithm() -> Vec<u8> {
    der(SEQUENCE, &[&der(OBJECT, &[&ED25519])])
}

fn public_key(key: &HostPublic) -> Vec<u8> {
    der(SEQUENCE, &[&algorithm(), &der(BIT_STRING, &[&[0], &key.0])])
}

/// The inside of a name of one part.
fn common_name(name: &str) -> Vec<u8> {
    let part = der(SEQUENCE, &[&der(OBJECT, &[&COMMON_NAME]), &der(UTF8, &[name.as_bytes()])]);
    der(SET, &[&part])
}

fn authority_name(cluster: ClusterId) -> Vec<u8> {
    common_name(&format!("freebs authority {cluster}"))
}

/// The name that all nodes of a cluster have.
fn cluster_name(cluster: ClusterId) -> String {
    format!("{cluster}.freebs")
}

/// The name that one node has.
fn node_name(cluster: ClusterId, node: NodeId) -> String {
    format!("node-{node}.{cluster}.freebs")
}

fn name_of(text: String) -> Result<ServerName<'static>> {
    ServerName::try_from(text).map_err(|e| Error::bug(format!("a name of nodes is none of a server: {e}")))
}

/// The name that everybody has to have who is dialled: some node of the cluster.
pub(crate) fn any_node(cluster: ClusterId) -> Result<ServerName<'static>> {
    name_of(cluster_name(cluster))
}

/// The authority says that a node has this key.
pub fn certify(authority: &SigningKey, cluster: ClusterId, node: NodeId, key: &HostPublic) -> Result<Vec<u8>> {
    certify_until(authority, cluster, node, key, NO_END)
}

/// The same with an end, as a `GeneralizedTime`.
pub(crate) fn certify_until(
    authority: &SigningKey,
    cluster: ClusterId,
    node: NodeId,
    key: &HostPublic,
    end: &[u8],
) -> Result<Vec<u8>> {
    let name = node_name(cluster, node);
    // As a number it is positive, and of no other certificate.
    let mut serial = [0; 16];
    serial.copy_from_slice(&key.0[..16]);
    serial[0] = serial[0] & 0x3f | 0x40;
    let names = der(SEQUENCE, &[&der(0x82, &[cluster_name(cluster).as_bytes()]), &der(0x82, &[name.as_bytes()])]);
    let extension = der(SEQUENCE, &[&der(OBJECT, &[&ALT_NAME]), &der(OCTET_STRING, &[&names])]);
    let to_sign = der(
        SEQUENCE,
        &[
            &der(0xa0, &[&der(INTEGER, &[&[2]])]),
            &der(INTEGER, &[&serial]),
            &algorithm(),
            &der(SEQUENCE, &[&authority_name(cluster)]),
            &der(SEQUENCE, &[&der(UTC_TIME, &[BEGIN]), &der(GENERALIZED_TIME, &[end])]),
            &der(SEQUENCE, &[&common_name(&name)]),
            &public_key(key),
            &der(0xa3, &[&der(SEQUENCE, &[&extension])]),
        ],
    );
    let signature = authority.sign(&to_sign)?;
    Ok(der(SEQUENCE, &[&to_sign, &algorithm(), &der(BIT_STRING, &[&[0], &signature])]))
}

/// The authority, as certificates are checked by it.
pub(crate) fn anchor(cluster: ClusterId, authority: &HostPublic) -> TrustAnchor<'static> {
    // Without the outermost tag and length, as the library wants it.
    let key = [algorithm(), der(BIT_STRING, &[&[0], &authority.0])].concat();
    TrustAnchor {
        subject: Der::from(authority_name(cluster)),
        subject_public_key_info: Der::from(key),
        name_constraints: None,
    }
}

/// A node's own certificate, held against what it has to be: `Corrupt` or `Invalid` if others would refuse it.
pub fn check_own(
    certificate: &[u8],
    cluster: ClusterId,
    authority: &HostPublic,
    node: NodeId,
    key: &HostPublic,
) -> Result<()> {
    let certificate = CertificateDer::from(certificate);
    if key_of(&certificate, cluster, node)? != *key {
        return Err(Error::invalid("it is not of this node's key; put the one back that came with node-key"));
    }
    let other = |e| {
        Error::invalid(format!(
            "it is not signed by the authority that cluster.json names ({e}); put the right one of the two back"
        ))
    };
    let of = EndEntityCert::try_from(&certificate).map_err(other)?;
    let anchors = [anchor(cluster, authority)];
    let usage = webpki::KeyUsage::client_auth();
    of.verify_for_usage(&[webpki::ring::ED25519], &anchors, &[], WITHIN, usage, None, None).map(|_| ()).map_err(other)
}

/// The key in a certificate whose signature was found right. `Invalid` unless it is that of this node.
pub fn key_of(certificate: &CertificateDer<'_>, cluster: ClusterId, node: NodeId) -> Result<HostPublic> {
    let damaged = |e: webpki::Error| Error::corrupt(format!("a certificate can't be read: {e}"));
    let of = EndEntityCert::try_from(certificate).map_err(damaged)?;
    of.verify_is_valid_for_subject_name(&name_of(node_name(cluster, node))?)
        .map_err(|_| Error::invalid(format!("its certificate is not that of node {node} of the cluster {cluster}")))?;
    let info: SubjectPublicKeyInfoDer<'_> = of.subject_public_key_info();
    let key = info.get(KEY_AT..).and_then(|k| <[u8; 32]>::try_from(k).ok());
    key.map(HostPublic).ok_or_else(|| Error::invalid("a certificate of another kind of key"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use freebs_types::Hash32;

    /// As docs/formats/disk.md has it.
    #[test]
    fn golden_bytes() {
        let key = |byte| SigningKey::new(&Hash32([byte; 32])).unwrap();
        let cluster = ClusterId(core::array::from_fn(|i| i as u8));
        let made = certify(&key(1), cluster, NodeId(2), &key(2).public()).unwrap();
        let hex: String = made.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, include_str!("golden.hex").split_whitespace().collect::<String>());
    }
}
