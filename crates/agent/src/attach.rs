//! The right to use a volume: asked for until it is known who has it, held while a driver runs, and given back.
//!
//! Invariants:
//! - A question names the generation that is known, so of several copies of it, some of them late, one counts.
//! - Nothing is given back that another one has: who was fenced says nothing more of the volume.
//! - An attachment that is let go answers what it has taken, for a while, and takes nothing more.
//! - An attachment that ends says that older leases have ended only if it was ready itself, because its driver had waited
//!   for them (L3), or if there were none.
//! - Nothing is made nobody's whose driver may be at work: what was taken by force, or was one's own before, is given back
//!   only by an attachment that was ready.

use crate::timing;
use crate::volumes::{spec_of, workers_of};
use freebs_control::{Command, Done, Holder, Outcome, State, Volume};
use freebs_driver::{Action, DriverConfig, REQUEST_LIMIT};
use freebs_types::{DriverId, Error, ErrorKind, Generation, Nanos, NodeId, Result, ShardId, ViewNumber, VolumeId};

/// The question for the right to a volume, and how it stands.
#[derive(Debug)]
pub struct Asking {
    volume: VolumeId,
    who: Holder,
    force: bool,
    until: Nanos,
    /// Revision of the state that the last question was made of.
    seen: u64,
    /// Name of the other one who had the volume in it.
    other: Option<String>,
    /// As in the right that comes of it.
    ends_another: bool,
}

/// The right to a volume, as the control plane gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right {
    /// The volume.
    pub volume: VolumeId,
    /// The generation of the attachment.
    pub generation: Generation,
    /// No driver of an earlier generation can hold a lease.
    pub alone: bool,
    /// Name of the holder from whom it was taken.
    pub taken_from: Option<String>,
    /// It ends an attachment whose driver may be at work: one of another holder, by force, or an earlier one of the same.
    pub ends_another: bool,
}

/// An answer of the control plane, and its meaning for the one that asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The volume is attached.
    Right(Right),
    /// It is to be asked again for this reason: as soon as there are news behind [`Asking::seen`], or else after
    /// [`timing::ATTACH_ASK_AGAIN`].
    Again(Error),
    /// Nothing will come of it.
    Never(Error),
}

impl Asking {
    /// From now on `who` wants the volume. `force`: also if somebody else has it, and is there.
    #[must_use]
    pub fn new(volume: VolumeId, who: Holder, force: bool, now: Nanos) -> Self {
        let until = now.plus(timing::ATTACH_ASK_LIMIT);
        Self { volume, who, force, until, seen: 0, other: None, ends_another: false }
    }

    /// The next question, as the newest state that is known here has it. `NotFound` if it has no such volume.
    pub fn question(&mut self, state: &State) -> Result<Command> {
        let known = state.volume(self.volume).ok_or_else(|| Error::not_found("the volume was deleted"))?;
        let other = known.holder.as_ref().filter(|h| h.identity != self.who.identity);
        self.ends_another = known.holder.is_some() && (self.force || other.is_none());
        (self.seen, self.other) = (state.revision(), other.map(|h| h.name.clone()));
        Ok(Command::AttachVolume {
            volume: self.volume,
            identity: self.who.identity,
            name: self.who.name.clone(),
            force: self.force,
            since: Some(known.generation),
            lapsed: false,
        })
    }

    /// The answer to the last question. Without one it is not known whether that was carried out.
    pub fn answer(&self, now: Nanos, answer: Result<Done>) -> Answer {
        match answer.map(|done| done.outcome) {
            Ok(Outcome::Attached { generation, alone }) => {
                let (volume, taken_from) = (self.volume, self.other.clone());
                Answer::Right(Right { volume, generation, alone, taken_from, ends_another: self.ends_another })
            }
            Ok(_) => Answer::Never(Error::bug("an attachment had another outcome")),
            Err(e) if e.kind == ErrorKind::Retry && now <= self.until => Answer::Again(e),
            Err(e) => Answer::Never(e),
        }
    }

    /// The revision of the state that the last question was made of: what was known then may have been old.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.seen
    }
}

impl Right {
    /// The configuration of this attachment's driver. `local`: the node that it runs in. `NotFound` if the volume was
    /// deleted meanwhile.
    pub fn driver(&self, state: &State, who: &Holder, driver: DriverId, local: Option<NodeId>) -> Result<DriverConfig> {
        let volume = state.volume(self.volume).ok_or_else(|| Error::not_found("the volume was deleted"))?;
        Ok(DriverConfig {
            driver,
            generation: self.generation,
            alone: self.alone,
            identity: who.identity,
            volume: spec_of(volume),
            workers: workers_of(state),
            local,
            request_limit: REQUEST_LIMIT,
            mutant: None,
        })
    }
}

