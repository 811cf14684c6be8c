//! Clients that mean harm or are broken. Each scenario that caught another NBD server opens with its story; the
//! properties feed random and mutated bytes, in any split, and hold the session to its limits.

use crate::common::*;
use freebs_nbd::{Limits, NbdErrno, SessionError, Wait, limits};
use proptest::prelude::*;

fn greeted() -> Server {
    let mut server = Server::new();
    server.sent.clear();
    server.feed(&hello());
    server
}

/// nbd-server (CVE-2022-26495) allocated "length of the name + 1" bytes; 0xffffffff + 1 was 0, and the name was written
/// behind it. CVE-2022-26496: a name longer than its option ran over a buffer on the stack.
#[test]
fn a_name_longer_than_its_option_is_malformed() {
    for len in [u32::MAX, u32::MAX - 1, u32::MAX - 5, 0x8000_0000, 0x7fff_ffff, 10_000, 4097, 9, 6] {
        for number in [6, 7, 9, 10] {
            let mut server = greeted();
            server.feed(&option(8, b""));
            server.sent.clear();
            let body = [&len.to_be_bytes()[..], b"alpha", &[0; 4]].concat();
            server.feed(&option(number, &body));
            assert_eq!(server.options(), [format!("{number}: error 3 the option is malformed")], "{len:#x}");
            // The same of a query, whose length comes after the name.
            let body = [string("alpha"), 1u32.to_be_bytes().to_vec(), len.to_be_bytes().to_vec(), b"base".to_vec()];
            server.feed(&option(10, &body.concat()));
            assert_eq!(server.options(), ["10: error 3 the option is malformed"], "{len:#x}");
            assert!(server.log.is_empty() && server.wanted_max <= 16);
        }
    }
}

/// Counts that promise more than there is, and bodies that end early or late, by one byte each.
#[test]
fn every_truncation_of_a_body_is_malformed() {
    for (number, body) in [(7, go("alpha", &[1, 3])), (10, meta("alpha", &["base:allocation", "x:y"]))] {
        let mut server = greeted();
        server.feed(&option(8, b""));
        server.sent.clear();
        for len in 0..body.len() {
            server.feed(&option(number, &body[..len]));
            assert_eq!(server.options(), [format!("{number}: error 3 the option is malformed")], "{len}");
        }
        server.feed(&option(number, &[&body[..], b"x"].concat()));
        assert_eq!(server.options(), [format!("{number}: error 3 the option is malformed")]);
        assert!(server.log.is_empty());
        server.feed(&option(number, &body));
        assert_eq!(server.options().last().unwrap(), &format!("{number}: ack"));
    }
}

/// qemu (CVE-2017-15118) read the name of EXPORT_NAME and INFO into a buffer of 256 bytes on the stack.
#[test]
fn an_export_name_over_any_buffer_is_not_read() {
    for len in [4097, 65_536, 65_537, u32::MAX] {
        let mut server = greeted();
        server.feed(&option_claiming(1, len, b"aaaaaaaa"));
        assert_eq!(server.error, Some(SessionError::OptionTooLong { option: 1, len }));
        assert!(server.log.is_empty() && server.sent.is_empty() && server.wanted_max <= 16);
    }
    for len in [limits::NAME_BYTES_MAX + 1, 512, 4096] {
        let mut server = greeted();
        server.feed(&option(1, &vec![b'a'; len]));
        assert_eq!(server.error, Some(SessionError::ExportRefused));
        let mut server = greeted();
        server.feed(&option(6, &go(&"a".repeat(len), &[])));
        assert_eq!(server.options(), ["6: error 6 there is no such export"]);
    }
}

