//! The walk along a hash chain, from its last frame to the first: what each frame proves, and where it breaks.
//!
//! Frames come as they lie in the log, the last one first. A frame names the token of the one before it, so the walk
//! always knows which frame has to come next; and a view's frame publishes the secret of the view before it, so the
//! secret is known before the frames that it proves.
//!
//! Frames of a branch that was cut lie before the frame that cut them, and have numbers that the walk has passed: they
//! are left aside. Where a map was learned, no frame did: the mark at its end says up to where frames before it count,
//! however far the branch went. A copy that repairs a frame lies behind the frames that follow it, and waits until its number comes.
//! So do frames that a member was brought once more, in front of which the walk goes on.

use super::{
    Ask, BRANCHES_MAX, BREAKS_MAX, Branch, Break, Cause, Place, Proof, RANGES_MAX, Range, Report, SAMPLES_MAX,
    SECRETS_MAX, WAITING_MAX,
};
use crate::FrameName;
use freebs_format::{ClosedView, FrameBefore, FrameHead, FrameKind, ViewBody, hide, token};
use freebs_types::{Error, Hash32, Result, Sequence, ShardId, Version, ViewNumber};
use std::collections::{BTreeMap, BTreeSet};

/// Ranges of what was learned that are remembered; of more than these everything is taken for learned.
const LEARNED_MAX: usize = 1024;
/// Frames in a run behind which the frame that has to come next is not looked for any more: more than a head has under
/// way, so more than are ever brought once more.
const RUN_MAX: usize = 4096;
/// Secrets that are tried for one view: the published one, one that the log kept, and one from elsewhere.
const CANDIDATES_MAX: usize = 3;
/// Ranges that are held until a word from elsewhere has proven itself. Of more than these it is not waited for.
const HELD_MAX: usize = 32_768;

/// A view's frame, as far as the audit asks it.
#[derive(Clone, Debug)]
struct Opens {
    secret_hash: Hash32,
    published: Option<Hash32>,
    /// The last frame of the view before, and its `hid`; `None` of the first view.
    seal: Option<(Sequence, Hash32)>,
}

/// A frame that lies in the log.
#[derive(Clone, Debug)]
pub(crate) struct Fact {
    name: FrameName,
    before: FrameBefore,
    digest: Hash32,
    version: Version,
    opens: Option<Box<Opens>>,
    /// It fills a hole, or replaces a damaged copy.
    repair: bool,
    at: Place,
    /// Number of its segment in the order of opening.
    opened: u64,
    /// Why its bytes are not what was written, if so.
    wrong: Option<String>,
    /// Some of its blocks are damaged here and have been put back elsewhere.
    mended: bool,
}

impl Fact {
    /// A frame in the segment that was opened as number `opened`. `wrong` says why its bytes are not what was written.
    pub fn of(head: &FrameHead, (at, opened): (Place, u64), repair: bool, mut wrong: Option<String>) -> Self {
        let h = head.header();
        let mut opens = None;
        if head.kind() == FrameKind::View {
            match ViewBody::decode(head.body()) {
                Ok(body) => {
                    let published = body.shared.as_ref().map(|s| s.pred_secret);
                    opens = Some(Box::new(Opens {
                        secret_hash: body.secret_hash,
                        published: published.filter(|s| *s != Hash32::default()),
                        seal: (body.pred.0 > 0).then_some((body.seal_sequence, body.seal_hid)),
                    }));
                }
                Err(e) => wrong = wrong.or(Some(format!("its body makes no sense: {}", e.text))),
            }
        }
        Self {
            name: FrameName { view: head.view(), sequence: head.seq(), hid: h.hid() },
            before: head.before(),
            digest: h.digest(),
            version: h.last_version(),
            opens,
            repair,
            at,
            opened,
            wrong,
            mended: false,
        }
    }

    /// The same, with blocks that have been put back elsewhere.
    pub fn mended(self) -> Self {
        Self { mended: true, ..self }
    }
}

#[cfg(test)]
impl Fact {
    pub fn sequence(&self) -> u64 {
        self.name.sequence.0
    }

