//! The handshake over a socket pair, with a control plane that only knows names.

use super::*;
use freebs_control::{Command as Change, CreateVolume, Done};
use freebs_types::{ClusterId, StartNumber};

struct Names(Arc<State>);

impl ControlPlane for Names {
    async fn submit(&self, _: Change) -> Result<Done> {
        Err(Error::invalid("nothing changes here"))
    }

    fn state(&self) -> Arc<State> {
        self.0.clone()
    }

    async fn changed(&self, _: u64) -> Arc<State> {
        std::future::pending().await
    }
}

/// A state with so many volumes, whose names have 124 bytes.
fn many(volumes: usize) -> Names {
    let mut state = State::new(ClusterId([1; 16]));
    let node = Change::RegisterNode {
        node: NodeId(1),
        name: "n1".into(),
        address: "127.0.0.1:7400".into(),
        workers: 1,
        start: StartNumber(1),
    };
    state.apply(node).unwrap();
    for n in 0..volumes {
        let name = format!("{n:0>124}");
        state.apply(Change::CreateVolume(CreateVolume { name, size: 1 << 20, ..CreateVolume::default() })).unwrap();
    }
    Names(Arc::new(state))
}

fn option(kind: u32) -> Vec<u8> {
    [&b"IHAVEOPT"[..], &kind.to_be_bytes(), &[0; 4]].concat()
}

/// The kind of the next reply, and the bytes of its data.
async fn reply(from: &mut tokio::net::UnixStream) -> (u32, u32) {
    let mut head = [0; 20];
    from.read_exact(&mut head).await.expect("a reply");
    let field = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
    let (kind, len) = (field(12), field(16));
    from.read_exact(&mut vec![0; len as usize]).await.expect("the reply's data");
    (kind, len)
}

/// A LIST of more than 64 KiB fills what a session may hold unsent, so it looks at no further option until that is
/// sent. The gateway took this for the end and closed the connection.
#[tokio::test]
async fn a_long_list_is_followed_by_more_options() {
    const VOLUMES: usize = 600;
    let (mut client, server) = tokio::net::UnixStream::pair().unwrap();
    let place = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
    let names = many(VOLUMES);
    let workers = Workers { node: NodeId(0), commands: Vec::new() };
    let serving = shake_hands(Stream::Unix(server), place, &names, &workers);
    let asking = async {
        client.read_exact(&mut [0; 18]).await.unwrap();
        // Options may come before the answer to the one before.
        client.write_all(&[&3u32.to_be_bytes()[..], &option(3), &option(3), &option(2)].concat()).await.unwrap();
        for _ in 0..2 {
            let mut bytes = 0;
            for _ in 0..VOLUMES {
                let (kind, len) = reply(&mut client).await;
                assert_eq!(kind, 2, "a name");
                bytes += len;
            }
            assert!(bytes > 64 << 10, "{bytes} bytes are too few for this test");
            assert_eq!(reply(&mut client).await, (1, 0));
        }
        assert_eq!(reply(&mut client).await, (1, 0), "the answer to ABORT");
    };
    let (served, ()) = tokio::time::timeout(Duration::from_secs(30), async { tokio::join!(serving, asking) })
        .await
        .expect("both ends come to their end");
    served.expect("a handshake that ended in good order");
}
