//! How nodes join a cluster with an authority: tokens, members, and who is refused.

use freebs_control::events::{EventKind, told};
use freebs_control::{Command, CreateVolume, NewNode, Outcome, STATE_HEADER_BYTES, State, limits};
use freebs_types::{ClusterId, ErrorKind, Hash32, HostPublic, NodeId, StartNumber};

const KEY: HostPublic = HostPublic([9; 32]);
const TOKEN: Hash32 = Hash32([0x77; 32]);
const NOW: u64 = 1_790_000_000_000;
const HOUR: u64 = 3_600_000;

fn register(node: u64, start: u64) -> Command {
    Command::RegisterNode {
        node: NodeId(node),
        name: format!("node{node}"),
        address: format!("127.0.0.1:{}", 7399 + node),
        workers: 1,
        start: StartNumber(start),
    }
}

/// As one whose number is anything.
fn first(node: u64) -> Command {
    Command::RegisterNode {
        node: NodeId(node),
        name: "first".into(),
        address: "127.0.0.1:7400".into(),
        workers: 1,
        start: StartNumber(0),
    }
}

/// The cluster has an authority from now on.
fn begin(s: &mut State, node: u64) -> freebs_types::Result<()> {
    s.begin_authority(KEY, NodeId(node), HostPublic([1; 32]))
}

fn token(token: Hash32) -> Command {
    Command::MakeToken { token, expires_ms: NOW + HOUR, now_ms: NOW }
}

fn new(node: u64) -> NewNode {
    NewNode {
        token: TOKEN,
        identity: HostPublic([node as u8; 32]),
        name: format!("node{node}"),
        address: format!("127.0.0.1:{}", 7399 + node),
        workers: 1,
        now_ms: NOW,
    }
}

/// A cluster as `freebs cluster init` begins it, whose node runs, with a token.
fn begun() -> State {
    let mut s = State::new(ClusterId([7; 16]));
    s.apply(register(1, 0)).unwrap();
    begin(&mut s, 1).unwrap();
    let revision = s.revision();
    begin(&mut s, 1).unwrap();
    assert_eq!(s.revision(), revision, "a repeat changes nothing");
    s.apply(register(1, 1)).unwrap();
    s.apply(token(TOKEN)).unwrap();
    s
}

fn refused(s: &mut State, c: Command) -> (ErrorKind, String) {
    let before = s.clone();
    let e = s.apply(c).unwrap_err();
    assert_eq!(*s, before, "a refused command changes nothing");
    (e.kind, e.text.into())
}

#[track_caller]
fn refuses(s: &mut State, c: Command, says: &str) {
    let (kind, text) = refused(s, c);
    assert!(text.contains(says) && kind != ErrorKind::Retry, "{kind:?}: {text}");
}

#[test]
fn a_token_makes_one_node_a_member() {
    let mut s = begun();
    assert_eq!(s.apply(Command::AddNode(new(2))).unwrap().outcome, Outcome::Added { node: NodeId(2) });
    let node = s.node(NodeId(2)).unwrap();
    assert_eq!((node.identity, node.start), (Some(HostPublic([2; 32])), StartNumber(0)));
    assert_eq!(s.joining().tokens().next().unwrap().used_by, Some(NodeId(2)));
    refuses(&mut s, Command::AddNode(new(3)), "was used by node2 already");
    // Its key stays with it through its starts.
    s.apply(register(2, 1)).unwrap();
    assert_eq!(s.node(NodeId(2)).unwrap().identity, Some(HostPublic([2; 32])));
}

#[test]
fn whoever_has_not_heard_the_answer_asks_again() {
    let mut s = begun();
    s.apply(Command::AddNode(new(2))).unwrap();
    let revision = s.revision();
    let again = s.apply(Command::AddNode(NewNode { now_ms: NOW + 2 * HOUR, ..new(2) })).unwrap();
    assert_eq!((again.revision, again.outcome), (revision, Outcome::Added { node: NodeId(2) }));
    // With another address, as long as it never ran.
    let moved = NewNode { address: "127.0.0.1:9000".into(), ..new(2) };
    assert_eq!(s.apply(Command::AddNode(moved.clone())).unwrap().outcome, Outcome::Added { node: NodeId(2) });
    assert_eq!(s.node(NodeId(2)).unwrap().address, "127.0.0.1:9000");
    s.apply(register(2, 1)).unwrap();
    refuses(&mut s, Command::AddNode(moved), "has run since");
}

