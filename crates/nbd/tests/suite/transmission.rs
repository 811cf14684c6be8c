//! Each command in each form of reply, what is refused and how, the window, and a run against a naive volume.

use crate::common::*;
use bytes::{Buf, Bytes};
use freebs_nbd::{Event, Extent, Limits, NbdErrno, Op, ReadPiece, SessionError, Step, Wait, limits};
use proptest::prelude::*;

/// Information that a client asks for.
const BLOCK_SIZE: u16 = 3;

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISC: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const CACHE: u16 = 5;
const ZEROES: u16 = 6;
const STATUS: u16 = 7;

const FUA: u16 = 1;
const NO_HOLE: u16 = 2;
const DF: u16 = 4;
const REQ_ONE: u16 = 8;
const FAST: u16 = 16;
const PAYLOAD: u16 = 32;

fn connected(style: Style) -> Server {
    let mut server = Server::new();
    server.connect(style);
    server
}

/// A server that keeps its requests, and the one request it was sent.
fn held(style: Style, flags: u16, command: u16, offset: u64, len: u64) -> (Server, freebs_nbd::Ticket) {
    let mut server = connected(style);
    server.hold = Some(Vec::new());
    server.ask(flags, command, 9, offset, len, b"");
    let ticket = server.hold.as_mut().unwrap().pop().expect("the request passes").0;
    (server, ticket)
}

