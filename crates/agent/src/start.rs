//! A start of a node, step by step (rules W2, V8). Each step is made of the one before it, so none is left out or comes early:
//!
//! 1. [`CameWith`]: the devices are read, and nothing is written to them. The node's seat in the control plane is at work, and
//!    its messages carry what the devices come with.
//! 2. [`Numbered`]: the control plane's newest state has said that no device is an old image, and which number this start has.
//! 3. [`Begun`]: that number is durable on all devices. From now on messages of the seat carry it.
//! 4. [`Registration`]: the node says that it is there, until it is heard.
//! 5. [`TakenIn`]: now its workers hear of control states, dial members, and take links of members and drivers: what a member
//!    says counts only once its start is known.

use crate::register::Registration;
use freebs_control::{Command, Mutant, State};
use freebs_format::disk::Superblock;
use freebs_types::{HostPublic, NodeId, Result, StartNumber};

/// The highest start number in these copies of superblocks; 0 if there are none. What is damaged there is told when the
/// device is opened.
pub fn highest_start<B: AsRef<[u8]>>(copies: impl IntoIterator<Item = B>) -> StartNumber {
    let readable = copies.into_iter().filter_map(|bytes| Superblock::decode(bytes.as_ref()).ok());
    readable.map(|superblock| superblock.start_number()).max().unwrap_or_default()
}

/// A node whose devices were read.
#[derive(Debug)]
pub struct CameWith {
    node: NodeId,
    numbers: Vec<StartNumber>,
    mutant: Option<Mutant>,
}

/// A node whose start has a number, which is to be written to all its devices.
#[derive(Debug)]
pub struct Numbered {
    node: NodeId,
    start: StartNumber,
}

/// A node whose devices have the number of its start.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    node: NodeId,
    start: StartNumber,
}

/// A node that the control plane knows to be there, in this start.
#[derive(Debug)]
pub struct TakenIn(());

/// All of a node that is registered beside its id and start.
#[derive(Clone, Debug)]
pub struct About {
    /// Its name, for people.
    pub name: String,
    /// Where it is.
    pub address: String,
    /// Its workers.
    pub workers: u16,
    /// The view that slices are to be sealed for.
    pub key: Option<HostPublic>,
}

impl CameWith {
    /// The devices of `node`, by worker, come with these numbers.
    #[must_use]
    pub fn new(node: NodeId, numbers: Vec<StartNumber>) -> Self {
        Self { node, numbers, mutant: None }
    }

    /// With a rule left out.
    #[must_use]
    pub fn with_mutant(self, mutant: Option<Mutant>) -> Self {
        Self { mutant, ..self }
    }

    /// An error if what is known here already, which may be old, is enough to tell an old image.
    pub fn check(&self, known: &State) -> Result<()> {
        self.next(known).map(|_| ())
    }

    /// `newest` has everything in it that was decided until the devices were read. An error if a device is an old image.
    pub fn number(self, newest: &State) -> Result<Numbered> {
        Ok(Numbered { node: self.node, start: self.next(newest)? })
    }

    fn next(&self, state: &State) -> Result<StartNumber> {
        match self.mutant {
            Some(Mutant::OldImagesRegister) => Ok(self.numbers.iter().max().copied().unwrap_or_default().next()),
            _ => state.next_start(self.node, &self.numbers),
        }
    }
}

impl Numbered {
    /// The number, the same for all devices.
    #[must_use]
    pub fn start(&self) -> StartNumber {
        self.start
    }

    /// It is durable on all of them.
    #[must_use]
    pub fn written(self) -> Begun {
        Begun { node: self.node, start: self.start }
    }
}

impl Begun {
    /// The number that messages of the seat carry.
    #[must_use]
    pub fn start(self) -> StartNumber {
        self.start
    }

    /// All that the node has to say now.
    #[must_use]
    pub fn registration(self, about: About) -> Registration {
        let Self { node, start } = self;
        let About { name, address, workers, key } = about;
        let register = Command::RegisterNode { node, name, address, workers, start };
        Registration::new(register, key.map(|key| Command::NameHostKey { node, start, key }))
    }
}

impl TakenIn {
    pub(crate) fn new() -> Self {
        Self(())
    }
}