/// The token of the first attempt was on a command line and is nowhere any more: its name, address and number were lost
/// for good.
#[test]
fn the_same_key_with_another_token_gets_the_same_answer() {
    let mut s = begun();
    s.apply(Command::AddNode(new(2))).unwrap();
    let second = Hash32([0x78; 32]);
    s.apply(token(second)).unwrap();
    let again = s.apply(Command::AddNode(NewNode { token: second, ..new(2) })).unwrap();
    assert_eq!((again.outcome, s.nodes().len()), (Outcome::Added { node: NodeId(2) }, 2));
    assert!(s.joining().tokens().all(|t| t.used_by == Some(NodeId(2))), "each is for one node");
    // With another name and address, as long as it never ran.
    let third = Hash32([0x79; 32]);
    s.apply(token(third)).unwrap();
    let moved = NewNode { token: third, name: "other".into(), address: "127.0.0.1:9000".into(), ..new(2) };
    assert_eq!(s.apply(Command::AddNode(moved)).unwrap().outcome, Outcome::Added { node: NodeId(2) });
    assert_eq!((s.node(NodeId(2)).unwrap().name.as_str(), s.nodes().len()), ("other", 2));
    // The next number is not this one's again, and who has run does not come a second time.
    let fourth = Hash32([0x7a; 32]);
    s.apply(token(fourth)).unwrap();
    let next = s.apply(Command::AddNode(NewNode { token: fourth, ..new(3) })).unwrap();
    assert_eq!(next.outcome, Outcome::Added { node: NodeId(3) });
    s.apply(register(3, 1)).unwrap();
    let fifth = Hash32([0x7b; 32]);
    s.apply(token(fifth)).unwrap();
    let other = NewNode { token: fifth, name: "again".into(), address: "127.0.0.1:9001".into(), ..new(3) };
    refuses(&mut s, Command::AddNode(other), "join with an empty data directory");
}

#[test]
fn tokens_end() {
    let mut s = begun();
    let late = |now_ms| Command::AddNode(NewNode { now_ms, ..new(2) });
    refuses(&mut s, late(NOW + HOUR), "ended 0s ago");
    refuses(&mut s, late(NOW + 3 * HOUR), "ended 2h ago, at 2026-09-21T15");
    refuses(&mut s, late(NOW - limits::TOKEN_MS_MAX), "the clock of the node that was asked is behind");
    s.apply(late(NOW + HOUR - 1)).unwrap();
}

#[test]
fn tokens_are_made_within_bounds() {
    let mut s = begun();
    let make = |expires_ms| Command::MakeToken { token: Hash32([3; 32]), expires_ms, now_ms: NOW };
    for expires_ms in [0, NOW, NOW + limits::TOKEN_MS_MAX + 1, u64::MAX] {
        refuses(&mut s, make(expires_ms), "a second to 30days");
    }
    let revision = s.revision();
    assert_eq!(s.apply(token(TOKEN)).unwrap().revision, revision, "a repeat changes nothing");
    for i in 1..limits::TOKENS_MAX {
        let mut hash = Hash32([4; 32]);
        hash.0[..8].copy_from_slice(&(i as u64).to_le_bytes());
        s.apply(token(hash)).unwrap();
    }
    assert_eq!(refused(&mut s, make(NOW + 1)).0, ErrorKind::NoSpace);
    refuses(&mut s, make(NOW + 1), "--revoke");
    // Those that were used make room.
    s.apply(Command::AddNode(new(2))).unwrap();
    s.apply(make(NOW + HOUR)).unwrap();
    assert_eq!(s.joining().tokens().len(), limits::TOKENS_MAX);
    refuses(&mut s, Command::AddNode(new(3)), "does not know this token");
}

/// Whoever made 256 of them and let them end had to end the good ones, too, before there could be another.
#[test]
fn tokens_that_have_ended_make_room() {
    let mut s = begun();
    let at = |n: u64| {
        let mut hash = Hash32([4; 32]);
        hash.0[..8].copy_from_slice(&n.to_le_bytes());
        hash
    };
    // The later ones end first, and none of them before the one of `begun`.
    let most = limits::TOKENS_MAX as u64;
    for n in 1..most {
        let expires_ms = NOW + HOUR + 2 * most - n;
        s.apply(Command::MakeToken { token: at(n), expires_ms, now_ms: NOW }).unwrap();
    }
    let mut make = |n: u64, now_ms: u64| {
        let made = s.apply(Command::MakeToken { token: at(n), expires_ms: now_ms + 2 * HOUR, now_ms });
        assert_eq!(s.joining().tokens().len(), limits::TOKENS_MAX);
        made.map(|_| s.joining().tokens().map(|t| t.hash).collect::<Vec<_>>())
    };
    assert_eq!(make(1000, NOW + HOUR - 1).unwrap_err().kind, ErrorKind::NoSpace, "all of them are good");
    let known = make(1000, NOW + HOUR).unwrap();
    assert!(!known.contains(&TOKEN) && known.contains(&at(most - 1)));
    assert_eq!(make(1001, NOW + HOUR).unwrap_err().kind, ErrorKind::NoSpace, "the others are still good");
    let known = make(1001, NOW + 2 * HOUR).unwrap();
    assert!(!known.contains(&at(most - 1)) && known.contains(&at(most - 2)) && known.contains(&at(1)));
}