    pub fn numbered(mut self, sequence: u64) -> Self {
        self.name.sequence = Sequence(sequence);
        self
    }

    pub fn altered(mut self, why: &str) -> Self {
        self.wrong = Some(why.to_owned());
        self
    }

    pub fn repaired(mut self) -> Self {
        self.repair = true;
        self
    }

    pub fn opened_in(mut self, number: u64) -> Self {
        self.opened = number;
        self
    }

    pub fn is_opened_in(&self, number: u64) -> bool {
        self.opened == number
    }
}

/// The frame that has to come next.
#[derive(Clone, Copy, Debug)]
struct Want {
    sequence: Sequence,
    hid: Hash32,
    version: Version,
    view: ViewNumber,
    /// Its token, as the frame behind it names it; `None` for the last frame of all, and in front of a branch.
    token: Option<Hash32>,
    /// The frame behind it: where it lies, number of its segment, whether it is a repair.
    behind: Option<(Place, u64, bool)>,
}

/// A secret that may be that of a view.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    secret: Hash32,
    /// The frame that published it in this log, and where that lies if it is still there. `None` for a word from elsewhere.
    by: Option<(Sequence, Option<Place>)>,
    /// It is the view's: a frame was made with it, or the view's own frame has its hash.
    sure: bool,
    /// Its being wrong was told.
    told: bool,
}

impl Candidate {
    /// A word from elsewhere that nothing here bears out. If it is wrong, that says nothing of this log.
    fn is_rumour(&self) -> bool {
        self.by.is_none() && !self.sure
    }
}

/// The secret's judgement of a frame.
enum Verdict {
    /// The frame was made with it.
    Proven,
    /// It is not known.
    Linked,
    /// A word from elsewhere does not give the frame, and may be wrong.
    Held(String),
    Broken(Cause, String),
}

/// Frames of the view where the walk is, while a word from elsewhere on its secret gives none of them: forged, if that
/// turns out to be the view's secret; if not, linked as without that word.
#[derive(Default)]
struct Held {
    /// Their breaks, as many as are told: the newest ones and the oldest of all.
    breaks: Vec<Break>,
    /// Frames, each of which is a break then.
    count: u64,
    /// The ranges that they make if it is not, with gaps that the walk has passed since; the newest one first.
    ranges: Vec<Range>,
}

/// The engine's knowledge of a shard beside its frames.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// Frames up to here may be missing.
    pub released: Sequence,
    /// Frames in these ranges are lost.
    pub holes: Vec<(Sequence, Sequence)>,
    /// Secrets of closed views that were kept.
    pub closed: Vec<ClosedView>,
}

/// Where an audit stands.
pub(crate) struct Walk {
    want: Option<Want>,
    released: Sequence,
    holes: Vec<(Sequence, Sequence)>,
    secrets: BTreeMap<ViewNumber, Vec<Candidate>>,
    at: BTreeSet<Sequence>,
    stride: u64,
    /// Frames that wait for their number: repaired copies, and frames of the run.
    waiting: BTreeMap<(Sequence, Hash32), Fact>,
    /// More had to wait than may.
    too_many: bool,
    /// Frames one below the other that were met in place of the one that has to come next: how many, and the lowest.
    run: Option<(usize, Sequence)>,
    /// Behind the first and up to the second, entries were learned in place of frames.
    learned: Vec<(Sequence, Sequence)>,
    /// Frames behind this are of branches that were cut where a map was learned.
    cut: Sequence,
    /// Everything before is of a shard of the same name that was deleted, or had left this node.
    is_over: bool,
    /// Bytes that can't be read and whose frames nobody knows, since the last frame that was in its place.
    damage: Option<(Place, String)>,
    asked: Vec<(Sequence, Hash32)>,
    unknown: BTreeSet<ViewNumber>,
    held: Held,
    /// Words from elsewhere that nothing here bore out, though there was something that they should have given.
    unfit: BTreeSet<(ViewNumber, Hash32)>,
    report: Report,
}

