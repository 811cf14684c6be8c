//! What is replicated: the control state, and what was answered to whom, so that nothing is applied twice.
//!
//! Invariants:
//! - The same entries in the same order give the same machine, bit for bit; its encoding is canonical.
//! - A command is applied at most once, however often it is sent: it names a session, which the log itself has opened,
//!   and its number there. The answer is kept until the sender says (`floor`) that it has it.
//! - What can't be told from a repeat (its session is forgotten, its number below the floor) is refused, not applied.
//! - Sessions and kept answers have maxima; the sessions longest unused are forgotten first.

use crate::codec::{damaged, get_optional_log_id, get_stored_membership, put_optional_log_id, put_stored_membership};
use crate::limits;
use crate::mutant::Mutant;
use crate::types::{Entry, LogId, StoredMembership};
use core::fmt;
use freebs_control::codec::{Fields, decode_result, encode_result};
use freebs_control::{Command, Done, State};
use freebs_types::{ClusterId, Error, Result};
use openraft::EntryPayload;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is proposed to the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proposal {
    /// A session for somebody who is going to send commands; its number is the index of this entry.
    OpenSession,
    /// Number `number` of the session. All below `floor` have been answered.
    Command {
        /// Number of the session: the index of the entry that opened it.
        session: u64,
        /// Number of the command in its session, +1 for each; a repeat has the same one and is applied once.
        number: u64,
        /// The answers to all numbers below were received, and are forgotten.
        floor: u64,
        /// The command to apply to the state.
        command: Box<Command>,
    },
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OpenSession => f.write_str("open a session"),
            Self::Command { session, number, .. } => write!(f, "command {session}.{number}"),
        }
    }
}

/// What came of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Of an entry that asks nothing.
    Nothing,
    /// Of `OpenSession`: the number of the new session.
    Session(u64),
    /// Of a `Command`: what came of it, now or when it was first applied.
    Done(Result<Done>),
    /// The session is not known (any more); the command was not applied now, and may have been before.
    NoSession,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Session {
    /// Index of the last entry that used it.
    used: u64,
    floor: u64,
    answers: BTreeMap<u64, Vec<u8>>,
}

impl Session {
    fn bytes(&self) -> usize {
        self.answers.values().map(|a| a.len() + 16).sum()
    }
}

/// The replicated state machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The control state as of `applied`.
    pub state: Arc<State>,
    /// The last entry that was applied; `None` before the first.
    pub applied: Option<LogId>,
    /// The voters and learners as of `applied`, and the entry that made them so.
    pub membership: StoredMembership,
    sessions: BTreeMap<u64, Session>,
    answer_bytes: usize,
}

/// The index of an entry, and its command if it is one.
#[must_use]
pub fn what_is(entry: &Entry) -> (u64, Option<&Command>) {
    let command = match &entry.payload {
        EntryPayload::Normal(Proposal::Command { command, .. }) => Some(command.as_ref()),
        _ => None,
    };
    (entry.log_id.index(), command)
}

impl Machine {
    /// Nothing applied, nobody a member.
    #[must_use]
    pub fn new(cluster: ClusterId) -> Self {
        Self {
            state: Arc::new(State::new(cluster)),
            applied: None,
            membership: StoredMembership::default(),
            sessions: BTreeMap::new(),
            answer_bytes: 0,
        }
    }

    /// Number of the founding that the state comes from; 0 while nothing is known of any.
    #[must_use]
    pub fn founding(&self) -> u64 {
        self.applied.map_or(0, |_| self.state.founding())
    }

    /// Applies the next entry.
    pub fn apply(&mut self, entry: &Entry, mutant: Option<Mutant>) -> Answer {
        let index = entry.log_id.index();
        assert!(self.applied.is_none_or(|a| a.index() + 1 == index), "entries are applied in order, none left out");
        self.applied = Some(entry.log_id);
        match &entry.payload {
            EntryPayload::Blank => Answer::Nothing,
            EntryPayload::Membership(m) => {
                self.membership = StoredMembership::new(Some(entry.log_id), m.clone());
                Answer::Nothing
            }
            EntryPayload::Normal(Proposal::OpenSession) => {
                self.sessions.insert(index, Session { used: index, floor: 1, ..Session::default() });
                self.forget();
                Answer::Session(index)
            }
            EntryPayload::Normal(Proposal::Command { session, number, floor, command }) => {
                self.command(index, (*session, *number, *floor), command, mutant)
            }
        }
    }

