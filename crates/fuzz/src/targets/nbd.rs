//! NBD sessions: the server's side, fed with whatever a client may send.
//!
//! A small server answers from a vector. Everything that the session sends is taken apart by code of its own.

use crate::input::Input;
use crate::signal;
use bytes::{Buf, Bytes, BytesMut};
use freebs_nbd::{
    Event, ExportInfo, Extent, Limits, NbdErrno, Op, ReadPiece, Refusal, RefusalReason, Session, SessionError, Step,
    Ticket, Wait, default_export, limits,
};

pub const WORDS: &[&[u8]] = &[
    b"IHAVEOPT",
    b"\0\0\0\x01",
    b"\0\0\0\x03",
    b"\0\0\0\x06",
    b"\0\0\0\x07",
    b"\0\0\0\x08",
    b"\0\0\0\x09",
    b"\0\0\0\x0a",
    b"\0\0\0\x0b",
    b"base:allocation",
    b"freebs:changed-since:",
    b"freebs:changed-since:monday",
    b"base:",
    b"alpha",
    b"\x25\x60\x95\x13",
    b"\x21\xe4\x1c\x71",
    b"\0\0\x02\0",
    b"\0\0\0\0\0\0\x10\0",
];

const SIZE: usize = 64 << 10;
/// Small, so that they are reached.
const LIMITS: Limits = Limits {
    options_max: 12,
    export_options_max: 12,
    handshake_bytes_max: 4096,
    payload_bytes_max: 8192,
    requests_max: 4,
    window_bytes_max: 16 << 10,
};

/// How transmission speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Simple,
    Structured,
    Extended,
}

struct Server {
    session: Session,
    form: Form,
    volume: Vec<u8>,
    read_only: bool,
    /// The client asked for block sizes, so every request is aligned.
    aligned: bool,
    /// Requests are held until they have to be answered, and then the last comes first.
    holds: bool,
    held: Vec<(Ticket, Op)>,
    input: BytesMut,
    /// All that was sent, and all that was asked of the server.
    sent: Vec<u8>,
    events: Vec<String>,
    error: Option<SessionError>,
    closed: bool,
    wanted_most: usize,
    /// Requests handed out, and final replies seen.
    asked: u64,
    answered: u64,
}

impl Server {
    fn new(choice: u8) -> Self {
        let mut server = Self {
            session: Session::new(LIMITS),
            form: Form::Simple,
            volume: vec![0; SIZE],
            read_only: choice & 1 != 0,
            aligned: false,
            holds: choice & 2 != 0,
            held: Vec::new(),
            input: BytesMut::new(),
            sent: Vec::new(),
            events: Vec::new(),
            error: None,
            closed: false,
            wanted_most: 0,
            asked: 0,
            answered: 0,
        };
        server.volume[4096..12_288].fill(0xab);
        server
    }

    fn feed(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        loop {
            let step = self.session.receive(&mut self.input);
            self.check();
            match step {
                Ok(Step::Event(event)) => self.handle(event),
                Ok(Step::Wait(Wait::Window)) => {
                    let before = (self.held.len(), self.session.output().remaining());
                    assert!(before != (0, 0), "a session waits for a window that is empty");
                    self.answer_held();
                    self.drain();
                }
                Ok(Step::Wait(Wait::Answer)) => panic!("every question was answered"),
                Ok(Step::Wait(wait)) => {
                    let wanted = if let Wait::Bytes(n) = wait { n } else { 0 };
                    assert_eq!(self.session.wanted(), wanted);
                    assert!(wait != Wait::Bytes(0), "to wait for nothing is to hang");
                    self.closed |= wait == Wait::Closed;
                    self.wanted_most = self.wanted_most.max(wanted);
                    break;
                }
                Err(error) => {
                    assert!(self.error.is_none_or(|e| e == error), "a session fails once");
                    self.error = Some(error);
                    break;
                }
            }
        }
        if !self.holds {
            self.drain();
        }
    }

