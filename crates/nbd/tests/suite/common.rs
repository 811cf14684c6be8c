//! A client and a server for tests: the client writes and reads the protocol by its own code, the server answers a
//! session's events from a byte vector at once. Both are in memory and do nothing by themselves.
#![allow(dead_code, reason = "each test file uses another part")]

use bytes::{Buf, Bytes, BytesMut};
use freebs_nbd::{
    Event, ExportInfo, Extent, Limits, NbdErrno, Op, ReadPiece, Refusal, RefusalReason, Session, SessionError, Step,
    Wait, default_export,
};

pub const NO_FLAGS: u16 = 0;
pub const SIZE: u64 = 1 << 20;

/// How the client agrees on replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Simple,
    Structured,
    Extended,
}

pub const STYLES: [Style; 3] = [Style::Simple, Style::Structured, Style::Extended];

/// A session with a volume behind it and a log of all that happened.
pub struct Server {
    pub session: Session,
    pub style: Style,
    pub input: BytesMut,
    pub exports: Vec<ExportInfo>,
    pub volume: Vec<u8>,
    /// Everything sent so far and not looked at by the client yet.
    pub sent: Vec<u8>,
    /// Events as text, in order.
    pub log: Vec<String>,
    pub error: Option<SessionError>,
    pub wait: Wait,
    /// The most bytes the session ever asked for at once.
    pub wanted_max: usize,
    /// Requests are kept here instead of being answered, if set.
    pub hold: Option<Vec<(freebs_nbd::Ticket, Op)>>,
    /// Look-ups and lists are left unanswered, if set.
    pub hold_answers: bool,
    /// Output is left in the session, if set.
    pub hold_output: bool,
}

pub fn export(name: &str) -> ExportInfo {
    ExportInfo {
        name: name.to_owned(),
        description: format!("volume {name}"),
        size: SIZE,
        read_only: false,
        multi_conn: true,
        changed_since: Vec::new(),
    }
}

impl Server {
    pub fn new() -> Self {
        Self::with(Limits::default(), vec![export("alpha")])
    }

    pub fn with(limits: Limits, exports: Vec<ExportInfo>) -> Self {
        let mut server = Self {
            session: Session::new(limits),
            style: Style::Simple,
            input: BytesMut::new(),
            exports,
            volume: vec![0; SIZE as usize],
            sent: Vec::new(),
            log: Vec::new(),
            error: None,
            wait: Wait::Closed,
            wanted_max: 0,
            hold: None,
            hold_answers: false,
            hold_output: false,
        };
        server.pump();
        server
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        self.pump();
    }

    pub fn pump(&mut self) {
        loop {
            let step = self.session.receive(&mut self.input);
            let wait = match step {
                Ok(Step::Event(event)) => {
                    self.handle(event);
                    None
                }
                Ok(Step::Wait(wait)) => Some(wait),
                Err(error) => {
                    self.error = Some(error);
                    Some(Wait::Closed)
                }
            };
            if !self.hold_output {
                self.drain();
            }
            if let Some(wait) = wait {
                let wanted = if let Wait::Bytes(count) = wait { count } else { 0 };
                assert_eq!(self.session.wanted(), wanted);
                assert!(wait != Wait::Bytes(0), "to wait for nothing is to hang");
                self.wanted_max = self.wanted_max.max(wanted);
                self.wait = wait;
                return;
            }
        }
    }

    pub fn drain(&mut self) {
        let out = self.session.output();
        while out.has_remaining() {
            let n = out.chunk().len();
            self.sent.extend_from_slice(out.chunk());
            out.advance(n);
        }
    }

    fn handle(&mut self, event: Event) {
        self.log.push(match &event {
            Event::Request { ticket, op: Op::Write { offset, data, fua } } => {
                format!("Write #{} {offset}+{} {:x?} fua={fua}", ticket.cookie(), data.len(), data.first())
            }
            Event::Request { ticket, op } => format!("{op:?} #{}", ticket.cookie()),
            other => format!("{other:?}"),
        });
        match event {
            Event::Lookup { name, .. } if !self.hold_answers => {
                let answer = self.look_up(&name);
                self.session.export(answer);
            }
            Event::List if !self.hold_answers => {
                let names = self.exports.iter().map(|export| (&export.name[..], &export.description[..]));
                self.session.list(names);
            }
            Event::Request { ticket, op } => match &mut self.hold {
                Some(held) => held.push((ticket, op)),
                None => self.perform(ticket, op),
            },
            Event::Lookup { .. } | Event::List | Event::Go { .. } | Event::Disconnect => {}
        }
    }

    pub fn look_up(&self, name: &str) -> Result<ExportInfo, Refusal> {
        let found = if name.is_empty() {
            default_export(&self.exports)
        } else {
            self.exports.iter().find(|export| export.name == name)
        };
        found.cloned().ok_or_else(|| Refusal::new(RefusalReason::Unknown, "no such volume"))
    }

