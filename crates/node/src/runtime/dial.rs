//! Links that this worker opens: to members with a higher node id (they open the others), and for its drivers.

use super::core::{Core, Far};
use super::greet::introduce;
use crate::timing;
use freebs_control::ControlPlane;
use freebs_format::wire::Role;
use freebs_io::LinkId;
use freebs_types::{Error, Peer, Result};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// Sees to it that there is a link to each of these; of two nodes the one with the lower id dials.
pub fn dial_wanted<C: ControlPlane>(core: &Rc<Core<C>>, wanted: &BTreeSet<Peer>) {
    for peer in wanted.iter().filter(|p| dials(core.spec.me, **p)) {
        let is_new = core.dialing.borrow_mut().insert(*peer);
        if is_new {
            redial(core, *peer, timing::LINK_STEADY);
        }
    }
}

/// Whether the first of two members opens the link between them.
pub fn dials(from: Peer, to: Peer) -> bool {
    from.node.0 > 0 && from.node < to.node
}

/// Dials a member until it answers. A link that `lasted` only a moment is not replaced at once: whatever ended it may
/// end the next one, too.
pub fn redial<C: ControlPlane>(core: &Rc<Core<C>>, peer: Peer, lasted: Duration) {
    if !core.dialing.borrow().contains(&peer) || core.stopping.get() {
        return;
    }
    let weak = Rc::downgrade(core);
    tokio::task::spawn_local(async move {
        let mut wait = timing::LINK_BACK_OFF_MIN;
        if lasted < timing::LINK_STEADY {
            wait = timing::LINK_BACK_OFF_MAX;
            tokio::time::sleep(wait / 2).await;
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
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(timing::LINK_BACK_OFF_MAX);
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
