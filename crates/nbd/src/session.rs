//! The session: what one connection has agreed on, what phase it is in, what is in flight.
//!
//! Invariants:
//! - One call of `receive` looks at each byte once, except for a header whose payload is still on its way; a header is
//!   looked at once a call.
//! - Nothing is parsed while a look-up is open, and nothing beyond the window.
//! - `in_flight` and `in_flight_bytes` count the tickets handed out and not consumed yet.
//! - A session that has ended or failed never speaks of new requests again.

use crate::event::{Event, SessionError, Step, Ticket, Wait};
use crate::limits::{BLOCK_SIZE_PREFERRED, Limits};
use crate::output::Output;
use crate::wire;
use bytes::{Buf, BytesMut};

/// How requests and replies look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Simple,
    Structured,
    Extended,
}

/// Where a connection stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    ClientFlags,
    Option,
    /// An option that is parsed when it is there as a whole.
    OptionBody {
        option: u32,
        len: u32,
    },
    /// An option that is thrown away, and then answered.
    OptionSkip {
        option: u32,
        left: u32,
        then: AfterSkip,
    },
    /// The caller has to answer.
    Answer(Question),
    Request,
    /// The payload of a refused request is thrown away. It was answered already.
    PayloadSkip {
        left: u64,
    },
    Ended,
    Failed(SessionError),
}

/// The answer to a skipped option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterSkip {
    Error(u32, &'static str),
    Abort,
}

/// What the caller was asked, with all that the answer needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    List,
    Info { option: u32, asked: String, want: InfoWant },
    ExportName,
    Meta { option: u32, wanted: MetaWanted },
}

/// Meta contexts that a client asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MetaWanted {
    pub allocation: bool,
    /// All that tell what changed, or those since these exports.
    pub every_since: bool,
    pub since: Vec<String>,
}

/// Meta contexts that were chosen for an export, by its canonical name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    pub export: String,
    pub allocation: bool,
    /// The export since which changes are told.
    pub since: Option<String>,
}

/// Which information a client asked for. EXPORT it always gets, BLOCK_SIZE too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InfoWant {
    pub block_size: bool,
    pub name: bool,
    pub description: bool,
}

/// The export in use.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Active {
    pub size: u64,
    pub read_only: bool,
    /// `base:allocation` was chosen for it.
    pub allocation: bool,
    /// `freebs:changed-since:NAME` was chosen for it.
    pub changed: bool,
}

/// The server's side of one NBD connection: bytes in, bytes out. See the [crate] documentation.
#[derive(Debug)]
pub struct Session {
    pub(crate) limits: Limits,
    pub(crate) phase: Phase,
    pub(crate) mode: Mode,
    pub(crate) no_zeroes: bool,
    /// The client asked for block sizes, and so has to keep to them.
    pub(crate) knows_sizes: bool,
    /// The last choice.
    pub(crate) meta: Option<Meta>,
    /// The export since which changes are told.
    pub(crate) since: Option<String>,
    pub(crate) active: Active,
    /// Transmission has begun, and the caller has not been told yet.
    pub(crate) begun: Option<String>,
    /// Options that were no question about an export, and those that were.
    pub(crate) options: u32,
    pub(crate) export_options: u32,
    pub(crate) handshake_bytes: u64,
    pub(crate) shutting_down: bool,
    pub(crate) output: Output,
    in_flight: usize,
    in_flight_bytes: usize,
    wanted: usize,
}