    fn check(&mut self) {
        let (count, bytes) = (self.session.in_flight(), self.session.in_flight_bytes());
        assert!(count <= LIMITS.requests_max && count == self.held.len() + usize::from(count > self.held.len()));
        assert!(bytes <= LIMITS.window_bytes_max.max(LIMITS.payload_bytes_max as usize));
        let unsent = self.session.output().remaining();
        let one_answer = limits::LIST_BYTES_MAX + LIMITS.payload_bytes_max as usize + 4096;
        assert!(unsent <= LIMITS.window_bytes_max + limits::HANDSHAKE_UNSENT_BYTES_MAX + one_answer, "{unsent} unsent");
    }

    fn drain(&mut self) {
        let out = self.session.output();
        while out.has_remaining() {
            let n = out.chunk().len();
            self.sent.extend_from_slice(out.chunk());
            out.advance(n);
        }
    }

    fn handle(&mut self, event: Event) {
        match &event {
            Event::Request { ticket, op: Op::Write { offset, data, fua } } => {
                let text = format!("write #{} {offset}+{} {fua} {:?}", ticket.cookie(), data.len(), data.first());
                self.events.push(text);
            }
            Event::Request { ticket, op } => self.events.push(format!("{op:?} #{}", ticket.cookie())),
            other => self.events.push(format!("{other:?}")),
        }
        match event {
            Event::Lookup { name, .. } => {
                assert!(name.len() <= limits::NAME_BYTES_MAX && !name.contains('\0'));
                let known = ["alpha"];
                let found =
                    if name.is_empty() { default_export(known) } else { known.into_iter().find(|n| *n == name) };
                let answer = found.map(|name| ExportInfo {
                    name: name.to_owned(),
                    description: "a volume".to_owned(),
                    size: SIZE as u64 + 100,
                    read_only: self.read_only,
                    multi_conn: true,
                    changed_since: vec!["monday".to_owned(), "tuesday".to_owned()],
                });
                self.session.export(answer.ok_or_else(|| Refusal::new(RefusalReason::Unknown, "no such volume")));
            }
            Event::List => self.session.list([("alpha", "a volume"), ("beta", "")]),
            Event::Request { ticket, op } => {
                self.asked += 1;
                self.in_range(&op);
                self.held.push((ticket, op));
                if !self.holds {
                    self.answer_held();
                }
            }
            Event::Go { .. } | Event::Disconnect => {}
        }
    }

    /// A request that a session hands out is within the export, allowed, not empty, and aligned if it has to be.
    fn in_range(&self, op: &Op) {
        let (offset, len, changes) = match op {
            Op::Read { offset, len, .. } => (*offset, u64::from(*len), false),
            Op::Write { offset, data, .. } => (*offset, data.len() as u64, true),
            Op::Trim { offset, len, .. } | Op::Zero { offset, len, .. } => (*offset, *len, true),
            Op::Cache { offset, len } | Op::BlockStatus { offset, len, .. } => (*offset, *len, false),
            Op::Flush => return,
        };
        assert!(len > 0 && offset.checked_add(len).is_some_and(|end| end <= SIZE as u64), "{op:?}");
        assert!(!self.aligned || (offset | len).is_multiple_of(512), "{op:?}");
        assert!(!(changes && self.read_only), "{op:?}");
        if matches!(op, Op::Read { .. } | Op::Write { .. }) {
            assert!(len <= u64::from(LIMITS.payload_bytes_max), "{op:?}");
        }
    }

    fn answer_held(&mut self) {
        while let Some((ticket, op)) = self.held.pop() {
            signal::kind("op", op_number(&op));
            self.perform(ticket, op);
        }
    }

