//! `freebs volume recover`: what is left of a volume whose members are lost, and how it goes on by force (rule V10).

use super::args::RecoverArgs;
use super::asked::{show, unexpected};
use super::output::{Output, table};
use crate::admin::Client;
use crate::timing;
use freebs_control::api::{MemberState, Reply, Request, ShardReport, VolumeStatus};
use freebs_control::recover::{MemberLog, Need, Plan, Recovery, ShardRecovery};
use freebs_types::{Result, ViewNumber};
use serde::Serialize;
use std::process::ExitCode;

/// Nothing was changed, and the volume can go on without what is lost.
const WORD_NEEDED: u8 = 3;

pub async fn run(client: &Client, args: RecoverArgs, output: &Output) -> Result<ExitCode> {
    let request = Request::VolumeRecover { name: args.name.clone(), accept_loss: args.accept_loss.clone() };
    let Reply::Recovery(found) = client.call(&request, timing::CALL_MAX).await? else { return Err(unexpected()) };
    if !found.decided {
        if args.accept_loss.is_some() {
            output.note("what was accepted is not what there is now, so nothing was decided");
        }
        output.show(&found, text);
        let may_go_on = found.shards.iter().any(|s| s.plan.is_some());
        return Ok(ExitCode::from(if may_go_on { WORD_NEEDED } else { 1 }));
    }
    if !output.json {
        output.line(text(&found).trim_end());
    }
    let open = if args.no_wait { None } else { wait(client, &found, output).await? };
    let serves = open.is_some();
    let sealed = open.map(|v| sealed_after_all(&found, &v.shards)).unwrap_or_default();
    #[derive(Serialize)]
    struct Done {
        #[serde(flatten)]
        recovery: Recovery,
        /// All that was decided on can be used.
        serves: bool,
        /// Shards that were to go on by force, and were sealed as usual after all: nothing of them is lost.
        sealed: Vec<String>,
    }
    let name = args.name;
    let all_go_on = found.shards.iter().all(|s| s.need != Need::Help);
    output.show(&Done { recovery: found, serves, sealed }, |d| {
        let lines = d.sealed.iter().map(|id| {
            format!(
                "shard {id}: enough of the lost were back, and the view was sealed as usual: nothing of it is lost\n"
            )
        });
        let last = match d.serves {
            true => {
                format!("volume {name} can be used; `freebs volume show {name}` says when all members have everything")
            }
            false => format!("it is decided; `freebs volume show {name}` says how it comes along"),
        };
        lines.chain([last]).collect()
    });
    Ok(ExitCode::from(u8::from(!all_go_on)))
}

/// Ids of shards that were to go on by force and have a new view that does not.
fn sealed_after_all(found: &Recovery, now: &[ShardReport]) -> Vec<String> {
    let by_force = |s: &&ShardRecovery| s.need == Need::Force && s.plan.is_some();
    let report = |s: &ShardRecovery| now.iter().find(|r| r.id == s.id).map(|r| (s.view, r));
    let forced = found.shards.iter().filter(by_force).filter_map(report);
    let is_sealed = |(before, r): &(ViewNumber, &ShardReport)| r.branch.is_none_or(|b| b.view <= *before);
    forced.filter(is_sealed).map(|(_, r)| r.id.clone()).collect()
}

/// Waits until all that was decided on can be used, and says how it comes along: the volume as it is then. An error if the
/// volume is gone meanwhile.
async fn wait(client: &Client, found: &Recovery, output: &Output) -> Result<Option<VolumeStatus>> {
    let decided: Vec<(&str, ViewNumber)> =
        found.shards.iter().filter(|s| s.plan.is_some()).map(|s| (s.id.as_str(), s.view)).collect();
    let mut said = Vec::new();
    loop {
        match show(client, &found.volume).await {
            Ok(v) => {
                let lines = progress(&v, &decided);
                for line in lines.iter().filter(|l| !said.contains(*l) && !output.json) {
                    output.note(line);
                }
                said = lines;
                if decided.iter().all(|(id, before)| v.shards.iter().any(|s| s.id == *id && is_open(s, *before))) {
                    return Ok(Some(v));
                }
            }
            // The node that was asked may have been stopped; what was decided goes on.
            Err(e) if e.kind == freebs_types::ErrorKind::NotFound => return Err(e),
            Err(e) => {
                let line = e.to_string();
                if !said.contains(&line) {
                    output.note(&line);
                    said.push(line);
                }
            }
        }
        tokio::time::sleep(timing::RECOVER_LOOK).await;
    }
}

