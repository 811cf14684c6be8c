//! `freebs verify VOLUME`: every member audits the hash chains in its own log, and the members are compared.

use super::asked::{connect, unexpected};
use super::output::{Output, table};
use crate::admin::Client;
use crate::timing;
use clap::Args;
use freebs_control::api::{Reply, Request, VolumeStatus};
use freebs_control::audit::{
    AuditBreak, AuditGo, AuditOf, AuditProof, AuditState, Audited, AuditedMember, AuditedShard, MemberAudit,
    VolumeAudit, secrets,
};
use freebs_io::Random;
use freebs_io::linux::OsRandom;
use freebs_types::{ErrorKind, Result, Sequence, ShardId, ViewNumber};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Instant;

/// Shards that are audited at a time.
const SHARDS_AT_ONCE: usize = 4;
/// Breaks of a member that people are told; programs are told more.
const BREAKS_SHOWN: usize = 3;

/// Exit status if a chain is broken, or members differ.
const BROKEN: u8 = 3;
/// Exit status if a member could not be audited, and nothing is wrong with the others.
const INCOMPLETE: u8 = 4;

const HELP: &str = "\
Examples:
  freebs verify demo
  freebs verify demo --json | jq '.shards[].members[] | {node, sound, breaks: .audit.breaks}'

Each member reads its own log and holds each frame against its digest, the frame behind it, and the secret of its view,
which the next view published. Then the members are compared. Of a range of versions it says what is known:
  proven      each frame was made with the secret of its view
  linked      each frame is the one that the next one follows; the secret of its view is not published yet, or lost
  summarised  the frames were cleaned away: their number is known, and the hash of the last one
Data that cleaning has moved are in no frame any more; `freebs volume verify` compares them.

Exit status: 0 no break, 1 failed, 2 not understood, 3 a break or members that differ, 4 no break, but a member could
not be audited.";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct VerifyArgs {
    /// Name of the volume
    #[arg(value_name = "VOLUME")]
    pub name: String,
}

pub async fn run(args: VerifyArgs, cluster: &str, output: &Output) -> Result<ExitCode> {
    let client = connect(cluster).await?;
    let Reply::Volume { volume, .. } = client.call(&Request::VolumeShow { name: args.name }, timing::CALL_MAX).await?
    else {
        return Err(unexpected());
    };
    let progress = Rc::new(Progress::new());
    let asked = shards(&volume)?;
    let mut found = Vec::new();
    for part in asked.chunks(SHARDS_AT_ONCE) {
        let audits = part.iter().map(|s| s.audit(&client, &progress));
        found.extend(all(audits.collect()).await);
    }
    progress.finish();
    // Asked behind the audits: a branch whose frame was committed by then was active before.
    let Reply::Volume { volume: now, .. } =
        client.call(&Request::VolumeShow { name: volume.name.clone() }, timing::CALL_MAX).await?
    else {
        return Err(unexpected());
    };
    let found = found.into_iter().map(|(id, members)| {
        let branch = now.shards.iter().find(|s| s.id == id).and_then(|s| s.branch);
        let newest = branch.map_or(ViewNumber(0), |b| b.view);
        let members = members.into_iter().map(|(node, m)| (node, m.map(|m| m.with_branches_known(newest))));
        (id, members.collect())
    });
    let audit = VolumeAudit::new(volume.name, found.collect());
    output.show(&audit, people);
    Ok(ExitCode::from(match (audit.sound, audit.complete) {
        (false, _) => BROKEN,
        (true, false) => INCOMPLETE,
        (true, true) => 0,
    }))
}

