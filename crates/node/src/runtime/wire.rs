//! Messages on the transport.

use bytes::BytesMut;
use freebs_format::wire::Message;
use freebs_io::linux::net::{Encoder, Wire};
use freebs_types::Result;

/// The protocol of `freebs_format::wire` for the transport.
pub struct FreebsWire;

impl Wire for FreebsWire {
    type Message = Message;

    fn wanted(bytes: &[u8]) -> Result<usize> {
        Message::wanted(bytes)
    }

    fn decode(buf: &mut BytesMut) -> Result<Option<Message>> {
        Message::decode(buf)
    }

    fn encode(message: Message, out: &mut Encoder) {
        message.encode(out.head());
        for part in message.payload() {
            out.put(part.clone());
        }
    }

    fn weight(message: &Message) -> usize {
        256 + message.data_bytes()
    }
}
