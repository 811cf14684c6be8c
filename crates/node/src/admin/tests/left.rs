//! Control states that lie in a node's directory, as an earlier version or `freebs control rebuild` left them: each is used, or
//! somebody is told; none is put aside unread.

use super::*;

const NAMES: [&str; 2] = ["control.state", "control.state.copy"];

fn leave(data: &Path, bytes: [&[u8]; 2]) {
    for (name, bytes) in NAMES.iter().zip(bytes) {
        std::fs::write(data.join(name), bytes).unwrap();
    }
}

/// A state of this cluster that was changed so many times.
fn changed(times: u64, cluster: ClusterId) -> Vec<u8> {
    let mut state = State::new(cluster);
    for start in 0..times {
        state.apply(member(1, "127.0.0.1:1", start)).unwrap();
    }
    state.encode()
}

/// The start is refused with these words, and both files are as they were.
async fn refused(options: SeatOptions, bytes: [&[u8]; 2], says: &[&str]) {
    leave(&options.data, bytes);
    let data = options.data.clone();
    let e = Plane::seat(options).await.map(drop).unwrap_err();
    assert!(e.kind != ErrorKind::Retry && says.iter().all(|s| e.text.contains(s)), "{says:?}: {e}");
    for (name, bytes) in NAMES.iter().zip(bytes) {
        assert!(std::fs::read(data.join(name)).unwrap() == bytes, "{name} was touched: {e}");
    }
    ended(&data).await;
}

/// A state that nobody could read was put aside as if it had been taken over.
#[tokio::test]
async fn beside_a_store_in_use_only_what_it_has_is_put_aside() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster(dir.path(), 1).await;
    created(&nodes[0], "a").await;
    let address = [nodes[0].address.clone()];
    drop(nodes);
    let data = dir.path().join("node1");
    ended(&data).await;
    let options =
        || SeatOptions { was_in_use: true, came_with: StartNumber(1), ..seat_options(dir.path(), 1, &address) };
    let newer = changed(50, CLUSTER);
    refused(options(), [&newer, &newer], &["not used", "in use and older", "nothing was touched"]).await;
    refused(options(), [&newer, b"garbage"], &["not used", "nothing was touched"]).await;
    refused(options(), [b"garbage", &newer[..newer.len() / 2]], &["no good copy", "move both files"]).await;
    let foreign = changed(1, ClusterId([1; 16]));
    refused(options(), [&foreign, &foreign], &["belongs to the cluster", "move both files"]).await;
    // The state that the cluster was founded with has been taken over.
    let old = changed(1, CLUSTER);
    leave(&data, [&old, b"garbage"]);
    let again = Plane::seat(options()).await.unwrap();
    assert!(NAMES.iter().all(|name| !data.join(name).exists()));
    let found = tokio::time::timeout(MAX, again.newest()).await.expect("it leads").unwrap();
    assert!(found.volume_by_name("a").is_some());
}

#[tokio::test]
async fn who_can_not_use_a_state_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = cluster(dir.path(), 3).await;
    created(&nodes[0], "a").await;
    voting(&nodes, 3).await;
    let addresses: Vec<String> = nodes.iter().map(|n| n.address.clone()).collect();
    let state = changed(50, CLUSTER);
    let options = |id| seat_options(dir.path(), id, &addresses);
    // Its store is gone, and others have a state.
    drop(nodes.remove(0));
    ended(&dir.path().join("node1")).await;
    std::fs::remove_dir_all(dir.path().join("node1")).unwrap();
    refused(options(1), [&state, &state], &["not used", "another node has a control state"]).await;
    // It founds nothing.
    drop(nodes.remove(1));
    ended(&dir.path().join("node3")).await;
    std::fs::remove_dir_all(dir.path().join("node3")).unwrap();
    refused(options(3), [&state, &state], &["not used", "does not found the cluster"]).await;
    // Its store was in use, and is damaged.
    drop(nodes);
    let data = dir.path().join("node2");
    ended(&data).await;
    std::fs::write(data.join("control.store"), [7; 16384]).unwrap();
    refused(options(2), [&state, &state], &["not used", "beside it was in use"]).await;
    assert_eq!(std::fs::read(data.join("control.store")).unwrap(), [7; 16384]);
}
