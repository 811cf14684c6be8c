//! Leases of one member (L1, L2).

use super::*;
use crate::lease::Leases;
use freebs_format::AttachBody;
use freebs_format::wire::Leased;
use freebs_types::timing::LEASE_MS;

impl Scene {
    /// What a driver with a link of its own is told when it asks for a lease now.
    fn lease(&mut self, link: u64, generation: u64, driver: u64) -> Vec<Message> {
        let stamp = Nanos(link);
        let who = (Generation(generation), DriverId(driver));
        let (_, actions) = self.play(|r, ctx| r.on_lease(ctx, LinkId(link), who, stamp));
        let message = |a: Action| match a {
            Action::Send { message, .. } => message,
            other => panic!("{other:?}"),
        };
        actions.into_iter().map(message).collect()
    }

    /// For how long leases of older generations may still run, if the driver gets one.
    fn older(&mut self, link: u64, generation: u64, driver: u64) -> Option<u32> {
        let told = self.lease(link, generation, driver);
        let [Message::Leased(l)] = &told[..] else {
            assert!(told.is_empty(), "{told:?}");
            return None;
        };
        let (view, stamp) = (self.r.view_number(), Nanos(link));
        let older_ms = l.older_ms;
        assert_eq!(*l, Leased { shard: SHARD, view, generation: Generation(generation), stamp, older_ms });
        Some(older_ms)
    }

    fn is_fenced(&mut self, link: u64, generation: u64, driver: u64) -> bool {
        let told = self.lease(link, generation, driver);
        matches!(&told[..], [Message::Refused(r)] if r.reason == Refusal::Fenced)
    }

    fn pass(&mut self, ms: u64) {
        self.now = self.now.plus(Nanos::from_millis(ms));
    }
}

impl Chain {
    fn attach(&mut self, generation: u64, driver: u64) -> Frame {
        let (generation, driver) = (Generation(generation), DriverId(driver));
        self.frame(FrameKind::Attach, &AttachBody { generation, driver, identity: Hash32::default() }.encode())
    }
}

/// Node 2 in view 1, known to be active, at sequence 1.
fn following() -> (Scene, Chain) {
    let mut s = Scene::new(2);
    s.r.leases.begin(s.now);
    let mut c = Chain::new();
    s.take(c.open(1));
    s.durable(1);
    s.play(|r, ctx| r.learn_active(ctx));
    (s, c)
}

/// The same once what it may have promised before it began has ended; driver 9 has attached with generation 1.
fn attached() -> (Scene, Chain) {
    let (mut s, mut c) = following();
    s.take(c.attach(1, 9));
    s.durable(2);
    s.pass(LEASE_MS);
    assert_eq!(s.older(100, 1, 9), Some(0));
    (s, c)
}

#[test]
fn only_the_attached_driver_gets_a_lease() {
    let (mut s, _) = attached();
    assert_eq!(s.older(100, 1, 8), None, "another one with its generation");
    assert_eq!(s.older(100, 2, 9), None, "a generation that is not known here");
    assert!(s.is_fenced(100, 0, 9));
    assert_eq!(s.older(100, 1, 9), Some(0));
}

/// The mutant of L2 shows that the test above can fail.
#[test]
fn without_the_rule_an_older_driver_gets_one() {
    let (mut s, mut c) = attached();
    s.take(c.attach(2, 10));
    s.durable(3);
    let ask = |r: &mut Replica, ctx: &mut Ctx<'_>| {
        let config = HostConfig { mutant: Some(crate::event::Mutant::LeasesToAnyone), ..ctx.config.clone() };
        let mut mutated = Ctx { config: &config, out: &mut *ctx.out, tickets: &mut *ctx.tickets, ..*ctx };
        r.on_lease(&mut mutated, LinkId(100), (Generation(1), DriverId(9)), Nanos(100));
    };
    let (_, actions) = s.play(ask);
    assert!(matches!(&actions[..], [Action::Send { message: Message::Leased(_), .. }]), "{actions:?}");
    assert!(s.is_fenced(100, 1, 9));
}

/// L2: what is not durable may be forgotten, and then an older driver would get leases again.
#[test]
fn the_attachment_is_durable_before_a_lease() {
    for mutant in [None, Some(Mutant::LeasesBeforeDurable)] {
        let (mut s, mut c) = following();
        s.mutant = mutant;
        s.take(c.attach(1, 9));
        assert_eq!(s.older(100, 1, 9).is_some(), mutant.is_some());
        s.durable(2);
        assert!(s.older(100, 1, 9).is_some());
    }
}