/// True if the shard has another view, and its head orders in that.
fn is_open(s: &ShardReport, before: ViewNumber) -> bool {
    let orders = |m: &freebs_control::api::MemberReport| m.node == s.head && m.state == MemberState::Active;
    s.view > before && s.members.iter().any(orders)
}

fn progress(v: &VolumeStatus, decided: &[(&str, ViewNumber)]) -> Vec<String> {
    let of = |s: &&ShardReport| decided.iter().any(|(id, _)| *id == s.id);
    let line = |s: &ShardReport| {
        let member = |m: &freebs_control::api::MemberReport| match m.state {
            MemberState::Active => format!("{} has everything", m.node),
            other => format!("{} is {} (version {})", m.node, other.name(), m.version),
        };
        let members: Vec<String> = s.members.iter().map(member).collect();
        let waits = if s.waits_for.is_empty() { String::new() } else { format!("; waits for {}", list(&s.waits_for)) };
        format!("shard {}: view {}; {}{waits}", s.id, s.view, members.join(", "))
    };
    v.shards.iter().filter(of).map(line).collect()
}

fn list(names: &[String]) -> String {
    match names {
        [] => "nobody".into(),
        [one] => one.clone(),
        [others @ .., last] => format!("{} and {last}", others.join(", ")),
    }
}

fn text(r: &Recovery) -> String {
    let mut text = String::new();
    for s in &r.shards {
        text.push_str(&shard(s, r.decided));
        text.push('\n');
    }
    let may_go_on = r.shards.iter().any(|s| s.plan.is_some());
    if r.decided {
        text.push_str("That is decided now.\n");
    } else if may_go_on {
        text.push_str(&format!(
            "Nothing was changed. If what does not answer may come back, start it, and nothing is lost. If it is lost \
             for good, see to it that none of it runs any more (a member that is only cut off goes on answering whoever \
             reaches it, and that is lost, too), and then:\n  freebs volume recover {} --accept-loss {}\n",
            r.volume, r.word
        ));
    }
    text
}

fn shard(s: &ShardRecovery, decided: bool) -> String {
    let counts = format!("{} of {} members count, {} are needed", s.counting, members(s), s.needed);
    let mut text = format!("shard {}, view {}: {counts}", s.id, s.view);
    if s.need == Need::Nothing {
        text.push_str("; it goes on by itself\n");
        return text;
    }
    text.push_str("\n\n");
    text.push_str(&logs(&s.logs));
    text.push_str(&format!("\nHighest committed sequence that anybody names: {}.\n", s.committed));
    match &s.plan {
        Some(p) => text.push_str(&plan(s, p, decided)),
        None => text.push_str(&format!("It can't go on without what is lost either: {}.\n", s.why)),
    }
    text
}

fn members(s: &ShardRecovery) -> usize {
    s.logs.iter().filter(|l| l.is_member).count()
}

fn logs(logs: &[MemberLog]) -> String {
    let row = |l: &MemberLog| {
        let number = |n: Option<u64>| n.map_or_else(|| "-".into(), |n| n.to_string());
        vec![
            l.node.clone(),
            number(l.log.map(|l| l.last_view.0)),
            number(l.log.map(|l| l.last.0)),
            number(l.log.map(|l| l.version.0)),
            number(l.log.map(|l| l.committed.0)),
            if l.counts { "counts".into() } else { l.why.clone() },
        ]
    };
    let header = ["NODE", "VIEW", "ENDS AT", "VERSION", "COMMITTED", "ANSWER"];
    table(&header, &["VIEW", "ENDS AT", "VERSION", "COMMITTED"], logs.iter().map(row).collect())
}

