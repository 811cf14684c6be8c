//! Each option, as a script: what the client sends, what the caller is asked, what the client hears.

use crate::common::*;
use freebs_nbd::{ExportInfo, Limits, Refusal, RefusalReason, SessionError, Wait, limits};

/// Options by number, with their data.
type Options<'a> = &'a [(u32, Vec<u8>)];

/// A server past the client's flags, with its greeting read.
fn greeted(exports: &[&str]) -> Server {
    let mut server = Server::with(Limits::default(), exports.iter().map(|name| export(name)).collect());
    assert_eq!(server.sent.len(), 18);
    server.sent.clear();
    server.feed(&hello());
    server
}

fn sizes() -> &'static str {
    "sizes 512 4096 33554432"
}

#[test]
fn the_greeting_is_golden() {
    let mut server = Server::new();
    assert_eq!(server.sent, b"NBDMAGICIHAVEOPT\0\x03");
    assert_eq!(server.wait, Wait::Bytes(4));
    server.sent.clear();
    server.feed(&[0, 0, 0, 3]);
    assert_eq!(server.wait, Wait::Bytes(16));
    assert!(server.sent.is_empty() && server.session.in_handshake());
}

#[test]
fn replies_to_options_are_golden() {
    let mut server = greeted(&["alpha"]);
    server.feed(&option(8, b""));
    let magic = [0, 0x03, 0xe8, 0x89, 0x04, 0x55, 0x65, 0xa9];
    assert_eq!(server.sent, [&magic[..], &[0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0]].concat());
    server.sent.clear();

    server.feed(&option(7, &go("alpha", &[])));
    let export = [
        &magic[..],
        &[0, 0, 0, 7, 0, 0, 0, 3, 0, 0, 0, 12, 0, 0],
        &SIZE.to_be_bytes(),
        // Flags: has-flags, flush, FUA, trim, zeroes, DF, multi-conn, cache, fast zero.
        &[0x0d, 0xed],
    ]
    .concat();
    let block_size =
        [&magic[..], &[0, 0, 0, 7, 0, 0, 0, 3, 0, 0, 0, 14, 0, 3], &[0, 0, 2, 0, 0, 0, 0x10, 0, 2, 0, 0, 0]].concat();
    let ack = [&magic[..], &[0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0]].concat();
    assert_eq!(server.sent, [export, block_size, ack].concat());
    assert_eq!(server.log, [r#"Lookup { name: "alpha", purpose: Go }"#, r#"Go { name: "alpha" }"#]);
    assert!(!server.session.in_handshake());
}

#[test]
fn export_name_is_golden_with_and_without_padding() {
    for (flags, padding) in [(1, 124), (3, 0), (0, 124), (2, 0)] {
        let mut server = Server::new();
        server.sent.clear();
        server.feed(&[0, 0, 0, flags]);
        server.feed(&option(1, b"alpha"));
        let mut golden = SIZE.to_be_bytes().to_vec();
        golden.extend([0x0d, 0x6d]);
        golden.extend(vec![0; padding]);
        assert_eq!(server.sent, golden);
        assert_eq!(server.log, [r#"Lookup { name: "alpha", purpose: ExportName }"#, r#"Go { name: "alpha" }"#]);
    }
}

#[test]
fn the_empty_name_is_the_only_export() {
    for number in [1, 6, 7] {
        let data = if number == 1 { Vec::new() } else { go("", &[]) };
        let mut one = greeted(&["alpha"]);
        one.feed(&option(number, &data));
        assert_eq!(one.error, None);
        if number != 1 {
            // The canonical name is told, since the client does not know it.
            assert!(one.options().contains(&format!("{number}: name alpha")));
        }
        let mut two = greeted(&["alpha", "beta"]);
        two.feed(&option(number, &data));
        if number == 1 {
            assert_eq!(two.error, Some(SessionError::ExportRefused));
        } else {
            assert_eq!(two.options(), [format!("{number}: error 6 no such volume")]);
        }
    }
}

#[test]
fn info_tells_what_is_asked_and_the_handshake_goes_on() {
    let mut server = greeted(&["alpha", "beta"]);
    server.feed(&option(6, &go("beta", &[1, 2, 3, 0, 77, 1])));
    let lines = ["6: export 1048576 0x0d6d", &format!("6: {}", sizes()), "6: name beta", "6: description volume beta"];
    assert_eq!(server.options(), [&lines[..], &["6: ack"]].concat());
    assert!(server.session.in_handshake());
    server.feed(&option(6, &go("gamma", &[])));
    assert_eq!(server.options(), ["6: error 6 no such volume"]);
    server.feed(&option(7, &go("gamma", &[])));
    assert_eq!(server.options(), ["7: error 6 no such volume"]);
    server.feed(&option(7, &go("alpha", &[3])));
    assert_eq!(server.options(), ["7: export 1048576 0x0d6d", &format!("7: {}", sizes()), "7: ack"]);
    assert_eq!(server.log.last().unwrap(), r#"Go { name: "alpha" }"#);
}

#[test]
fn flags_follow_the_export() {
    let mut read_only = export("alpha");
    read_only.read_only = true;
    read_only.multi_conn = false;
    read_only.description.clear();
    read_only.size = 4096 + 511;
    let mut server = Server::with(Limits::default(), vec![read_only]);
    server.sent.clear();
    server.feed(&[hello(), option(11, b""), option(6, &go("alpha", &[2]))].concat());
    // Has-flags, read-only, flush, FUA, DF, cache; only whole sectors; no empty description.
    assert_eq!(server.options(), ["11: ack", "6: export 4096 0x048f", &format!("6: {}", sizes()), "6: ack"]);
}

#[test]
fn list_names_every_export() {
    let mut server = greeted(&["alpha", "beta"]);
    server.feed(&option(3, b""));
    assert_eq!(server.options(), ["3: server alpha (volume alpha)", "3: server beta (volume beta)", "3: ack"]);
    server.exports.clear();
    server.feed(&option(3, b""));
    assert_eq!(server.options(), ["3: ack"]);
    server.feed(&option(3, b"data"));
    assert_eq!(server.options(), ["3: error 3 this option has no data"]);
}

#[test]
fn a_list_is_cut_at_its_limits_and_says_so() {
    let text = "x".repeat(4096);
    for (count, description, expected) in
        [(limits::LIST_EXPORTS_MAX + 5, "", limits::LIST_EXPORTS_MAX), (1000, &text[..], limits::LIST_BYTES_MAX / 4125)]
    {
        let mut server = greeted(&[]);
        server.hold_answers = true;
        server.feed(&option(3, b""));
        server.session.list((0..count).map(|_| ("name", description)));
        assert!(server.session.output().len() <= limits::LIST_BYTES_MAX + 100);
        server.drain();
        let lines = server.options();
        assert_eq!(lines.len(), expected + 1);
        assert_eq!(lines.last().unwrap(), "3: error 9 there are more exports than can be listed");
    }
}

#[test]
fn refusals_have_their_codes() {
    for (reason, code) in [
        (RefusalReason::Unknown, 6),
        (RefusalReason::Policy, 2),
        (RefusalReason::TlsRequired, 5),
        (RefusalReason::Shutdown, 7),
    ] {
        let mut server = greeted(&["alpha"]);
        server.hold_answers = true;
        server.feed(&option(8, b""));
        server.sent.clear();
        for (number, data) in [(6, go("alpha", &[])), (7, go("alpha", &[])), (9, meta("alpha", &[]))] {
            server.feed(&option(number, &data));
            server.session.export(Err(Refusal::new(reason, "why")));
            server.pump();
            assert_eq!(server.options(), [format!("{number}: error {code} why")]);
        }
        server.feed(&option(3, b""));
        server.session.refuse_list(&Refusal::new(reason, "é".repeat(1000)));
        server.pump();
        assert_eq!(server.options(), [format!("3: error {code} {}", "é".repeat(128))]);
    }
}

#[test]
fn nothing_is_parsed_while_an_answer_is_open() {
    let mut server = greeted(&["alpha"]);
    server.hold_answers = true;
    server.feed(&[option(6, &go("alpha", &[])), option(3, b""), option(8, b"")].concat());
    assert_eq!(server.wait, Wait::Answer);
    assert_eq!(server.log.len(), 1);
    assert!(server.sent.is_empty());
    server.pump();
    assert_eq!((server.wait, server.log.len()), (Wait::Answer, 1));
    let answer = server.look_up("alpha");
    server.session.export(answer);
    server.pump();
    assert_eq!((server.wait, server.log.len()), (Wait::Answer, 2));
    server.session.list([]);
    server.pump();
    assert_eq!(server.options().last().unwrap(), "8: ack");
}

#[test]
fn abort_is_acknowledged_and_ends() {
    for data in [&b""[..], b"some data that is ignored"] {
        let mut server = greeted(&["alpha"]);
        server.feed(&option(2, data));
        assert_eq!(server.options(), ["2: ack"]);
        assert_eq!((server.wait, server.error), (Wait::Closed, None));
        assert_eq!(server.log, ["Disconnect"]);
        assert!(server.session.is_finished());
        server.feed(&option(3, b""));
        assert!(server.sent.is_empty() && server.input.is_empty());
    }
}

#[test]
fn options_without_data_refuse_data() {
    let mut server = greeted(&["alpha"]);
    for number in [3, 8, 11] {
        server.feed(&option(number, b"x"));
        assert_eq!(server.options(), [format!("{number}: error 3 this option has no data")]);
    }
    server.feed(&option(7, &go("alpha", &[])));
    assert_eq!(server.options()[0], "7: export 1048576 0x0d6d", "neither took effect");
}

#[test]
fn extended_headers_come_before_structured_replies() {
    let mut server = greeted(&["alpha"]);
    server.feed(&[option(8, b""), option(8, b""), option(11, b""), option(11, b""), option(8, b"")].concat());
    assert_eq!(
        server.options(),
        ["8: ack", "8: ack", "11: ack", "11: ack", "8: error 10 extended headers are agreed on"]
    );
    server.feed(&option(1, b"alpha"));
    assert_eq!(server.error, Some(SessionError::ExportRefused));
}

#[test]
fn meta_contexts_are_listed_and_chosen() {
    let mut server = greeted(&["alpha"]);
    server.feed(&[option(9, &meta("alpha", &[])), option(10, &meta("alpha", &[]))].concat());
    assert_eq!(
        server.options(),
        ["9: error 3 ask for structured replies first", "10: error 3 ask for structured replies first"]
    );
    server.feed(&option(8, b""));
    server.sent.clear();
    for (number, queries, selected) in [
        (9, &[][..], true),
        (9, &["base:"], true),
        (9, &["base:allocation"], true),
        (9, &["qemu:", "base:alloc", "nonsense"], false),
        (10, &[], false),
        (10, &["base:"], false),
        (10, &["base:allocation"], true),
        (10, &["x-other:thing", "base:allocation", "base:allocation"], true),
        (10, &["base:allocation "], false),
    ] {
        server.feed(&option(number, &meta("alpha", queries)));
        let id = if number == 10 { 1 } else { 0 };
        let mut expected = vec![format!("{number}: context {id} base:allocation"); usize::from(selected)];
        expected.push(format!("{number}: ack"));
        assert_eq!(server.options(), expected, "{number} {queries:?}");
    }
    server.feed(&option(10, &meta("gamma", &["base:allocation"])));
    assert_eq!(server.options(), ["10: error 6 no such volume"]);
    server.feed(&option(10, &meta("alpha", &["base:allocation"; 65])));
    assert_eq!(server.options(), ["10: error 9 too many queries"]);
}

/// Of exports that can tell what changed, each earlier one is a context; a connection chooses one of them.
#[test]
fn changes_since_an_earlier_export_are_a_context() {
    let all = ["monday", "tuesday"].map(String::from).to_vec();
    let exports = vec![ExportInfo { changed_since: all, ..export("alpha") }, export("beta")];
    let choose = |queries: &[&str], name: &str| {
        let mut server = Server::with(Limits::default(), exports.clone());
        server.feed(&[hello(), option(8, b"")].concat());
        server.sent.clear();
        server.feed(&option(10, &meta(name, queries)));
        let chosen = server.options();
        server.feed(&option(7, &go(name, &[])));
        server.sent.clear();
        server.style = Style::Structured;
        server.feed(&[]);
        server.ask(NO_FLAGS, 7, 1, 0, 4096, b"");
        (chosen, server.replies().join(" "), server.session.changed_since().map(str::to_owned))
    };
    let (monday, tuesday) = ("freebs:changed-since:monday", "freebs:changed-since:tuesday");
    let (chosen, reply, since) = choose(&[tuesday, "base:allocation"], "alpha");
    assert_eq!(chosen, ["10: context 1 base:allocation", "10: context 2 freebs:changed-since:tuesday", "10: ack"]);
    assert_eq!(reply, "#1 status 4096:3 ... #1 changed 4096:1");
    assert_eq!(since.as_deref(), Some("tuesday"));
    let (chosen, reply, since) = choose(&[tuesday, monday], "alpha");
    assert_eq!(chosen, ["10: context 2 freebs:changed-since:monday", "10: ack"], "one of them");
    assert_eq!((reply.as_str(), since.as_deref()), ("#1 changed 4096:1", Some("monday")));
    for (queries, name) in
        [(&["freebs:changed-since:friday"][..], "alpha"), (&["freebs:"], "alpha"), (&[monday], "beta")]
    {
        let (chosen, reply, since) = choose(queries, name);
        assert_eq!((chosen, since), (vec!["10: ack".to_owned()], None), "{queries:?}");
        assert_eq!(reply, "#1 error=22 no meta context was chosen");
    }
    let mut server = Server::with(Limits::default(), exports.clone());
    server.feed(&[hello(), option(8, b"")].concat());
    let own = ["9: context 0 freebs:changed-since:monday", "9: context 0 freebs:changed-since:tuesday", "9: ack"];
    for queries in [&["freebs:"][..], &["freebs:changed-since:"], &[monday, tuesday]] {
        server.sent.clear();
        server.feed(&option(9, &meta("alpha", queries)));
        assert_eq!(server.options(), own);
    }
    server.feed(&option(9, &meta("alpha", &[])));
    assert_eq!(server.options()[0], "9: context 0 base:allocation");
}

/// BLOCK_STATUS works only if the last choice of contexts succeeded, for the very export that is used then.
#[test]
fn a_chosen_context_belongs_to_its_export() {
    let allocation = ["base:allocation"];
    let cases: [(Options<'_>, &str, bool); 8] = [
        (&[(10, meta("alpha", &allocation))], "alpha", true),
        (&[(10, meta("alpha", &allocation))], "beta", false),
        (&[], "alpha", false),
        (&[(10, meta("alpha", &allocation)), (10, meta("alpha", &[]))], "alpha", false),
        (&[(10, meta("alpha", &allocation)), (10, meta("gamma", &allocation))], "alpha", false),
        (&[(10, meta("alpha", &allocation)), (10, b"bad".to_vec())], "alpha", false),
        (&[(10, meta("alpha", &allocation)), (9, meta("beta", &[])), (6, go("beta", &[]))], "alpha", true),
        (&[(10, meta("beta", &allocation)), (10, meta("alpha", &allocation))], "alpha", true),
    ];
    for (index, (options, name, works)) in cases.into_iter().enumerate() {
        let mut server = greeted(&["alpha", "beta"]);
        server.feed(&option(8, b""));
        options.iter().for_each(|(number, data)| server.feed(&option(*number, data)));
        server.feed(&option(7, &go(name, &[])));
        server.sent.clear();
        server.style = Style::Structured;
        server.ask(NO_FLAGS, 7, 1, 0, 4096, b"");
        let expected = if works { "#1 status 4096:3" } else { "#1 error=22 no meta context was chosen" };
        assert_eq!(server.replies(), [expected], "case {index}");
    }
}

#[test]
fn the_default_export_may_be_named_either_way() {
    for (chosen, used) in [("", "alpha"), ("alpha", ""), ("", "")] {
        let mut server = greeted(&["alpha"]);
        let script = [option(8, b""), option(10, &meta(chosen, &["base:allocation"])), option(7, &go(used, &[]))];
        server.feed(&script.concat());
        server.sent.clear();
        server.style = Style::Structured;
        server.ask(NO_FLAGS, 7, 1, 0, 4096, b"");
        assert_eq!(server.replies(), ["#1 status 4096:3"]);
    }
}

#[test]
fn unknown_options_are_skipped_without_being_kept() {
    let mut server = greeted(&["alpha"]);
    server.feed(&option(4, b"peek"));
    server.feed(&option(0xffff_ffff, b""));
    assert_eq!(server.options(), ["4: error 1 unknown option", "4294967295: error 1 unknown option"]);
    let long = option(99, &vec![b'I'; limits::OPTION_SKIP_BYTES_MAX as usize]);
    for part in long.chunks(1000) {
        assert!(server.sent.is_empty(), "the reply comes after the last byte");
        server.feed(part);
        assert!(server.input.len() < 16, "skipped bytes are not kept");
    }
    assert_eq!(server.options(), ["99: error 1 unknown option"]);
    server.feed(&option(8, b""));
    assert_eq!(server.options(), ["8: ack"]);
}

#[test]
fn starttls_is_refused_and_changes_nothing() {
    let mut server = greeted(&["alpha"]);
    server.feed(&[option(8, b""), option(5, b""), option(5, b"data")].concat());
    assert_eq!(
        server.options(),
        ["8: ack", "5: error 1 TLS is not enabled here", "5: error 1 TLS is not enabled here"]
    );
    server.feed(&option(7, &go("alpha", &[])));
    assert_eq!(server.options()[0], "7: export 1048576 0x0ded", "DF: structured replies are still agreed on");
}

#[test]
fn a_server_that_goes_down_says_so() {
    let mut server = greeted(&["alpha"]);
    server.session.shut_down();
    for number in [3, 5, 6, 7, 8, 9, 10, 11, 99] {
        server.feed(&option(number, b""));
        assert_eq!(server.options(), [format!("{number}: error 7 the server is shutting down")]);
    }
    server.feed(&option(2, b""));
    assert_eq!(server.options(), ["2: ack"]);

    let mut server = greeted(&["alpha"]);
    server.session.shut_down();
    server.feed(&option(1, b"alpha"));
    assert_eq!(server.error, Some(SessionError::ExportRefused));
}

#[test]
fn client_flags_that_are_unknown_end_it() {
    for flags in [4u32, 0x8000_0003, u32::MAX] {
        let mut server = Server::new();
        server.feed(&flags.to_be_bytes());
        assert_eq!(server.error, Some(SessionError::ClientFlags(flags)));
        server.feed(&option(3, b""));
        assert!(server.log.is_empty(), "nothing is parsed after an error");
    }
}

#[test]
fn a_name_that_cannot_exist_is_not_looked_up() {
    let longest = "n".repeat(limits::NAME_BYTES_MAX);
    let mut server = greeted(&[&longest]);
    server.feed(&option(6, &go(&longest, &[])));
    assert_eq!((server.log.len(), server.options().len()), (1, 3));
    for len in [limits::NAME_BYTES_MAX + 1, limits::STRING_BYTES_MAX] {
        server.feed(&option(6, &go(&"n".repeat(len), &[])));
        assert_eq!(server.options(), ["6: error 6 there is no such export"]);
    }
    for bad in ["n".repeat(limits::STRING_BYTES_MAX + 1), "nul\0".to_owned()] {
        server.feed(&option(6, &go(&bad, &[])));
        assert_eq!(server.options(), ["6: error 3 the option is malformed"]);
    }
    server.feed(&option(6, &[0, 0, 0, 1, 0xff, 0, 0]));
    assert_eq!(server.options(), ["6: error 3 the option is malformed"]);
    assert_eq!(server.log.len(), 1);
    server.feed(&option(1, &[0xff]));
    assert_eq!(server.error, Some(SessionError::ExportRefused));
}
