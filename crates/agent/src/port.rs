//! The questions of a chain to the control plane, as commands.

use crate::cuts::commands_of;
use crate::plane::Commands;
use freebs_chain::{Begins, Branch, ControlPort, CutWord, Forced, IntervalAsk, IntervalWord, Opened};
use freebs_control::{Command, Outcome, Shard, State};
use freebs_types::{Error, Generation, NodeId, Result, ShardId, StartNumber, ViewNumber};

/// The control plane for the shards of one node.
pub struct Port<C> {
    control: C,
    me: NodeId,
}

impl<C: Commands> Port<C> {
    /// For the shards of node `me`.
    pub fn new(control: C, me: NodeId) -> Self {
        Self { control, me }
    }
}

impl<C: Commands> ControlPort for Port<C> {
    async fn propose(&self, shard: ShardId, active: ViewNumber, start: StartNumber) -> Result<Opened> {
        // The active view that this node knows may be an old one; the control plane's own word counts.
        let known = self.control.state().shard(shard).map_or(active, |s| s.active.max(active));
        let command = Command::ProposeView { shard, active: known, node: self.me, start };
        match self.control.submit(command).await?.outcome {
            Outcome::Proposed { view, pred, generation } => {
                let mut opened = opened(&self.control.state(), self.me, shard, view)?;
                (opened.pred, opened.generation) = (pred, generation);
                Ok(opened)
            }
            _ => Err(Error::bug("a proposal had another outcome")),
        }
    }

    async fn activate(&self, shard: ShardId, view: ViewNumber, generation: Generation, begins: Begins) -> Result<()> {
        let command = match begins {
            Begins::Branch => Command::ActivateBranch { shard, view, generation },
            Begins::Clone { learning } => Command::ActivateClone { shard, view, generation, learning },
            Begins::Nothing => Command::ActivateView { shard, view, generation },
        };
        self.control.submit(command).await.map(|_| ())
    }

    async fn hand_over(&self, shard: ShardId, to: NodeId) -> Result<()> {
        let Some(active) = self.control.state().shard(shard).filter(|s| s.head() == Some(self.me)).map(|s| s.active)
        else {
            return Ok(());
        };
        self.control.submit(Command::ReplaceHead { shard, head: self.me, active, node: to }).await.map(|_| ())
    }

    async fn complete(&self, shard: ShardId, view: ViewNumber, nodes: Vec<NodeId>) -> Result<()> {
        self.control.submit(Command::MembersComplete { shard, view, nodes }).await.map(|_| ())
    }

    async fn cuts(&self, words: Vec<CutWord>) -> Result<()> {
        // One that is not heard must not keep the others back.
        let mut said = Ok(());
        for command in commands_of(words) {
            said = self.control.submit(command).await.map(|_| ()).and(said);
        }
        said
    }

    async fn ask_interval(&self, ask: IntervalAsk) -> Result<IntervalWord> {
        let state = self.control.state();
        if state.was_deleted(ask.at.volume) {
            // Nothing of that volume is there any more, decided or not.
            return Ok(if ask.decides { IntervalWord::Aborted } else { IntervalWord::Over });
        }
        let head = state.shard(ask.at).and_then(Shard::head);
        let head = head.ok_or_else(|| Error::retry(format!("nobody is known to be head of shard {}", ask.at)))?;
        self.control.ask_interval(head, ask).await
    }
}

/// The place where a shard went on by force.
pub(crate) fn branch_of(shard: &Shard) -> Branch {
    shard.branch.map(|b| Branch { view: b.view, at: b.at }).unwrap_or_default()
}

/// An operator's word for a shard.
pub(crate) fn forced_of(shard: &Shard) -> Option<Forced> {
    let word = |f: &freebs_control::Forced| Forced {
        survivors: f.survivors.clone(),
        least: f.least,
        known: f.known,
        gives_up: f.gives_up,
    };
    shard.forced.as_ref().map(word)
}

/// The pending view as one state has it: members, quorums and keys belong together.
fn opened(state: &State, me: NodeId, shard: ShardId, view: ViewNumber) -> Result<Opened> {
    let volume = state.volume(shard.volume).ok_or_else(|| Error::not_found("the volume was deleted"))?;
    let s = volume.shard(shard.index).ok_or_else(|| Error::not_found("the volume has no such shard"))?;
    if s.pending.is_none_or(|p| p.view != view) || s.head() != Some(me) {
        return Err(Error::retry("another head was named, or another view proposed, meanwhile"));
    }
    let quorum_of =
        |of: &[NodeId]| u8::try_from(volume.quorum(of.len())).map_err(|_| Error::bug("quorum beyond any chain"));
    let quorum = quorum_of(&s.members)?;
    let keys = s.members.iter().filter_map(|n| Some((*n, state.node(*n)?.host_key?))).collect();
    Ok(Opened {
        view,
        pred: s.active,
        members: s.members.clone(),
        quorum,
        min_copies: volume.min_copies,
        pred_members: s.view_members().to_vec(),
        pred_quorum: quorum_of(s.view_members())?,
        pred_learning: s.learning.clone(),
        pred_unseen: s.unseen.clone(),
        forced: forced_of(s),
        generation: volume.generation,
        keys,
        volume: Some(Box::new(volume.description_of(s))),
    })
}