#[test]
fn simple_replies_are_golden() {
    let mut server = connected(Style::Simple);
    server.ask(NO_FLAGS, WRITE, 0x0102_0304_0506_0708, 512, 512, &[0xab; 512]);
    assert_eq!(server.sent, [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    server.sent.clear();
    server.ask(NO_FLAGS, READ, 7, 0, 1024, b"");
    let header = [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
    assert_eq!(server.sent, [&header[..], &[0; 512], &[0xab; 512]].concat());
    server.sent.clear();
    server.ask(NO_FLAGS, READ, 7, SIZE, 512, b"");
    assert_eq!(server.sent, [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 22, 0, 0, 0, 0, 0, 0, 0, 7]);
}

#[test]
fn structured_replies_are_golden() {
    let (mut server, ticket) = held(Style::Structured, NO_FLAGS, READ, 4096, 8192 + 512);
    let mut pieces = [ReadPiece::Zero(8192), Bytes::from_static(&[5; 512]).into()];
    server.session.reply_read(ticket, &mut pieces);
    server.drain();
    let hole = [
        &[0x66, 0x8e, 0x33, 0xef, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 12][..],
        &[0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0x20, 0],
    ]
    .concat();
    let data = [
        &[0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 2, 8][..],
        &[0, 0, 0, 0, 0, 0, 0x30, 0],
        &[5; 512],
    ]
    .concat();
    assert_eq!(server.sent, [hole, data].concat());

    let (mut server, ticket) = held(Style::Structured, NO_FLAGS, FLUSH, 0, 0);
    server.session.reply_error_text(ticket, NbdErrno::Io, "lost");
    server.drain();
    let error = [
        &[0x66, 0x8e, 0x33, 0xef, 0, 1, 0x80, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 10][..],
        &[0, 0, 0, 5, 0, 4],
        b"lost",
    ]
    .concat();
    assert_eq!(server.sent, error);

    let (mut server, ticket) = held(Style::Structured, NO_FLAGS, STATUS, 0, 8192);
    server.session.reply_block_status(ticket, &[Extent::data(4096), Extent::hole(4096)]);
    server.drain();
    let status = [
        &[0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 5, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 20, 0, 0, 0, 1][..],
        &[0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 3],
    ]
    .concat();
    assert_eq!(server.sent, status);

    let (mut server, ticket) = held(Style::Structured, NO_FLAGS, FLUSH, 0, 0);
    server.session.reply_ok(ticket);
    server.drain();
    assert_eq!(server.sent, [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9], "simple: it has no data");
}

#[test]
fn extended_replies_are_golden() {
    let header = |kind: [u8; 4], offset: [u8; 2], len: u8| {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&[0x6e, 0x8a, 0x27, 0x8c, kind[0], kind[1], kind[2], kind[3]]);
        bytes[15] = 9;
        bytes[22..24].copy_from_slice(&offset);
        bytes[31] = len;
        bytes
    };
    let (mut server, ticket) = held(Style::Extended, NO_FLAGS, TRIM, 4096, 512);
    server.session.reply_ok(ticket);
    server.drain();
    assert_eq!(server.sent, header([0, 1, 0, 0], [0x10, 0], 0));

    let (mut server, ticket) = held(Style::Extended, NO_FLAGS, READ, 4096, 1024);
    server.session.reply_read(ticket, &mut [ReadPiece::Zero(1024)]);
    server.drain();
    let hole = [0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 4, 0];
    assert_eq!(server.sent, [&header([0, 1, 0, 2], [0x10, 0], 12)[..], &hole].concat());

    let (mut server, ticket) = held(Style::Extended, REQ_ONE, STATUS, 4096, 1024);
    server
        .session
        .reply_block_status(ticket, &[Extent { len: 512, hole: false, zero: true, changed: false }, Extent::data(512)]);
    server.drain();
    let status = [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 2];
    assert_eq!(server.sent, [&header([0, 1, 0, 6], [0x10, 0], 24)[..], &status].concat());

    let (mut server, ticket) = held(Style::Extended, NO_FLAGS, READ, 4096, 1024);
    server.session.reply_error(ticket, NbdErrno::NoSpace);
    server.drain();
    assert_eq!(server.sent, [&header([0, 1, 0x80, 1], [0x10, 0], 6)[..], &[0, 0, 0, 28, 0, 0]].concat());
}

#[test]
fn each_command_reaches_the_caller_with_its_flags() {
    for style in STYLES {
        let mut server = connected(style);
        server.ask(FUA, WRITE, 1, 4096, 1024, &[7; 1024]);
        server.ask(FUA, READ, 2, 4096, 512, b"");
        server.ask(FUA, FLUSH, 3, 0, 0, b"");
        server.ask(FUA, TRIM, 4, 0, SIZE, b"");
        server.ask(FUA, CACHE, 5, 512, 1024, b"");
        server.ask(NO_FLAGS, ZEROES, 6, 0, SIZE, b"");
        server.ask(FUA | NO_HOLE | FAST, ZEROES, 7, 0, 512, b"");
        if style != Style::Simple {
            server.ask(DF, READ, 8, 0, 512, b"");
            server.ask(REQ_ONE, STATUS, 9, 0, SIZE, b"");
        }
        server.ask(NO_FLAGS, DISC, 10, 0, 0, b"");
        let mut expected = vec![
            "Write #1 4096+1024 Some(7) fua=true",
            "Read { offset: 4096, len: 512, df: false } #2",
            "Flush #3",
            "Trim { offset: 0, len: 1048576, fua: true } #4",
            "Cache { offset: 512, len: 1024 } #5",
            "Zero { offset: 0, len: 1048576, fua: false, no_hole: false, fast: false } #6",
            "Zero { offset: 0, len: 512, fua: true, no_hole: true, fast: true } #7",
        ];
        if style != Style::Simple {
            expected.push("Read { offset: 0, len: 512, df: true } #8");
            expected.push("BlockStatus { offset: 0, len: 1048576, one: true } #9");
        }
        expected.push("Disconnect");
        assert_eq!(server.log, expected, "{style:?}");
        assert_eq!(server.wait, Wait::Closed);
        assert!(server.session.is_finished());
    }
}

/// Every wrong request: the error, nothing for the caller, and the next request is understood.
#[test]
fn wrong_requests_are_refused_and_their_payload_skipped() {
    let (end, far) = (SIZE, u64::MAX - 511);
    #[rustfmt::skip]
    let cases: &[(u16, u16, u64, u64, u32)] = &[
        // Range.
        (NO_FLAGS, READ, end, 512, 22), (NO_FLAGS, READ, end - 512, 1024, 22), (NO_FLAGS, READ, far, 1024, 22),
        (NO_FLAGS, READ, far, 512, 22), (NO_FLAGS, READ, 0, 0, 22),
        (NO_FLAGS, WRITE, end, 512, 28), (NO_FLAGS, WRITE, end - 512, 1024, 28), (NO_FLAGS, WRITE, far, 1024, 28),
        (NO_FLAGS, WRITE, 0, 0, 22),
        (NO_FLAGS, TRIM, end, 512, 22), (NO_FLAGS, TRIM, far, 1024, 22), (NO_FLAGS, TRIM, 512, 0, 22),
        (NO_FLAGS, ZEROES, end, 512, 28), (NO_FLAGS, ZEROES, 512, end, 28), (NO_FLAGS, ZEROES, 0, 0, 22),
        (NO_FLAGS, CACHE, end, 512, 22), (NO_FLAGS, CACHE, 0, 0, 22),
        // Alignment, which a client that asked for block sizes knows.
        (NO_FLAGS, READ, 1, 512, 22), (NO_FLAGS, READ, 0, 511, 22), (NO_FLAGS, READ, 256, 256, 22),
        (NO_FLAGS, WRITE, 1, 512, 22), (NO_FLAGS, WRITE, 0, 100, 22), (NO_FLAGS, TRIM, 511, 1, 22),
        (NO_FLAGS, ZEROES, 0, 513, 22), (NO_FLAGS, CACHE, 8, 512, 22),
        // A flush has no range.
        (NO_FLAGS, FLUSH, 512, 0, 22), (NO_FLAGS, FLUSH, 0, 512, 22),
        // Flags that the command does not have, and commands that do not exist.
        (NO_HOLE, READ, 0, 512, 22), (REQ_ONE, READ, 0, 512, 22), (DF, WRITE, 0, 512, 22), (FAST, TRIM, 0, 512, 22),
        (DF, ZEROES, 0, 512, 22), (DF, FLUSH, 0, 0, 22), (REQ_ONE, CACHE, 0, 512, 22), (0x8000, READ, 0, 512, 22),
        (NO_FLAGS, 8, 0, 512, 22), (NO_FLAGS, 77, 0, 0, 22), (FUA, 0xffff, far, 0xffff_fe00, 22),
    ];
    for style in STYLES {
        let mut server = Server::new();
        server.connect_knowing(style, &[BLOCK_SIZE]);
        for (flags, command, offset, len, error) in cases.iter().copied() {
            let data = if command == WRITE { vec![0x25; len as usize] } else { Vec::new() };
            server.ask(flags, command, 5, offset, len, &data);
            server.ask(NO_FLAGS, FLUSH, 6, 0, 0, b"");
            let case = format!("{style:?} {:?}", (flags, command, offset, len));
            let sent = core::mem::take(&mut server.sent);
            let mut from = &sent[..];
            let reply = take_reply(&mut from, 0);
            assert_eq!((reply.error, reply.cookie, reply.done), (error, 5, true), "{case}");
            assert_eq!(reply.simple, style == Style::Simple, "{case}");
            assert_eq!(reply.offset, if style == Style::Extended { offset } else { 0 }, "{case}");
            let flush = take_reply(&mut from, 0);
            assert_eq!((flush.error, flush.cookie, from.len()), (0, 6, 0), "{case}");
            assert_eq!(core::mem::take(&mut server.log), ["Flush #6"], "{case}");
        }
        assert_eq!(server.error, None);
        assert!(is_zero(&server.volume));
    }
}

/// The protocol: a server must not count on sizes that a client never asked for. Such a client was refused the first
/// bytes of a volume, if it wanted fewer than 512.
#[test]
fn who_did_not_ask_for_block_sizes_may_use_any_bytes() {
    for style in STYLES {
        let mut server = Server::new();
        server.connect_knowing(style, &[0, 1, 2]);
        let mut model = vec![0; SIZE as usize];
        server.ask(NO_FLAGS, WRITE, 1, 4093, 7, &[7; 7]);
        model[4093..4100].fill(7);
        server.ask(NO_FLAGS, WRITE, 2, SIZE - 1, 1, &[9]);
        model[SIZE as usize - 1] = 9;
        server.ask(NO_FLAGS, ZEROES, 3, 4095, 2, b"");
        server.ask(NO_FLAGS, TRIM, 4, 4098, 1, b"");
        model[4095..4097].fill(0);
        model[4098] = 0;
        server.ask(NO_FLAGS, CACHE, 5, 3, 5, b"");
        let sent = core::mem::take(&mut server.sent);
        let mut from = &sent[..];
        for cookie in 1..6 {
            let reply = take_reply(&mut from, 0);
            assert_eq!((reply.cookie, reply.error), (cookie, 0), "{style:?}");
        }
        assert!(server.volume == model, "{style:?}");
        for (offset, len) in [(4090, 20), (0, 1), (SIZE - 3, 3), (4000, 1001)] {
            server.ask(NO_FLAGS, READ, 6, offset, len, b"");
            let sent = core::mem::take(&mut server.sent);
            let expected = model[offset as usize..][..len as usize].to_vec();
            assert_eq!(assemble(&sent, style, offset, len as usize), Ok(expected), "{style:?} {offset}+{len}");
        }
        if style != Style::Simple {
            server.ask(NO_FLAGS, STATUS, 7, 4090, 5, b"");
            assert!(server.replies()[0].ends_with("status 5:0"));
        }
        // The end of the volume is the end all the same.
        server.ask(NO_FLAGS, READ, 8, SIZE - 1, 2, b"");
        let sent = core::mem::take(&mut server.sent);
        assert_eq!(take_reply(&mut &sent[..], 0).error, 22);
    }
}

/// It was asked for in an INFO before, and GO is what the client means now: it knows all the same.
#[test]
fn block_sizes_that_were_asked_for_once_are_known() {
    let mut server = Server::new();
    server.feed(&[hello(), option(6, &go("alpha", &[BLOCK_SIZE])), option(7, &go("alpha", &[]))].concat());
    server.sent.clear();
    server.ask(NO_FLAGS, READ, 1, 0, 100, b"");
    server.ask(NO_FLAGS, READ, 2, 0, 512, b"");
    let sent = core::mem::take(&mut server.sent);
    let mut from = &sent[..];
    assert_eq!([take_reply(&mut from, 0).error, take_reply(&mut from, 512).error], [22, 0]);
}

#[test]
fn what_was_not_agreed_on_is_refused() {
    let mut simple = connected(Style::Simple);
    simple.ask(DF, READ, 1, 0, 512, b"");
    simple.ask(NO_FLAGS, STATUS, 2, 0, 512, b"");
    simple.ask(PAYLOAD, WRITE, 3, 0, 512, &[1; 512]);
    simple.ask(PAYLOAD, READ, 4, 0, 512, b"");
    assert_eq!(simple.replies(), ["#1", "#2", "#3", "#4"].map(|cookie| format!("{cookie} simple error=22")));
    assert!(simple.log.is_empty() && is_zero(&simple.volume));

    // In extended form a payload may follow any command; one that has no use for it is refused, and the payload skipped.
    let mut extended = connected(Style::Extended);
    for command in [READ, FLUSH, TRIM, CACHE, ZEROES, STATUS, 55] {
        extended.feed(&request(Style::Extended, PAYLOAD, command, 1, 0, 512));
        extended.feed(&[0x21; 512]);
        assert_eq!(extended.replies().len(), 1, "{command}");
    }
    // And a write has to have one.
    extended.feed(&request(Style::Extended, NO_FLAGS, WRITE, 2, 0, 512));
    assert_eq!(extended.replies(), ["#2 @0 error=22 a write without payload"]);
    assert!(extended.log.is_empty());
    extended.ask(NO_FLAGS, WRITE, 3, 0, 512, &[1; 512]);
    assert_eq!(extended.replies(), ["#3 @0 none"]);
}

#[test]
fn a_read_only_export_is_not_changed() {
    for style in STYLES {
        let mut alpha = export("alpha");
        alpha.read_only = true;
        let mut server = Server::with(Limits::default(), vec![alpha]);
        server.connect(style);
        for command in [WRITE, TRIM, ZEROES] {
            let data = if command == WRITE { vec![1; 512] } else { Vec::new() };
            server.ask(NO_FLAGS, command, 1, 0, 512, &data);
            let sent = core::mem::take(&mut server.sent);
            assert_eq!(take_reply(&mut &sent[..], 0).error, 1);
        }
        assert!(server.log.is_empty());
        server.ask(NO_FLAGS, FLUSH, 1, 0, 0, b"");
        server.ask(NO_FLAGS, CACHE, 1, 0, 512, b"");
        server.ask(NO_FLAGS, READ, 1, 0, 512, b"");
        assert_eq!(server.log.len(), 3);
    }
}

#[test]
fn reads_over_the_limit_may_be_asked_again_in_parts() {
    for (style, error) in [(Style::Simple, 22), (Style::Structured, 75), (Style::Extended, 75)] {
        let mut alpha = export("alpha");
        alpha.size = 1 << 40;
        let mut server = Server::with(Limits::default(), vec![alpha]);
        server.connect(style);
        server.hold = Some(Vec::new());
        for len in [(32 << 20) + 512, 0xffff_fe00] {
            server.ask(NO_FLAGS, READ, 1, 0, len, b"");
            let sent = core::mem::take(&mut server.sent);
            assert_eq!(take_reply(&mut &sent[..], 0).error, error);
        }
        server.ask(NO_FLAGS, READ, 2, 0, 32 << 20, b"");
        server.ask(NO_FLAGS, TRIM, 3, 0, 0xffff_fe00, b"");
        assert_eq!(
            server.log,
            ["Read { offset: 0, len: 33554432, df: false } #2", "Trim { offset: 0, len: 4294966784, fua: false } #3"]
        );
    }
}

#[test]
fn extended_requests_reach_beyond_32_bits() {
    let mut alpha = export("alpha");
    alpha.size = 1 << 60;
    let mut server = Server::with(Limits::default(), vec![alpha]);
    server.connect(Style::Extended);
    server.hold = Some(Vec::new());
    server.ask(NO_FLAGS, ZEROES, 1, 0, 1 << 60, b"");
    server.ask(NO_FLAGS, STATUS, 2, 1 << 40, 1 << 50, b"");
    let mut held = server.hold.take().unwrap();
    assert_eq!(held[0].1, Op::Zero { offset: 0, len: 1 << 60, fua: false, no_hole: false, fast: false });
    let extents = [Extent::hole(1 << 48), Extent::data(u64::MAX), Extent::data(u64::MAX)];
    server.session.reply_block_status(held.pop().unwrap().0, &extents);
    server.drain();
    let rest = (1u64 << 50) - (1 << 48);
    assert_eq!(server.replies(), [format!("#2 @1099511627776 status 281474976710656:3 {rest}:0")]);
}

#[test]
fn block_status_joins_cuts_and_always_progresses() {
    let cases: [(u16, u64, &[Extent], &str); 7] = [
        (NO_FLAGS, 4096, &[Extent::hole(1024), Extent::hole(1024), Extent::data(2048)], "2048:3 2048:0"),
        (NO_FLAGS, 4096, &[Extent::data(512), Extent::hole(1 << 40)], "512:0 3584:3"),
        (REQ_ONE, 4096, &[Extent::data(512), Extent::data(512), Extent::hole(3072)], "1024:0"),
        (REQ_ONE, 4096, &[Extent::hole(u64::MAX), Extent::hole(u64::MAX)], "4096:3"),
        (NO_FLAGS, 4096, &[], "4096:0"),
        (NO_FLAGS, 4096, &[Extent::data(0), Extent::hole(0)], "4096:0"),
        (NO_FLAGS, 4096, &[Extent::hole(0), Extent::data(512), Extent::hole(0), Extent::data(512)], "1024:0"),
    ];
    for style in [Style::Structured, Style::Extended] {
        for (flags, len, extents, expected) in cases {
            let (mut server, ticket) = held(style, flags, STATUS, 0, len);
            server.session.reply_block_status(ticket, extents);
            server.drain();
            assert!(server.replies()[0].ends_with(&format!("status {expected}")), "{extents:?}");
        }
        let mut alpha = export("alpha");
        alpha.size = 1 << 30;
        let mut server = Server::with(Limits::default(), vec![alpha]);
        server.connect(style);
        server.hold = Some(Vec::new());
        server.ask(NO_FLAGS, STATUS, 1, 0, 1 << 30, b"");
        let many: Vec<Extent> =
            (0..100_000).map(|n| if n % 2 == 0 { Extent::data(512) } else { Extent::hole(512) }).collect();
        let ticket = server.hold.take().unwrap().pop().unwrap().0;
        server.session.reply_block_status(ticket, &many);
        server.drain();
        assert_eq!(server.replies()[0].matches(':').count(), limits::BLOCK_STATUS_EXTENTS_MAX);
    }
}

#[test]
fn read_pieces_become_as_few_chunks_as_make_sense() {
    let data = |len: usize| ReadPiece::Data(Bytes::from(vec![1; len]));
    let zero = ReadPiece::Zero;
    #[rustfmt::skip]
    let cases: Vec<(u16, Vec<ReadPiece>, Vec<&str>)> = vec![
        (NO_FLAGS, vec![data(4096), data(4096)], vec!["data 4096+8192"]),
        (NO_FLAGS, vec![zero(512)], vec!["hole 4096+512"]),
        (NO_FLAGS, vec![zero(4096), zero(4096)], vec!["hole 4096+8192"]),
        (DF, vec![zero(4096), zero(4096)], vec!["hole 4096+8192"]),
        (DF, vec![zero(4096), data(512), zero(8192)], vec!["data 4096+12800"]),
        (NO_FLAGS, vec![zero(512), data(512), zero(3584), data(512)], vec!["data 4096+5120"]),
        (NO_FLAGS, vec![zero(2048), zero(2048), data(512), zero(4096)],
            vec!["hole 4096+4096 ...", "data 8192+512 ...", "hole 8704+4096"]),
        (NO_FLAGS, vec![data(512), zero(2048), data(0), zero(2048), data(512), zero(512)],
            vec!["data 4096+512 ...", "hole 4608+4096 ...", "data 8704+1024"]),
        (NO_FLAGS, vec![data(0), zero(0), data(512), zero(0)], vec!["data 4096+512"]),
    ];
    for (flags, pieces, expected) in cases {
        let len: u64 = pieces.iter().map(ReadPiece::len).sum();
        let (mut server, ticket) = held(Style::Structured, flags, READ, 4096, len);
        let mut given = pieces.clone();
        server.session.reply_read(ticket, &mut given);
        server.drain();
        let sent = server.sent.clone();
        assert_eq!(
            server.replies(),
            expected.iter().map(|line| format!("#9 {line}")).collect::<Vec<_>>(),
            "{pieces:?}"
        );
        assert_eq!(assemble(&sent, Style::Structured, 4096, len as usize), Ok(flat(&pieces)));

        let (mut server, ticket) = held(Style::Simple, NO_FLAGS, READ, 4096, len);
        server.session.reply_read(ticket, &mut pieces.clone());
        server.drain();
        assert_eq!(assemble(&server.sent, Style::Simple, 4096, len as usize), Ok(flat(&pieces)));
    }
}

fn flat(pieces: &[ReadPiece]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in pieces {
        match piece {
            ReadPiece::Data(data) => bytes.extend_from_slice(data),
            ReadPiece::Zero(count) => bytes.resize(bytes.len() + *count as usize, 0),
        }
    }
    bytes
}

/// What a client makes of the reply to one read: the data, or the error. Every byte must come exactly once.
fn assemble(sent: &[u8], style: Style, offset: u64, len: usize) -> Result<Vec<u8>, u32> {
    let mut from = sent;
    let mut data = vec![None; len];
    let mut error = 0;
    loop {
        let reply = take_reply(&mut from, len);
        assert_eq!(reply.simple, style == Style::Simple, "a read is answered in the form agreed on");
        error = error.max(reply.error);
        let (at, bytes) = match reply.kind {
            _ if reply.simple => (offset, reply.data),
            1 => ((&reply.data[..]).get_u64(), reply.data[8..].to_vec()),
            2 => ((&reply.data[..]).get_u64(), vec![0; (&reply.data[8..]).get_u32() as usize]),
            _ => (offset, Vec::new()),
        };
        for (place, byte) in data[(at - offset) as usize..].iter_mut().zip(&bytes) {
            assert_eq!(place.replace(*byte), None, "a byte comes twice");
        }
        if reply.done {
            assert!(from.is_empty(), "something follows the last chunk");
            break;
        }
    }
    if error != 0 { Err(error) } else { Ok(data.into_iter().map(|byte| byte.expect("a byte is missing")).collect()) }
}

#[test]
fn payloads_are_not_copied() {
    let mut server = connected(Style::Structured);
    server.hold = Some(Vec::new());
    let mut bytes = request(Style::Structured, NO_FLAGS, WRITE, 1, 0, 4096);
    bytes.extend(vec![3; 4096]);
    server.input.reserve(1 << 16);
    server.input.extend_from_slice(&bytes);
    let place = server.input[28..].as_ptr();
    server.pump();
    let (ticket, op) = server.hold.as_mut().unwrap().pop().unwrap();
    let Op::Write { data, .. } = op else { panic!("{op:?}") };
    assert_eq!(data.as_ptr(), place);
    server.session.reply_ok(ticket);

    server.ask(NO_FLAGS, READ, 2, 0, 4096, b"");
    let ticket = server.hold.as_mut().unwrap().pop().unwrap().0;
    server.session.reply_read(ticket, &mut [data.into()]);
    let pieces = server.session.output().take_pieces();
    assert_eq!((pieces.len(), pieces[1].as_ptr()), (2, place));
}

/// A payload is looked at when it is complete, and until then the session says exactly how much is missing.
#[test]
fn a_large_write_says_how_much_is_missing() {
    let mut server = Server::new();
    server.exports[0].size = 1 << 30;
    server.connect(Style::Simple);
    server.hold = Some(Vec::new());
    let len = 32 << 20;
    server.feed(&request(Style::Simple, NO_FLAGS, WRITE, 1, 0, len));
    assert_eq!(server.wait, Wait::Bytes(len as usize));
    server.feed(&vec![1; 1 << 20]);
    assert_eq!(server.wait, Wait::Bytes(31 << 20));
    server.feed(&vec![1; 31 << 20]);
    assert_eq!(server.log.len(), 1);
    assert_eq!((server.session.in_flight(), server.session.in_flight_bytes()), (1, 32 << 20));
}

#[test]
fn a_payload_over_the_limit_ends_the_session() {
    for style in STYLES {
        let lens = [(32 << 20) + 1, (32 << 20) + 512, u64::from(u32::MAX), u64::MAX, u64::MAX - 31];
        for len in lens {
            if style != Style::Extended && len > u64::from(u32::MAX) {
                continue;
            }
            for offset in [0, 512, u64::MAX] {
                let mut server = connected(style);
                server.ask(NO_FLAGS, WRITE, 1, offset, len, b"the beginning");
                assert_eq!(server.error, Some(SessionError::PayloadTooLong { len }));
                let sent = core::mem::take(&mut server.sent);
                assert_eq!(take_reply(&mut &sent[..], 0).error, 22);
                assert!(server.log.is_empty() && server.wanted_max <= 64);
                server.feed(&[0; 100]);
                assert!(server.sent.is_empty());
            }
        }
    }
}

#[test]
fn a_request_without_its_magic_ends_the_session() {
    for style in STYLES {
        let mut server = connected(style);
        let other = if style == Style::Extended { Style::Simple } else { Style::Extended };
        let mut bytes = request(other, NO_FLAGS, FLUSH, 1, 0, 0);
        bytes.resize(32, 0);
        server.feed(&bytes);
        assert!(matches!(server.error, Some(SessionError::RequestMagic(_))));
        assert!(server.log.is_empty() && server.sent.is_empty());
    }
}

#[test]
fn the_window_stops_the_reading_of_requests() {
    let limits = Limits { requests_max: 4, window_bytes_max: 64 << 10, ..Limits::default() };
    let mut server = Server::with(limits, vec![export("alpha")]);
    server.connect(Style::Simple);
    server.hold = Some(Vec::new());
    for cookie in 0..6 {
        server.ask(NO_FLAGS, FLUSH, cookie, 0, 0, b"");
    }
    assert_eq!((server.log.len(), server.session.in_flight(), server.wait), (4, 4, Wait::Window));
    assert_eq!(server.session.wanted(), 0);
    let first = server.hold.as_mut().unwrap().remove(0).0;
    server.session.reply_ok(first);
    server.pump();
    assert_eq!((server.log.len(), server.session.in_flight(), server.wait), (5, 4, Wait::Window));
    for (ticket, _) in server.hold.replace(Vec::new()).unwrap() {
        server.session.reply_ok(ticket);
    }
    server.pump();
    for (ticket, _) in server.hold.replace(Vec::new()).unwrap() {
        server.session.reply_ok(ticket);
    }
    assert_eq!(server.session.in_flight(), 0);

    // Bytes: the second request would fit, the third would not, and a small one waits behind it.
    server.pump();
    server.log.clear();
    server.ask(NO_FLAGS, READ, 1, 0, 32 << 10, b"");
    server.ask(NO_FLAGS, WRITE, 2, 0, 16 << 10, &[1; 16 << 10]);
    server.ask(NO_FLAGS, READ, 3, 0, 32 << 10, b"");
    server.ask(NO_FLAGS, READ, 4, 0, 512, b"");
    assert_eq!((server.log.len(), server.session.in_flight_bytes(), server.wait), (2, 48 << 10, Wait::Window));
    // A reply that is not sent counts as before.
    server.hold_output = true;
    let (ticket, _) = server.hold.as_mut().unwrap().remove(0);
    server.session.reply_read(ticket, &mut [ReadPiece::Zero(32 << 10)]);
    server.pump();
    assert_eq!((server.log.len(), server.wait), (2, Wait::Window));
    server.drain();
    server.pump();
    assert_eq!(
        (server.log.len(), server.session.in_flight_bytes(), server.wait),
        (4, (48 << 10) + 512, Wait::Bytes(28))
    );
}

#[test]
fn an_idle_connection_lets_the_largest_request_in() {
    let limits = Limits { window_bytes_max: 4096, ..Limits::default() };
    let mut server = Server::with(limits, vec![export("alpha")]);
    server.connect(Style::Structured);
    server.ask(NO_FLAGS, READ, 1, 0, SIZE, b"");
    server.ask(NO_FLAGS, WRITE, 2, 0, SIZE, &vec![1; SIZE as usize]);
    server.ask(NO_FLAGS, READ, 3, 0, SIZE, b"");
    assert_eq!(server.replies(), ["#1 hole 0+1048576", "#2 simple error=0", "#3 data 0+1048576"]);
}

/// Refused requests never reach the caller, but their answers do not pile up either.
#[test]
fn a_client_that_does_not_take_errors_is_not_read() {
    let limits = Limits { window_bytes_max: 1 << 16, ..Limits::default() };
    let mut server = Server::with(limits, vec![export("alpha")]);
    server.connect(Style::Structured);
    server.hold_output = true;
    let bad = request(Style::Structured, 0xfff0, READ, 1, 0, 0);
    server.feed(&bad.repeat(10_000));
    assert_eq!(server.wait, Wait::Window);
    assert!(server.session.output().len() < (1 << 16) + 400);
    assert!(!server.input.is_empty());
}

#[test]
fn many_requests_come_from_one_buffer() {
    let mut server = connected(Style::Simple);
    let mut bytes = Vec::new();
    for n in 0..500u64 {
        bytes.extend(request(Style::Simple, NO_FLAGS, WRITE, n, n * 512, 512));
        bytes.extend([n as u8; 512]);
    }
    server.hold_output = true;
    server.feed(&bytes);
    assert_eq!(server.log.len(), 500);
    let pieces = server.session.output().take_pieces();
    assert_eq!((pieces.len(), pieces[0].len()), (1, 500 * 16), "answers without data are one piece");
    assert_eq!(server.volume[499 * 512], 243);
}

#[test]
fn equal_cookies_are_the_clients_business() {
    let mut server = connected(Style::Simple);
    server.hold = Some(Vec::new());
    server.ask(NO_FLAGS, FLUSH, 1, 0, 0, b"");
    server.ask(NO_FLAGS, TRIM, 1, 0, 512, b"");
    let mut held = server.hold.take().unwrap();
    server.session.reply_error(held.pop().unwrap().0, NbdErrno::Io);
    server.session.reply_ok(held.pop().unwrap().0);
    server.drain();
    assert_eq!(server.replies(), ["#1 simple error=5", "#1 simple error=0"]);
}

#[test]
fn requests_in_flight_are_answered_after_the_good_bye() {
    let mut server = connected(Style::Simple);
    server.hold = Some(Vec::new());
    server.ask(NO_FLAGS, FLUSH, 1, 0, 0, b"");
    server.ask(NO_FLAGS, DISC, 2, 0, 0, b"");
    server.ask(NO_FLAGS, FLUSH, 3, 0, 0, b"");
    assert_eq!(server.log, ["Flush #1", "Disconnect"]);
    assert!(!server.session.is_finished());
    server.session.reply_ok(server.hold.take().unwrap().pop().unwrap().0);
    assert!(!server.session.is_finished());
    server.drain();
    assert_eq!(server.replies(), ["#1 simple error=0"]);
    assert!(server.session.is_finished());
}

#[test]
fn a_server_that_goes_down_answers_what_it_has() {
    for style in STYLES {
        let mut server = connected(style);
        server.hold = Some(Vec::new());
        server.ask(NO_FLAGS, FLUSH, 1, 0, 0, b"");
        server.session.shut_down();
        server.ask(NO_FLAGS, WRITE, 2, 0, 512, &[1; 512]);
        server.session.reply_ok(server.hold.take().unwrap().pop().unwrap().0);
        server.ask(NO_FLAGS, DISC, 3, 0, 0, b"");
        let sent = core::mem::take(&mut server.sent);
        let mut from = &sent[..];
        let replies = [take_reply(&mut from, 0), take_reply(&mut from, 0)];
        assert_eq!(replies.map(|reply| (reply.cookie, reply.error)), [(2, 108), (1, 0)]);
        assert_eq!(server.log, ["Flush #1", "Disconnect"]);
    }
}

#[test]
fn a_resize_moves_the_end() {
    let mut server = connected(Style::Simple);
    server.session.resize(4096 + 100);
    server.ask(NO_FLAGS, READ, 1, 4096, 512, b"");
    assert_eq!(server.replies(), ["#1 simple error=22"]);
    server.session.resize(8192);
    server.ask(NO_FLAGS, TRIM, 1, 4096, 4096, b"");
    assert_eq!(server.replies(), ["#1 simple error=0"]);
}

#[test]
#[should_panic(expected = "don't make up its length")]
fn a_read_answered_too_short_is_our_bug() {
    let (mut server, ticket) = held(Style::Simple, NO_FLAGS, READ, 0, 1024);
    server.session.reply_read(ticket, &mut [ReadPiece::Zero(512)]);
}

#[test]
#[should_panic(expected = "the answer to this request has data")]
fn a_read_answered_without_data_is_our_bug() {
    let (mut server, ticket) = held(Style::Simple, NO_FLAGS, READ, 0, 1024);
    server.session.reply_ok(ticket);
}

/// A canary: the client's own check must notice a server that leaves bytes out.
#[test]
#[should_panic(expected = "a byte is missing")]
fn the_test_client_notices_missing_bytes() {
    let (mut server, ticket) = held(Style::Structured, NO_FLAGS, READ, 0, 1024);
    server.session.reply_read(ticket, &mut [ReadPiece::Zero(1024)]);
    server.drain();
    // The hole's length: 1024 becomes 512.
    let place = server.sent.len() - 2;
    server.sent[place] = 2;
    let _ = assemble(&server.sent, Style::Structured, 0, 1024);
}

#[test]
fn events_go_on_after_each_answer() {
    // The caller may answer within the loop or much later; the step after GO is told before the first request.
    let mut server = Server::new();
    let mut script = [hello(), option(7, &go("alpha", &[]))].concat();
    script.extend(request(Style::Simple, NO_FLAGS, FLUSH, 1, 0, 0));
    server.hold_answers = true;
    server.feed(&script);
    let answer = server.look_up("alpha");
    server.session.export(answer);
    assert!(!server.session.in_handshake());
    let step = server.session.receive(&mut server.input);
    assert!(matches!(step, Ok(Step::Event(Event::Go { name })) if name == "alpha"));
    let step = server.session.receive(&mut server.input);
    assert!(matches!(step, Ok(Step::Event(Event::Request { op: Op::Flush, .. }))));
}

/// Information that a client asks for, and the unit of its places and lengths then.
const UNITS: [(&[u16], u64); 3] = [(&[BLOCK_SIZE], 512), (&[], 1), (&[], 509)];

/// One request of the model run: command, flags, offset and length in units, filling.
fn model_request() -> impl Strategy<Value = (u16, u16, u64, u64, u8)> {
    let command = prop_oneof![
        3 => (Just(READ), prop_oneof![Just(NO_FLAGS), Just(DF), Just(FUA)]),
        3 => (Just(WRITE), prop_oneof![Just(NO_FLAGS), Just(FUA)]),
        1 => (Just(TRIM), prop_oneof![Just(NO_FLAGS), Just(FUA)]),
        1 => (Just(ZEROES), prop_oneof![Just(NO_FLAGS), Just(NO_HOLE), Just(FAST), Just(NO_HOLE | FAST)]),
        1 => (Just(STATUS), prop_oneof![Just(NO_FLAGS), Just(REQ_ONE)]),
        1 => (Just(FLUSH), Just(NO_FLAGS)),
    ];
    (command, 0..70u64, 1..40u64, any::<u8>())
        .prop_map(|((command, flags), at, len, fill)| (command, flags, at, len, fill))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// In every form of reply a client sees the same volume as a plain vector of bytes.
    #[test]
    fn a_client_sees_a_plain_volume(
        style in prop::sample::select(&STYLES[..]),
        (infos, unit) in prop::sample::select(&UNITS[..]),
        requests in prop::collection::vec(model_request(), 1..60),
    ) {
        let mut server = Server::new();
        server.connect_knowing(style, infos);
        server.exports[0].size = SIZE;
        server.session.resize(64 * 512);
        let mut model = vec![0u8; 64 * 512];
        for (cookie, (command, flags, at, len, fill)) in requests.into_iter().enumerate() {
            let flags = if style == Style::Simple && flags == DF { NO_FLAGS } else { flags };
            let (offset, bytes) = if command == FLUSH { (0, 0) } else { (at * unit, len * unit) };
            let data = if command == WRITE { vec![fill; bytes as usize] } else { Vec::new() };
            server.ask(flags, command, cookie as u64, offset, bytes, &data);
            let sent = core::mem::take(&mut server.sent);
            let fits = (at + len) * unit <= 64 * 512;
            if command == READ {
                let expected = if fits { Ok(model[offset as usize..][..bytes as usize].to_vec()) } else { Err(22) };
                prop_assert_eq!(assemble(&sent, style, offset, bytes as usize), expected);
                continue;
            }
            let mut from = &sent[..];
            let reply = take_reply(&mut from, 0);
            prop_assert!(from.is_empty() && reply.done && reply.cookie == cookie as u64);
            let expected = match command {
                FLUSH => 0,
                STATUS if style == Style::Simple => 22,
                WRITE | ZEROES if !fits => 28,
                _ if !fits => 22,
                ZEROES if flags == NO_HOLE | FAST => 95,
                _ => 0,
            };
            prop_assert_eq!(reply.error, expected);
            if expected != 0 || command == FLUSH {
                continue;
            }
            let range = offset as usize..(offset + bytes) as usize;
            match command {
                STATUS => prop_assert_eq!(extents(reply.kind, &reply.data), naive_extents(&model[range], flags == REQ_ONE)),
                WRITE => model[range].fill(fill),
                _ => model[range].fill(0),
            }
        }
        prop_assert_eq!(server.session.in_flight(), 0);
    }
}

fn naive_extents(data: &[u8], one: bool) -> String {
    let mut runs: Vec<(usize, u8)> = Vec::new();
    for sector in data.chunks(512) {
        let state = if is_zero(sector) { 3 } else { 0 };
        match runs.last_mut() {
            Some((len, before)) if *before == state => *len += sector.len(),
            _ => runs.push((sector.len(), state)),
        }
    }
    runs.truncate(if one { 1 } else { usize::MAX });
    let runs = runs.iter().map(|(len, state)| format!("{len}:{state}"));
    std::iter::once("status".to_owned()).chain(runs).collect::<Vec<_>>().join(" ")
}