/// qemu (CVE-2017-15119) skipped the data of an unknown option of up to 4 GiB, byte after byte, for every such option.
#[test]
fn an_option_of_4_gib_is_the_end() {
    for number in [3, 6, 7, 8, 9, 10, 11, 2, 5, 99] {
        for len in [limits::OPTION_SKIP_BYTES_MAX + 1, 1 << 31, u32::MAX] {
            let mut server = greeted();
            server.feed(&option_claiming(number, len, &[0; 64]));
            assert_eq!(server.error, Some(SessionError::OptionTooLong { option: number, len }));
            assert!(server.log.is_empty() && server.wanted_max <= 16);
        }
    }
    // Not by many options either.
    let long = option(99, &vec![0; limits::OPTION_SKIP_BYTES_MAX as usize]);
    let mut server = greeted();
    for _ in 0..5 {
        server.feed(&long);
    }
    assert_eq!(server.error, Some(SessionError::HandshakeTooLong));
    assert!(server.options().len() < 4);
    let mut server = greeted();
    server.feed(&option(99, b"").repeat(1000));
    assert_eq!(server.error, Some(SessionError::TooManyOptions));
    assert_eq!(server.options().len(), limits::OPTIONS_MAX as usize);
}

/// nbdinfo asks about every export in one handshake, with two options each, and was cut off after the 64th option.
#[test]
fn as_many_exports_as_a_cluster_has_are_asked_about() {
    const EXPORTS: usize = 2000;
    let exports = (0..EXPORTS).map(|n| export(&format!("{n:0>128}"))).collect();
    let mut server = Server::with(Limits::default(), exports);
    server.feed(&[hello(), option(8, b""), option(3, b"")].concat());
    for n in 0..EXPORTS {
        let name = format!("{n:0>128}");
        for (number, body) in
            [(10, meta(&name, &["base:allocation"])), (9, meta(&name, &[])), (6, go(&name, &[0, 1, 2, 3]))]
        {
            server.feed(&option(number, &body));
            assert_eq!(server.error, None, "at export {n}");
        }
    }
    server.feed(&option(2, b""));
    assert_eq!((server.error, server.wait), (None, Wait::Closed));
    assert_eq!(server.session.exports_asked(), 3 * EXPORTS as u32);
}

/// Such options have an end, too, and a long one counts as what it is.
#[test]
fn questions_about_exports_are_bounded() {
    let limits = Limits { export_options_max: 100, ..Limits::default() };
    let mut server = Server::with(limits, vec![export("alpha")]);
    server.feed(&hello());
    server.sent.clear();
    server.feed(&option(6, &go("alpha", &[])).repeat(1000));
    assert_eq!(server.error, Some(SessionError::TooManyOptions));
    assert_eq!(server.log.len(), 100);
    // Whoever asks to use one is not looking around.
    let mut server = greeted();
    server.feed(&option(7, &go("gamma", &[])).repeat(1000));
    assert_eq!(server.error, Some(SessionError::TooManyOptions));
    assert_eq!(server.log.len(), limits::OPTIONS_MAX as usize);
    let mut server = greeted();
    server.feed(&option(6, &go("alpha", &[77; 8000])).repeat(100));
    assert_eq!(server.error, Some(SessionError::HandshakeTooLong));
    assert!(server.log.len() < 18, "{} of 16 KB", server.log.len());
}

/// A client that asks for list after list without reading any.
#[test]
fn lists_do_not_pile_up() {
    let exports = (0..2000).map(|n| export(&format!("volume-{n}"))).collect();
    let mut server = Server::with(Limits::default(), exports);
    server.hold_output = true;
    server.feed(&[hello(), option(3, b"").repeat(60)].concat());
    assert_eq!((server.wait, server.log.len()), (Wait::Window, 1));
    assert!(server.session.output().len() < limits::LIST_BYTES_MAX + 64);
    server.drain();
    server.pump();
    assert_eq!((server.wait, server.log.len()), (Wait::Window, 2));
}

/// nbdkit (CVE-2021-3716) kept what was said before STARTTLS, so that a man in the middle could put options before the
/// client's own. Here there is no upgrade: the refusal comes in its place, and all stays one plain conversation.
#[test]
fn plaintext_around_starttls_is_one_conversation() {
    let mut server = greeted();
    server.feed(&[option(8, b""), option(5, b""), option(7, &go("alpha", &[]))].concat());
    let lines = server.options();
    assert_eq!(lines[..2], ["8: ack", "5: error 1 TLS is not enabled here"]);
    assert_eq!(lines.last().unwrap(), "7: ack");
}

