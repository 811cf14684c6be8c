//! Attachments that somebody asked for, in place of a client that came: held until they are let go, taken from others,
//! taken back from them.
//!
//! Invariants: once `hold` or `expel` has returned without an error, no driver of an earlier generation answers anybody
//! (rule L3: the driver that was made for it had waited for their leases); an attachment that is let go with force ends
//! in order (`freebs_agent::Attachment::leave`); an attachment that was taken from somebody goes on until its driver is
//! ready, even if whoever asked for it has been told that it is late, and if the process stops before, the volume stays
//! attached by it; one that was nobody's is given back at once.

use super::{Drivers, Slot, control_plane};
use crate::runtime::core::Core;
use crate::timing;
use freebs_control::{Command, ControlPlane};
use freebs_io::Clock;
use freebs_io::linux::SystemClock;
use freebs_types::{Error, Generation, Result, VolumeId};
use std::rc::Rc;

/// An attachment that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub generation: Generation,
    /// Name of the holder from whom it was taken.
    pub taken_from: Option<String>,
}

impl Slot {
    /// Users beside the one who holds it, and those who give it back.
    fn clients(&self) -> usize {
        self.users.get() - usize::from(self.held.get()) - self.returning.get()
    }
}

impl<C: ControlPlane> Drivers<C> {
    /// Attaches the volume, if it is not attached here, and keeps it so until it is let go. `Busy` if somebody else has it
    /// and is there, unless `force`.
    pub async fn hold(&self, core: &Rc<Core<C>>, volume: VolumeId, force: bool) -> Result<Held> {
        self.drop_superseded(core, volume).await?;
        let slot = self.joined(core, volume, force).await?;
        if let Err(e) = Self::wait_ready(core, &slot).await {
            Self::release_once_ready(core, &slot);
            return Err(e);
        }
        // One user stands for all who hold it.
        if slot.held.replace(true) {
            self.release(core, volume, slot.generation);
        }
        Ok(Held { generation: slot.generation, taken_from: slot.state.borrow().right().taken_from.clone() })
    }

    /// Gives the volume back; the generation that ended, or `None` if it is not attached here. `Busy` if clients use it,
    /// unless `force`: then they are told to leave.
    pub async fn let_go(&self, core: &Rc<Core<C>>, volume: VolumeId, force: bool) -> Result<Option<Generation>> {
        self.unless_busy(volume).await;
        self.drop_superseded(core, volume).await?;
        if let Some(slot) = self.slot(volume) {
            if slot.clients() > 0 && !force {
                return Err(in_use(&slot));
            }
            // Until then a driver of an earlier generation may still answer.
            Self::wait_ready(core, &slot).await?;
            return self.leave(core, &slot).await.map(|()| Some(slot.generation));
        }
        let state = core.spec.control.state();
        let holder = state.volume(volume).and_then(|v| v.holder.as_ref());
        if holder.is_none_or(|h| h.identity != core.spec.identity) {
            return Ok(None);
        }
        // An earlier process of this identity had it, and was killed.
        self.expel_as(core, volume, false).await.map(Some)
    }

    /// Gives this attachment back, whoever uses it here. One that was taken from this process is gone already: its successor stays.
    pub async fn let_go_of(&self, core: &Rc<Core<C>>, volume: VolumeId, of: Generation) -> Result<()> {
        self.unless_busy(volume).await;
        self.drop_superseded(core, volume).await?;
        // Looked at behind all that was waited for: it may have been taken away meanwhile, and attached anew.
        let Some(slot) = self.slot(volume).filter(|slot| slot.generation == of) else { return Ok(()) };
        Self::wait_ready(core, &slot).await?;
        self.leave(core, &slot).await
    }

    /// Takes the volume from whoever has it, and gives it back. `Busy` if somebody else has it and is there, or clients
    /// use it here, unless `force`.
    pub async fn expel(&self, core: &Rc<Core<C>>, volume: VolumeId, force: bool) -> Result<()> {
        if self.let_go(core, volume, force).await?.is_none() {
            self.expel_as(core, volume, force).await?;
        }
        Ok(())
    }

    async fn expel_as(&self, core: &Rc<Core<C>>, volume: VolumeId, force: bool) -> Result<Generation> {
        let slot = self.joined(core, volume, force).await?;
        if let Err(e) = Self::wait_ready(core, &slot).await {
            Self::release_once_ready(core, &slot);
            return Err(e);
        }
        slot.users.set(slot.users.get() - 1);
        if slot.users.get() == 0 {
            self.leave(core, &slot).await?;
        }
        Ok(slot.generation)
    }

    /// One user less, at once if the right can be given back. Else it goes on until it is ready: given back before, the right
    /// would be nobody's, and the driver before it might still answer. One user is enough for that, however many have come and gone.
    pub(super) fn release_once_ready(core: &Rc<Core<C>>, slot: &Rc<Slot>) {
        if slot.state.borrow().may_end() || slot.returning.get() > 0 {
            return core.drivers.release(core, slot.volume, slot.generation);
        }
        let (core, slot) = (core.clone(), slot.clone());
        slot.returning.set(slot.returning.get() + 1);
        tokio::task::spawn_local(async move {
            slot.settled().await;
            slot.returning.set(slot.returning.get() - 1);
            core.drivers.release(&core, slot.volume, slot.generation);
        });
    }

    /// Returns when the volume is neither being attached nor given back.
    async fn unless_busy(&self, volume: VolumeId) {
        while self.busy.borrow().contains_key(&volume) {
            self.settled.notified().await;
        }
    }

    /// Ends an attachment whose generation is not the volume's any more, though its driver has not heard so yet.
    async fn drop_superseded(&self, core: &Rc<Core<C>>, volume: VolumeId) -> Result<()> {
        let Some(slot) = self.slot(volume) else { return Ok(()) };
        // A command that changes nothing: what was decided before it is known here when it is answered.
        let nothing = Command::DetachVolume { volume, generation: Generation(0), settled: false };
        core.spec.control.submit(nothing).await?;
        let newest = core.spec.control.state().volume(volume).map(|v| v.generation);
        if newest.is_some_and(|newest| newest > slot.generation) && self.is_current(&slot) {
            slot.state.borrow_mut().supersede();
            self.end(core, &slot).await?;
        }
        Ok(())
    }

    /// Ends an attachment in order.
    async fn leave(&self, core: &Rc<Core<C>>, slot: &Rc<Slot>) -> Result<()> {
        self.unless_busy(slot.volume).await;
        if !self.is_current(slot) {
            return Ok(());
        }
        self.busy.borrow_mut().insert(slot.volume, control_plane("it has not heard yet that the volume was detached"));
        slot.state.borrow_mut().leave(SystemClock.now());
        while !slot.state.borrow().has_left(SystemClock.now(), slot.driver.borrow().in_flight()) {
            tokio::time::sleep(timing::LEAVE_LOOK).await;
        }
        let ended = self.end(core, slot).await;
        let conns = slot.conns.take();
        conns.iter().filter_map(std::rc::Weak::upgrade).for_each(|conn| conn.let_go());
        self.busy.borrow_mut().remove(&slot.volume);
        self.settled.notify_waiters();
        ended
    }
}

fn in_use(slot: &Slot) -> Error {
    let (n, noun) = (slot.clients(), if slot.clients() == 1 { "client uses" } else { "clients use" });
    Error::busy(format!("{n} {noun} it here; disconnect them, or ask again with --force: then they get errors"))
}