impl Walk {
    /// One that begins at a shard's last frame.
    pub fn new(shard: ShardId, (last, version): (FrameName, Version), known: Known, ask: Ask) -> Self {
        let (sequence, hid, view) = (last.sequence, last.hid, last.view);
        let mut secrets: BTreeMap<ViewNumber, Vec<Candidate>> = BTreeMap::new();
        let kept = known.closed.iter().map(|c| (c.view, c.secret, Some((c.published, None))));
        let given = ask.secrets.iter().rev().take(SECRETS_MAX).map(|(view, secret)| (*view, *secret, None));
        for (view, secret, by) in kept.chain(given) {
            let list = secrets.entry(view).or_default();
            if list.iter().all(|c| c.secret != secret) {
                list.push(Candidate { secret, by, sure: false, told: false });
            }
        }
        Self {
            want: (sequence.0 > 0).then_some(Want { sequence, hid, version, view, token: None, behind: None }),
            released: known.released,
            holes: known.holes,
            secrets,
            at: ask.at.into_iter().take(SAMPLES_MAX).collect(),
            stride: 1,
            waiting: BTreeMap::new(),
            too_many: false,
            run: None,
            learned: Vec::new(),
            cut: Sequence(u64::MAX),
            is_over: false,
            damage: None,
            asked: Vec::new(),
            unknown: BTreeSet::new(),
            held: Held::default(),
            unfit: BTreeSet::new(),
            report: Report {
                shard,
                last,
                version,
                committed: Sequence(0),
                ranges: Vec::new(),
                folded: false,
                breaks: Vec::new(),
                break_count: 0,
                branches: Vec::new(),
                proven: 0,
                linked: 0,
                summarised: 0,
                mended: 0,
                samples: Vec::new(),
                published: known.closed.iter().map(|c| (c.view, c.secret)).collect(),
                unknown: Vec::new(),
                unfit: Vec::new(),
                segments: 0,
                bytes: 0,
            },
        }
    }

    /// True when the beginning of the shard was reached.
    pub fn is_done(&self) -> bool {
        self.want.is_none() || self.is_over
    }

    /// A mark says that all before it is of a shard that was deleted, or had left this node.
    pub fn end(&mut self) {
        self.is_over = true;
    }

    /// More was given up since the audit began.
    pub fn set_released(&mut self, to: Sequence) {
        self.released = self.released.max(to);
    }

    /// A mark says that of frames behind `since` and up to `upto` the entries were learned.
    pub fn learned(&mut self, since: Sequence, upto: Sequence) {
        if self.learned.len() < LEARNED_MAX {
            self.learned.push((since, upto));
        } else {
            self.learned[0] = (Sequence(0), Sequence(u64::MAX));
        }
    }

    /// A mark says that the map up to `upto` was learned, with all that was placed behind `since`. Of the log in front of
    /// it frames up to `tip` stay, or up to `since` if that is 0; what lies behind these was cut.
    pub fn mapped(&mut self, since: Sequence, tip: Sequence, upto: Sequence) {
        self.learned(since, upto);
        self.cut = self.cut.min(if tip.0 > 0 { tip } else { since });
    }

    /// Bytes that can't be read, and nothing says which frames they were.
    pub fn damage(&mut self, at: Place, what: String) {
        self.damage.get_or_insert((at, what));
    }

    /// The next frame towards the beginning of the log.
    pub fn frame(&mut self, fact: Fact) {
        let Some(want) = self.want.filter(|_| !self.is_over) else { return };
        let s = fact.name.sequence;
        if (s, fact.name.hid) == (want.sequence, want.hid) {
            return self.accept(fact, true);
        }
        if s > self.cut {
            return;
        }
        if fact.repair {
            // One of another branch takes nobody's place.
            if s < want.sequence {
                self.keep(fact);
            }
            return;
        }
        if self.run.is_some_and(|(_, last)| s >= last) {
            // The run was no repeat, or this would be the frame that has to come next.
            self.end_run();
            return self.frame(fact);
        }
        if s > want.sequence {
            return;
        }
        if s < want.sequence {
            // Something is missing; or these are frames that were brought once more, and the next one lies before them.
            self.keep(fact);
            let frames = self.run.map_or(1, |(n, _)| n + 1);
            self.run = Some((frames, s));
            if frames >= RUN_MAX {
                self.end_run();
            }
            return;
        }
        self.unlinked(want, fact);
    }

