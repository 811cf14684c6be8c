//! Links that this worker opens: to members, when `freebs_agent::Dialler` says so, and for its drivers.

use super::core::{Core, Far};
use super::greet::introduce;
use crate::timing;
use freebs_control::ControlPlane;
use freebs_format::wire::Role;
use freebs_io::linux::SystemClock;
use freebs_io::{Clock, LinkId};
use freebs_types::{Error, Peer, Result};
use std::rc::{Rc, Weak};
use std::time::Duration;

/// Dials members for as long as the worker runs. It is woken by `Core::dial_again` when something has changed.
pub async fn dial_on<C: ControlPlane>(weak: Weak<Core<C>>) {
    loop {
        let Some(core) = weak.upgrade().filter(|c| !c.stopping.get()) else { return };
        let now = SystemClock.now();
        let due = core.member.borrow_mut().dialler.due(now);
        for peer in due {
            tokio::task::spawn_local(dial_member(core.clone(), peer));
        }
        let (next, woken) = (core.member.borrow().dialler.next(), core.dial_again.clone());
        drop(core);
        match next {
            Some(at) => drop(tokio::time::timeout(Duration::from_nanos(at.since(now).0), woken.notified()).await),
            None => woken.notified().await,
        }
    }
}

async fn dial_member<C: ControlPlane>(core: Rc<Core<C>>, peer: Peer) {
    let up = dial(&core, peer, Role::Node).await;
    let now = SystemClock.now();
    match up {
        Ok(link) => {
            tracing::info!("link to {peer} is up");
            core.member.borrow_mut().dialler.opened(now, peer, link);
        }
        Err(e) => {
            tracing::debug!("{peer}: {e}");
            core.member.borrow_mut().dialler.failed(now, peer);
        }
    }
    core.dial_again.notify_one();
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
    stream.check_dialled(peer.node, &core.state.borrow())?;
    let far = match role {
        Role::Node => Far::Member(peer),
        _ => Far::ServesUs(peer),
    };
    Ok(core.adopt(stream.into_link(), far, leftover))
}