/// Runs all of them at once on this thread; results in their order.
async fn all<F: Future>(work: Vec<F>) -> Vec<F::Output> {
    let mut work: Vec<_> = work.into_iter().map(|w| (Box::pin(w), None)).collect();
    std::future::poll_fn(|cx| {
        let mut is_over = true;
        for (w, end) in work.iter_mut().filter(|(_, end)| end.is_none()) {
            match w.as_mut().poll(cx) {
                std::task::Poll::Ready(out) => *end = Some(out),
                std::task::Poll::Pending => is_over = false,
            }
        }
        if is_over { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    work.into_iter().filter_map(|(_, end)| end).collect()
}

/// A shard and its members.
struct AskedShard {
    id: ShardId,
    shown: String,
    nodes: Vec<String>,
}

fn shards(volume: &VolumeStatus) -> Result<Vec<AskedShard>> {
    let shard = |s: &freebs_control::api::ShardReport| {
        let index = s.id.rsplit_once('.').and_then(|(_, index)| index.parse().ok()).ok_or_else(unexpected)?;
        let nodes = s.members.iter().map(|m| m.node.clone()).collect();
        Ok(AskedShard { id: ShardId { volume: volume.id, index }, shown: s.id.clone(), nodes })
    };
    volume.shards.iter().map(shard).collect()
}

impl AskedShard {
    /// Audits the shard at all its members: all begin, each is told what the others begin with, and who lacks secrets
    /// that others published is audited once more with them.
    async fn audit(&self, client: &Client, progress: &Rc<Progress>) -> (String, Vec<Audited>) {
        let begun = all(self.nodes.iter().map(|n| Member::begin(self, n, client, progress)).collect()).await;
        let committed = |m: &Result<(Member<'_>, Sequence)>| m.as_ref().ok().map(|(_, s)| *s);
        let at: Vec<Sequence> = begun.iter().filter_map(committed).collect();
        let audits = begun.into_iter().map(|m| async {
            let (member, _) = m?;
            member.audit(AuditGo { at: at.clone(), secrets: Vec::new() }).await
        });
        let first: Vec<Result<MemberAudit>> = all(audits.collect()).await;
        let known = secrets(first.iter().flatten());
        let again = self.nodes.iter().zip(first).map(|(node, m)| {
            let (at, known) = (at.clone(), &known);
            async move {
                let m = m?;
                let lacks = m.lacks(known);
                if lacks.is_empty() {
                    return Ok(m);
                }
                let (member, _) = Member::begin(self, node, client, progress).await?;
                member.audit(AuditGo { at, secrets: lacks }).await
            }
        });
        let found: Vec<Result<MemberAudit>> = all(again.collect()).await;
        let named = self.nodes.iter().zip(found).map(|(node, m)| (node.clone(), m.map_err(|e| e.to_string())));
        (self.shown.clone(), named.collect())
    }
}

/// One member's audit.
struct Member<'a> {
    shard: &'a AskedShard,
    node: &'a str,
    client: &'a Client,
    progress: &'a Rc<Progress>,
    run: u64,
}

impl<'a> Member<'a> {
    /// Has an audit ready at a member; the last frame there that is committed. A member that can't begin one now is asked
    /// again for `timing::AUDIT_PATIENCE`.
    async fn begin(
        shard: &'a AskedShard,
        node: &'a str,
        client: &'a Client,
        progress: &'a Rc<Progress>,
    ) -> Result<(Self, Sequence)> {
        let mut run = [0; 8];
        OsRandom.fill(&mut run);
        let member = Self { shard, node, client, progress, run: u64::from_le_bytes(run) };
        let (mut pause, begun) = (timing::AUDIT_LOOK_MIN, Instant::now());
        loop {
            match member.ask(None).await {
                Ok(AuditState::Ready { committed }) => return Ok((member, committed)),
                Ok(_) => return Err(unexpected()),
                // Too many audits are under way there, or it is just being started.
                Err(e) if e.kind == ErrorKind::Retry && begun.elapsed() < timing::AUDIT_PATIENCE => {}
                Err(e) => return Err(e),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(timing::AUDIT_LOOK_MAX);
        }
    }

    async fn ask(&self, go: Option<AuditGo>) -> Result<AuditState> {
        let audit = AuditOf { shard: self.shard.id, run: self.run, go };
        let request = Request::ShardAudit { node: Some(self.node.to_owned()), audit };
        match self.client.call(&request, timing::CALL_MAX).await? {
            Reply::Audit(state) => Ok(state),
            _ => Err(unexpected()),
        }
    }

    /// Lets the audit go on, and asks until it is over.
    async fn audit(&self, go: AuditGo) -> Result<MemberAudit> {
        let (mut pause, mut answered) = (timing::AUDIT_LOOK_MIN, Instant::now());
        loop {
            // A node that was started again meanwhile begins anew, so each question says all of it.
            match self.ask(Some(go.clone())).await {
                Ok(AuditState::Done(report)) => return Ok(*report),
                Ok(AuditState::Reading { done, total }) => {
                    answered = Instant::now();
                    self.progress.show(&self.shard.shown, self.node, (done, total));
                }
                Ok(AuditState::Ready { .. }) => return Err(unexpected()),
                Err(e) if e.kind == ErrorKind::Retry && answered.elapsed() < timing::AUDIT_PATIENCE => {}
                Err(e) => return Err(e),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(timing::AUDIT_LOOK_MAX);
        }
    }
}

/// A line on a terminal that says how far the audits are.
struct Progress {
    members: RefCell<BTreeMap<(String, String), (u32, u32)>>,
    terminal: bool,
    shown: Cell<Option<Instant>>,
}

impl Progress {
    fn new() -> Self {
        Self { members: RefCell::default(), terminal: std::io::stderr().is_terminal(), shown: Cell::new(None) }
    }

    fn show(&self, shard: &str, node: &str, at: (u32, u32)) {
        let mut members = self.members.borrow_mut();
        members.insert((shard.to_owned(), node.to_owned()), at);
        if !self.terminal || self.shown.get().is_some_and(|s| s.elapsed() < timing::PROGRESS_EVERY) {
            return;
        }
        self.shown.set(Some(Instant::now()));
        let (done, total) =
            members.values().fold((0u64, 0u64), |(d, t), (done, total)| (d + u64::from(*done), t + u64::from(*total)));
        let _ = write!(std::io::stderr(), "\r\x1b[Kverify: segment {done} of {total}, at {node}, shard {shard}");
    }

    fn finish(&self) {
        if self.shown.get().is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn span(first: u64, last: u64) -> String {
    match first.cmp(&last) {
        std::cmp::Ordering::Less => format!("{first}-{last}"),
        std::cmp::Ordering::Equal => first.to_string(),
        std::cmp::Ordering::Greater => "-".into(),
    }
}

/// Frames from one to another; a member may say anything.
fn frames(first: u64, last: u64) -> u64 {
    last.checked_sub(first).map_or(0, |more| more.saturating_add(1))
}

fn people(v: &VolumeAudit) -> String {
    let mut rows = Vec::new();
    for s in &v.shards {
        for m in &s.members {
            rows.extend(rows_of(&s.id, m));
        }
    }
    let mut text = table(&["SHARD", "NODE", "VERSIONS", "VIEWS", "FRAMES", "RESULT"], &["FRAMES"], rows);
    text.push('\n');
    for s in &v.shards {
        sentences(&v.volume, s, &mut text);
    }
    text.push_str(&verdict(v));
    text
}

fn rows_of(id: &str, m: &AuditedMember) -> Vec<Vec<String>> {
    let row = |versions: String, views: String, frames: String, result: &str| {
        vec![id.to_owned(), m.node.clone(), versions, views, frames, result.to_owned()]
    };
    let dash = || "-".to_owned();
    let Some(a) = &m.audit else { return vec![row(dash(), dash(), dash(), "not audited")] };
    let range = |r: &freebs_control::audit::AuditRange| {
        let frames = frames(r.first.0, r.last.0);
        let versions = span(r.first_version.0, r.last_version.0);
        (r.first, row(versions, span(r.first_view.0, r.last_view.0), frames.to_string(), r.proof.name()))
    };
    let broken = |b: &AuditBreak| {
        let frames = frames(b.first.0, b.last.0);
        (b.first, row(b.version.to_string(), b.view.to_string(), frames.to_string(), &format!("BREAK: {}", b.cause)))
    };
    let mut rows: Vec<_> = a.ranges.iter().map(range).collect();
    rows.extend(a.breaks.iter().take(BREAKS_SHOWN).map(broken));
    rows.sort_by_key(|(first, _)| *first);
    if rows.is_empty() {
        return vec![row(dash(), dash(), "0".into(), "empty")];
    }
    rows.into_iter().map(|(_, row)| row).collect()
}

/// Sentences below the table: why a chain is broken, who could not be asked, how members compare.
fn sentences(volume: &str, s: &AuditedShard, text: &mut String) {
    for m in &s.members {
        if let Some(e) = &m.error {
            text.push_str(&format!("{volume} shard {}: {} could not be audited: {e}\n", s.id, m.node));
        }
        let Some(a) = &m.audit else { continue };
        if a.mended > 0 {
            text.push_str(&format!(
                "{volume} shard {}: {}: frames that were damaged and are mended: {}; their blocks were put back elsewhere\n",
                s.id, m.node, a.mended
            ));
        }
        for b in a.breaks.iter().take(BREAKS_SHOWN) {
            let place = match (b.segment, b.offset, b.byte) {
                (Some(segment), Some(offset), Some(byte)) => {
                    format!(" (segment {segment}, byte {offset}; byte {byte} of the device)")
                }
                _ => String::new(),
            };
            let frame = span(b.first.0, b.last.0);
            text.push_str(&format!(
                "{volume} shard {}: {}, view {}, frame {frame}, version {}{place}: {}: {}\n",
                s.id, m.node, b.view, b.version, b.cause, b.what
            ));
        }
        let more = a.break_count.saturating_sub(BREAKS_SHOWN as u64);
        if more > 0 {
            text.push_str(&format!("{volume} shard {}: {}: {more} more breaks\n", s.id, m.node));
        }
    }
    for u in &s.unfit {
        text.push_str(&format!(
            "{volume} shard {}: the secret of view {} that {} published does not fit the frames of {}: they are linked\n",
            s.id,
            u.view,
            u.published_by.join(", "),
            u.unfit_at.join(", ")
        ));
    }
    // Of a log that lost its older frames the oldest branches are not known; who knows most tells.
    let told = s.members.iter().filter_map(|m| m.audit.as_ref()).max_by_key(|a| a.branches.len());
    for b in told.iter().flat_map(|a| &a.branches) {
        text.push_str(&format!(
            "{volume} shard {}: view {} went on by force from version {} (frame {}): what only lost members had is lost\n",
            s.id,
            b.view,
            b.version,
            b.sequence.0.saturating_sub(1)
        ));
    }
    if let Some(d) = &s.comparison.difference {
        let same = match d.same_to.0 {
            0 => "no frame before it was compared".to_owned(),
            n => format!("frame {n} is still the same"),
        };
        let nodes = d.nodes.join(", ");
        text.push_str(&format!("{volume} shard {}: members differ at frame {}, {same}: {nodes}\n", s.id, d.sequence));
    }
}

fn verdict(v: &VolumeAudit) -> String {
    let audited = || v.shards.iter().flat_map(|s| &s.members).filter_map(|m| m.audit.as_ref());
    if !v.sound {
        return format!("{}: the history is broken\n", v.volume);
    }
    let has = |proof: AuditProof| audited().flat_map(|a| &a.ranges).any(|r| r.proof == proof);
    let mut known = Vec::new();
    for (proof, words) in [
        (AuditProof::Proven, "proven"),
        (AuditProof::Linked, "linked"),
        (AuditProof::Summarised, "summarised where it was cleaned away"),
    ] {
        if has(proof) {
            known.push(words);
        }
    }
    let known = if known.is_empty() { "empty".to_owned() } else { known.join(", ") };
    let compared = v.shards.iter().filter(|s| s.comparison.nodes.len() > 1).map(|s| s.comparison.nodes.len()).min();
    let agree = match compared {
        Some(n) if v.shards.iter().all(|s| s.comparison.nodes.len() > 1) => format!("; {n} members hold the same one"),
        _ => String::new(),
    };
    let rest = if v.complete { "" } else { "; not all members were audited" };
    format!("{}: no break: the history is {known}{agree}{rest}\n", v.volume)
}

#[cfg(test)]
mod tests {
    use super::*;
    use freebs_control::audit::{AuditRange, Comparison, Difference};
    use freebs_types::{Version, ViewNumber};

    fn range(proof: AuditProof, (first, last): (u64, u64), (from, to): (u64, u64), views: (u64, u64)) -> AuditRange {
        AuditRange {
            proof,
            first_version: Version(from),
            last_version: Version(to),
            first: Sequence(first),
            last: Sequence(last),
            first_view: ViewNumber(views.0),
            last_view: ViewNumber(views.1),
        }
    }

    fn member(ranges: Vec<AuditRange>, breaks: Vec<AuditBreak>) -> MemberAudit {
        MemberAudit {
            version: Version(40),
            sequence: Sequence(50),
            committed: Sequence(50),
            ranges,
            folded: false,
            break_count: breaks.len() as u64,
            branches: Vec::new(),
            breaks,
            proven: 45,
            linked: 5,
            summarised: 0,
            segments: 1,
            bytes: 4096,
            samples: vec![(Sequence(50), freebs_types::Hash32([1; 32]))],
            published: vec![],
            unknown: vec![],
            unfit: vec![],
            mended: 0,
        }
    }

    fn sound() -> MemberAudit {
        let proven = range(AuditProof::Proven, (1, 45), (1, 36), (1, 9));
        member(vec![proven, range(AuditProof::Linked, (46, 50), (37, 40), (10, 10))], vec![])
    }

    fn volume(members: Vec<(&str, std::result::Result<MemberAudit, String>)>) -> VolumeAudit {
        let members = members.into_iter().map(|(n, m)| (n.to_owned(), m)).collect();
        VolumeAudit::new("demo".into(), vec![("1.0".into(), members)])
    }

    #[test]
    fn a_sound_history_is_a_table_of_ranges() {
        let shown = people(&volume(vec![("node1", Ok(sound())), ("node2", Ok(sound()))]));
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines.len(), 7, "{shown}");
        assert_eq!(lines[1].split_whitespace().collect::<Vec<_>>(), ["1.0", "node1", "1-36", "1-9", "45", "proven"]);
        assert_eq!(lines[2].split_whitespace().collect::<Vec<_>>(), ["1.0", "node1", "37-40", "10", "5", "linked"]);
        assert_eq!(lines[6], "demo: no break: the history is proven, linked; 2 members hold the same one");
    }

    #[test]
    fn a_break_says_its_place_and_cause() {
        let b = AuditBreak {
            cause: "altered".into(),
            view: ViewNumber(4),
            first: Sequence(17),
            last: Sequence(17),
            version: Version(13),
            segment: Some(2),
            offset: Some(8192),
            byte: Some(33_562_624),
            what: "its bytes do not give its digest".into(),
        };
        let mut broken = sound();
        (broken.breaks, broken.break_count) = (vec![b.clone(), b.clone(), b.clone(), b], 9);
        let v = volume(vec![("node1", Ok(sound())), ("node2", Ok(broken)), ("node3", Err("it is stopped".into()))]);
        assert!(!v.sound && !v.complete);
        let shown = people(&v);
        for want in [
            "BREAK: altered",
            "demo shard 1.0: node2, view 4, frame 17, version 13 (segment 2, byte 8192; byte 33562624 of the device): \
             altered: its bytes do not give its digest",
            "node2: 6 more breaks",
            "node3 could not be audited: it is stopped",
            "demo: the history is broken",
        ] {
            assert!(shown.contains(want), "{want}\n{shown}");
        }
    }

    #[test]
    fn members_that_differ_and_members_that_are_away_are_said() {
        let mut v = volume(vec![("node1", Ok(sound())), ("node2", Err("it is stopped".into()))]);
        assert!(v.sound && !v.complete);
        assert!(people(&v).contains("the history is proven, linked; not all members were audited"), "{}", people(&v));
        let difference = Some(Difference { sequence: Sequence(9), same_to: Sequence(8), nodes: vec!["node2".into()] });
        v.shards[0].comparison = Comparison { same_to: Sequence(8), nodes: vec![], difference };
        assert!(people(&v).contains("members differ at frame 9, frame 8 is still the same: node2"));
    }

    #[test]
    fn whose_word_did_not_fit_is_said_and_is_no_break() {
        let (mut lies, mut honest) = (sound(), sound());
        lies.published = vec![(ViewNumber(10), freebs_types::Hash32([9; 32]))];
        honest.unfit.clone_from(&lies.published);
        let v = volume(vec![("node1", Ok(lies)), ("node2", Ok(honest))]);
        assert!(v.sound && v.complete);
        let shown = people(&v);
        let want = "demo shard 1.0: the secret of view 10 that node1 published does not fit the frames of node2";
        assert!(shown.contains(want) && shown.contains("demo: no break"), "{shown}");
    }

    #[test]
    fn damage_that_is_mended_is_said_and_is_no_break() {
        let mended = MemberAudit { mended: 2, ..sound() };
        let shown = people(&volume(vec![("node1", Ok(sound())), ("node2", Ok(mended))]));
        assert!(shown.contains("demo shard 1.0: node2: frames that were damaged and are mended: 2; "), "{shown}");
        assert!(shown.contains("demo: no break"), "{shown}");
    }

    #[test]
    fn numbers_that_no_log_has_are_shown_and_not_believed() {
        let mut odd = member(vec![range(AuditProof::Proven, (9, 3), (1, 2), (1, 2))], vec![]);
        odd.ranges.push(range(AuditProof::Linked, (0, u64::MAX), (u64::MAX, 0), (7, 1)));
        let shown = people(&volume(vec![("node1", Ok(odd))]));
        let counts: Vec<&str> = shown.lines().skip(1).take(2).filter_map(|l| l.split_whitespace().nth(4)).collect();
        assert_eq!(counts, [u64::MAX.to_string().as_str(), "0"], "{shown}");
    }

    #[test]
    fn an_empty_shard_is_no_error() {
        assert!(people(&volume(vec![("node1", Ok(member(vec![], vec![])))])).contains("empty"));
        assert_eq!((span(3, 3), span(3, 9), span(4, 3)), ("3".into(), "3-9".into(), "-".into()));
    }
}