/// One attachment from its driver's first action to its end.
#[derive(Debug)]
pub struct Attachment {
    right: Right,
    ready: bool,
    fenced: bool,
    closed: bool,
    /// It is being let go, and ends at this time at the latest.
    leaves_by: Option<Nanos>,
}

impl Attachment {
    /// Its driver begins.
    #[must_use]
    pub fn new(right: Right) -> Self {
        Self { right, ready: false, fenced: false, closed: false, leaves_by: None }
    }

    /// The right that it stands for.
    #[must_use]
    pub fn right(&self) -> &Right {
        &self.right
    }

    /// Takes in what its driver does; true if the attachment is another one by it.
    pub fn note(&mut self, action: &Action) -> bool {
        match action {
            Action::Ready => self.ready = true,
            Action::Fenced => self.fenced = true,
            Action::Closed => self.closed = true,
            _ => return false,
        }
        true
    }

    /// The control plane has given out a newer generation, whether or not the driver has heard of it.
    pub fn supersede(&mut self) {
        self.fenced = true;
    }

    /// Its driver was ready once: it answers, or did until the attachment was over.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// Somebody else has the volume.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.fenced
    }

    /// Its driver answers nobody any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.fenced || self.closed
    }

    /// Its users are to go. Requests that were taken are waited for, for [`timing::LEAVE_MAX`] at most; while it was not ready
    /// none were answered, so none are waited for.
    pub fn leave(&mut self, now: Nanos) {
        let most = if self.ready { timing::LEAVE_MAX } else { Nanos(0) };
        self.leaves_by.get_or_insert(now.plus(most));
    }

    /// The time at which it ends at the latest; `None` if it is not being let go: then it takes requests.
    #[must_use]
    pub fn leaves_by(&self) -> Option<Nanos> {
        self.leaves_by
    }

    /// True if it is being let go, and is to end now. `in_flight`: requests that were taken and have no answer.
    #[must_use]
    pub fn has_left(&self, now: Nanos, in_flight: usize) -> bool {
        self.leaves_by.is_some_and(|by| in_flight == 0 || by <= now)
    }

    /// The right can be given back: no driver of an earlier generation is at work, or the volume was nobody's before, or of
    /// one whose leases had lapsed.
    #[must_use]
    pub fn may_end(&self) -> bool {
        self.ready || !self.right.ends_another
    }

    /// Ends it, once its driver was told to close. The command gives the right back; none if somebody else has it, or if
    /// it has to stay this holder's, because the driver before it may be at work.
    pub fn end(&mut self) -> Option<Command> {
        self.closed = true;
        let Right { volume, generation, alone, .. } = self.right;
        let command = Command::DetachVolume { volume, generation, settled: self.ready || alone };
        (!self.fenced && self.may_end()).then_some(command)
    }
}

/// The view of a replica, and the generation of the attachment whose lease of it has ended, if one has.
pub type Lapse = (ViewNumber, Option<Generation>);

/// The question that takes a volume over from a driver whose leases have ended, in place of one that was refused because of
/// that driver. `of` says what is heard from replicas at this moment. It can't answer anybody any more if of some shard so
/// many members of the active view say that its lease of them has ended that the others are fewer than A (L1).
pub fn in_place_of_lapsed(
    command: Command,
    state: &State,
    of: impl Fn(NodeId, ShardId) -> Option<Lapse>,
) -> Option<Command> {
    let volume = named(&command, state)?;
    let has_ended = |shard: &freebs_control::Shard| {
        let members = shard.view_members();
        let says = |n: &&NodeId| of(**n, volume.shard_id(shard.index)) == Some((shard.active, Some(volume.generation)));
        members.iter().filter(says).count() + volume.quorum(members.len()) > members.len()
    };
    match command {
        Command::AttachVolume { volume: id, identity, name, force, .. } if volume.shards.iter().any(has_ended) => {
            let since = Some(volume.generation);
            Some(Command::AttachVolume { volume: id, identity, name, force, since, lapsed: true })
        }
        _ => None,
    }
}

/// The volume that a question was refused for because somebody has it, if it still has the generation that the question named:
/// then its replicas are asked, and what they say may take the question's place ([`in_place_of_lapsed`]).
#[must_use]
pub fn refused<'a>(command: &Command, answer: &Result<Done>, state: &'a State) -> Option<&'a Volume> {
    let is_busy = answer.as_ref().is_err_and(|e| e.kind == ErrorKind::Busy);
    named(command, state).filter(|_| is_busy)
}

fn named<'a>(command: &Command, state: &'a State) -> Option<&'a Volume> {
    let Command::AttachVolume { volume, since, .. } = command else { return None };
    let known = state.volume(*volume)?;
    since.is_none_or(|since| since == known.generation).then_some(known)
}