    fn perform(&mut self, ticket: Ticket, op: Op) {
        let range = |offset: u64, len: u64| offset as usize..(offset + len) as usize;
        match op {
            Op::Read { offset, len, .. } => {
                let data = &self.volume[range(offset, len.into())];
                let piece = |part: &[u8]| match part.iter().all(|b| *b == 0) {
                    true => ReadPiece::Zero(part.len() as u64),
                    false => Bytes::copy_from_slice(part).into(),
                };
                let mut pieces: Vec<ReadPiece> = data.chunks(512).map(piece).collect();
                self.session.reply_read(ticket, &mut pieces);
            }
            Op::Write { offset, data, .. } => {
                self.volume[range(offset, data.len() as u64)].copy_from_slice(&data);
                self.session.reply_ok(ticket);
            }
            Op::Zero { fast: true, .. } => self.session.reply_error_text(ticket, NbdErrno::NotSup, "not faster"),
            Op::Zero { offset, len, .. } | Op::Trim { offset, len, .. } => {
                self.volume[range(offset, len)].fill(0);
                self.session.reply_ok(ticket);
            }
            Op::BlockStatus { offset, len, .. } => {
                let extents: Vec<Extent> = self.volume[range(offset, len)]
                    .chunks(512)
                    .map(|c| if c.iter().all(|b| *b == 0) { Extent::hole(512) } else { Extent::data(512) })
                    .collect();
                self.session.reply_block_status(ticket, &extents);
            }
            Op::Flush | Op::Cache { .. } => self.session.reply_ok(ticket),
        }
    }

    /// The end of a conversation: what was refused stays refused, what has ended stays ended.
    fn end(&mut self) {
        self.answer_held();
        self.drain();
        if let Some(error) = self.error {
            let before = self.events.len();
            let mut more = BytesMut::from(&b"IHAVEOPT\0\0\0\x03\0\0\0\0"[..]);
            for _ in 0..2 {
                assert_eq!(self.session.receive(&mut more).expect_err("a failed session stays failed"), error);
            }
            assert!(self.events.len() == before && self.session.output().is_empty());
            signal::kind(
                "nbd error",
                crate::rng::hash(format!("{error:?}").split_once(' ').map_or("", |e| e.0).as_bytes()),
            );
        }
        if self.closed {
            let mut more = BytesMut::from(&[0; 28][..]);
            assert!(matches!(self.session.receive(&mut more), Ok(Step::Wait(Wait::Closed))));
        }
        assert!(self.session.in_flight() == 0 && self.session.in_flight_bytes() == 0);
        if self.error.is_some() || self.closed {
            assert!(self.session.is_finished());
        }
    }
}

fn op_number(op: &Op) -> u64 {
    match op {
        Op::Read { df, .. } => u64::from(*df),
        Op::Write { fua, .. } => 2 + u64::from(*fua),
        Op::Trim { .. } => 4,
        Op::Zero { no_hole, fast, .. } => 8 + u64::from(*no_hole) + 2 * u64::from(*fast),
        Op::Cache { .. } => 5,
        Op::BlockStatus { one, .. } => 6 + u64::from(*one),
        Op::Flush => 12,
    }
}

/// Takes the answers of the handshake off what was sent; the rest is of the transmission.
fn options<'a>(mut sent: &'a [u8], count: &mut u64) -> &'a [u8] {
    assert!(sent.len() >= 18 && sent.starts_with(b"NBDMAGICIHAVEOPT"), "the greeting");
    sent.advance(18);
    while sent.len() >= 20 && sent.starts_with(&0x0003_e889_0455_65a9u64.to_be_bytes()) {
        sent.advance(8);
        let (option, kind, len) = (sent.get_u32(), sent.get_u32(), sent.get_u32() as usize);
        assert!(
            len <= sent.len() && len <= limits::STRING_BYTES_MAX + 64,
            "option {option} was answered with {len} bytes"
        );
        sent.advance(len);
        signal::kind("option", u64::from(option.min(12)) << 32 | u64::from(kind));
        *count += 1;
    }
    sent
}

/// A whole conversation in pieces; all that came of it.
fn converse(choice: u8, pieces: &[&[u8]], form: Option<Form>) -> Server {
    let mut server = Server::new(choice);
    if let Some(form) = form {
        server.form = form;
        server.aligned = choice & 0x40 == 0;
        server.feed(&opening(form, server.aligned));
        assert!(!server.session.in_handshake());
        server.sent.clear();
        server.events.clear();
        server.drain();
        server.sent.clear();
    }
    for piece in pieces {
        server.feed(piece);
    }
    server.end();
    server
}

