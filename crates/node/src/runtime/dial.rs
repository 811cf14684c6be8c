//! Links that this worker opens: to members with a higher node id (they open the others), and for its drivers.

use super::core::{Core, Far};
use super::greet::introduce;
use crate::timing;
use freebs_control::ControlPlane;
use freebs_format::wire::Role;
use freebs_io::LinkId;
use freebs_types::{Error, NodeId, Peer, Result};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;

/// The pauses between attempts to reach one member: each is twice as long as the one before, until there are news of it.
#[derive(Default)]
pub struct Redial {
    failed: Cell<u32>,
    news: Notify,
}

impl Redial {
    /// The attempts begin anew; the number counts as failed.
    fn begin(&self, failed: u32) {
        self.failed.set(failed);
    }

    /// The member may answer now: the pause ends, and the next ones begin with the shortest.
    fn hear(&self) {
        self.begin(0);
        self.news.notify_waiters();
    }

    /// An attempt has failed: the pause before the next one.
    fn fail(&self) -> Duration {
        let failed = self.failed.get();
        self.failed.set(failed.saturating_add(1));
        timing::LINK_BACK_OFF_MIN.saturating_mul(1 << failed.min(16)).min(timing::LINK_BACK_OFF_MAX)
    }

    /// Waits until another attempt is due.
    async fn pause(&self) {
        tokio::select! {
            () = tokio::time::sleep(self.fail()) => {}
            () = self.news.notified() => {}
        }
    }
}

/// Sees to it that there is a link to each of these; of two nodes the one with the lower id dials.
pub fn dial_wanted<C: ControlPlane>(core: &Rc<Core<C>>, wanted: &BTreeSet<Peer>) {
    for peer in wanted.iter().filter(|p| dials(core.spec.me, **p)) {
        if core.dialing.borrow().contains_key(peer) {
            continue;
        }
        core.dialing.borrow_mut().insert(*peer, Rc::default());
        redial(core, *peer, timing::LINK_STEADY);
    }
}

/// These nodes have registered: members there that have no link yet are dialled at once.
pub fn dial_now<C: ControlPlane>(core: &Core<C>, nodes: &[NodeId]) {
    let all = core.dialing.borrow();
    all.iter().filter(|(peer, _)| nodes.contains(&peer.node)).for_each(|(_, redial)| redial.hear());
}

/// Whether the first of two members opens the link between them.
pub fn dials(from: Peer, to: Peer) -> bool {
    from.node.0 > 0 && from.node < to.node
}

/// A link that lasted only a moment counts as four attempts that failed: the pause is 320 ms, and the next ones 500.
const FAILED_AT_ONCE: u32 = 4;

/// Dials a member until it answers. A link that `lasted` only a moment is not replaced at once: whatever ended it may
/// end the next one, too.
pub fn redial<C: ControlPlane>(core: &Rc<Core<C>>, peer: Peer, lasted: Duration) {
    let Some(pauses) = core.dialing.borrow().get(&peer).cloned() else { return };
    if core.stopping.get() {
        return;
    }
    let weak = Rc::downgrade(core);
    tokio::task::spawn_local(async move {
        pauses.begin(0);
        if lasted < timing::LINK_STEADY {
            pauses.begin(FAILED_AT_ONCE);
            pauses.pause().await;
        }
        loop {
            let Some(core) = weak.upgrade().filter(|c| !c.stopping.get()) else { return };
            match dial(&core, peer, Role::Node).await {
                Ok(_) => {
                    tracing::info!("link to {peer} is up");
                    return;
                }
                Err(e) => tracing::debug!("{peer}: {e}"),
            }
            drop(core);
            pauses.pause().await;
        }
    });
}

/// Dials once.
pub async fn dial<C: ControlPlane>(core: &Rc<Core<C>>, peer: Peer, role: Role) -> Result<LinkId> {
    let address = core
        .address(peer.node)
        .ok_or_else(|| Error::retry(format!("the address of node {} is not known", peer.node)))?;
    let hello = core.hello(role, peer.worker);
    let (stream, welcome, leftover) = introduce(&address, hello, core.spec.cluster, timing::LINK_CONNECT_LIMIT).await?;
    if welcome.node != peer.node || welcome.worker != peer.worker {
        let (n, w) = (welcome.node, welcome.worker);
        return Err(Error::invalid(format!("{address} is node {n}, worker {w}, and {peer} was expected there")));
    }
    let far = match role {
        Role::Node => Far::Member(peer),
        _ => Far::ServesUs(peer),
    };
    Ok(core.adopt_dialled(stream, far, leftover))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Waker};

    /// Milliseconds of the next pauses, if nothing is heard.
    fn pauses(redial: &Redial, n: usize) -> Vec<u128> {
        (0..n).map(|_| redial.fail().as_millis()).collect()
    }

    /// After all nodes had died, a member that had been tried for a second was tried each half a second only, also when the
    /// control plane had told that it was back.
    #[tokio::test]
    async fn news_of_a_member_end_the_pause_and_the_next_ones_are_short_again() {
        let redial = Redial::default();
        assert_eq!(pauses(&redial, 7), [20, 40, 80, 160, 320, 500, 500]);
        {
            // Timers of this thread do not go on before it waits, so only the news end the pause.
            let mut pause = pin!(redial.pause());
            let mut nobody = Context::from_waker(Waker::noop());
            assert!(pause.as_mut().poll(&mut nobody).is_pending());
            redial.hear();
            assert!(pause.as_mut().poll(&mut nobody).is_ready());
        }
        assert_eq!(pauses(&redial, 3), [20, 40, 80]);
        // Heard during an attempt: if that fails, the next one comes soon.
        redial.hear();
        assert_eq!(pauses(&redial, 2), [20, 40]);
        redial.begin(FAILED_AT_ONCE);
        assert_eq!(pauses(&redial, 2), [320, 500]);
    }
}
