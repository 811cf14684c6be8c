//! The handshake: client flags, then options until an export is chosen.
//!
//! Invariants:
//! - An option's length is judged before its body is awaited: a body is either read whole (at most
//!   [`OPTION_BYTES_MAX`]), or skipped without being kept (at most [`OPTION_SKIP_BYTES_MAX`]), or the end.
//! - Each option but EXPORT_NAME gets exactly one final reply, after its last byte has arrived.
//! - Without TLS there is no state that an upgrade could carry over: STARTTLS is refused and changes nothing.

use crate::event::{Event, ExportInfo, Purpose, Refusal, RefusalReason, SessionError, Step, Wait};
use crate::limits::{
    BLOCK_SIZE_MIN, BLOCK_SIZE_PREFERRED, ERROR_TEXT_BYTES_MAX, EXPORT_OPTION_FREE_BYTES, HANDSHAKE_UNSENT_BYTES_MAX,
    LIST_BYTES_MAX, LIST_EXPORTS_MAX, META_QUERIES_MAX, NAME_BYTES_MAX, OPTION_BYTES_MAX, OPTION_SKIP_BYTES_MAX,
    SKIP_STEP_BYTES, STRING_BYTES_MAX,
};
use crate::session::{
    Active, AfterSkip, InfoWant, Meta, MetaWanted, Mode, Phase, Question, Session, discard, missing, whole_sectors,
};
use crate::wire::{self, Fields, flag, handshake_flag, info, opt, rep};
use bytes::{Buf, BytesMut};