impl Session {
    /// A session of a connection that was just accepted. The greeting is in the output already.
    ///
    /// # Panics
    /// If the limits make no sense (no request, or a payload under 4 KiB).
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        assert!(limits.requests_max > 0 && limits.payload_bytes_max >= BLOCK_SIZE_PREFERRED, "limits are too small");
        let mut output = Output::new();
        output.put(&wire::greeting());
        Self {
            limits,
            phase: Phase::ClientFlags,
            mode: Mode::Simple,
            no_zeroes: false,
            meta: None,
            since: None,
            active: Active::default(),
            begun: None,
            options: 0,
            export_options: 0,
            knows_sizes: false,
            handshake_bytes: 0,
            shutting_down: false,
            output,
            in_flight: 0,
            in_flight_bytes: 0,
            wanted: 0,
        }
    }

    /// Goes on with what the client has sent. Consumes from the front of `input` and returns at the first event, or
    /// when there is nothing more to do; call it until it returns [`Step::Wait`].
    ///
    /// Written data is split off `input` without a copy, so it keeps the whole of that buffer alive. Read in portions
    /// of some 64 to 256 KiB (or [`Wait::Bytes`], if that is more), and what a connection holds stays near its window.
    ///
    /// # Errors
    /// The connection has to be cut. Events returned before stay valid; from now on the same error is returned.
    pub fn receive(&mut self, input: &mut BytesMut) -> Result<Step, SessionError> {
        self.wanted = 0;
        if let Some(name) = self.begun.take() {
            return Ok(Step::Event(Event::Go { name }));
        }
        match self.advance(input) {
            Ok(step) => {
                if let Step::Wait(Wait::Bytes(count)) = step {
                    self.wanted = count;
                }
                Ok(step)
            }
            Err(error) => {
                self.phase = Phase::Failed(error);
                Err(error)
            }
        }
    }

    fn advance(&mut self, input: &mut BytesMut) -> Result<Step, SessionError> {
        loop {
            let step = match self.phase {
                Phase::Request => self.request(input)?,
                Phase::PayloadSkip { left } => self.skip_payload(input, left),
                Phase::ClientFlags => self.client_flags(input)?,
                Phase::Option => self.option_header(input)?,
                Phase::OptionBody { option, len } => self.option_body(input, option, len)?,
                Phase::OptionSkip { option, left, then } => self.skip_option(input, option, left, then),
                Phase::Answer(_) => Some(Step::Wait(Wait::Answer)),
                Phase::Ended => {
                    // A client must send nothing after it has left; if it does, nobody reads it.
                    input.clear();
                    Some(Step::Wait(Wait::Closed))
                }
                Phase::Failed(error) => return Err(error),
            };
            if let Some(step) = step {
                return Ok(step);
            }
        }
    }

    /// Bytes the session needs to make progress, as of the last `receive`: 0 while it waits for something else, and
    /// nothing should be read from the client.
    #[must_use]
    pub fn wanted(&self) -> usize {
        self.wanted
    }

    /// What is to be sent. Unsent bytes count in the window.
    #[must_use]
    pub fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// True until transmission begins. The caller limits how long that may take; a session has no clock.
    #[must_use]
    pub fn in_handshake(&self) -> bool {
        matches!(
            self.phase,
            Phase::ClientFlags | Phase::Option | Phase::OptionBody { .. } | Phase::OptionSkip { .. } | Phase::Answer(_)
        )
    }

    /// Questions about exports so far (INFO and meta contexts): a client that walks many may take its time.
    #[must_use]
    pub fn exports_asked(&self) -> u32 {
        self.export_options
    }

    /// The export since which the client wants to be told what changed, by block status. Known when transmission begins.
    #[must_use]
    pub fn changed_since(&self) -> Option<&str> {
        self.since.as_deref()
    }

    /// Requests that are not answered yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Bytes of data of the requests that are not answered yet.
    #[must_use]
    pub fn in_flight_bytes(&self) -> usize {
        self.in_flight_bytes
    }

    /// The session is over, all is answered and sent: close the connection.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Ended | Phase::Failed(_)) && self.in_flight == 0 && self.output.is_empty()
    }

    /// The server is going down: from now on options and requests are answered so, and the client will leave. Requests
    /// in flight are answered as ever.
    pub fn shut_down(&mut self) {
        self.shutting_down = true;
    }

    /// The export was resized. A client that is connected keeps believing in the old size, but a request beyond the new
    /// one no longer passes.
    pub fn resize(&mut self, size: u64) {
        self.active.size = whole_sectors(size);
    }

    pub(crate) fn admit(&mut self, ticket: &Ticket) {
        self.in_flight += 1;
        self.in_flight_bytes += ticket.window_bytes();
    }

    /// Gives the place of an answered request back.
    pub(crate) fn release(&mut self, ticket: &Ticket) {
        let bytes = ticket.window_bytes();
        assert!(self.in_flight > 0 && self.in_flight_bytes >= bytes, "a ticket of another session");
        self.in_flight -= 1;
        self.in_flight_bytes -= bytes;
    }

    /// True if a request with `bytes` bytes of data may begin. An idle connection lets anything in.
    pub(crate) fn fits(&self, bytes: usize) -> bool {
        let used = self.in_flight_bytes + self.output.len();
        self.in_flight < self.limits.requests_max && (used == 0 || used + bytes <= self.limits.window_bytes_max)
    }
}

pub(crate) fn whole_sectors(size: u64) -> u64 {
    size - size % u64::from(crate::limits::BLOCK_SIZE_MIN)
}

/// Waits until `input` has `count` bytes; `None` if it has.
pub(crate) fn missing(input: &BytesMut, count: usize) -> Option<Step> {
    let missing = count.checked_sub(input.len())?;
    (missing > 0).then_some(Step::Wait(Wait::Bytes(missing)))
}

/// Throws away up to `left` bytes, and returns how many are still to come.
pub(crate) fn discard(input: &mut BytesMut, left: u64) -> u64 {
    let count = left.min(input.len() as u64);
    input.advance(count as usize);
    left - count
}