#[test]
fn a_lease_is_given_in_an_active_view_without_a_promise() {
    for mutant in [None, Some(Mutant::LeasesPastPromises), Some(Mutant::LeasesInPendingViews)] {
        let (mut s, mut c) = attached();
        s.mutant = mutant;
        s.play(|r, ctx| r.on_seal(ctx, LinkId(1), (ViewNumber(2), ViewNumber(1)), None));
        let wrong = mutant == Some(Mutant::LeasesPastPromises);
        assert_eq!(s.older(100, 1, 9).is_some(), wrong, "promised");
        s.take(c.open(2));
        s.durable(3);
        let ticket = s.tickets;
        s.play(|r, ctx| r.on_mark_durable(ctx, ticket));
        let wrong = mutant == Some(Mutant::LeasesInPendingViews);
        assert_eq!(s.older(100, 1, 9).is_some(), wrong, "nobody has said that the view is active");
        s.play(|r, ctx| r.learn_active(ctx));
        assert!(s.older(100, 1, 9).is_some());
    }
}

/// L2: from the attach frame of a newer one on, an older driver is told nothing but that it is one.
#[test]
fn an_older_driver_hears_nothing_of_frames_that_were_ordered_before() {
    for mutant in [None, Some(Mutant::OlderDriversAnswered)] {
        let (mut s, mut c) = attached();
        s.mutant = mutant;
        s.play(|r, ctx| r.on_follow(ctx, LinkId(100), Generation(1)));
        s.take(c.plain());
        s.take(c.attach(2, 10));
        let (_, actions) = s.play(|r, ctx| r.on_frame_durable(ctx, Sequence(3)));
        let told = |a: &Action| matches!(a, Action::Send { to: LinkId(100), message: Message::Durable(_) });
        assert_eq!(actions.iter().any(told), mutant.is_some(), "{actions:?}");
        let (_, actions) = s.play(|r, ctx| r.on_follow(ctx, LinkId(100), Generation(1)));
        assert_eq!(reason(&actions), if mutant.is_some() { None } else { Some(Refusal::Fenced) });
    }
}

#[test]
fn without_the_rule_a_newer_driver_hears_nothing_of_older_leases() {
    for (mutant, older) in [(None, Some(2000)), (Some(Mutant::OlderLeasesUntold), Some(0))] {
        let (mut s, mut c) = attached();
        s.mutant = mutant;
        s.take(c.attach(3, 11));
        s.durable(3);
        assert_eq!(s.older(101, 3, 11), older);
    }
}

#[test]
fn a_newer_driver_hears_how_long_older_leases_run() {
    let (mut s, mut c) = attached();
    s.pass(500);
    assert_eq!(s.older(100, 1, 9), Some(0));
    s.pass(700);
    s.take(c.attach(3, 11));
    assert!(s.is_fenced(100, 1, 9), "not durable yet, and no more leases for the older one");
    s.durable(3);
    assert_eq!(s.older(101, 3, 11), Some(1300));
    s.take(c.attach(4, 12));
    s.durable(4);
    s.pass(1300);
    assert_eq!(s.older(102, 4, 12), Some(700), "the third's lease outlives the first's");
    s.pass(700);
    assert_eq!(s.older(102, 4, 12), Some(0));
}

/// The frame of a view names the generation of its time: it fences like an attach frame (V6).
#[test]
fn a_view_frame_ends_leases_too() {
    let (mut s, _) = attached();
    let body = AttachBody { generation: Generation(2), ..AttachBody::default() };
    s.play(|r, ctx| r.learn_attach(ctx, body, Sequence(2)));
    assert!(s.is_fenced(100, 1, 9));
    assert_eq!(s.older(101, 2, 0), None, "nobody has attached with it");
}

#[test]
fn who_goes_leaves_nothing_to_wait_for() {
    let (mut s, mut c) = attached();
    s.r.on_detach(LinkId(100), Generation(1), DriverId(8));
    assert!(s.r.is_leased(s.now), "another driver's word");
    s.r.on_detach(LinkId(100), Generation(1), DriverId(9));
    assert!(!s.r.is_leased(s.now));
    s.take(c.attach(2, 10));
    s.durable(3);
    assert_eq!(s.older(101, 2, 10), Some(0));
}