    /// A frame lies in the place of the one that has to come next, and is another one.
    fn unlinked(&mut self, want: Want, fact: Fact) {
        let next = fact.name.sequence.next();
        let what = match want.behind {
            Some(_) => format!("frame {next} follows another frame than this one: its token has another hash"),
            None => "the node knows its last frame by another hash than this one has".to_owned(),
        };
        self.tell(Cause::Unlinked, &fact, what);
        self.accept(fact, false);
    }

    /// Remembers a frame until its number comes.
    fn keep(&mut self, fact: Fact) {
        if self.waiting.len() >= WAITING_MAX {
            self.too_many = true;
            return;
        }
        self.waiting.entry((fact.name.sequence, fact.name.hid)).or_insert(fact);
    }

    /// The frame that has to come next is not in front of the run: it is missing, and the run goes on behind the gap.
    fn end_run(&mut self) {
        self.run = None;
        while self.waiting.values().any(|f| !f.repair) && self.jump() {}
    }

    /// Goes on with the highest of the waiting frames. `false` if there is none.
    fn jump(&mut self) -> bool {
        let Some(want) = self.want else { return false };
        let lowest = (want.sequence, Hash32::default());
        let in_place = self.waiting.range(lowest..).take_while(|(key, _)| key.0 == want.sequence);
        let other = in_place.filter(|(_, f)| !f.repair).map(|(key, _)| *key).next();
        let below = self.waiting.range(..lowest).next_back().map(|(key, _)| *key);
        let Some(fact) = other.or(below).and_then(|key| self.waiting.remove(&key)) else { return false };
        if other.is_some() {
            self.unlinked(want, fact);
        } else {
            self.gap(Some(&fact));
            self.accept(fact, false);
        }
        true
    }

    /// A frame is in its place, and with it those before it that were met already. `is_linked` if the frame behind it
    /// says so.
    fn accept(&mut self, fact: Fact, is_linked: bool) {
        self.run = None;
        self.take(fact, is_linked);
        while let Some(want) = self.want
            && let Some(fact) = self.waiting.remove(&(want.sequence, want.hid))
        {
            self.take(fact, true);
        }
    }

    /// Takes one frame for the next one of the chain.
    fn take(&mut self, fact: Fact, is_linked: bool) {
        let Some(want) = self.want else { return };
        let (s, view) = (fact.name.sequence, fact.name.view);
        if self.held.ranges.first().is_some_and(|r| r.last_view != view) {
            self.settle(false);
        }
        let range = |proof| Range {
            proof,
            first: s,
            last: s,
            first_version: fact.before.version.next(),
            last_version: fact.version,
            first_view: view,
            last_view: view,
        };
        let verdict = self.judge(&fact, is_linked.then_some(&want));
        if self.secrets.get(&view).is_none_or(Vec::is_empty) {
            self.is_unknown(view);
        }
        self.report.mended += u64::from(fact.mended && !matches!(verdict, Verdict::Broken(..)));
        match verdict {
            Verdict::Broken(cause, what) => self.tell(cause, &fact, what),
            Verdict::Proven => {
                self.settle(true);
                self.cover(range(Proof::Proven));
            }
            Verdict::Linked => self.cover(range(Proof::Linked)),
            Verdict::Held(what) => {
                push(&mut self.held.breaks, Self::broken(Cause::Forged, &fact, what));
                self.held.count += 1;
                join(&mut self.held.ranges, range(Proof::Linked));
                if self.held.ranges.len() > HELD_MAX {
                    self.settle(false);
                }
            }
        }
        self.sample(s, fact.name.hid);
        self.opened(&fact);
        (self.damage, self.want) = (None, None);
        if s.0 > 1 {
            let b = fact.before;
            let behind = Some((fact.at, fact.opened, fact.repair));
            let (token, view) = (b.token, b.view);
            self.want = Some(Want { sequence: b.sequence, hid: b.hid, version: b.version, view, token, behind });
            // Views before this one are all that is still to come.
            let _ = self.secrets.split_off(&ViewNumber(view.0.saturating_add(1)));
        }
        let _ = self.waiting.split_off(&(s, Hash32::default()));
    }