/// One node whose clock was ahead made a token, and all others of the cluster were forgotten.
#[test]
fn a_clock_that_is_ahead_takes_no_token_away() {
    let mut s = begun();
    let now_ms = NOW + 400 * 24 * HOUR;
    s.apply(Command::MakeToken { token: Hash32([3; 32]), expires_ms: now_ms + HOUR, now_ms }).unwrap();
    s.apply(Command::AddNode(new(2))).unwrap();
}

#[test]
fn what_others_have_is_refused() {
    let mut s = begun();
    refuses(&mut s, Command::AddNode(NewNode { name: "node1".into(), ..new(2) }), "choose another with --name");
    let there = NewNode { address: "127.0.0.1:7400".into(), ..new(2) };
    refuses(&mut s, Command::AddNode(there), "is that of node1; choose another with --listen");
    refuses(&mut s, Command::AddNode(NewNode { identity: HostPublic([1; 32]), ..new(2) }), "each node has its own");
    refuses(&mut s, Command::AddNode(NewNode { token: Hash32([2; 32]), ..new(2) }), "freebs cluster token");
    refuses(&mut s, Command::AddNode(NewNode { workers: 3, ..new(2) }), "1, 2, 4 or 8");
    refuses(&mut s, Command::AddNode(NewNode { address: "here".into(), ..new(2) }), "HOST:PORT");
    // None of it has cost the token.
    s.apply(Command::AddNode(new(2))).unwrap();
}

/// A node that was told to listen where another one is undid what `AddNode` had looked after.
#[test]
fn nobody_registers_where_another_node_is() {
    let mut s = begun();
    s.apply(Command::AddNode(new(2))).unwrap();
    let at = |node: u64, address: &str| Command::RegisterNode {
        node: NodeId(node),
        name: format!("node{node}"),
        address: address.into(),
        workers: 1,
        start: StartNumber(2),
    };
    refuses(&mut s, at(2, "127.0.0.1:7400"), "is that of node1");
    s.apply(at(1, "127.0.0.1:9000")).unwrap();
    s.apply(at(2, "127.0.0.1:7400")).unwrap();
    // Without an authority all is as it was: old logs are replayed to the same state.
    let mut open = State::new(ClusterId([7; 16]));
    open.apply(register(1, 1)).unwrap();
    open.apply(at(2, "127.0.0.1:7400")).unwrap();
}

/// The number behind the highest one was 0, or the end of the process.
#[test]
fn there_is_no_number_behind_the_highest() {
    for highest in [limits::NUMBER_MAX, u64::MAX] {
        let mut s = State::new(ClusterId([7; 16]));
        s.apply(first(highest)).unwrap();
        begin(&mut s, highest).unwrap();
        s.apply(token(TOKEN)).unwrap();
        refuses(&mut s, Command::AddNode(new(2)), "numbers");
        assert_eq!(State::decode(&s.encode()).unwrap(), s);
    }
}

#[test]
fn strangers_are_not_registered() {
    let mut s = begun();
    refuses(&mut s, register(2, 1), "is no member of this cluster");
    let other = s.begin_authority(HostPublic([8; 32]), NodeId(1), HostPublic([1; 32])).unwrap_err();
    assert!(other.text.contains("another authority"), "{other}");
    // In a cluster of a cluster file nobody can join, and all come by themselves.
    let mut open = State::new(ClusterId([7; 16]));
    assert!(begin(&mut open, 1).unwrap_err().text.contains("is not registered"));
    open.apply(register(2, 1)).unwrap();
    refuses(&mut open, token(TOKEN), "freebs cluster init");
    refuses(&mut open, Command::AddNode(new(3)), "freebs cluster init");
}

#[test]
fn nothing_is_placed_on_a_node_that_never_ran() {
    let mut s = begun();
    s.apply(Command::AddNode(new(2))).unwrap();
    let create = |name: &str, copies| {
        Command::CreateVolume(CreateVolume { name: name.into(), size: 1 << 30, copies, ..CreateVolume::default() })
    };
    refuses(&mut s, create("two", Some(2)), "the cluster has 1 node");
    s.apply(create("one", None)).unwrap();
    assert_eq!(s.volume_by_name("one").unwrap().shards[0].members, [NodeId(1)]);
    s.apply(register(2, 1)).unwrap();
    s.apply(create("two", None)).unwrap();
    assert_eq!(s.volume_by_name("two").unwrap().shards[0].members.len(), 2);
}

