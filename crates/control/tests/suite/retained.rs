//! The past of a volume in the control state: how much is kept, and snapshots of places in it.

use freebs_control::*;
use freebs_types::*;

fn state(shards: u32, retain_ms: Option<u64>) -> State {
    let mut s = State::new(ClusterId([1; 16]));
    for n in 1..=3u64 {
        s.apply(Command::RegisterNode {
            node: NodeId(n),
            name: format!("n{n}"),
            address: format!("h:{n}"),
            workers: 1,
            start: StartNumber(1),
        })
        .unwrap();
    }
    let new =
        CreateVolume { name: "a".into(), size: 1 << 30, shards: Some(shards), retain_ms, ..CreateVolume::default() };
    s.apply(Command::CreateVolume(new)).unwrap();
    s
}

const V: VolumeId = VolumeId(1);
const HOUR: u64 = 3_600_000;

fn begin(s: &mut State, name: &str, past: Past) -> Result<Outcome> {
    let command =
        Command::BeginSnapshot { name: name.into(), volumes: vec![V], created_ms: 10 * HOUR, past: Some(past) };
    s.apply(command).map(|done| done.outcome)
}

#[test]
fn a_window_is_set_changed_and_ended() {
    let mut s = state(1, Some(HOUR));
    assert_eq!(s.volume(V).unwrap().retain_ms, HOUR);
    assert_eq!(s.volume(V).unwrap().description().retain_ms, HOUR);
    let retain = |s: &mut State, retain_ms| s.apply(Command::RetainVolume { volume: V, retain_ms });
    let before = s.revision();
    assert_eq!(retain(&mut s, HOUR).unwrap().revision, before, "a repeat changes nothing");
    retain(&mut s, 35 * 24 * HOUR).unwrap();
    for wrong in [1, 999, 35 * 24 * HOUR + 1, u64::MAX] {
        assert!(retain(&mut s, wrong).unwrap_err().text.contains("35 days"), "{wrong}");
    }
    assert_eq!(s.volume(V).unwrap().retain_ms, 35 * 24 * HOUR, "a refusal changes nothing");
    retain(&mut s, 0).unwrap();
    assert_eq!(s.volume(V).unwrap().retain_ms, 0);
    let long = CreateVolume { name: "b".into(), size: 1 << 30, retain_ms: Some(1), ..CreateVolume::default() };
    assert_eq!(s.apply(Command::CreateVolume(long)).unwrap_err().kind, ErrorKind::Invalid);
}

#[test]
fn a_snapshot_of_the_past_needs_a_window_and_a_place_that_may_be_in_it() {
    let mut s = state(1, None);
    let text = |r: Result<Outcome>| r.unwrap_err().text.into_owned();
    assert!(text(begin(&mut s, "x", Past::TimeMs(HOUR))).contains("volume retain a 24h"));
    let mut s = state(2, Some(HOUR));
    assert!(text(begin(&mut s, "x", Past::Version(Version(7)))).contains("name a time"));
    let mut s = state(1, Some(HOUR));
    assert!(text(begin(&mut s, "x", Past::TimeMs(10 * HOUR + 1))).contains("not come yet"));
    assert!(text(begin(&mut s, "x", Past::Version(Version(0)))).contains("begin with 1"));
    assert!(begin(&mut s, "x", Past::Version(Version(1 << 63))).is_err());
    assert_eq!(s.snapshots().len(), 0, "nothing half-made is left");
    let Outcome::SnapshotBegun { snapshot } = begin(&mut s, "x", Past::TimeMs(9 * HOUR)).unwrap() else { panic!() };
    assert_eq!(s.snapshot_record(snapshot).unwrap().past, Some(Past::TimeMs(9 * HOUR)));
    let again = begin(&mut s, "x", Past::TimeMs(9 * HOUR)).unwrap();
    assert!(matches!(again, Outcome::SnapshotBegun { snapshot: same } if same == snapshot), "the same question");
    assert!(begin(&mut s, "x", Past::TimeMs(8 * HOUR)).is_err(), "another question of that name");
    let read = State::decode(&s.encode()).unwrap();
    assert_eq!(read, s);
}