    fn is_unknown(&mut self, view: ViewNumber) {
        self.unknown.insert(view);
        if self.unknown.len() > SECRETS_MAX {
            self.unknown.pop_first();
        }
    }

    /// Frames that were held are forged, because the word that does not give them is right; or linked, because it is
    /// wrong, or nothing here says more of it.
    fn settle(&mut self, is_right: bool) {
        let held = std::mem::take(&mut self.held);
        let Some(view) = held.ranges.first().map(|r| r.last_view) else { return };
        for part in held.ranges {
            if !is_right || part.proof == Proof::Summarised {
                self.cover(part);
            }
        }
        if is_right {
            self.report.break_count += held.count - held.breaks.len() as u64;
            held.breaks.into_iter().for_each(|b| self.push(b));
            return;
        }
        self.is_unknown(view);
        let words = self.secrets.get(&view).into_iter().flatten().filter(|c| c.is_rumour());
        self.unfit.extend(words.map(|c| (view, c.secret)));
    }

    /// The judgement of a frame that lies here: its bytes, its place behind another one, its secret.
    fn judge(&mut self, f: &Fact, want: Option<&Want>) -> Verdict {
        if let Some(what) = &f.wrong {
            return Verdict::Broken(Cause::Altered, what.clone());
        }
        if let Some(want) = want
            && (want.version != f.version || want.view != f.name.view)
        {
            let what = format!(
                "it is of view {} and version {}, and the frame behind it follows one of view {} and version {}",
                f.name.view, f.version, want.view, want.version
            );
            return Verdict::Broken(Cause::Unlinked, what);
        }
        if f.name.sequence.0 == 1 && f.before.parent() != Hash32::default() {
            return Verdict::Broken(Cause::Forged, "the first frame names one before it".to_owned());
        }
        let seal = f.opens.as_ref().and_then(|o| o.seal);
        if seal.is_some_and(|seal| seal != (f.before.sequence, f.before.hid)) {
            let what = "it opens a view behind another frame than the one that it follows".to_owned();
            return Verdict::Broken(Cause::Forged, what);
        }
        self.judge_by_secret(f, want)
    }

    /// Holds a frame against the secrets that may be its view's.
    fn judge_by_secret(&mut self, f: &Fact, want: Option<&Want>) -> Verdict {
        let view = f.name.view;
        let Some(list) = self.secrets.get_mut(&view).filter(|list| !list.is_empty()) else { return Verdict::Linked };
        let gives = |c: &Candidate| {
            let id = token(&c.secret, &f.before.parent(), &f.digest);
            hide(&id) == f.name.hid && want.is_none_or(|w| w.token.is_none_or(|t| t == id))
        };
        let Some(right) = list.iter_mut().find(|c| gives(c)) else {
            let by = list.iter().find_map(|c| c.by).map_or_else(
                || "that another member's log published".to_owned(),
                |(s, _)| format!("that frame {s} published"),
            );
            let what = format!("it was not made with the secret of view {view}, {by}");
            return match list.iter().all(Candidate::is_rumour) {
                true => Verdict::Held(what),
                false => Verdict::Broken(Cause::Forged, what),
            };
        };
        right.sure = true;
        let is_wrong = |c: &Candidate| c.is_rumour() && !gives(c);
        self.unfit.extend(list.iter().filter(|c| is_wrong(c)).map(|c| (view, c.secret)));
        list.retain(|c| !is_wrong(c));
        let lies = list.iter_mut().find(|c| c.by.is_some() && !c.told && !gives(c));
        if let Some((lies, (s, place))) = lies.and_then(|c| c.by.map(|by| (c, by))) {
            lies.told = true;
            let what = format!("it publishes a secret of view {view} that does not give its frames");
            let (cause, version) = (Cause::Secret, f.version);
            self.push(Break { cause, view, first: s, last: s, version, place, what });
        }
        Verdict::Proven
    }