    /// Performs a request on the vector. Zero blocks read as holes; fast zeroes without holes are refused.
    pub fn perform(&mut self, ticket: freebs_nbd::Ticket, op: Op) {
        let range = |offset: u64, len: u64| offset as usize..(offset + len) as usize;
        match op {
            Op::Read { offset, len, .. } => {
                let data = &self.volume[range(offset, len.into())];
                let mut pieces: Vec<ReadPiece> = data.chunks(512).map(piece).collect();
                self.session.reply_read(ticket, &mut pieces);
            }
            Op::Write { offset, data, .. } => {
                self.volume[range(offset, data.len() as u64)].copy_from_slice(&data);
                self.session.reply_ok(ticket);
            }
            Op::Zero { no_hole: true, fast: true, .. } => self.session.reply_error(ticket, NbdErrno::NotSup),
            Op::Zero { offset, len, .. } | Op::Trim { offset, len, .. } => {
                self.volume[range(offset, len)].fill(0);
                self.session.reply_ok(ticket);
            }
            Op::BlockStatus { offset, len, .. } => {
                let data = &self.volume[range(offset, len)];
                let extents: Vec<Extent> = data
                    .chunks(512)
                    .map(|chunk| if is_zero(chunk) { Extent::hole(512) } else { Extent::data(512) })
                    .collect();
                self.session.reply_block_status(ticket, &extents);
            }
            Op::Flush | Op::Cache { .. } => self.session.reply_ok(ticket),
        }
    }

    /// The client's side up to transmission, in the given style. It does not ask for block sizes.
    pub fn connect(&mut self, style: Style) {
        self.connect_knowing(style, &[]);
    }

    /// The same, with what the client asks for beside the export's size.
    pub fn connect_knowing(&mut self, style: Style, infos: &[u16]) {
        self.style = style;
        let mut script = hello();
        match style {
            Style::Simple => {}
            Style::Structured => script.extend(option(8, b"")),
            Style::Extended => script.extend(option(11, b"")),
        }
        if style != Style::Simple {
            script.extend(option(10, &meta("alpha", &["base:allocation"])));
        }
        script.extend(option(7, &go("alpha", infos)));
        self.feed(&script);
        assert!(!self.session.in_handshake());
        self.sent.clear();
        self.log.clear();
    }

    /// Sends a request in the style of the connection. In extended style a write says that it has a payload.
    pub fn ask(&mut self, flags: u16, command: u16, cookie: u64, offset: u64, len: u64, data: &[u8]) {
        let payload = if self.style == Style::Extended && command == 1 { 1 << 5 } else { 0 };
        let mut bytes = request(self.style, flags | payload, command, cookie, offset, len);
        bytes.extend_from_slice(data);
        self.feed(&bytes);
    }

    /// What was sent since the last look, as text: option replies, then replies to requests.
    pub fn options(&mut self) -> Vec<String> {
        let sent = core::mem::take(&mut self.sent);
        let mut from = &sent[..];
        let mut lines = Vec::new();
        while !from.is_empty() {
            lines.push(option_line(&mut from));
        }
        lines
    }

    /// What was sent since the last look, as replies of which simple ones carry no data.
    pub fn replies(&mut self) -> Vec<String> {
        let sent = core::mem::take(&mut self.sent);
        let mut from = &sent[..];
        let mut lines = Vec::new();
        while !from.is_empty() {
            lines.push(take_reply(&mut from, 0).line());
        }
        lines
    }
}

fn piece(chunk: &[u8]) -> ReadPiece {
    if is_zero(chunk) { ReadPiece::Zero(chunk.len() as u64) } else { Bytes::copy_from_slice(chunk).into() }
}

pub fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Client flags: fixed newstyle, no padding.
pub fn hello() -> Vec<u8> {
    vec![0, 0, 0, 3]
}

pub fn option(number: u32, data: &[u8]) -> Vec<u8> {
    option_claiming(number, data.len() as u32, data)
}

/// An option whose length field says something else than the truth.
pub fn option_claiming(number: u32, len: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &number.to_be_bytes()[..], &len.to_be_bytes(), data].concat()
}

pub fn go(name: &str, infos: &[u16]) -> Vec<u8> {
    let mut data = string(name);
    data.extend((infos.len() as u16).to_be_bytes());
    data.extend(infos.iter().flat_map(|info| info.to_be_bytes()));
    data
}

pub fn meta(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = string(name);
    data.extend((queries.len() as u32).to_be_bytes());
    data.extend(queries.iter().flat_map(|query| string(query)));
    data
}

pub fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}

