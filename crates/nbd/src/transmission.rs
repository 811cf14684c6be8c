//! Transmission: requests are checked and handed out, answers are put in the form agreed on.
//!
//! Invariants:
//! - A request that reaches the caller is within the export, not empty, and allowed; and aligned to 512 bytes if the
//!   client asked for block sizes. One that is not is answered here, and its payload skipped without being kept.
//! - A write's header stays at the front of the input until its payload is there as a whole; then both are consumed.
//! - Exactly one final reply for each request: simple, or chunks of which the last one alone says "done".
//! - A read in structured or extended form is never answered in simple form, not even with an error.

use crate::event::{Event, Extent, Op, ReadPiece, SessionError, Step, Ticket, TicketKind, Wait};
use crate::limits::{BLOCK_SIZE_MIN, BLOCK_STATUS_EXTENTS_MAX, ERROR_TEXT_BYTES_MAX, HOLE_BYTES_MIN, SKIP_STEP_BYTES};
use crate::session::{Active, Mode, Phase, Session, discard, missing};
use crate::wire::{self, NbdErrno, RequestHeader, changed, chunk, cmd, cmd_flag, state};
use bytes::{Buf, BytesMut};

/// Why a request is answered with an error at once: the number, and a text for people.
type Refused = (NbdErrno, &'static str);

impl Session {
    pub(crate) fn request(&mut self, input: &mut BytesMut) -> Result<Option<Step>, SessionError> {
        let (header, header_bytes) = match self.request_header(input)? {
            Ok(found) => found,
            Err(wait) => return Ok(Some(wait)),
        };
        if header.command == cmd::DISC {
            input.clear();
            self.phase = Phase::Ended;
            return Ok(Some(Step::Event(Event::Disconnect)));
        }
        if !self.fits(0) {
            return Ok(Some(Step::Wait(Wait::Window)));
        }
        let payload = self.payload_bytes(&header);
        let ticket = match self.check(&header, payload) {
            Ok(kind) => Ticket { cookie: header.cookie, offset: header.offset, len: header.len, kind },
            Err((errno, text)) => {
                input.advance(header_bytes);
                let kind = TicketKind::Other;
                let ticket = Ticket { cookie: header.cookie, offset: header.offset, len: 0, kind };
                self.put_error(&ticket, errno, text);
                if payload > u64::from(self.limits.payload_bytes_max) {
                    return Err(SessionError::PayloadTooLong { len: payload });
                }
                self.phase = Phase::PayloadSkip { left: payload };
                return Ok(None);
            }
        };
        if !self.fits(ticket.window_bytes()) {
            return Ok(Some(Step::Wait(Wait::Window)));
        }
        // The payload of a request that passed the check is at most the limit, so it fits a usize with its header.
        if let Some(wait) = missing(input, header_bytes + payload as usize) {
            return Ok(Some(wait));
        }
        input.advance(header_bytes);
        let op = operation(&header, input);
        self.admit(&ticket);
        Ok(Some(Step::Event(Event::Request { ticket, op })))
    }

    /// The header at the front of the input, which stays there, and its length; or the need for more bytes.
    fn request_header(&self, input: &BytesMut) -> Result<Result<(RequestHeader, usize), Step>, SessionError> {
        let (header, size, magic) = if self.mode == Mode::Extended {
            let size = wire::EXTENDED_REQUEST_BYTES;
            (input.first_chunk().map(RequestHeader::extended), size, wire::EXTENDED_REQUEST_MAGIC)
        } else {
            (input.first_chunk().map(RequestHeader::compact), wire::REQUEST_BYTES, wire::REQUEST_MAGIC)
        };
        match header {
            Some(header) if header.magic == magic => Ok(Ok((header, size))),
            Some(header) => Err(SessionError::RequestMagic(header.magic)),
            None => Ok(Err(Step::Wait(Wait::Bytes(size - input.len())))),
        }
    }

    /// Bytes that follow the header. In compact form only a write has any, and always.
    fn payload_bytes(&self, header: &RequestHeader) -> u64 {
        let has_payload = match self.mode {
            Mode::Extended => header.flags & cmd_flag::PAYLOAD_LEN != 0,
            Mode::Simple | Mode::Structured => header.command == cmd::WRITE,
        };
        if has_payload { header.len } else { 0 }
    }

    pub(crate) fn skip_payload(&mut self, input: &mut BytesMut, left: u64) -> Option<Step> {
        let left = discard(input, left);
        if left == 0 {
            self.phase = Phase::Request;
            return None;
        }
        self.phase = Phase::PayloadSkip { left };
        Some(Step::Wait(Wait::Bytes(left.min(SKIP_STEP_BYTES as u64) as usize)))
    }

    /// Whether a request may be handed out, and what kind of answer it will need.
    fn check(&self, header: &RequestHeader, payload: u64) -> Result<TicketKind, Refused> {
        if payload > u64::from(self.limits.payload_bytes_max) {
            return Err((NbdErrno::Inval, "the payload is over the limit"));
        }
        if self.shutting_down {
            return Err((NbdErrno::Shutdown, "the server is shutting down"));
        }
        self.check_flags(header)?;
        let changes = matches!(header.command, cmd::WRITE | cmd::TRIM | cmd::WRITE_ZEROES);
        if changes && self.active.read_only {
            return Err((NbdErrno::Perm, "the export is read-only"));
        }
        if header.command == cmd::FLUSH {
            let plain = header.offset == 0 && header.len == 0;
            return if plain { Ok(TicketKind::Other) } else { Err((NbdErrno::Inval, "a flush has no range")) };
        }
        if header.command == cmd::BLOCK_STATUS && !self.active.allocation && !self.active.changed {
            return Err((NbdErrno::Inval, "no meta context was chosen"));
        }
        self.check_range(header)?;
        Ok(match header.command {
            cmd::READ if header.len > u64::from(self.limits.payload_bytes_max) => {
                let errno = if self.mode == Mode::Simple { NbdErrno::Inval } else { NbdErrno::Overflow };
                return Err((errno, "the length is over the limit"));
            }
            cmd::READ => TicketKind::Read { df: header.flags & cmd_flag::DF != 0 },
            cmd::WRITE => TicketKind::Write,
            cmd::BLOCK_STATUS => TicketKind::BlockStatus { one: header.flags & cmd_flag::REQ_ONE != 0 },
            _ => TicketKind::Other,
        })
    }

    /// The command is known, and its flags are among those it has. FUA is allowed everywhere; clients do set it on
    /// reads and flushes.
    fn check_flags(&self, header: &RequestHeader) -> Result<(), Refused> {
        let own = match header.command {
            cmd::READ if self.mode != Mode::Simple => cmd_flag::DF,
            cmd::WRITE if self.mode == Mode::Extended => {
                if header.flags & cmd_flag::PAYLOAD_LEN == 0 {
                    return Err((NbdErrno::Inval, "a write without payload"));
                }
                cmd_flag::PAYLOAD_LEN
            }
            cmd::WRITE_ZEROES => cmd_flag::NO_HOLE | cmd_flag::FAST_ZERO,
            cmd::BLOCK_STATUS => cmd_flag::REQ_ONE,
            cmd::READ | cmd::WRITE | cmd::FLUSH | cmd::TRIM | cmd::CACHE => 0,
            _ => return Err((NbdErrno::Inval, "unknown command")),
        };
        if header.flags & !(own | cmd_flag::FUA) != 0 {
            return Err((NbdErrno::Inval, "a flag that this command does not have"));
        }
        Ok(())
    }

    fn check_range(&self, header: &RequestHeader) -> Result<(), Refused> {
        if header.len == 0 {
            return Err((NbdErrno::Inval, "the length is zero"));
        }
        let end = header.offset.checked_add(header.len);
        if end.is_none_or(|end| end > self.active.size) {
            let errno = match header.command {
                cmd::WRITE | cmd::WRITE_ZEROES => NbdErrno::NoSpace,
                _ => NbdErrno::Inval,
            };
            return Err((errno, "the range is beyond the end"));
        }
        // Others can't know that there is such a thing: they get any bytes they ask for.
        if self.knows_sizes && !(header.offset | header.len).is_multiple_of(u64::from(BLOCK_SIZE_MIN)) {
            return Err((NbdErrno::Inval, "not a multiple of 512 bytes"));
        }
        Ok(())
    }

    /// Answers a read with pieces that together are as long as the request. They are taken out of the slice, so that the
    /// caller can use its memory again.
    ///
    /// # Panics
    /// If it was not a read, or the pieces are shorter or longer.
    pub fn reply_read(&mut self, ticket: Ticket, pieces: &mut [ReadPiece]) {
        let TicketKind::Read { df } = ticket.kind else { panic!("the request is not a read") };
        let len: u64 = pieces.iter().map(ReadPiece::len).sum();
        assert_eq!(len, ticket.len, "the pieces of a read don't make up its length");
        self.release(&ticket);
        if self.mode == Mode::Simple {
            self.output.put(&wire::simple_reply(0, ticket.cookie));
            return self.put_data(pieces);
        }
        let mut done = 0;
        let mut rest = pieces;
        while done < ticket.len {
            let (zeroes, behind_zeroes) = leading_zeroes(rest);
            let hole = zeroes == ticket.len || (zeroes >= HOLE_BYTES_MIN && !df);
            let (bytes, count) = if hole {
                (zeroes, behind_zeroes)
            } else {
                leading_data(rest, if df { u64::MAX } else { HOLE_BYTES_MIN })
            };
            let (run, behind) = rest.split_at_mut(count);
            let at = (ticket.offset + done).to_be_bytes();
            done += bytes;
            let last = done == ticket.len;
            if hole {
                self.put_chunk_header(&ticket, last, chunk::OFFSET_HOLE, 12);
                self.output.put(&at);
                self.output.put(&(bytes as u32).to_be_bytes());
            } else {
                self.put_chunk_header(&ticket, last, chunk::OFFSET_DATA, 8 + bytes as u32);
                self.output.put(&at);
                self.put_data(run);
            }
            rest = behind;
        }
    }

    /// Answers a request without data in its reply: done.
    ///
    /// # Panics
    /// If it was a read or a block status.
    pub fn reply_ok(&mut self, ticket: Ticket) {
        assert!(matches!(ticket.kind, TicketKind::Write | TicketKind::Other), "the answer to this request has data");
        self.release(&ticket);
        if self.mode == Mode::Extended {
            self.put_chunk_header(&ticket, true, chunk::NONE, 0);
        } else {
            self.output.put(&wire::simple_reply(0, ticket.cookie));
        }
    }

    /// Answers any request: failed.
    pub fn reply_error(&mut self, ticket: Ticket, errno: NbdErrno) {
        self.reply_error_text(ticket, errno, "");
    }

    /// As [`Session::reply_error`], with a text for people where the form of the reply has room for one. It is cut at
    /// [`ERROR_TEXT_BYTES_MAX`]. No secrets in it.
    pub fn reply_error_text(&mut self, ticket: Ticket, errno: NbdErrno, text: &str) {
        self.release(&ticket);
        self.put_error(&ticket, errno, text);
    }

    /// Answers a block status with extents from the request's offset on, in one chunk for each meta context that was chosen.
    /// Neighbours in the same state are joined; what goes beyond the request, or beyond [`BLOCK_STATUS_EXTENTS_MAX`], is left
    /// out. Without any extent the range is reported as changed data, which is always true.
    ///
    /// # Panics
    /// If it was not a block status.
    pub fn reply_block_status(&mut self, ticket: Ticket, extents: &[Extent]) {
        let TicketKind::BlockStatus { one } = ticket.kind else { panic!("the request is not a block status") };
        self.release(&ticket);
        let unknown = [Extent::data(ticket.len)];
        let extents = if extents.iter().all(|extent| extent.len == 0) { &unknown } else { extents };
        let most = if one { 1 } else { BLOCK_STATUS_EXTENTS_MAX };
        let Active { allocation, changed: changes, .. } = self.active;
        if allocation {
            let of = |e: &Extent| (u32::from(e.hole) * state::HOLE) | (u32::from(e.zero) * state::ZERO);
            self.put_context(&ticket, !changes, wire::META_ALLOCATION_ID, Joined::new(extents, ticket.len, of), most);
        }
        if changes {
            let of = |e: &Extent| u32::from(e.changed) * changed::CHANGED;
            self.put_context(&ticket, true, wire::META_CHANGED_SINCE_ID, Joined::new(extents, ticket.len, of), most);
        }
    }

    /// A chunk with the states of one meta context.
    fn put_context(
        &mut self,
        ticket: &Ticket,
        last: bool,
        id: u32,
        joined: impl Iterator<Item = (u64, u32)> + Clone,
        most: usize,
    ) {
        let joined = joined.take(most);
        let count = joined.clone().count() as u32;
        if self.mode == Mode::Extended {
            self.put_chunk_header(ticket, last, chunk::BLOCK_STATUS_EXT, 8 + 16 * count);
            self.output.put(&id.to_be_bytes());
            self.output.put(&count.to_be_bytes());
            for (len, flags) in joined {
                let words = [len.to_be_bytes(), u64::from(flags).to_be_bytes()];
                self.output.put(words.as_flattened());
            }
        } else {
            self.put_chunk_header(ticket, last, chunk::BLOCK_STATUS, 4 + 8 * count);
            self.output.put(&id.to_be_bytes());
            for (len, flags) in joined {
                // No extent is longer than the request, whose length had 32 bits in this form.
                let words = [(len as u32).to_be_bytes(), flags.to_be_bytes()];
                self.output.put(words.as_flattened());
            }
        }
    }

    fn put_data(&mut self, pieces: &mut [ReadPiece]) {
        for piece in pieces {
            match piece {
                ReadPiece::Data(bytes) => self.output.push(core::mem::take(bytes)),
                ReadPiece::Zero(count) => self.output.push_zeroes(*count),
            }
        }
    }

    fn put_chunk_header(&mut self, ticket: &Ticket, last: bool, kind: u16, len: u32) {
        let flags = if last { chunk::FLAG_DONE } else { 0 };
        if self.mode == Mode::Extended {
            self.output.put(&wire::extended_reply(flags, kind, ticket.cookie, ticket.offset, u64::from(len)));
        } else {
            self.output.put(&wire::structured_reply(flags, kind, ticket.cookie, len));
        }
    }

    fn put_error(&mut self, ticket: &Ticket, errno: NbdErrno, text: &str) {
        if self.mode == Mode::Simple {
            return self.output.put(&wire::simple_reply(errno as u32, ticket.cookie));
        }
        let text = crate::handshake::cut(text, ERROR_TEXT_BYTES_MAX);
        self.put_chunk_header(ticket, true, chunk::ERROR, 6 + text.len() as u32);
        self.output.put(&(errno as u32).to_be_bytes());
        self.output.put(&(text.len() as u16).to_be_bytes());
        self.output.put(text.as_bytes());
    }
}

/// The operation of a header that passed the check. A write takes its data off the input.
fn operation(header: &RequestHeader, input: &mut BytesMut) -> Op {
    let RequestHeader { flags, offset, len, .. } = *header;
    let has = |flag: u16| flags & flag != 0;
    let fua = has(cmd_flag::FUA);
    match header.command {
        cmd::READ => Op::Read { offset, len: len as u32, df: has(cmd_flag::DF) },
        cmd::WRITE => Op::Write { offset, data: input.split_to(len as usize).freeze(), fua },
        cmd::TRIM => Op::Trim { offset, len, fua },
        cmd::WRITE_ZEROES => {
            Op::Zero { offset, len, fua, no_hole: has(cmd_flag::NO_HOLE), fast: has(cmd_flag::FAST_ZERO) }
        }
        cmd::CACHE => Op::Cache { offset, len },
        cmd::BLOCK_STATUS => Op::BlockStatus { offset, len, one: has(cmd_flag::REQ_ONE) },
        cmd::FLUSH => Op::Flush,
        other => unreachable!("command {other} does not pass the check"),
    }
}

/// The zeroes at the front: how many bytes, in how many pieces.
fn leading_zeroes(pieces: &[ReadPiece]) -> (u64, usize) {
    let mut bytes = 0;
    for (count, piece) in pieces.iter().enumerate() {
        match piece {
            ReadPiece::Data(data) if !data.is_empty() => return (bytes, count),
            piece => bytes += piece.len(),
        }
    }
    (bytes, pieces.len())
}

/// What goes in one chunk of data: up to the next run of at least `hole_min` zeroes.
fn leading_data(pieces: &[ReadPiece], hole_min: u64) -> (u64, usize) {
    let (mut bytes, mut count) = (0, 0);
    while count < pieces.len() {
        let (zeroes, zero_pieces) = leading_zeroes(&pieces[count..]);
        if zeroes >= hole_min {
            break;
        }
        bytes += zeroes;
        count += zero_pieces;
        if let Some(piece) = pieces.get(count) {
            bytes += piece.len();
            count += 1;
        }
    }
    (bytes, count)
}

/// Extents as (length, state), neighbours in the same state joined, cut off at `left` bytes.
#[derive(Clone)]
struct Joined<'a, F> {
    extents: core::slice::Iter<'a, Extent>,
    state: F,
    left: u64,
    /// An extent taken from the iterator and not returned yet.
    next: Option<(u64, u32)>,
}

impl<'a, F: Fn(&Extent) -> u32> Joined<'a, F> {
    fn new(extents: &'a [Extent], left: u64, state: F) -> Self {
        Self { extents: extents.iter(), state, left, next: None }
    }
}

impl<F: Fn(&Extent) -> u32> Iterator for Joined<'_, F> {
    type Item = (u64, u32);

    fn next(&mut self) -> Option<Self::Item> {
        let mut found = self.next.take();
        for extent in self.extents.by_ref().filter(|extent| extent.len > 0) {
            let flags = (self.state)(extent);
            match &mut found {
                None => found = Some((extent.len, flags)),
                Some((len, before)) if *before == flags => *len = len.saturating_add(extent.len),
                Some(_) => {
                    self.next = Some((extent.len, flags));
                    break;
                }
            }
        }
        let (len, flags) = found?;
        let len = len.min(self.left);
        self.left -= len;
        (len > 0).then_some((len, flags))
    }
}
