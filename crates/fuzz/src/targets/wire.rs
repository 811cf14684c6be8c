//! Messages of `freebs_format::wire`: one, a stream, and the first of a connection.

use crate::input::Input;
use crate::{seal, signal};
use bytes::BytesMut;
use freebs_format::wire::{HEADER_BYTES, META_BYTES_MAX, Message};
use freebs_types::{Error, limits};

pub const WORDS: &[&[u8]] = &[b"FBMS", b"FBFR", b"\x01\0\x0e\0", b"\x01\0\x07\0", b"\x01\0\x13\0", b"\x01\0\x0d\0"];

/// The bytes of a message, header to payload.
fn encoded(m: &Message) -> Vec<u8> {
    let mut out = BytesMut::new();
    m.encode(&mut out);
    let head = out.len();
    m.payload().iter().for_each(|p| out.extend_from_slice(p));
    assert_eq!(out.len() - head, m.data_bytes(), "{}: the payload is as long as it says", m.name());
    out.to_vec()
}

/// Properties of every decoded message.
fn held_to_maxima(m: &Message, bytes: usize) {
    assert!(bytes <= limits::MESSAGE_BYTES_MAX && m.data_bytes() <= bytes);
    match m {
        Message::Write(w) => {
            assert!(w.extents.len() <= limits::UPDATE_EXTENTS_MAX);
            assert!(m.data_bytes() <= limits::UPDATE_DATA_BYTES_MAX);
            assert_eq!(w.crcs.len() * freebs_types::BLOCK, m.data_bytes());
        }
        Message::ReadReply(r) => assert_eq!(r.crcs.len() * freebs_types::BLOCK, m.data_bytes()),
        Message::Frames { forward, frames } => {
            assert!(forward.len() <= limits::CHAIN_MEMBERS_MAX);
            frames.iter().for_each(super::frames::checked_frame);
        }
        Message::SyncReply(r) => r.frames.iter().for_each(super::frames::checked_frame),
        Message::Control { body, .. } | Message::ControlReply { body, .. } => {
            assert!(body.len() <= limits::CONTROL_BODY_BYTES_MAX);
        }
        _ => {}
    }
}

fn checked(m: &Message, bytes: &[u8]) {
    held_to_maxima(m, bytes.len());
    signal::saw(m.name(), bytes.len() as u64);
    let again = encoded(m);
    // Only reserved bytes may differ, so the length may not.
    assert_eq!(again.len(), bytes.len(), "{}: encoding again changes the length", m.name());
    let mut buf = BytesMut::from(&again[..]);
    let back = Message::decode(&mut buf).expect("what was encoded decodes").expect("whole");
    assert!(buf.is_empty() && back.name() == m.name());
    assert_eq!(encoded(&back), again, "{}: encoding is stable", m.name());
}

/// One message. What it does not need stays in the buffer.
pub fn wire(data: &[u8]) {
    let input = Input::of(data);
    let mut bytes = input.rest.to_vec();
    if input.mend {
        seal::message(&mut bytes);
    }
    let mut buf = BytesMut::from(&bytes[..]);
    let wanted = Message::wanted(&bytes);
    let result = Message::decode(&mut buf);
    signal::ended("wire", &result);
    match (wanted, result) {
        (Ok(n), Ok(Some(m))) => {
            assert_eq!(bytes.len() - buf.len(), n, "exactly the message is taken");
            assert_eq!(buf, bytes[n..]);
            checked(&m, &bytes[..n]);
        }
        (Ok(n), Ok(None)) => {
            assert!(bytes.len() < n && buf == bytes, "a message that is not whole stays");
            assert!((HEADER_BYTES..=limits::MESSAGE_BYTES_MAX).contains(&n));
        }
        (Ok(n), Err(_)) => assert!(n <= bytes.len() && n <= limits::MESSAGE_BYTES_MAX),
        (Err(_), result) => assert!(result.is_err()),
    }
}

/// All messages of a stream in pieces: their bytes again, and how it ended.
fn hear(pieces: &[&[u8]]) -> (Vec<u8>, Option<Error>, usize) {
    let (mut buf, mut heard) = (BytesMut::new(), Vec::new());
    for piece in pieces {
        buf.extend_from_slice(piece);
        loop {
            match Message::decode(&mut buf) {
                Ok(Some(m)) => heard.extend(encoded(&m)),
                Ok(None) => break,
                // The connection ends; nothing is decoded behind an error.
                Err(e) => return (heard, Some(e), 0),
            }
        }
        let wanted = Message::wanted(&buf).expect("asked before");
        assert!(wanted > buf.len() && wanted <= HEADER_BYTES + META_BYTES_MAX + limits::MESSAGE_BYTES_MAX);
    }
    (heard, None, buf.len())
}

/// A stream, at once and in pieces.
pub fn stream(data: &[u8]) {
    let input = Input::of(data);
    let mut bytes = input.rest.to_vec();
    if input.mend {
        seal::messages(&mut bytes);
    }
    let (heard, error, left) = hear(&[&bytes]);
    signal::saw("stream", heard.len() as u64);
    if let Some(e) = &error {
        signal::ended::<()>("stream", &Err(e.clone()));
    }
    if input.cuts > 0 {
        let cut = hear(&input.pieces(&bytes));
        assert_eq!(cut.0, heard, "the cutting of a stream changes its messages");
        assert_eq!(cut.1.is_some(), error.is_some());
        assert!(error.is_some() || cut.2 == left);
    }
}

/// The first message of a connection, as it arrives.
pub fn greeting(data: &[u8]) {
    let input = Input::of(data);
    let mut bytes = input.rest.to_vec();
    if input.mend {
        seal::message(&mut bytes);
    }
    let mut buf = BytesMut::new();
    for piece in input.pieces(&bytes) {
        buf.extend_from_slice(piece);
        let before = buf.len();
        let result = Message::decode_greeting(&mut buf);
        signal::ended("greeting", &result);
        match result {
            Ok(None) => {
                assert!(
                    buf.len() == before && before < Message::GREETING_BYTES_MAX,
                    "no more than a greeting is awaited"
                );
            }
            Ok(Some(m)) => {
                assert!(before - buf.len() <= Message::GREETING_BYTES_MAX);
                return signal::saw(m.name(), 0);
            }
            Err(_) => return,
        }
    }
}