pub fn request(style: Style, flags: u16, command: u16, cookie: u64, offset: u64, len: u64) -> Vec<u8> {
    let magic: u32 = if style == Style::Extended { 0x21e41c71 } else { 0x25609513 };
    let mut bytes = magic.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    if style == Style::Extended {
        bytes.extend(len.to_be_bytes());
    } else {
        bytes.extend((len as u32).to_be_bytes());
    }
    bytes
}

/// One message of the server: a simple reply, or a chunk. `from` must begin with a whole one.
#[derive(Debug)]
pub struct Reply {
    pub simple: bool,
    pub extended: bool,
    pub done: bool,
    pub kind: u16,
    pub error: u32,
    pub cookie: u64,
    pub offset: u64,
    pub data: Vec<u8>,
}

/// Takes a reply off. `simple_len` is the length of the data that follows a simple reply without an error.
pub fn take_reply(from: &mut &[u8], simple_len: usize) -> Reply {
    let magic = from.get_u32();
    if magic == 0x67446698 {
        let (error, cookie) = (from.get_u32(), from.get_u64());
        let data = take(from, if error == 0 { simple_len } else { 0 });
        return Reply { simple: true, extended: false, done: true, kind: 0, error, cookie, offset: 0, data };
    }
    let extended = magic == 0x6e8a278c;
    assert!(extended || magic == 0x668e33ef, "a reply begins with {magic:#x}");
    let (flags, kind, cookie) = (from.get_u16(), from.get_u16(), from.get_u64());
    assert!(flags <= 1, "unknown reply flags");
    let (offset, len) = if extended { (from.get_u64(), from.get_u64()) } else { (0, from.get_u32().into()) };
    let data = take(from, len as usize);
    let error = if kind & 0x8000 != 0 { (&data[..4]).get_u32() } else { 0 };
    Reply { simple: false, extended, done: flags == 1, kind, error, cookie, offset, data }
}

fn take(from: &mut &[u8], len: usize) -> Vec<u8> {
    let (head, tail) = from.split_at(len);
    *from = tail;
    head.to_vec()
}

impl Reply {
    pub fn line(&self) -> String {
        let what = match self.kind {
            _ if self.simple => format!("simple error={}", self.error),
            0 => "none".to_owned(),
            1 => format!("data {}+{}", (&self.data[..]).get_u64(), self.data.len() - 8),
            2 => format!("hole {}+{}", (&self.data[..]).get_u64(), (&self.data[8..]).get_u32()),
            5 | 6 => extents(self.kind, &self.data),
            0x8001 => {
                assert_eq!(usize::from((&self.data[4..]).get_u16()), self.data.len() - 6);
                format!("error={} {}", self.error, String::from_utf8_lossy(&self.data[6..]))
            }
            other => panic!("unknown chunk {other}"),
        };
        let offset = if self.extended { format!("@{} ", self.offset) } else { String::new() };
        format!("#{} {offset}{what}{}", self.cookie, if self.done { "" } else { " ..." })
    }
}

/// The context of a block status chunk, and `length:flags` of each extent.
pub fn extents(kind: u16, data: &[u8]) -> String {
    let mut from = data;
    let context = ["status", "changed"][from.get_u32() as usize - 1];
    let mut lines = vec![context.to_owned()];
    if kind == 6 {
        assert_eq!(from.get_u32() as usize * 16, from.len());
    }
    while !from.is_empty() {
        let (len, flags) =
            if kind == 6 { (from.get_u64(), from.get_u64()) } else { (from.get_u32().into(), from.get_u32().into()) };
        assert!(len > 0);
        lines.push(format!("{len}:{flags}"));
    }
    lines.join(" ")
}

fn option_line(from: &mut &[u8]) -> String {
    assert_eq!(from.get_u64(), 0x0003_e889_0455_65a9, "magic of an option's reply");
    let (option, kind) = (from.get_u32(), from.get_u32());
    let len = from.get_u32() as usize;
    let data = take(from, len);
    let mut rest = &data[..];
    let text = match kind {
        1 => {
            assert!(data.is_empty());
            "ack".to_owned()
        }
        2 => {
            let name_len = rest.get_u32() as usize;
            let name = take(&mut rest, name_len);
            format!("server {} ({})", String::from_utf8(name).unwrap(), String::from_utf8_lossy(rest))
        }
        3 => match rest.get_u16() {
            0 => format!("export {} {:#06x}", rest.get_u64(), rest.get_u16()),
            1 => format!("name {}", String::from_utf8_lossy(rest)),
            2 => format!("description {}", String::from_utf8_lossy(rest)),
            3 => format!("sizes {} {} {}", rest.get_u32(), rest.get_u32(), rest.get_u32()),
            other => panic!("information {other}"),
        },
        4 => format!("context {} {}", rest.get_u32(), String::from_utf8_lossy(rest)),
        error => format!("error {} {}", error & 0x7fff_ffff, String::from_utf8_lossy(&data)),
    };
    format!("{option}: {text}")
}