/// What an earlier process gave is not known, and neither is what others gave before this node became a member.
#[test]
fn unknown_leases_may_run_for_the_whole_time() {
    let (mut s, mut c) = following();
    s.take(c.attach(1, 9));
    s.durable(2);
    assert_eq!(s.older(100, 1, 9), Some(LEASE_MS as u32));
    s.pass(1999);
    assert_eq!(s.older(100, 1, 9), Some(1));
    s.pass(5000);
    s.r.view = None;
    s.take(c.open(2));
    assert!(s.r.is_leased(s.now), "a new member");
}

/// A member was away for two views, in whose chain it was not, and came back by map into a third. It took itself to have
/// been in the view before, and reported none of the leases that the members of those views had given.
#[test]
fn who_has_missed_a_view_knows_nothing_of_its_leases() {
    for (mutant, pred, assumes) in
        [(None, 1, false), (None, 2, true), (Some(crate::event::Mutant::ForeignLeasesUnknown), 2, false)]
    {
        let (mut s, mut c) = attached();
        s.pass(5000);
        s.mutant = mutant;
        c.view = ViewNumber(pred);
        let frame = c.open(3);
        let body = ViewBody::decode(frame.head.body()).expect("just made");
        assert_eq!((body.pred, s.r.view_number()), (ViewNumber(pred), ViewNumber(1)));
        s.play(|r, ctx| r.enter_view(ctx, &frame.head, body));
        assert_eq!(s.r.is_leased(s.now), assumes, "after view {pred}, {mutant:?}");
    }
}

/// Six members of which four answer became three, of which two do. A driver held leases of the four others, and none of the two
/// that took the next view's frame knew of any: the next driver did not wait for them (L6).
#[test]
fn leases_of_a_view_whose_quorums_need_not_meet_are_reckoned_with() {
    for (mutant, before, assumes) in [(None, 6, true), (Some(Mutant::QuorumsApart), 6, false), (None, 4, false)] {
        let (mut s, mut c) = attached();
        s.pass(5000);
        s.mutant = mutant;
        let members =
            |n| (1..=n).map(|n| Member { node: NodeId(n), start: StartNumber(1), early: false }).collect::<Vec<_>>();
        if let Some(v) = &mut s.r.view {
            (v.body.members, v.body.quorum) = (members(before), before as u8 / 2 + 1);
        }
        let frame = c.open(2);
        let body = ViewBody::decode(frame.head.body()).expect("just made");
        assert_eq!((body.pred, body.quorum, body.members.len()), (ViewNumber(1), 2, 3));
        s.play(|r, ctx| r.enter_view(ctx, &frame.head, body));
        assert_eq!(s.r.is_leased(s.now), assumes, "{before} members before, {mutant:?}");
    }
}

/// The attach frame was cut. The member knew the generation, and its log did not: after a restart it would have
/// given leases to the older driver beside those that the newer one counted.
#[test]
fn an_attachment_that_was_cut_gives_no_lease() {
    let (mut s, mut c) = attached();
    let before = Chain { ..c };
    s.take(c.attach(2, 10));
    s.durable(3);
    assert!(s.older(101, 2, 10).is_some());
    s.cut(2);
    s.r.on_cut_done();
    c = before;
    s.take(c.open(2));
    s.durable(3);
    s.play(|r, ctx| r.learn_active(ctx));
    assert_eq!(s.older(101, 2, 10), None);
    assert!(s.is_fenced(100, 1, 9), "what was said is not taken back");
    s.take(c.attach(2, 10));
    assert_eq!(s.older(101, 2, 10), None);
    s.durable(4);
    assert!(s.older(101, 2, 10).is_some());
}

/// The attach frame of a newer driver may be among what was lost. The member knew the older one only, and would have
/// given it leases again after a restart.
#[test]
fn a_log_with_a_hole_gives_no_lease() {
    let (mut s, mut c) = attached();
    for _ in 0..2 {
        s.take(c.plain());
    }
    s.durable(4);
    let hole = |until| Hole { before: c.last, until: Sequence(until), end: None };
    s.r.damage = Damage::new(vec![hole(3)], false);
    assert_eq!(s.older(100, 1, 9), None);
    s.r.damage = Damage::new(vec![hole(1)], true);
    assert_eq!(s.older(100, 1, 9), None, "the tail is suspect");
    // Nobody may ever mend the hole of a single copy: what lies in front of the attachment is no reason.
    s.r.damage = Damage::new(vec![hole(1)], false);
    assert!(s.older(100, 1, 9).is_some());
    s.r.damage = Damage::default();
    assert!(s.older(100, 1, 9).is_some());
}