    /// A view's frame says which secret its view has, and publishes that of the view before.
    fn opened(&mut self, f: &Fact) {
        let Some(opens) = f.opens.as_ref().filter(|_| f.wrong.is_none()) else { return };
        if f.before.token.is_none() && self.report.branches.len() < BRANCHES_MAX {
            let (sequence, version) = (f.name.sequence, f.before.version);
            self.report.branches.push(Branch { view: f.name.view, sequence, version });
        }
        let (view, is_it) = (f.name.view, |c: &Candidate| hide(&c.secret) == opens.secret_hash);
        // The view's own frame decides on words from elsewhere.
        let list = self.secrets.entry(view).or_default();
        self.unfit.extend(list.iter().filter(|c| c.is_rumour() && !is_it(c)).map(|c| (view, c.secret)));
        list.retain(|c| !c.is_rumour() || is_it(c));
        list.iter_mut().for_each(|c| c.sure |= is_it(c));
        let wrong = list.iter().find(|c| !c.told && !is_it(c)).map(|c| c.by);
        let is_right = list.iter().any(|c| c.sure);
        self.settle(is_right);
        if let Some(by) = wrong {
            let who = by.map_or_else(|| "another member's log".to_owned(), |(s, _)| format!("frame {s}"));
            let what = format!("view {view} was opened with another secret than {who} published");
            self.tell(Cause::Secret, f, what);
        }
        let Some(secret) = opens.published else { return };
        let pred = f.before.view;
        let list = self.secrets.entry(pred).or_default();
        list.retain(|c| c.secret != secret);
        list.insert(0, Candidate { secret, by: Some((f.name.sequence, Some(f.at))), sure: false, told: false });
        list.truncate(CANDIDATES_MAX);
        if self.report.published.len() < 2 * SECRETS_MAX {
            self.report.published.push((pred, secret));
        }
    }

    fn sample(&mut self, s: Sequence, hid: Hash32) {
        if self.at.contains(&s) {
            self.asked.push((s, hid));
        } else if s.0.is_multiple_of(self.stride) {
            self.report.samples.push((s, hid));
            if self.report.samples.len() > SAMPLES_MAX {
                self.stride *= 2;
                let stride = self.stride;
                self.report.samples.retain(|(s, _)| s.0.is_multiple_of(stride));
            }
        }
    }

    /// True if the entries of all these frames were learned, in one go or in several.
    fn was_learned(&self, first: Sequence, last: Sequence) -> bool {
        let mut before = first;
        loop {
            let upto = self.learned.iter().filter(|(since, _)| *since < before).map(|(_, upto)| *upto).max();
            match upto {
                Some(upto) if last <= upto => return true,
                Some(upto) if before <= upto => before = upto.next(),
                _ => return false,
            }
        }
    }