fn plan(s: &ShardRecovery, p: &Plan, decided: bool) -> String {
    let goes = if decided { "It goes on" } else { "It would go on" };
    let mut text =
        format!("{goes} from {}: all up to version {} (sequence {}) is kept.\n", p.head, p.version, p.sequence);
    if p.view < s.view {
        text.push_str(&format!("All that was written in view {} is lost: that log ends in view {}.\n", s.view, p.view));
    }
    if p.lost_inside > 0 {
        let was = "is undone, and what was written later stays";
        text.push_str(&format!(
            "{} frames in the middle of that log are lost: what they wrote {was}.\n",
            p.lost_inside
        ));
    }
    if p.has_given_up {
        text.push_str("Frames that log had lost were given up by an earlier word: what they wrote is undone.\n");
    }
    if p.lost_from.0 > 0 {
        text.push_str(&format!("Sequences {} to {} were committed, and are lost.\n", p.lost_from, s.committed));
    }
    match s.need {
        Need::Members => text.push_str("All that was answered is there; too few members are.\n"),
        _ => {
            if !p.loses() && p.view == s.view {
                text.push_str("Nothing is known to be lost.\n");
            }
            let lost = list(&p.lost);
            text.push_str(&format!("What only {lost} had is lost; whether any of it was answered nobody can tell.\n"));
        }
    }
    let learn = if p.new.is_empty() { String::new() } else { format!("; {} learn it from {}", list(&p.new), p.head) };
    text.push_str(&format!("Its members {} {}{learn}.\n", if decided { "are" } else { "would be" }, list(&p.members)));
    if !decided {
        let of = if p.lost.len() > p.back { format!("{} of {}", p.back, list(&p.lost)) } else { list(&p.lost) };
        text.push_str(&format!("With {of} back, with what it had, it goes on by itself, and nothing is lost.\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use freebs_control::Branch;
    use freebs_control::recover::LogStatus;
    use freebs_types::{Sequence, Version};

    fn found(committed: u64) -> Recovery {
        let log =
            LogStatus { last: Sequence(120), last_view: ViewNumber(5), version: Version(88), ..LogStatus::default() };
        let one = |node: &str, log: Option<LogStatus>| MemberLog {
            node: node.into(),
            is_member: true,
            counts: log.is_some(),
            why: if log.is_some() { String::new() } else { "does not answer".into() },
            log,
        };
        let plan = Plan {
            head: "b".into(),
            sequence: Sequence(120),
            version: Version(88),
            view: ViewNumber(5),
            lost_from: Sequence(if committed > 120 { 121 } else { 0 }),
            lost_inside: 0,
            has_given_up: false,
            lost: vec!["a".into(), "c".into()],
            back: 1,
            members: vec!["b".into(), "d".into(), "e".into()],
            new: vec!["d".into(), "e".into()],
        };
        let shard = ShardRecovery {
            id: "7.0".into(),
            view: ViewNumber(5),
            need: Need::Force,
            why: String::new(),
            needed: 2,
            counting: 1,
            committed: Sequence(committed),
            logs: vec![one("a", None), one("b", Some(log)), one("c", None)],
            plan: Some(plan),
        };
        Recovery { volume: "data".into(), decided: false, shards: vec![shard], word: "5f3e01aa".into() }
    }

    #[test]
    fn a_shard_that_was_sealed_after_all_is_told_apart() {
        let now = |branch: Option<u64>| {
            let (at, version) = (Sequence(120), Version(88));
            [ShardReport {
                id: "7.0".into(),
                view: ViewNumber(6),
                head: "b".into(),
                members: vec![],
                joining: vec![],
                keepers: vec![],
                away: vec![],
                standing: vec![],
                waits: None,
                forced: false,
                waits_for: vec![],
                branch: branch.map(|view| Branch { view: ViewNumber(view), at, version }),
                past: None,
            }]
        };
        assert_eq!(sealed_after_all(&found(118), &now(Some(6))), Vec::<String>::new());
        assert_eq!(sealed_after_all(&found(118), &now(None)), ["7.0"]);
        assert_eq!(sealed_after_all(&found(118), &now(Some(4))), ["7.0"], "that was an earlier time");
    }

    #[test]
    fn what_is_lost_is_said_and_how_to_ask() {
        let said = text(&found(118));
        for part in [
            "shard 7.0, view 5: 1 of 3 members count, 2 are needed",
            "does not answer",
            "anybody names: 118",
            "It would go on from b: all up to version 88 (sequence 120) is kept",
            "Nothing is known to be lost",
            "What only a and c had is lost",
            "would be b, d and e; d and e learn it from b",
            "With 1 of a and c back, with what it had, it goes on by itself",
            "see to it that none of it runs any more",
            "freebs volume recover data --accept-loss 5f3e01aa",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let said = text(&found(125));
        assert!(said.contains("Sequences 121 to 125 were committed, and are lost"), "{said}");
        assert!(!said.contains("Nothing is known"), "{said}");
        let said = text(&Recovery { decided: true, ..found(118) });
        assert!(said.contains("That is decided now") && !said.contains("--accept-loss") && !said.contains("back"));
        let mut r = found(118);
        r.shards[0].need = Need::Members;
        let said = text(&r);
        assert!(said.contains("All that was answered is there; too few members are"), "{said}");
        assert!(!said.contains("lost; whether") && said.contains("--accept-loss"), "{said}");
    }
}