/// nbdkit (CVE-2019-14851) asserted that an export is opened once; INFO followed by GO or EXPORT_NAME killed it.
#[test]
fn exports_are_asked_about_in_any_order_and_number() {
    let mut server = Server::with(Limits::default(), vec![export("alpha"), export("beta")]);
    server.feed(&hello());
    server.feed(&option(8, b""));
    for name in ["alpha", "alpha", "beta", "gamma", "alpha"] {
        for number in [6, 9, 3, 10, 6] {
            let body = match number {
                3 => Vec::new(),
                6 => go(name, &[0, 1, 2, 3]),
                _ => meta(name, &["base:allocation"]),
            };
            server.feed(&option(number, &body));
        }
    }
    server.feed(&option(1, b"beta"));
    assert_eq!(server.log.last().unwrap(), r#"Go { name: "beta" }"#);
}

/// nbdkit (CVE-2025-47711) died of an assertion when a store answered a block status near 4 GiB with more than was
/// asked; CVE-2025-47712: a length that was rounded up became 0.
#[test]
fn block_status_near_4_gib_is_cut_to_what_was_asked() {
    use freebs_nbd::Extent;
    for (style, len) in [
        (Style::Structured, 0xffff_fe00),
        (Style::Extended, 0xffff_fe00),
        (Style::Extended, 1 << 32),
        (Style::Extended, u64::MAX - 511),
    ] {
        let mut alpha = export("alpha");
        alpha.size = u64::MAX;
        let mut server = Server::with(Limits::default(), vec![alpha]);
        server.connect(style);
        for extents in [
            &[Extent::data(u64::MAX)][..],
            &[Extent::data(len), Extent::data(1), Extent::hole(u64::MAX)],
            &[Extent::hole(len - 512), Extent::data(u64::MAX)],
            &[Extent::hole(1 << 32); 3],
        ] {
            server.hold = Some(Vec::new());
            server.ask(NO_FLAGS, 7, 1, 0, len, b"");
            let ticket = server.hold.take().unwrap().pop().unwrap().0;
            server.session.reply_block_status(ticket, extents);
            server.drain();
            let sent = core::mem::take(&mut server.sent);
            let reply = take_reply(&mut &sent[..], 0);
            let sum: u64 = crate::common::extents(reply.kind, &reply.data)
                .split(' ')
                .skip(1)
                .map(|extent| extent.split(':').next().unwrap().parse::<u64>().unwrap())
                .sum();
            assert!(sum > 0 && sum <= len);
        }
    }
}

/// qemu (CVE-2024-7409) used a client after it was freed when the server went down while others connected or left. Here
/// tickets and the session don't own each other: late answers go nowhere, in any order.
#[test]
fn late_answers_after_the_end_do_no_harm() {
    for last in [&b"garbage that is no request at all...."[..], &request(Style::Simple, NO_FLAGS, 2, 0, 0, 0)] {
        let mut server = Server::new();
        server.connect(Style::Simple);
        server.hold = Some(Vec::new());
        server.ask(NO_FLAGS, 3, 1, 0, 0, b"");
        server.ask(NO_FLAGS, 0, 2, 0, 512, b"");
        server.ask(NO_FLAGS, 1, 3, 0, 512, &[1; 512]);
        server.feed(last);
        assert_eq!(server.wait, Wait::Closed);
        let mut held = server.hold.take().unwrap();
        assert_eq!(held.len(), 3);
        server.session.reply_ok(held.pop().unwrap().0);
        server.session.reply_error(held.pop().unwrap().0, NbdErrno::Io);
        // One more outlives its session.
        assert_eq!(server.session.in_flight(), 1);
        drop(server);
        drop(held);
    }
    let mut server = greeted();
    server.hold_answers = true;
    server.feed(&option(7, &go("alpha", &[])));
    server.session.shut_down();
    let answer = server.look_up("alpha");
    server.session.export(answer);
    server.pump();
    server.ask(NO_FLAGS, 3, 1, 0, 0, b"");
    server.sent.drain(..server.sent.len() - 16);
    assert_eq!(server.replies(), ["#1 simple error=108"]);
}

/// A refused write of the largest length is thrown away as it comes, not kept.
#[test]
fn a_refused_payload_is_not_kept() {
    let mut server = Server::new();
    server.connect(Style::Structured);
    let len = limits::PAYLOAD_BYTES_MAX;
    server.feed(&request(Style::Structured, NO_FLAGS, 1, 1, SIZE, len.into()));
    assert_eq!(server.replies().len(), 1);
    let part = vec![0x25; 1 << 20];
    for _ in 0..len >> 20 {
        assert!(server.session.wanted() <= limits::SKIP_STEP_BYTES);
        server.feed(&part);
        assert!(server.input.is_empty());
    }
    server.ask(NO_FLAGS, 3, 2, 0, 0, b"");
    assert_eq!(server.replies(), ["#2 simple error=0"]);
}

/// What one client says: an option or a request, well-formed or nearly.
fn message(style: Style) -> BoxedStrategy<Vec<u8>> {
    let name =
        prop::sample::select(vec!["alpha", "beta", "", "gamma", "a-name-that-is-somewhat-longer-than-the-others"]);
    let queries = prop::collection::vec(prop::sample::select(vec!["base:allocation", "base:", "x:y", ""]), 0..4);
    let infos = prop::collection::vec(0..6u16, 0..5);
    let options = prop_oneof![
        (name.clone(), infos, 6..8u32).prop_map(|(name, infos, number)| option(number, &go(name, &infos))),
        (name, queries, 9..11u32).prop_map(|(name, queries, number)| option(number, &meta(name, &queries))),
        prop::sample::select(vec![3u32, 5, 8, 11, 99]).prop_map(|number| option(number, b"")),
        (0..13u32, prop::collection::vec(any::<u8>(), 0..300)).prop_map(|(number, data)| option(number, &data)),
    ];
    let offset = prop_oneof![4 => (0..3000u64).prop_map(|sector| sector * 512), 1 => any::<u64>()];
    let len = prop_oneof![4 => (0..12u64).prop_map(|sector| sector * 512), 1 => 0..5000u64];
    let flags = prop_oneof![3 => Just(0u16), 1 => 0..64u16];
    let requests =
        (flags, 0..9u16, any::<u64>(), offset, len).prop_map(move |(flags, command, cookie, offset, len)| {
            let payload = command == 1 && (style != Style::Extended || flags & 1 == 0);
            let flags = if payload && style == Style::Extended { flags | 1 << 5 } else { flags };
            let mut bytes = request(style, flags, command, cookie, offset, len);
            if payload {
                bytes.resize(bytes.len() + len as usize, cookie as u8);
            }
            bytes
        });
    prop_oneof![1 => options, 2 => requests].boxed()
}

/// A conversation: a handshake in some style, then messages; and places where bytes are changed, left out or put in.
fn conversation() -> impl Strategy<Value = (Vec<u8>, Vec<(prop::sample::Index, u8, u8)>)> {
    let talk = prop::sample::select(&STYLES[..]).prop_flat_map(|style| {
        let start = prop_oneof![
            3 => Just(connect_script(style)),
            1 => Just(hello()),
        ];
        (start, prop::collection::vec(message(style), 0..25))
            .prop_map(|(start, messages)| [start, messages.concat()].concat())
    });
    let changes = prop::collection::vec((any::<prop::sample::Index>(), 0..3u8, any::<u8>()), 0..4);
    (talk, prop_oneof![1 => Just(Vec::new()), 2 => changes])
}

fn connect_script(style: Style) -> Vec<u8> {
    let mut script = hello();
    match style {
        Style::Simple => {}
        Style::Structured => script.extend(option(8, b"")),
        Style::Extended => script.extend(option(11, b"")),
    }
    [script, option(10, &meta("alpha", &["base:allocation"])), option(7, &go("alpha", &[3]))].concat()
}

fn change(bytes: &mut Vec<u8>, changes: &[(prop::sample::Index, u8, u8)]) {
    for (index, kind, value) in changes {
        if bytes.is_empty() {
            return;
        }
        let at = index.index(bytes.len());
        match kind {
            0 => bytes[at] ^= value | 1,
            1 => drop(bytes.remove(at)),
            _ => bytes.insert(at, *value),
        }
    }
}

/// All that can be seen of a session after it was fed in parts. The limits are checked at each step.
fn outcome(parts: &[&[u8]]) -> (Vec<String>, Vec<u8>, Option<SessionError>) {
    let limits = Limits { payload_bytes_max: 1 << 20, ..Limits::default() };
    let mut server = Server::with(limits, vec![export("alpha"), export("beta")]);
    for part in parts {
        server.feed(part);
        if let Wait::Bytes(missing) = server.wait {
            let max = if server.session.in_handshake() { limits::SKIP_STEP_BYTES } else { (1 << 20) + 32 };
            assert!(server.input.len() + missing <= max, "{} bytes kept, {missing} wanted", server.input.len());
        }
        assert_eq!(server.session.in_flight(), 0);
        assert!(server.wait != Wait::Answer && server.wait != Wait::Window, "everything was answered and sent");
    }
    (server.log, server.sent, server.error)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// However the bytes of a client are cut, sensible or not, the events and the answers are the same.
    #[test]
    fn any_split_gives_the_same(
        (mut bytes, changes) in conversation(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        change(&mut bytes, &changes);
        let whole = outcome(&[&bytes]);
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        places.extend([0, bytes.len()]);
        places.sort_unstable();
        let parts: Vec<&[u8]> = places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
        prop_assert_eq!(&outcome(&parts), &whole);
    }

    /// The same byte by byte, for short conversations.
    #[test]
    fn single_bytes_give_the_same((mut bytes, changes) in conversation()) {
        change(&mut bytes, &changes);
        bytes.truncate(3000);
        let parts: Vec<&[u8]> = bytes.chunks(1).collect();
        prop_assert_eq!(outcome(&parts), outcome(&[&bytes]));
    }

    /// Bytes without any sense, at the start, among the options, and in each form of transmission.
    #[test]
    fn random_bytes_do_no_harm(
        start in prop_oneof![
            Just(Vec::new()),
            Just(hello()),
            Just([hello(), b"IHAVEOPT".to_vec()].concat()),
            prop::sample::select(&STYLES[..]).prop_map(connect_script),
        ],
        noise in prop::collection::vec(any::<u8>(), 0..2000),
    ) {
        outcome(&[&start, &noise]);
    }

    /// Headers of requests with every field at random, but the magic right: refused or passed on, never out of range.
    #[test]
    fn random_requests_stay_in_range(
        style in prop::sample::select(&STYLES[..]),
        fields in prop::collection::vec((any::<u16>(), 0..9u16, any::<u64>(), any::<u64>(), any::<u64>()), 1..30),
    ) {
        let mut server = Server::new();
        server.connect(style);
        for (flags, command, cookie, offset, len) in fields {
            // About half of all values are near the end of the export or of the numbers.
            let offset = match offset % 4 { 0 => SIZE - 512 * (offset >> 60), 1 => u64::MAX - (offset >> 52), _ => offset % SIZE };
            let len = match len % 4 { 0 => u64::MAX - (len >> 52), 1 => (len % 4096) & !511, 2 => 512 * (len % 5000), _ => len };
            server.feed(&request(style, flags & 0x3f, command, cookie, offset, len));
            // The server's vector is the oracle: a range outside it would panic there.
            if server.error.is_some() {
                break;
            }
        }
    }
}

/// A canary: the comparison must notice a byte that makes a difference.
#[test]
fn the_comparison_sees_a_difference() {
    let bytes = [connect_script(Style::Simple), request(Style::Simple, NO_FLAGS, 3, 1, 0, 0)].concat();
    let mut other = bytes.clone();
    *other.last_mut().unwrap() = 1;
    assert_ne!(outcome(&[&bytes]), outcome(&[&other]));
}