impl Session {
    pub(crate) fn client_flags(&mut self, input: &mut BytesMut) -> Result<Option<Step>, SessionError> {
        if let Some(wait) = missing(input, wire::CLIENT_FLAGS_BYTES) {
            return Ok(Some(wait));
        }
        let flags = input.get_u32();
        let known = u32::from(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        if flags & !known != 0 {
            return Err(SessionError::ClientFlags(flags));
        }
        self.handshake_bytes = wire::CLIENT_FLAGS_BYTES as u64;
        self.no_zeroes = flags & u32::from(handshake_flag::NO_ZEROES) != 0;
        self.phase = Phase::Option;
        Ok(None)
    }

    pub(crate) fn option_header(&mut self, input: &mut BytesMut) -> Result<Option<Step>, SessionError> {
        if self.output.len() > HANDSHAKE_UNSENT_BYTES_MAX {
            return Ok(Some(Step::Wait(Wait::Window)));
        }
        if let Some(wait) = missing(input, wire::OPTION_HEADER_BYTES) {
            return Ok(Some(wait));
        }
        if input.get_u64() != wire::OPTION_MAGIC {
            return Err(SessionError::OptionMagic);
        }
        let option = input.get_u32();
        let len = input.get_u32();
        self.count(option, len)?;
        if option == opt::SET_META_CONTEXT {
            // Contexts chosen before are gone even if this option fails.
            self.meta = None;
        }
        self.phase = match self.refuses(option, len)? {
            Some(then) => Phase::OptionSkip { option, left: len, then },
            None => Phase::OptionBody { option, len },
        };
        Ok(None)
    }

    /// Counts an option against the limits. Questions about exports have a count of their own: there may be as many as
    /// exports.
    fn count(&mut self, option: u32, len: u32) -> Result<(), SessionError> {
        let asks = matches!(option, opt::INFO | opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT);
        let (count, max, free) = if asks {
            (&mut self.export_options, self.limits.export_options_max, EXPORT_OPTION_FREE_BYTES)
        } else {
            (&mut self.options, self.limits.options_max, 0)
        };
        if *count == max {
            return Err(SessionError::TooManyOptions);
        }
        *count += 1;
        let bytes = wire::OPTION_HEADER_BYTES as u64 + u64::from(len);
        self.handshake_bytes += bytes.saturating_sub(u64::from(free));
        if len > OPTION_SKIP_BYTES_MAX || (option == opt::EXPORT_NAME && len as usize > STRING_BYTES_MAX) {
            return Err(SessionError::OptionTooLong { option, len });
        }
        if self.handshake_bytes > self.limits.handshake_bytes_max {
            return Err(SessionError::HandshakeTooLong);
        }
        Ok(())
    }

    /// What is said of an option without a look at its body. An EXPORT_NAME can only be refused by the end.
    fn refuses(&self, option: u32, len: u32) -> Result<Option<AfterSkip>, SessionError> {
        let refusal = match option {
            opt::ABORT => return Ok(Some(AfterSkip::Abort)),
            opt::EXPORT_NAME if self.shutting_down || self.mode == Mode::Extended => {
                return Err(SessionError::ExportRefused);
            }
            _ if self.shutting_down => Some((rep::ERR_SHUTDOWN, "the server is shutting down")),
            opt::LIST | opt::STRUCTURED_REPLY | opt::EXTENDED_HEADERS if len > 0 => {
                Some((rep::ERR_INVALID, "this option has no data"))
            }
            opt::STRUCTURED_REPLY if self.mode == Mode::Extended => {
                Some((rep::ERR_EXT_HEADER_REQD, "extended headers are agreed on"))
            }
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT if self.mode == Mode::Simple => {
                Some((rep::ERR_INVALID, "ask for structured replies first"))
            }
            opt::INFO | opt::GO | opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT if len > OPTION_BYTES_MAX => {
                Some((rep::ERR_TOO_BIG, "this option is too long"))
            }
            opt::EXPORT_NAME
            | opt::LIST
            | opt::INFO
            | opt::GO
            | opt::STRUCTURED_REPLY
            | opt::EXTENDED_HEADERS
            | opt::LIST_META_CONTEXT
            | opt::SET_META_CONTEXT => None,
            opt::STARTTLS => Some((rep::ERR_UNSUP, "TLS is not enabled here")),
            _ => Some((rep::ERR_UNSUP, "unknown option")),
        };
        Ok(refusal.map(|(kind, text)| AfterSkip::Error(kind, text)))
    }

    pub(crate) fn skip_option(
        &mut self,
        input: &mut BytesMut,
        option: u32,
        left: u32,
        then: AfterSkip,
    ) -> Option<Step> {
        let left = discard(input, u64::from(left)) as u32;
        if left > 0 {
            self.phase = Phase::OptionSkip { option, left, then };
            return Some(Step::Wait(Wait::Bytes((left as usize).min(SKIP_STEP_BYTES))));
        }
        match then {
            AfterSkip::Error(kind, text) => {
                self.option_error(option, kind, text);
                None
            }
            AfterSkip::Abort => {
                self.option_reply(option, rep::ACK, &[]);
                self.phase = Phase::Ended;
                Some(Step::Event(Event::Disconnect))
            }
        }
    }

    pub(crate) fn option_body(
        &mut self,
        input: &mut BytesMut,
        option: u32,
        len: u32,
    ) -> Result<Option<Step>, SessionError> {
        if let Some(wait) = missing(input, len as usize) {
            return Ok(Some(wait));
        }
        let body = input.split_to(len as usize);
        match option {
            opt::EXPORT_NAME => return self.export_name(&body).map(Some),
            opt::LIST => {
                self.phase = Phase::Answer(Question::List);
                return Ok(Some(Step::Event(Event::List)));
            }
            opt::INFO | opt::GO => return Ok(self.info(option, &body)),
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => return Ok(self.meta_context(option, &body)),
            opt::STRUCTURED_REPLY => self.mode = Mode::Structured,
            opt::EXTENDED_HEADERS => self.mode = Mode::Extended,
            _ => unreachable!("bodies of other options are skipped"),
        }
        self.option_ack(option);
        Ok(None)
    }

    fn export_name(&mut self, body: &[u8]) -> Result<Step, SessionError> {
        match wire::text(body) {
            Some(name) if name.len() <= NAME_BYTES_MAX => {
                self.phase = Phase::Answer(Question::ExportName);
                Ok(Step::Event(Event::Lookup { name: name.to_owned(), purpose: Purpose::ExportName }))
            }
            _ => Err(SessionError::ExportRefused),
        }
    }

    fn info(&mut self, option: u32, body: &[u8]) -> Option<Step> {
        let Some((name, want)) = parse_info(body) else {
            self.option_error(option, rep::ERR_INVALID, "the option is malformed");
            return None;
        };
        self.knows_sizes |= want.block_size;
        let purpose = if option == opt::GO { Purpose::Go } else { Purpose::Info };
        self.look_up(option, name, purpose, Question::Info { option, asked: name.to_owned(), want })
    }

    fn meta_context(&mut self, option: u32, body: &[u8]) -> Option<Step> {
        match parse_meta(body, option == opt::LIST_META_CONTEXT) {
            Ok((name, wanted)) => self.look_up(option, name, Purpose::MetaContext, Question::Meta { option, wanted }),
            Err((kind, text)) => {
                self.option_error(option, kind, text);
                None
            }
        }
    }

    /// Asks the caller, unless no export can have that name.
    fn look_up(&mut self, option: u32, name: &str, purpose: Purpose, question: Question) -> Option<Step> {
        if name.len() > NAME_BYTES_MAX {
            self.option_error(option, rep::ERR_UNKNOWN, "there is no such export");
            return None;
        }
        self.phase = Phase::Answer(question);
        Some(Step::Event(Event::Lookup { name: name.to_owned(), purpose }))
    }

    /// Answers [`Event::Lookup`]. Then call [`Session::receive`] again.
    ///
    /// # Panics
    /// If no look-up is open.
    pub fn export(&mut self, answer: Result<ExportInfo, Refusal>) {
        match core::mem::replace(&mut self.phase, Phase::Option) {
            Phase::Answer(Question::Info { option, asked, want }) => match answer {
                Ok(export) => self.give_info(option, &asked, want, export),
                Err(refusal) => self.refuse(option, &refusal),
            },
            Phase::Answer(Question::Meta { option, wanted }) => match answer {
                Ok(export) => self.give_meta(option, &wanted, export),
                Err(refusal) => self.refuse(option, &refusal),
            },
            Phase::Answer(Question::ExportName) => match answer {
                Ok(export) => self.give_export_name(export),
                Err(_) => self.phase = Phase::Failed(SessionError::ExportRefused),
            },
            _ => panic!("no look-up is open"),
        }
    }

    /// Answers [`Event::List`] with names and descriptions. A list past [`LIST_EXPORTS_MAX`] or [`LIST_BYTES_MAX`] is
    /// cut, and the client told so. Then call [`Session::receive`] again.
    ///
    /// # Panics
    /// If no list was asked for.
    pub fn list<'a>(&mut self, exports: impl IntoIterator<Item = (&'a str, &'a str)>) {
        self.list_was_asked_for();
        let start = self.output.len();
        for (count, (name, description)) in exports.into_iter().enumerate() {
            let description = cut(description, STRING_BYTES_MAX);
            let size = wire::OPTION_REPLY_HEADER_BYTES + 4 + name.len() + description.len();
            if count == LIST_EXPORTS_MAX || self.output.len() - start + size > LIST_BYTES_MAX {
                return self.option_error(opt::LIST, rep::ERR_TOO_BIG, "there are more exports than can be listed");
            }
            let len = (name.len() as u32).to_be_bytes();
            self.option_reply(opt::LIST, rep::SERVER, &[&len, name.as_bytes(), description.as_bytes()]);
        }
        self.option_ack(opt::LIST);
    }