/// A restarted member knew a generation from its view frame, and the driver's attach frame was lost. When it came again
/// it was taken for old news, and the driver got no lease for as long as the view lasted.
#[test]
fn a_driver_that_was_lost_is_learned_again() {
    let (mut s, mut c) = attached();
    s.take(c.plain());
    s.durable(3);
    s.r.attach = AttachBody { generation: Generation(1), ..AttachBody::default() };
    assert_eq!(s.older(100, 1, 9), None);
    let (generation, driver) = (Generation(1), DriverId(9));
    let body = AttachBody { generation, driver, identity: Hash32::default() };
    s.play(|r, ctx| r.learn_lost_attach(ctx, body));
    assert!(s.older(100, 1, 9).is_some());
}

/// The head that took an attachment wrote it once. When a view change had cut it in some logs, the driver attached
/// again, and the head, which remembered it, wrote nothing: members never learned of it, and went on with the older
/// one.
#[test]
fn every_view_has_its_attach_frame() {
    let mut s = leading();
    let last = s.r.last.sequence;
    let attach = |s: &mut Scene| {
        s.play(|r, ctx| r.on_attach(ctx, DRIVER, DriverId(9), Generation(1), Hash32::default()));
        s.both_durable();
        s.r.last.sequence
    };
    assert_eq!(attach(&mut s), last, "once in a view");
    s.r.head.as_mut().unwrap().reset(Vec::new(), 1, Hash32::default(), Hash32::default());
    assert_eq!(attach(&mut s), last.next());
}

/// Who attaches has as long as a lease to ask for the first one, whatever is known of earlier ones.
#[test]
fn an_attachment_lapses_when_its_driver_asks_no_more() {
    let (mut s, mut c) = attached();
    s.pass(LEASE_MS - 1);
    assert_eq!(s.r.lapsed(s.now), None, "its lease may run");
    s.pass(1);
    assert_eq!(s.r.lapsed(s.now), Some(Generation(1)));
    assert_eq!(s.older(100, 1, 9), Some(0));
    assert_eq!(s.r.lapsed(s.now), None, "it is there again");
    s.pass(LEASE_MS);
    s.take(c.attach(2, 10));
    s.durable(3);
    assert_eq!(s.r.lapsed(s.now), None, "it has only just attached");
    s.pass(LEASE_MS - 1);
    assert!(s.is_fenced(100, 1, 9), "nobody else can speak for it");
    assert_eq!(s.older(100, 2, 9), None);
    s.pass(1);
    assert_eq!(s.r.lapsed(s.now), Some(Generation(2)));
}

/// A view frame names a generation whose driver waits for that view: its attach frame is still to come.
#[test]
fn a_driver_that_was_not_seen_has_not_lapsed() {
    let (mut s, mut c) = attached();
    s.play(|r, ctx| {
        r.learn_attach(ctx, AttachBody { generation: Generation(2), ..AttachBody::default() }, Sequence(2))
    });
    s.pass(2 * LEASE_MS);
    assert_eq!(s.r.lapsed(s.now), None);
    s.take(c.attach(2, 10));
    assert_eq!(s.r.lapsed(s.now), None, "not durable, and just learned");
    s.durable(3);
    s.pass(LEASE_MS - 1);
    assert_eq!(s.r.lapsed(s.now), None);
    s.pass(1);
    assert_eq!(s.r.lapsed(s.now), Some(Generation(2)));
}

