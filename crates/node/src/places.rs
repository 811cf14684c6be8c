//! The places of those who connect: so many that shake hands, so many in all.
//!
//! Invariants: a client that comes finds a place unless all are past their handshakes, since the oldest handshake gives
//! way to it; one that waits for its volume does so last. A handshake that was told to end is not counted any more.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

pub struct Places {
    handshakes_max: usize,
    connections: Arc<Semaphore>,
    /// By number: the oldest comes first.
    handshakes: RefCell<BTreeMap<u64, Entry>>,
    next: Cell<u64>,
}

struct Entry {
    end: Rc<Notify>,
    /// It waits for its volume, and not for its client.
    attaching: bool,
}

/// A handshake's place among those that are under way, until it is dropped.
pub struct Handshake {
    places: Rc<Places>,
    number: u64,
    end: Rc<Notify>,
}

impl Places {
    /// # Panics
    /// If there is no place at all.
    pub fn new(handshakes_max: usize, connections_max: usize) -> Rc<Self> {
        assert!(handshakes_max > 0 && connections_max > 0, "a gateway without places");
        Rc::new(Self {
            handshakes_max,
            connections: Arc::new(Semaphore::new(connections_max)),
            handshakes: RefCell::default(),
            next: Cell::new(0),
        })
    }

    /// A place for a client that has just come. None if all are taken by clients that are past their handshakes.
    pub async fn take(self: &Rc<Self>) -> Option<(OwnedSemaphorePermit, Handshake)> {
        let place = match self.connections.clone().try_acquire_owned() {
            Ok(place) => place,
            Err(_) if self.end_oldest(true) => self.connections.clone().acquire_owned().await.ok()?,
            Err(_) => return None,
        };
        while self.wait_for_clients() >= self.handshakes_max && self.end_oldest(false) {}
        let number = self.next.replace(self.next.get() + 1);
        let end = Rc::new(Notify::new());
        self.handshakes.borrow_mut().insert(number, Entry { end: end.clone(), attaching: false });
        Some((place, Handshake { places: self.clone(), number, end }))
    }

    fn wait_for_clients(&self) -> usize {
        self.handshakes.borrow().values().filter(|h| !h.attaching).count()
    }

    /// Ends the oldest handshake that waits for its client; if there is none, and `also_attaching`, the oldest of those
    /// that wait for their volumes. Whether there was one.
    fn end_oldest(&self, also_attaching: bool) -> bool {
        let mut all = self.handshakes.borrow_mut();
        let slow = all.iter().find(|(_, h)| !h.attaching).map(|(number, _)| *number);
        let other = all.keys().next().copied().filter(|_| also_attaching);
        let Some(entry) = slow.or(other).and_then(|number| all.remove(&number)) else { return false };
        entry.end.notify_one();
        true
    }
}

impl Handshake {
    /// Returns when it has to give way to another client.
    pub async fn gives_way(&self) {
        self.end.notified().await;
    }

    /// From now on it waits for its volume, or for its client again.
    pub fn set_attaching(&self, attaching: bool) {
        if let Some(entry) = self.places.handshakes.borrow_mut().get_mut(&self.number) {
            entry.attaching = attaching;
        }
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.places.handshakes.borrow_mut().remove(&self.number);
    }
}