    /// Answers [`Event::List`] with a refusal.
    ///
    /// # Panics
    /// If no list was asked for.
    pub fn refuse_list(&mut self, refusal: &Refusal) {
        self.list_was_asked_for();
        self.refuse(opt::LIST, refusal);
    }

    fn list_was_asked_for(&self) {
        assert_eq!(self.phase, Phase::Answer(Question::List), "no list was asked for");
    }

    fn give_info(&mut self, option: u32, asked: &str, want: InfoWant, export: ExportInfo) {
        let size = whole_sectors(export.size).to_be_bytes();
        let flags = self.transmission_flags(&export).to_be_bytes();
        self.option_reply(option, rep::INFO, &[&info::EXPORT.to_be_bytes(), &size, &flags]);
        // Sent unasked, too: a client that knows it profits, and others have to ignore it.
        let sizes = [BLOCK_SIZE_MIN, BLOCK_SIZE_PREFERRED, self.limits.payload_bytes_max].map(u32::to_be_bytes);
        self.option_reply(option, rep::INFO, &[&info::BLOCK_SIZE.to_be_bytes(), sizes.as_flattened()]);
        if want.name || asked != export.name {
            self.option_reply(option, rep::INFO, &[&info::NAME.to_be_bytes(), export.name.as_bytes()]);
        }
        if want.description && !export.description.is_empty() {
            let text = cut(&export.description, STRING_BYTES_MAX);
            self.option_reply(option, rep::INFO, &[&info::DESCRIPTION.to_be_bytes(), text.as_bytes()]);
        }
        self.option_ack(option);
        if option == opt::GO {
            self.begin(export);
        }
    }

    fn give_export_name(&mut self, export: ExportInfo) {
        self.output.put(&whole_sectors(export.size).to_be_bytes());
        self.output.put(&self.transmission_flags(&export).to_be_bytes());
        if !self.no_zeroes {
            self.output.put(&[0; wire::EXPORT_NAME_PADDING_BYTES]);
        }
        self.begin(export);
    }

