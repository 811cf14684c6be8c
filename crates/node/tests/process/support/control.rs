//! Requests to a node's control API that no command of `freebs` sends.

use super::PATIENCE;
use bytes::BytesMut;
use freebs_control::api::{Reply, Request};
use freebs_format::wire::{Hello, Message, Role};
use freebs_types::{ClusterId, NodeId, Result, StartNumber};
use std::io::{Read, Write};
use std::net::TcpStream;

fn send(stream: &mut TcpStream, message: &Message) {
    let mut out = BytesMut::new();
    message.encode(&mut out);
    message.payload().iter().for_each(|part| out.extend_from_slice(part));
    stream.write_all(&out).expect("the node takes it");
}

fn receive(stream: &mut TcpStream, buf: &mut BytesMut) -> Message {
    loop {
        if let Some(message) = Message::decode(buf).expect("a message") {
            return message;
        }
        let mut part = [0; 4096];
        let n = stream.read(&mut part).expect("the node answers");
        assert!(n > 0, "the node closed the connection");
        buf.extend_from_slice(&part[..n]);
    }
}

/// Sends one request to the node at this address, on a connection of its own.
pub fn request(address: &str, request: &Request) -> Result<Reply> {
    let mut stream = TcpStream::connect(address).expect("a node listens there");
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
    let hello = Hello {
        cluster: ClusterId::default(),
        role: Role::Control,
        node: NodeId(0),
        start: StartNumber(0),
        from_worker: 0,
        to_worker: 0,
    };
    send(&mut stream, &Message::Hello(hello));
    let mut buf = BytesMut::new();
    match receive(&mut stream, &mut buf) {
        Message::Welcome(_) => {}
        Message::ControlReply { body, .. } => return Reply::decode(&body),
        other => panic!("no welcome, but {}", other.name()),
    }
    send(&mut stream, &Message::Control { id: 1, body: request.encode().into() });
    match receive(&mut stream, &mut buf) {
        Message::ControlReply { id: 1, body } => Reply::decode(&body),
        other => panic!("no reply, but {}", other.name()),
    }
}