    fn command(&mut self, index: u64, id: (u64, u64, u64), command: &Command, mutant: Option<Mutant>) -> Answer {
        let (session, number, floor) = id;
        let Some(s) = self.sessions.get_mut(&session) else { return Answer::NoSession };
        let before = s.bytes();
        s.used = index;
        if floor > s.floor {
            s.floor = floor;
            s.answers = s.answers.split_off(&floor);
        }
        let kept = s.answers.get(&number).filter(|_| mutant != Some(Mutant::RepeatsAreApplied));
        let answer = if let Some(kept) = kept {
            Answer::Done(decode_result(kept).expect("encoded here"))
        } else if number < s.floor || number >= s.floor.saturating_add(limits::SESSION_WINDOW_MAX) {
            Answer::NoSession
        } else {
            // What is answered is what a repeat would be answered, a cut text included.
            let bytes = encode_result(&Arc::make_mut(&mut self.state).apply(command.clone()));
            let answer = Answer::Done(decode_result(&bytes).expect("just encoded"));
            s.answers.insert(number, bytes);
            answer
        };
        self.answer_bytes = self.answer_bytes + s.bytes() - before;
        self.forget();
        answer
    }

    /// Forgets the sessions longest unused, as far as there are too many.
    fn forget(&mut self) {
        while self.sessions.len() > limits::SESSIONS_MAX || self.answer_bytes > limits::SESSION_BYTES_MAX {
            let oldest = self.sessions.iter().min_by_key(|(_, s)| s.used).map(|(n, _)| *n).expect("there are some");
            let gone = self.sessions.remove(&oldest).expect("just found");
            self.answer_bytes -= gone.bytes();
        }
    }

    /// The whole machine as bytes, without a checksum: those are around it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_optional_log_id(&mut out, self.applied.as_ref());
        put_stored_membership(&mut out, &self.membership);
        out.extend((self.sessions.len() as u32).to_le_bytes());
        for (number, s) in &self.sessions {
            [*number, s.used, s.floor].iter().for_each(|n| out.extend(n.to_le_bytes()));
            out.extend((s.answers.len() as u16).to_le_bytes());
            for (number, answer) in &s.answers {
                out.extend(number.to_le_bytes());
                out.extend((answer.len() as u16).to_le_bytes());
                out.extend(answer);
            }
        }
        out.extend(self.state.encode());
        out
    }

    /// The machine in `bytes`, all of it checked.
    pub fn decode(bytes: &[u8], cluster: ClusterId) -> Result<Self> {
        if bytes.len() > limits::SNAPSHOT_BYTES_MAX {
            return Err(damaged());
        }
        let f = &mut Fields(bytes);
        let mut machine = Self { applied: get_optional_log_id(f)?, ..Self::new(cluster) };
        machine.membership = get_stored_membership(f)?;
        let count = f.u32()? as usize;
        if count > limits::SESSIONS_MAX {
            return Err(damaged());
        }
        for _ in 0..count {
            let (number, used, floor) = (f.u64()?, f.u64()?, f.u64()?);
            // In order, so that none comes twice: its answers would be counted twice.
            if machine.sessions.last_key_value().is_some_and(|(last, _)| *last >= number) {
                return Err(damaged());
            }
            let mut s = Session { used, floor, answers: BTreeMap::new() };
            for _ in 0..f.u16()? {
                let number = f.u64()?;
                if s.answers.last_key_value().is_some_and(|(last, _)| *last >= number) {
                    return Err(damaged());
                }
                let len = f.u16()? as usize;
                let answer = f.take(len)?;
                let _ = decode_result(answer)?;
                s.answers.insert(number, answer.to_vec());
            }
            if s.answers.len() as u64 > limits::SESSION_WINDOW_MAX {
                return Err(damaged());
            }
            machine.answer_bytes += s.bytes();
            machine.sessions.insert(number, s);
        }
        let state = State::decode(f.0)?;
        if state.cluster() != cluster {
            return Err(Error::corrupt("a control state of another cluster"));
        }
        machine.state = Arc::new(state);
        Ok(machine)
    }
}