fn the_same(a: &Server, b: &Server) {
    assert_eq!(a.events, b.events, "the cutting of a stream changes nothing");
    assert_eq!((a.error, a.closed), (b.error, b.closed));
    assert_eq!(a.volume, b.volume);
    // Answers that were held may leave in another order: the window is full at other times.
    assert_eq!(a.sent.len(), b.sent.len());
    assert!(a.holds || a.sent == b.sent, "the cutting of a stream changes the answers");
}

/// A session from its first byte.
pub fn handshake(data: &[u8]) {
    let input = Input::of(data);
    let whole = converse(input.choice, &[input.rest], None);
    assert!(whole.wanted_most <= 64 << 10, "no option is awaited beyond its maximum");
    let mut answers = 0;
    options(&whole.sent, &mut answers);
    assert!(answers <= 6 * u64::from(LIMITS.options_max + LIMITS.export_options_max));
    if input.cuts > 0 {
        the_same(&whole, &converse(input.choice, &input.pieces(input.rest), None));
    }
}

/// The client's side up to transmission; it may ask for block sizes.
fn opening(form: Form, asks_sizes: bool) -> Vec<u8> {
    let option = |number: u32, data: &[u8]| {
        [b"IHAVEOPT", &number.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
    };
    let mut script = vec![0, 0, 0, 3];
    match form {
        Form::Simple => {}
        Form::Structured => script.extend(option(8, b"")),
        Form::Extended => script.extend(option(11, b"")),
    }
    if form != Form::Simple {
        script.extend(option(10, b"\0\0\0\x05alpha\0\0\0\x01\0\0\0\x0fbase:allocation"));
    }
    let infos: &[u8] = if asks_sizes { b"\0\x01\0\x03" } else { b"\0\0" };
    script.extend(option(7, &[b"\0\0\0\x05alpha", infos].concat()));
    script
}

/// Requests, in the form that the choice says.
pub fn transmission(data: &[u8]) {
    let input = Input::of(data);
    let form = [Form::Simple, Form::Structured, Form::Extended][usize::from(input.choice >> 2) % 3];
    let mut whole = converse(input.choice, &[input.rest], Some(form));
    assert!(whole.wanted_most <= (64 << 10) + LIMITS.payload_bytes_max as usize);
    if form != Form::Simple {
        replies(&mut whole);
    }
    if input.cuts > 0 && !whole.holds {
        the_same(&whole, &converse(input.choice, &input.pieces(input.rest), Some(form)));
    }
}

/// Structured and extended replies: each chunk is whole and of a known kind, and there are as many final ones as
/// requests that were handed out and refused together.
fn replies(server: &mut Server) {
    let mut sent = &server.sent[..];
    let mut errors = 0;
    while !sent.is_empty() {
        let extended = server.form == Form::Extended;
        let magic = sent.get_u32();
        if magic == 0x6744_6698 && !extended {
            // A request without data is answered in simple form, too; an error never is.
            assert_eq!(sent.get_u32(), 0, "an error in simple form");
            sent.advance(8);
            server.answered += 1;
            continue;
        }
        assert_eq!(magic, if extended { 0x6e8a_278c } else { 0x668e_33ef }, "magic of a reply");
        let (flags, kind) = (sent.get_u16(), sent.get_u16());
        let _cookie = sent.get_u64();
        let len = if extended {
            sent.get_u64();
            sent.get_u64()
        } else {
            sent.get_u32().into()
        };
        assert!(flags <= 1 && len <= u64::from(LIMITS.payload_bytes_max) + (512 << 10) && len as usize <= sent.len());
        let body = &sent[..len as usize];
        signal::kind("reply", u64::from(kind));
        match kind {
            0 => assert_eq!(len, 0),
            1 => assert!(len > 8),
            2 => assert_eq!(len, 12),
            5 => assert!(len > 4 && (len - 4).is_multiple_of(8)),
            6 => assert!(len > 8 && (len - 8).is_multiple_of(16)),
            0x8001 => {
                assert_eq!(usize::from((&body[4..]).get_u16()), body.len() - 6);
                errors += 1;
            }
            other => panic!("a reply of the unknown kind {other}"),
        }
        server.answered += u64::from(flags & 1);
        sent.advance(len as usize);
    }
    assert!(server.answered >= server.asked && server.answered <= server.asked + errors, "one final reply each");
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &number.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

fn request(form: Form, flags: u16, command: u16, offset: u64, len: u64, data: &[u8]) -> Vec<u8> {
    let extended = form == Form::Extended;
    let magic: u32 = if extended { 0x21e4_1c71 } else { 0x2560_9513 };
    let mut out = magic.to_be_bytes().to_vec();
    out.extend((flags | if extended && command == 1 { 32 } else { 0 }).to_be_bytes());
    out.extend(command.to_be_bytes());
    out.extend(9u64.to_be_bytes());
    out.extend(offset.to_be_bytes());
    match extended {
        true => out.extend(len.to_be_bytes()),
        false => out.extend((len as u32).to_be_bytes()),
    }
    out.extend(data);
    out
}

pub fn seeds(out: &mut crate::seeds::Seeds) {
    let name = b"\0\0\0\x05alpha";
    let meta = [&name[..], b"\0\0\0\x02\0\0\0\x0fbase:allocation\0\0\0\x05base:"].concat();
    let info = [&name[..], b"\0\x04\0\0\0\x01\0\x02\0\x03"].concat();
    let hello: &[u8] = &[0, 0, 0, 3];
    let scripts: [(&str, Vec<Vec<u8>>); 7] = [
        ("simple", vec![option(7, &[&name[..], b"\0\0"].concat()), request(Form::Simple, 0, 0, 0, 4096, b"")]),
        ("export-name", vec![option(1, b"alpha"), request(Form::Simple, 0, 3, 0, 0, b"")]),
        ("list", vec![option(3, b""), option(6, &info), option(2, b"")]),
        ("structured", vec![option(8, b""), option(9, &meta), option(10, &meta), option(7, &info)]),
        ("extended", vec![option(11, b""), option(8, b""), option(10, &meta), option(7, &info)]),
        ("refused", vec![option(5, b""), option(99, &[7; 40]), option(7, b"\0\0\0\x04beta\0\0"), option(1, b"beta")]),
        ("malformed", vec![option(8, b"x"), option(7, b"\xff\xff\xff\xffalpha"), option(10, &name[..])]),
    ];
    for (name, script) in scripts {
        out.add("nbd-handshake", name, Input::bytes(false, 5, 0, &[hello, &script.concat()].concat()));
    }
    for (form, what) in [(Form::Simple, "simple"), (Form::Structured, "structured"), (Form::Extended, "extended")] {
        let all = [
            request(form, 0, 1, 512, 1024, &[5; 1024]),
            request(form, 4 * u16::from(form != Form::Simple), 0, 0, 8192, b""),
            request(form, 1, 3, 0, 0, b""),
            request(form, 0, 7, 0, 65_536, b""),
            request(form, 8, 7, 4096, 4096, b""),
            request(form, 2, 6, 8192, 4096, b""),
            request(form, 16, 6, 8192, 4096, b""),
            request(form, 0, 4, 4096, 512, b""),
            request(form, 0, 5, 0, 512, b""),
            request(form, 0, 0, 65_536, 512, b""),
            request(form, 0, 1, 65_536, 512, &[1; 512]),
            request(form, 0, 2, 0, 0, b""),
        ];
        out.add("nbd-transmission", what, Input::bytes(false, 7, (form as u8) << 2, &all.concat()));
        out.add(
            "nbd-transmission",
            format!("{what}-held"),
            Input::bytes(false, 0, (form as u8) << 2 | 2, &all.concat()),
        );
        let odd = [
            request(form, 0, 1, 4093, 7, &[5; 7]),
            request(form, 0, 0, 4090, 20, b""),
            request(form, 0, 6, 4095, 2, b""),
            request(form, 0, 0, 65_535, 2, b""),
        ];
        // 64 has the remainder 1: the form that it stands for is shifted back.
        let choice = 0x40 | ((form as u8 + 2) % 3) << 2;
        out.add("nbd-transmission", format!("{what}-odd"), Input::bytes(false, 7, choice, &odd.concat()));
    }
}
