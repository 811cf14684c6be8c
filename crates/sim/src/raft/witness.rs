//! A witness of what seats send and apply.

use super::Seats;
use crate::rng::mix;
use freebs_consensus::Seat;
use freebs_consensus::machine::{Machine, Proposal, what_is};
use freebs_consensus::types::Entry;
use freebs_consensus::wire::Message;
use freebs_control::{Command, Done, State};
use freebs_types::NodeId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An entry as the first seat applied it.
struct Decided {
    entry: String,
    /// A hash of the machine after it.
    machine: u64,
}

/// The decisions, as far as any seat has applied them.
pub(super) struct Witness {
    decided: BTreeMap<u64, Decided>,
    /// The revision of the newest state.
    revision: u64,
    /// The seat that acts as leader, by term.
    leaders: BTreeMap<u64, Seat>,
}

impl Witness {
    /// Of a cluster that is founded with this state.
    pub fn new(state: Arc<State>) -> Self {
        Self { decided: BTreeMap::new(), revision: state.revision(), leaders: BTreeMap::new() }
    }

    /// The log begins anew.
    pub fn begin(&mut self, state: Arc<State>) {
        *self = Self::new(state);
    }

    /// The index of the newest entry.
    pub fn newest(&self) -> u64 {
        self.decided.last_key_value().map_or(0, |(index, _)| *index)
    }

    /// An answer is given for what a seat has applied.
    pub fn answered(&self, done: &Done) -> Result<(), String> {
        let text = || format!("revision {} was answered, and the newest state has {}", done.revision, self.revision);
        if done.revision <= self.revision { Ok(()) } else { Err(text()) }
    }

    /// True for the first seat that applies this entry; the others must apply the same one, with the same result.
    fn apply(&mut self, entry: &Entry, machine: &Machine) -> Result<bool, String> {
        let index = entry.log_id.index();
        let text = format!("{:?} in term {}", entry.payload, entry.log_id.committed_leader_id().term);
        let hash = hash(&machine.encode());
        match self.decided.get(&index) {
            Some(first) if first.entry != text => {
                Err(format!("two entries at index {index}: {} and {text}", first.entry))
            }
            Some(first) if first.machine != hash => Err(format!("two states at index {index}, after {text}")),
            Some(_) => Ok(false),
            None => {
                self.decided.insert(index, Decided { entry: text, machine: hash });
                self.revision = machine.state.revision();
                Ok(true)
            }
        }
    }

    /// True if this is the first message of a leader in its term.
    fn send(&mut self, from: Seat, message: &Message) -> Result<bool, String> {
        match message {
            Message::Append(r) => {
                let term = r.vote.leader_id.term;
                let is_new = !self.leaders.contains_key(&term);
                let leader = *self.leaders.entry(term).or_insert(from);
                if leader == from { Ok(is_new) } else { Err(format!("{leader} and {from} lead in term {term}")) }
            }
            Message::Propose(Proposal::Command { command, .. }) if is_leaders(command) => {
                Err(format!("{from} does not lead and decides: {command:?} (L5)"))
            }
            _ => Ok(false),
        }
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let word = |c: &[u8]| c.iter().fold(c.len() as u64, |all, b| all << 8 | u64::from(*b));
    bytes.chunks(7).fold(bytes.len() as u64, |all, c| mix(all ^ word(c)))
}

/// True if only leaders give this command.
fn is_leaders(command: &Command) -> bool {
    matches!(
        command,
        Command::FailOver { .. }
            | Command::ReplaceMembers { .. }
            | Command::ExtendChains { .. }
            | Command::LeaveChains { .. }
            | Command::StandIn { .. }
            | Command::DrainChains { .. }
    )
}

impl Seats {
    /// A seat has applied an entry, perhaps as the first one.
    pub(super) fn applied(&self, node: NodeId, entry: &Entry, machine: &Machine) {
        let (index, command) = what_is(entry);
        // An old disk of before the cluster was founded anew has the log of that time, which decides nothing any more.
        if self.host(node).is_none_or(|h| h.founding() != self.foundings.get()) {
            return;
        }
        let is_first = match self.witness.borrow_mut().apply(entry, machine) {
            Ok(is_first) => is_first,
            Err(why) => {
                self.world.violation(format!("{why}, at node {node}"));
                return;
            }
        };
        self.world.trace(0x54, node.0, index);
        if !is_first {
            return;
        }
        self.world.say(|| format!("control: entry {index}: {:?}", entry.payload));
        self.world.count("entries decided by seats");
        match command {
            Some(Command::FailOver { .. }) => self.world.count("heads of failed nodes replaced"),
            Some(Command::ReplaceMembers { .. }) => self.world.count("members of nodes that are gone replaced"),
            Some(Command::ExtendChains { .. }) => self.world.count("short chains extended"),
            Some(Command::LeaveChains { .. }) => self.world.count("chains made shorter"),
            Some(Command::StandIn { .. }) => self.world.count("nodes that stand in"),
            Some(Command::DrainChains { .. }) => self.world.count("chains drained"),
            _ => {}
        }
        if let Some(control) = self.control.upgrade() {
            control.decided(command, &machine.state);
        }
    }

    /// A seat sends something.
    pub(super) fn sent(&self, from: Seat, bytes: &[u8]) {
        let message = match Message::decode(bytes) {
            Ok((_, message)) => message,
            Err(e) => return self.world.violation(format!("{from} sends what can't be read: {e}")),
        };
        self.world.trace(0x55, from.node.0, hash(bytes));
        // A seat of before the cluster was founded anew leads nobody but its like.
        if self.host(from.node).is_none_or(|h| h.founding() != self.foundings.get()) {
            return;
        }
        let seen = self.witness.borrow_mut().send(from, &message);
        match seen {
            Ok(true) => {
                self.world.count("leaders elected");
                self.world.say(|| format!("control: {from} leads"));
            }
            Ok(false) => {}
            Err(why) => self.world.violation(why),
        }
    }
}