/// A difference here means that states of an earlier build are not understood any more.
#[test]
fn golden_bytes_of_a_state_with_tokens() {
    let mut s = begun();
    s.apply(Command::AddNode(new(2))).unwrap();
    s.apply(token(Hash32([0x78; 32]))).unwrap();
    let bytes = s.encode();
    assert_eq!(&bytes[..8], b"FBCS\x09\x00\x40\x00");
    let text = String::from_utf8_lossy(&bytes[STATE_HEADER_BYTES..]);
    let hex = |digits: &str| digits.repeat(32);
    let known = format!(
        r#""joining":{{"authority":"{}","last_node":2,"tokens":[{{"hash":"{}","made_ms":1790000000000,"expires_ms":1790003600000,"used_by":2}},{{"hash":"{}","made_ms":1790000000000,"expires_ms":1790003600000}}]}}}}"#,
        hex("09"),
        hex("77"),
        hex("78")
    );
    assert!(text.ends_with(&known), "{text}");
    assert_eq!(State::decode(&bytes).unwrap(), s);
}

#[test]
fn tokens_are_revoked() {
    let mut s = begun();
    let other = Hash32([0x78; 32]);
    s.apply(token(other)).unwrap();
    s.apply(Command::AddNode(new(2))).unwrap();
    let revoke = |tokens: &[Hash32]| Command::RevokeTokens { tokens: tokens.to_vec() };
    // Those that were used stay, as do others; asked again it is done already.
    for _ in 0..2 {
        assert_eq!(s.apply(revoke(&[TOKEN, other, Hash32([1; 32])])).unwrap().outcome, Outcome::Noted);
        assert_eq!(s.joining().tokens().map(|t| t.hash).collect::<Vec<_>>(), [TOKEN]);
    }
    let revision = s.revision();
    assert_eq!(s.apply(revoke(&[])).unwrap().revision, revision);
    refuses(&mut s, Command::AddNode(NewNode { token: other, ..new(3) }), "does not know this token");
    refuses(&mut State::new(ClusterId([7; 16])), revoke(&[other]), "freebs cluster init");
}

/// The events say that a stranger was given a token, and that it was used.
#[test]
fn tokens_are_told_of() {
    let mut s = begun();
    let mut step = |command: Command| {
        let before = s.clone();
        s.apply(command.clone()).unwrap();
        let all = told(&before, &command, &s);
        all.into_iter().map(|t| (t.kind, t.text)).collect::<Vec<_>>()
    };
    let other = Hash32([0x78; 32]);
    let made = "a token was made, 787878787878: good for one node, until 2026-09-21T15:13:20Z".into();
    assert_eq!(step(token(other)), [(EventKind::Token, made)]);
    assert_eq!(step(token(other)), [], "it was there");
    let joined = "has joined with the token 777777777777, to be at 127.0.0.1:7401".into();
    let used = "the token 777777777777 was used".into();
    assert_eq!(step(Command::AddNode(new(2))), [(EventKind::Node, joined), (EventKind::Token, used)]);
    assert_eq!(step(Command::AddNode(new(2))), [], "it heard no answer");
    let used = "the token 787878787878 was used".into();
    assert_eq!(step(Command::AddNode(NewNode { token: other, ..new(2) })), [(EventKind::Token, used)]);
    step(token(Hash32([3; 32])));
    let revoked = "the token 030303030303 was revoked".into();
    assert_eq!(step(Command::RevokeTokens { tokens: vec![Hash32([3; 32])] }), [(EventKind::Token, revoked)]);
}

#[test]
fn the_state_comes_back_and_followers_hear_of_no_token() {
    let mut s = begun();
    s.apply(Command::AddNode(new(2))).unwrap();
    let bytes = s.encode();
    assert_eq!(bytes[4..6], [9, 0], "a reader that knows nothing of members must not read it");
    assert_eq!(State::decode(&bytes).unwrap(), s);
    // Before, it is written as ever.
    let mut open = State::new(ClusterId([7; 16]));
    open.apply(register(1, 1)).unwrap();
    let bytes = open.encode();
    assert!(bytes[4..6] == [1, 0] && !String::from_utf8_lossy(&bytes[STATE_HEADER_BYTES..]).contains("joining"));
    let told = serde_json::to_string(&s.changes_since(0)).unwrap();
    assert!(!told.contains(&TOKEN.to_string()) && told.contains("identity"), "{told}");
}