    /// Frames between `below` and the one that was met last are not here.
    fn gap(&mut self, below: Option<&Fact>) {
        let Some(want) = self.want else { return };
        let first = below.map_or(Sequence(1), |f| f.name.sequence.next());
        let last = want.sequence;
        let is_lost = self.holes.iter().any(|(from, to)| *from <= last && first <= *to);
        let is_learned = self.was_learned(first, last);
        // Frames are given up by whole segments. Two neighbours in one, or in two that were opened one right after the
        // other, have lost nothing in between to that.
        let is_inside = match (below, want.behind) {
            (Some(f), Some((_, opened, false))) => !f.repair && opened <= f.opened + 1 && !is_learned,
            _ => false,
        };
        let damage = self.damage.take();
        if last <= self.released && !is_lost && !is_inside && damage.is_none() {
            let first_view = below.map_or(want.view, |f| f.name.view.min(want.view));
            let before = below.map_or(Version(0), |f| f.version);
            self.cover(Range {
                proof: Proof::Summarised,
                first,
                last,
                first_version: before.next(),
                last_version: want.version,
                first_view: if below.is_none() { ViewNumber(1).min(want.view) } else { first_view },
                last_view: want.view,
            });
            return;
        }
        let frames = if first == last { format!("frame {first}") } else { format!("frames {first} to {last}") };
        let (cause, place, what) = match damage {
            Some((place, what)) => (Cause::Altered, Some(place), format!("{frames} can't be read: {what}")),
            None => {
                let mut what = format!("{frames} missing, of which frame {} follows the last", last.next());
                if want.behind.is_none() {
                    what = format!("{frames} missing, of which the last is the node's last frame");
                }
                if is_lost {
                    what.push_str("; the node knows that, and asks other members for them");
                }
                (Cause::Removed, want.behind.map(|b| b.0), what)
            }
        };
        self.push(Break { cause, view: want.view, first, last, version: want.version, place, what });
    }

    fn broken(cause: Cause, f: &Fact, what: String) -> Break {
        let s = f.name.sequence;
        Break { cause, view: f.name.view, first: s, last: s, version: f.version, place: Some(f.at), what }
    }

    fn tell(&mut self, cause: Cause, f: &Fact, what: String) {
        self.push(Self::broken(cause, f, what));
    }

    fn push(&mut self, b: Break) {
        self.report.break_count += 1;
        push(&mut self.report.breaks, b);
    }

    /// Adds frames in front of those that were told already.
    fn cover(&mut self, part: Range) {
        if !self.held.ranges.is_empty() {
            join(&mut self.held.ranges, part);
            return;
        }
        let frames = part.frames();
        match part.proof {
            Proof::Proven => self.report.proven += frames,
            Proof::Linked => self.report.linked += frames,
            Proof::Summarised => self.report.summarised += frames,
        }
        let ranges = &mut self.report.ranges;
        join(ranges, part);
        if ranges.len() > RANGES_MAX
            && let (Some(part), Some(last)) = (ranges.pop(), ranges.last_mut())
        {
            self.report.folded = true;
            last.proof = last.proof.min(part.proof);
            (last.first, last.first_version, last.first_view) = (part.first, part.first_version, part.first_view);
        }
    }

    /// The finding. `NoSpace` if there are more repaired frames than the audit remembers.
    pub fn finish(mut self) -> Result<Report> {
        if self.too_many {
            return Err(Error::no_space(format!(
                "shard {}: more than {WAITING_MAX} frames were put back behind those that follow them; audit it again when \
                 cleaning has moved them",
                self.report.shard
            )));
        }
        while self.jump() {}
        if self.want.is_some() {
            self.gap(None);
        }
        self.settle(false);
        let mut report = self.report;
        report.samples.append(&mut self.asked);
        report.samples.sort_unstable();
        report.published.sort_unstable_by(|a, b| b.cmp(a));
        report.published.dedup();
        report.published.truncate(SECRETS_MAX);
        report.ranges.reverse();
        report.breaks.reverse();
        report.branches.reverse();
        report.breaks.sort_by_key(|b| (b.first, b.last));
        report.unknown = self.unknown.into_iter().rev().collect();
        report.unfit = self.unfit.into_iter().rev().collect();
        Ok(report)
    }
}

/// Adds a break in front of those that were found before. The oldest one is kept: everything behind it rests on it.
fn push(breaks: &mut Vec<Break>, b: Break) {
    if breaks.len() == BREAKS_MAX {
        breaks.pop();
    }
    breaks.push(b);
}

/// Adds frames in front of those of the last range: to it, if they are the same.
fn join(ranges: &mut Vec<Range>, part: Range) {
    match ranges.last_mut() {
        Some(last) if last.first == part.last.next() && last.proof == part.proof => {
            (last.first, last.first_version, last.first_view) = (part.first, part.first_version, part.first_view);
        }
        _ => ranges.push(part),
    }
}