    fn give_meta(&mut self, option: u32, wanted: &MetaWanted, export: ExportInfo) {
        let set = option == opt::SET_META_CONTEXT;
        let id = |id: u32| if set { id.to_be_bytes() } else { [0; 4] };
        if wanted.allocation {
            let name = wire::META_ALLOCATION.as_bytes();
            self.option_reply(option, rep::META_CONTEXT, &[&id(wire::META_ALLOCATION_ID), name]);
        }
        let is_wanted = |name: &&String| wanted.every_since || wanted.since.contains(name);
        // A connection has one of them at most.
        let most = if set { 1 } else { usize::MAX };
        let mut chosen = None;
        for name in export.changed_since.iter().filter(is_wanted).take(most) {
            let parts = [&id(wire::META_CHANGED_SINCE_ID)[..], wire::META_CHANGED_SINCE.as_bytes(), name.as_bytes()];
            self.option_reply(option, rep::META_CONTEXT, &parts);
            chosen = Some(name.clone());
        }
        if set && (wanted.allocation || chosen.is_some()) {
            self.meta = Some(Meta { export: export.name, allocation: wanted.allocation, since: chosen });
        }
        self.option_ack(option);
    }

    fn begin(&mut self, export: ExportInfo) {
        let meta = self.meta.take().filter(|m| self.mode != Mode::Simple && m.export == export.name);
        self.active = Active {
            size: whole_sectors(export.size),
            read_only: export.read_only,
            allocation: meta.as_ref().is_some_and(|m| m.allocation),
            changed: meta.as_ref().is_some_and(|m| m.since.is_some()),
        };
        self.since = meta.and_then(|m| m.since);
        self.phase = Phase::Request;
        self.begun = Some(export.name);
    }

    fn transmission_flags(&self, export: &ExportInfo) -> u16 {
        let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::SEND_CACHE;
        if export.read_only {
            flags |= flag::READ_ONLY;
        } else {
            flags |= flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
        }
        if export.multi_conn {
            flags |= flag::CAN_MULTI_CONN;
        }
        if self.mode != Mode::Simple {
            flags |= flag::SEND_DF;
        }
        flags
    }

    fn refuse(&mut self, option: u32, refusal: &Refusal) {
        let kind = match refusal.reason {
            RefusalReason::Unknown => rep::ERR_UNKNOWN,
            RefusalReason::Policy => rep::ERR_POLICY,
            RefusalReason::TlsRequired => rep::ERR_TLS_REQD,
            RefusalReason::Shutdown => rep::ERR_SHUTDOWN,
        };
        self.option_error(option, kind, &refusal.text);
    }

    fn option_ack(&mut self, option: u32) {
        self.option_reply(option, rep::ACK, &[]);
        self.phase = Phase::Option;
    }

    fn option_error(&mut self, option: u32, kind: u32, text: &str) {
        self.option_reply(option, kind, &[cut(text, ERROR_TEXT_BYTES_MAX).as_bytes()]);
        self.phase = Phase::Option;
    }

    fn option_reply(&mut self, option: u32, kind: u32, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        self.output.put(&wire::option_reply(option, kind, len as u32));
        for part in parts {
            self.output.put(part);
        }
    }
}

fn parse_info(body: &[u8]) -> Option<(&str, InfoWant)> {
    let mut fields = Fields(body);
    let name = fields.string()?;
    let count = fields.u16()?;
    let mut want = InfoWant::default();
    for _ in 0..count {
        match fields.u16()? {
            info::BLOCK_SIZE => want.block_size = true,
            info::NAME => want.name = true,
            info::DESCRIPTION => want.description = true,
            _ => {}
        }
    }
    fields.0.is_empty().then_some((name, want))
}

/// The export's name, and what the queries select. To list, no query at all selects everything, and a namespace everything
/// in it.
fn parse_meta(body: &[u8], list: bool) -> Result<(&str, MetaWanted), (u32, &'static str)> {
    let malformed = (rep::ERR_INVALID, "the option is malformed");
    let mut fields = Fields(body);
    let name = fields.string().ok_or(malformed)?;
    let count = fields.u32().ok_or(malformed)?;
    if count > META_QUERIES_MAX {
        return Err((rep::ERR_TOO_BIG, "too many queries"));
    }
    let all = list && count == 0;
    let mut wanted = MetaWanted { allocation: all, every_since: all, since: Vec::new() };
    for _ in 0..count {
        let query = fields.string().ok_or(malformed)?;
        wanted.allocation |= query == wire::META_ALLOCATION || (list && query == "base:");
        match query.strip_prefix(wire::META_CHANGED_SINCE) {
            Some(name) if !name.is_empty() => wanted.since.push(name.to_owned()),
            _ => wanted.every_since |= list && [wire::META_OWN, wire::META_CHANGED_SINCE].contains(&query),
        }
    }
    if fields.0.is_empty() { Ok((name, wanted)) } else { Err(malformed) }
}

/// The longest beginning of `text` of at most `max` bytes.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}
