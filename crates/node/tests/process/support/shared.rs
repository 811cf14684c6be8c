//! One cluster for all tests that leave theirs as they found it. Each has volumes of its own there.
//!
//! Invariant: the cluster is started for the first of them that asks, and ended with the last one that has it.

use super::cluster::{Cluster, Setup};
use super::nbd::Client;
use super::tools::{TOOL_TIME_MAX, command, output, say, wait_for};
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, Weak};

struct Shared {
    cluster: Cluster,
    /// A cluster ends with the thread that started it, and a test's thread ends with the test: another one, that waits
    /// for this to go, has started it. Fields go in this order.
    _starter: Sender<()>,
}

static NOW: Mutex<Weak<Shared>> = Mutex::new(Weak::new());

/// The right to use the shared cluster.
pub struct Lent(Arc<Shared>);

/// The shared cluster: three nodes and a gateway. Nothing of it may be stopped or killed.
#[must_use]
pub fn cluster() -> Lent {
    let mut now = NOW.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(there) = now.upgrade() {
        return Lent(there);
    }
    let (to, from) = mpsc::channel();
    std::thread::spawn(move || {
        let (starter, ends) = mpsc::channel::<()>();
        let _ = to.send(Shared { cluster: Cluster::up(Setup::default()), _starter: starter });
        let _ = ends.recv();
    });
    let new = Arc::new(from.recv().expect("the shared cluster starts"));
    *now = Arc::downgrade(&new);
    Lent(new)
}

impl Lent {
    /// Creates a volume for this test alone; its name.
    #[must_use]
    pub fn volume(&self, size: &str, more: &[&str]) -> String {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("own{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.json(&[&["volume", "create", &name, "--size", size], more].concat());
        name
    }

    /// Exports as nbdinfo lists them. It opens each of them, and a volume of another test may go in between: then it is asked
    /// again.
    #[must_use]
    pub fn exports(&self) -> Vec<String> {
        let list = wait_for("a list of exports that are all there", || {
            let out = output(command("nbdinfo").args(["--list", "--json", &self.place.uri("")]), TOOL_TIME_MAX);
            out.status.success().then_some(out.stdout)
        });
        let list: serde_json::Value = serde_json::from_slice(&list).expect("JSON");
        let name = |e: &serde_json::Value| e["export-name"].as_str().expect("a name").to_owned();
        list["exports"].as_array().expect("a list").iter().map(name).collect()
    }

    /// A client of a volume.
    #[must_use]
    pub fn client(&self, volume: &str) -> Client {
        Client::attach(&self.place, volume)
    }
}

impl Deref for Lent {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.0.cluster
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // The last one's logs are shown by the cluster itself.
        if std::thread::panicking() && Arc::strong_count(&self.0) > 1 {
            say(&format!("the shared cluster's logs:\n{}", self.log()));
        }
    }
}