/// A driver that died between the control plane's answer and its first message held its volume for ever: no member knew it, so
/// none could say that it had lapsed.
#[test]
fn a_driver_that_never_came_lapses() {
    let (mut s, mut c) = attached();
    s.r.leases.given_out(Generation(2), s.now);
    s.pass(3 * LEASE_MS - 1);
    assert_eq!(s.r.lapsed(s.now), None, "it may be on its way");
    s.r.leases.given_out(Generation(2), s.now);
    s.pass(1);
    assert_eq!(s.r.lapsed(s.now), Some(Generation(2)));
    s.play(|r, ctx| {
        r.learn_attach(ctx, AttachBody { generation: Generation(2), ..AttachBody::default() }, Sequence(2))
    });
    assert_eq!(s.r.lapsed(s.now), Some(Generation(2)), "a view frame names it, and nobody comes");
    s.take(c.attach(2, 10));
    assert_eq!(s.r.lapsed(s.now), None, "there it is");
    s.durable(3);
    s.pass(LEASE_MS);
    assert_eq!(s.r.lapsed(s.now), Some(Generation(2)));
    s.r.leases.given_out(Generation(3), s.now);
    s.pass(3 * LEASE_MS);
    s.play(|r, ctx| r.on_seal(ctx, LinkId(1), (ViewNumber(2), ViewNumber(1)), None));
    assert_eq!(s.r.lapsed(s.now), None, "it waits for a view");
    s.take(c.open(2));
    s.durable(4);
    let ticket = s.tickets;
    s.play(|r, ctx| r.on_mark_durable(ctx, ticket));
    s.pass(3 * LEASE_MS);
    s.play(|r, ctx| r.learn_active(ctx));
    s.pass(3 * LEASE_MS - 1);
    assert_eq!(s.r.lapsed(s.now), None, "it has not heard of the view yet");
    s.pass(1);
    assert_eq!(s.r.lapsed(s.now), Some(Generation(3)));
}

/// A member that gives no leases says nothing about those who have none; when it can again, they get the time to ask.
#[test]
fn an_attachment_does_not_lapse_with_its_view() {
    let (mut s, mut c) = attached();
    s.play(|r, ctx| r.on_seal(ctx, LinkId(1), (ViewNumber(2), ViewNumber(1)), None));
    s.pass(2 * LEASE_MS);
    assert_eq!(s.r.lapsed(s.now), None, "promised");
    s.take(c.open(2));
    s.durable(3);
    let ticket = s.tickets;
    s.play(|r, ctx| r.on_mark_durable(ctx, ticket));
    s.pass(2 * LEASE_MS);
    assert_eq!(s.r.lapsed(s.now), None, "nobody has said that the view is active");
    s.play(|r, ctx| r.learn_active(ctx));
    s.pass(LEASE_MS - 1);
    assert_eq!(s.r.lapsed(s.now), None, "its driver has not heard of the view yet");
    s.pass(1);
    assert_eq!(s.r.lapsed(s.now), Some(Generation(1)));
}

/// L3, V10: who is lost for good may have lent to a driver until then, and nobody can ask it. Whoever takes a branch reckons
/// with that, although it was in the view before.
#[test]
fn leases_of_lost_members_are_waited_for() {
    for branches in [false, true] {
        let (mut s, mut c) = attached();
        s.pass(LEASE_MS);
        let forced = Some(Forced { survivors: vec![NodeId(1)], least: Sequence(1), known: Sequence(0), gives_up: 0 });
        s.r.info = Some(ShardInfo { active: ViewNumber(1), known: ViewNumber(1), forced, ..info(1024) });
        if branches {
            c.token = c.last.hid;
        }
        let begins = c.open(2);
        assert_eq!(begins.head.is_branch(), branches);
        s.take(begins);
        s.durable(3);
        s.play(|r, ctx| r.learn_active(ctx));
        s.take(c.attach(2, 10));
        s.durable(4);
        assert_eq!(s.older(101, 2, 10), Some(if branches { LEASE_MS as u32 } else { 0 }));
    }
}

#[test]
fn who_goes_has_lapsed() {
    let (mut s, _) = attached();
    s.r.on_detach(LinkId(100), Generation(1), DriverId(8));
    assert_eq!(s.r.lapsed(s.now), None);
    s.r.on_detach(LinkId(100), Generation(1), DriverId(9));
    assert_eq!(s.r.lapsed(s.now), Some(Generation(1)));
}

/// What an earlier process of this node gave may run still.
#[test]
fn after_a_start_nothing_has_lapsed() {
    let (mut s, mut c) = following();
    s.take(c.attach(1, 9));
    s.durable(2);
    s.r.leases = Leases::default();
    s.r.leases.begin(s.now);
    s.r.leases.attached_at(Sequence(2));
    assert_eq!(s.r.lapsed(s.now), None);
    s.pass(LEASE_MS);
    assert_eq!(s.r.lapsed(s.now), Some(Generation(1)));
}
