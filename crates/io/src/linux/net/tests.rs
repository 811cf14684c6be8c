//! What can only be seen from inside: that closed links leave nothing behind.

use super::*;
use bytes::{Buf, BufMut};
use tokio::net::UnixStream;
use tokio::task::LocalSet;

/// A byte is a message.
struct Bytewise;

impl Wire for Bytewise {
    type Message = u8;

    fn wanted(_: &[u8]) -> Result<usize> {
        Ok(1)
    }

    fn decode(buf: &mut BytesMut) -> Result<Option<u8>> {
        Ok(Some(buf.get_u8()))
    }

    fn encode(message: u8, out: &mut Encoder) {
        out.head().put_u8(message);
    }

    fn weight(_: &u8) -> usize {
        1
    }
}

/// Holds the transport, as a real handler does.
struct Echo(Transport<Bytewise>);

impl Handler<u8> for Echo {
    fn on_messages(&self, link: LinkId, messages: &mut Vec<u8>) {
        for m in messages.drain(..) {
            self.0.send(link, m);
        }
    }

    fn on_closed(&self, _: LinkId, _: Error) {}
}

fn worker<F: Future>(body: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, body)
}

async fn turns(count: usize) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}

fn start() -> (Transport<Bytewise>, Weak<Echo>) {
    let transport = Transport::start();
    let handler = Rc::new(Echo(transport.clone()));
    let weak = Rc::downgrade(&handler);
    transport.set_handler(handler);
    (transport, weak)
}

fn weak(transport: &Transport<Bytewise>, link: LinkId) -> Weak<Link<Bytewise>> {
    Rc::downgrade(&transport.0.link(link).unwrap())
}

#[test]
fn a_closed_link_leaves_no_task_behind() {
    worker(async {
        let (transport, _) = start();
        for paused in [false, true] {
            let (near, _far) = UnixStream::pair().unwrap();
            let link = fresh_link();
            transport.adopt(Stream::Unix(near), link, BytesMut::from(&b"hello"[..]));
            let gone = weak(&transport, link);
            turns(3).await;
            if paused {
                transport.pause(link);
            }
            turns(3).await;
            assert!(gone.upgrade().is_some());
            transport.close(link);
            turns(3).await;
            assert!(gone.upgrade().is_none(), "paused {paused}");
            assert_eq!(transport.links(), 0);
        }
    });
}

#[test]
fn a_link_that_the_other_side_closed_leaves_no_task_behind() {
    worker(async {
        let (transport, _) = start();
        let (near, far) = UnixStream::pair().unwrap();
        let link = fresh_link();
        transport.adopt(Stream::Unix(near), link, BytesMut::new());
        let gone = weak(&transport, link);
        turns(3).await;
        drop(far);
        while gone.upgrade().is_some() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        assert_eq!(transport.links(), 0);
    });
}

#[test]
fn shutting_down_frees_handler_links_and_transport() {
    worker(async {
        let (transport, handler) = start();
        let (near, mut far) = UnixStream::pair().unwrap();
        let link = fresh_link();
        transport.adopt(Stream::Unix(near), link, BytesMut::new());
        let (a, _b) = transport.local_pair();
        transport.send(a, 1);
        let (gone, local) = (weak(&transport, link), weak(&transport, a));
        let shared = Rc::downgrade(&transport.0);
        turns(3).await;
        transport.shut_down();
        drop(transport);
        turns(3).await;
        assert!(handler.upgrade().is_none() && gone.upgrade().is_none() && local.upgrade().is_none());
        assert!(shared.upgrade().is_none());
        let read = tokio::io::AsyncReadExt::read(&mut far, &mut [0; 1]).await.unwrap();
        assert_eq!(read, 0, "the socket is closed");
    });
}
