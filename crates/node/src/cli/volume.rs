//! `freebs volume …`

use super::args::{CreateArgs, VolumeCommand};
use super::asked::{connect, is_settled, leads, show, unexpected, wait_until};
use super::attachments;
use super::clones::{self, CloneArgs};
use super::history;
use super::image::{addresses, on_this_thread};
use super::output::{Output, table};
use super::rollback;
use super::snapshot;
use crate::admin::{Client, name_of_time};
use crate::events::now_ms;
use crate::timing;
use freebs_control::api::{MemberState, Reply, Request, ShardReport, Verification, VolumeState, VolumeStatus};
use freebs_control::rules::{format_size, format_span};
use freebs_types::{Error, Result, Version};
use serde::Serialize;
use std::process::ExitCode;
use std::time::Instant;

pub async fn run(command: VolumeCommand, cluster: &str, output: &Output) -> Result<ExitCode> {
    let client = connect(cluster).await?;
    match command {
        VolumeCommand::Create(args) => create(&client, args, output).await,
        VolumeCommand::List => {
            let Reply::Volumes { volumes } = client.call(&Request::VolumeList, timing::CALL_MAX).await? else {
                return Err(unexpected());
            };
            #[derive(Serialize)]
            struct Shown {
                volumes: Vec<VolumeStatus>,
            }
            output.show(&Shown { volumes }, |s| volume_table(&s.volumes));
            Ok(ExitCode::SUCCESS)
        }
        VolumeCommand::Show { name } => {
            output.show(&show(&client, &name).await?, details);
            Ok(ExitCode::SUCCESS)
        }
        VolumeCommand::Clone(args) => clone(&client, args, output).await,
        VolumeCommand::Rollback(args) => {
            on_this_thread(rollback::rollback(&client, &addresses(cluster), args, output)).await
        }
        VolumeCommand::Rewind(args) => {
            on_this_thread(rollback::rewind(&client, &addresses(cluster), args, output)).await
        }
        VolumeCommand::Flatten(args) => clones::flatten(&client, args, output).await,
        VolumeCommand::Resize { name, size } => {
            let Reply::Volume { volume, .. } =
                client.call(&Request::VolumeResize { name, size }, timing::CALL_MAX).await?
            else {
                return Err(unexpected());
            };
            let volume = show(&client, &volume.name).await.unwrap_or(volume);
            output.show(&volume, |v| format!("volume {} has {}", v.name, format_size(v.size)));
            Ok(ExitCode::SUCCESS)
        }
        VolumeCommand::History { name } => history::run(&client, name, output).await,
        VolumeCommand::Retain { name, time } => retain(&client, name, time, output).await,
        VolumeCommand::Rename { name, to } => rename(&client, name, to, output).await,
        VolumeCommand::Import(args) => super::image::import(&client, cluster, args, output).await,
        VolumeCommand::Export(args) => super::image::export(&client, cluster, args, output).await,
        VolumeCommand::Attach(args) => attachments::attach(&client, args, output).await,
        VolumeCommand::Detach(args) => attachments::detach(&client, args, output).await,
        VolumeCommand::MoveHead { name, node, shard } => move_head(&client, name, node, shard, output).await,
        VolumeCommand::Delete { name, force, with_snapshots } => {
            delete(&client, name, (force, with_snapshots), output).await
        }
        VolumeCommand::Verify { name, wait } => verify(&client, name, wait, output).await,
        VolumeCommand::Recover(args) => super::recover::run(&client, args, output).await,
    }
}

/// A volume that was made, and sentences for people.
#[derive(Serialize)]
struct Created {
    #[serde(flatten)]
    volume: VolumeStatus,
    notes: Vec<String>,
}

impl Created {
    /// Asks for it, and waits until it can be used if that is wanted.
    async fn by(client: &Client, request: &Request, no_wait: bool) -> Result<Self> {
        let Reply::Volume { mut volume, notes } = client.call(request, timing::CALL_MAX).await? else {
            return Err(unexpected());
        };
        if !no_wait {
            let is_clone = matches!(request, Request::VolumeClone { .. });
            volume = wait_until(client, volume, |v| has_begun(v, is_clone)).await;
        }
        Ok(Self { volume, notes })
    }

    /// After the words on how it was made.
    fn text(&self, made: &str) -> String {
        let v = &self.volume;
        let mut text = format!("{made}: {}, {}, {}\n", format_size(v.size), copies(v), shards(v));
        for note in &self.notes {
            text.push_str(&format!("note: {note}\n"));
        }
        if v.state == VolumeState::Paused {
            text.push_str("note: it can't be used yet; `freebs volume show` says how it comes along\n");
        }
        text
    }
}

/// True if a volume that was made is as it is to be. A clone of a chain that became shorter begins with as few members.
fn has_begun(v: &VolumeStatus, is_clone: bool) -> bool {
    let are_active = || v.shards.iter().flat_map(|s| &s.members).all(|m| m.state == MemberState::Active);
    v.state == VolumeState::Ready || (is_clone && v.state == VolumeState::Degraded && are_active())
}

async fn create(client: &Client, args: CreateArgs, output: &Output) -> Result<ExitCode> {
    let new = args.shape.of(args.name, args.size);
    let created = Created::by(client, &Request::VolumeCreate(new), args.no_wait).await?;
    output.show(&created, |c| c.text(&format!("created {}", c.volume.name)));
    Ok(ExitCode::SUCCESS)
}

async fn clone(client: &Client, args: CloneArgs, output: &Output) -> Result<ExitCode> {
    let begun = Instant::now();
    let (volume, name) = (args.of.0, args.name);
    let not_understood = |text: String| {
        output.error(&Error::invalid(text));
        Ok(ExitCode::from(2))
    };
    let (snapshot, is_for_this) = match (args.of.1, args.past.place()) {
        (Some(snapshot), None) => (snapshot, false),
        (None, Some(past)) if !args.no_wait => {
            let name = format!("clone-{}", name_of_time(now_ms()));
            (snapshot::of_past(client, &volume, past, &name).await?.name, true)
        }
        (None, Some(_)) => {
            return not_understood("a clone of the past is waited for; leave out --no-wait".to_owned());
        }
        (None, None) => {
            return not_understood(format!(
                "say what of '{volume}' is to be cloned: a snapshot, as {volume}@NAME, or a moment, with --at or --version"
            ));
        }
        (Some(snapshot), Some(_)) => {
            return not_understood(format!("{volume}@{snapshot} is of one moment; leave out --at and --version"));
        }
    };
    let request = Request::VolumeClone { volume: volume.clone(), snapshot: snapshot.clone(), name };
    let created = Created::by(client, &request, args.no_wait).await;
    if is_for_this {
        // All that a clone has begun with stays. If it has not begun, the snapshot does, too.
        if created.as_ref().map_or(true, |c| has_begun(&c.volume, true)) {
            snapshot::delete_one(client, &volume, &snapshot).await?;
        }
    }
    let created = created?;
    let ms = begun.elapsed().as_secs_f64() * 1000.0;
    let from = args
        .past
        .place()
        .map_or_else(|| format!("{volume}@{snapshot}"), |p| format!("{volume} at {}", snapshot::past(p)));
    output.show(&created, |c| c.text(&format!("cloned {} from {from} in {ms:.1} ms", c.volume.name)));
    Ok(ExitCode::SUCCESS)
}

async fn retain(client: &Client, name: String, retain_ms: u64, output: &Output) -> Result<ExitCode> {
    let Reply::Volume { volume, .. } =
        client.call(&Request::VolumeRetain { name, retain_ms }, timing::CALL_MAX).await?
    else {
        return Err(unexpected());
    };
    output.show(&volume, |v| match v.retain_ms {
        0 => format!("{} keeps nothing of its past but snapshots", v.name),
        ms => format!("{} keeps the last {} from now on", v.name, format_span(ms)),
    });
    Ok(ExitCode::SUCCESS)
}

async fn rename(client: &Client, name: String, to: String, output: &Output) -> Result<ExitCode> {
    let Reply::Volume { volume, .. } =
        client.call(&Request::VolumeRename { name: name.clone(), to }, timing::CALL_MAX).await?
    else {
        return Err(unexpected());
    };
    #[derive(Serialize)]
    struct Renamed {
        renamed: String,
        to: String,
    }
    output.show(&Renamed { renamed: name, to: volume.name }, |r| format!("{} is called {} now", r.renamed, r.to));
    Ok(ExitCode::SUCCESS)
}

async fn move_head(
    client: &Client,
    name: String,
    node: String,
    shard: Option<u32>,
    output: &Output,
) -> Result<ExitCode> {
    let request = Request::VolumeMoveHead { name: name.clone(), node: node.clone(), shard };
    let Reply::Volume { volume, .. } = client.call(&request, timing::CALL_MAX).await? else {
        return Err(unexpected());
    };
    let volume = wait_until(client, volume, |v| leads(v, &node, shard) && is_settled(v)).await;
    if !leads(&volume, &node, shard) {
        return Err(Error::retry(format!(
            "{node} is to be head of volume {name}, and has not opened its view yet; `freebs volume show {name}` says \
             how it comes along"
        )));
    }
    output.show(&volume, |_| format!("{node} is head of volume {name}"));
    Ok(ExitCode::SUCCESS)
}

async fn delete(
    client: &Client,
    name: String,
    (force, with_snapshots): (bool, bool),
    output: &Output,
) -> Result<ExitCode> {
    let request = Request::VolumeDelete { name: name.clone(), force, with_snapshots };
    let Reply::Deleted = client.call(&request, timing::CALL_MAX).await? else {
        return Err(unexpected());
    };
    #[derive(Serialize)]
    struct Shown {
        deleted: String,
    }
    output.show(&Shown { deleted: name }, |s| format!("deleted {}", s.deleted));
    Ok(ExitCode::SUCCESS)
}

async fn verify(client: &Client, name: String, wait: u32, output: &Output) -> Result<ExitCode> {
    let request = Request::VolumeVerify { name, wait_ms: u64::from(wait) * 1000 };
    let Reply::Verified(found) = client.call(&request, timing::VERIFY_MAX).await? else { return Err(unexpected()) };
    output.show(&found, verdict);
    Ok(ExitCode::from(u8::from(!found.agree)))
}

fn copies(v: &VolumeStatus) -> String {
    if v.copies == 1 { "1 copy".into() } else { format!("{} copies", v.copies) }
}

fn shards(v: &VolumeStatus) -> String {
    match v.shards.len() {
        1 => "1 shard".into(),
        n => format!("{n} shards in stripes of {}", format_size(v.stripe)),
    }
}

pub fn volume_table(volumes: &[VolumeStatus]) -> String {
    if volumes.is_empty() {
        return "no volume; `freebs volume create NAME --size 10G` makes one\n".into();
    }
    let has_clones = volumes.iter().any(|v| v.origin.is_some());
    let row = |v: &VolumeStatus| {
        let mut row = vec![
            v.name.clone(),
            format_size(v.size),
            v.copies.to_string(),
            v.shards.len().to_string(),
            v.state.name().into(),
            v.attached.clone().unwrap_or_else(|| "-".into()),
        ];
        let origin = v.origin.as_ref().map_or_else(|| "-".into(), |o| format!("{}@{}", o.volume, o.snapshot));
        row.extend(Some(origin).filter(|_| has_clones));
        row
    };
    let mut header = vec!["VOLUME", "SIZE", "COPIES", "SHARDS", "STATE", "ATTACHED"];
    header.extend(Some("CLONED FROM").filter(|_| has_clones));
    table(&header, &["SIZE", "COPIES", "SHARDS"], volumes.iter().map(row).collect())
}

fn details(v: &VolumeStatus) -> String {
    let ack = match v.ack {
        freebs_control::Ack::Majority => "majority",
        freebs_control::Ack::All => "all",
    };
    let mut text = format!(
        "{}: {}, {} (at least {}, ack {ack}), {}, {}\n{}\n",
        v.name,
        format_size(v.size),
        copies(v),
        v.min_copies,
        shards(v),
        v.state.name(),
        v.attached.as_ref().map(|a| format!("attached by {a} (generation {})\n", v.generation)).unwrap_or_default()
    );
    match v.snapshots {
        0 => {}
        1 => text.push_str("1 snapshot\n"),
        n => text.push_str(&format!("{n} snapshots\n")),
    }
    text.extend(v.schedule.iter().map(|s| format!("{s}\n")));
    if v.retain_ms > 0 {
        text.push_str(&format!("keeps the last {} of its past\n", format_span(v.retain_ms)));
    }
    text.extend(clones::origin(v));
    let mut rows = Vec::new();
    for s in &v.shards {
        for m in &s.members {
            let role = if m.node == s.head { "head" } else { "member" };
            rows.push(vec![
                s.id.clone(),
                s.view.to_string(),
                m.node.clone(),
                role.into(),
                m.version.to_string(),
                m.state.name().into(),
            ]);
        }
    }
    text.push_str(&table(&["SHARD", "VIEW", "NODE", "ROLE", "VERSION", "STATE"], &["VIEW", "VERSION"], rows));
    for s in &v.shards {
        if let Some(waits) = &s.waits {
            text.push_str(&format!("shard {}: {waits}\n", s.id));
        }
        let left = s.away.iter().filter(|n| s.members.iter().all(|m| m.node != **n));
        for node in left {
            text.push_str(&format!(
                "shard {}: {node} is out of the chain, and keeps what it has, which may not be all; it is the first to come back\n",
                s.id
            ));
        }
        for node in &s.standing {
            text.push_str(&format!(
                "shard {}: {node} stands in: it has what is written since it came, and leaves when who was there before is back\n",
                s.id
            ));
        }
        if s.past.is_some_and(|p| p.is_short) {
            text.push_str(&format!("shard {}: {}\n", s.id, history::SHORT));
        }
        for m in s.members.iter().filter(|m| m.pins > 0 && m.whole_from > Version(0)) {
            let before = m.whole_from;
            text.push_str(&format!("shard {}: {} lacks history: snapshots before version {before} ", s.id, m.node));
            text.push_str("can't be read there; it asks the other members for it\n");
        }
    }
    v.shards.iter().for_each(|s| text.push_str(&losses(s)));
    text
}

/// Sentences on a shard that went on by force, or is to.
fn losses(s: &ShardReport) -> String {
    let mut text = String::new();
    if let Some(b) = &s.branch {
        let from = if b.version.0 > 0 { format!(" from version {}", b.version) } else { String::new() };
        text.push_str(&format!(
            "shard {}: view {} went on by force{from}; what only lost members had is lost\n",
            s.id, b.view
        ));
    }
    if s.forced {
        text.push_str(&format!("shard {}: it is to go on by force; `freebs events` says from where\n", s.id));
        if !s.waits_for.is_empty() {
            let names = s.waits_for.join(", ");
            text.push_str(&format!(
                "shard {}: that waits for {names}: start what was named as left, or say `freebs volume recover` once more to \
                 go on without\n",
                s.id
            ));
        }
    }
    text
}

fn verdict(v: &Verification) -> String {
    let mut rows = Vec::new();
    for s in &v.shards {
        for r in &s.replicas {
            let version = r.version.map_or_else(|| "-".into(), |x| x.to_string());
            let digest = match (&r.digest, &r.error) {
                (Some(d), _) => d.to_string()[..16].to_string(),
                (None, Some(e)) => e.clone(),
                (None, None) => "-".into(),
            };
            rows.push(vec![s.id.clone(), r.node.clone(), version, digest]);
        }
    }
    let mut text = table(&["SHARD", "NODE", "VERSION", "DIGEST"], &["VERSION"], rows);
    text.push('\n');
    if v.agree {
        let replicas = v.shards.first().map_or(0, |s| s.replicas.len());
        let all =
            if replicas == 1 { "the only replica is sound".into() } else { format!("all {replicas} replicas agree") };
        text.push_str(&format!("{}: {all}\n", v.volume));
    } else {
        for s in v.shards.iter().filter(|s| !s.agree) {
            text.push_str(&format!("{} shard {}: {}\n", v.volume, s.id, s.problem));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use freebs_control::api::MemberReport;
    use freebs_control::{Ack, Branch, CreateVolume, State};
    use freebs_types::{Sequence, ViewNumber};

    /// A volume of two shards with these members, heads first.
    fn volume<const N: usize>(shards: [[(&str, MemberState); N]; 2]) -> VolumeStatus {
        let mut state = State::new(freebs_types::ClusterId([1; 16]));
        let node = freebs_control::Command::RegisterNode {
            node: freebs_types::NodeId(1),
            name: "a".into(),
            address: "127.0.0.1:1".into(),
            workers: 1,
            start: freebs_types::StartNumber(1),
        };
        state.apply(node).expect("a node");
        let new = CreateVolume { name: "v".into(), size: 1 << 30, ..CreateVolume::default() };
        state.apply(freebs_control::Command::CreateVolume(new)).expect("a volume");
        let volume = state.volumes().next().expect("it was just made").clone();
        assert_eq!(volume.ack, Ack::Majority);
        let report = |(index, members): (usize, [(&str, MemberState); N])| ShardReport {
            id: format!("1.{index}"),
            view: ViewNumber(3),
            head: members[0].0.into(),
            members: members
                .map(|(node, state)| MemberReport {
                    node: node.into(),
                    version: Version(1),
                    pins: 0,
                    whole_from: Version(0),
                    reads_from_parent: false,
                    state,
                })
                .into(),
            joining: vec![],
            keepers: vec![],
            away: vec![],
            standing: vec![],
            waits: None,
            forced: false,
            waits_for: vec![],
            branch: None,
            past: None,
        };
        let shards = shards.into_iter().enumerate().map(report).collect();
        VolumeStatus::new(&volume, VolumeState::Degraded, shards)
    }

    #[test]
    fn a_shard_that_waits_says_what_for() {
        use MemberState::{Active, Down, Opening};
        let mut v =
            volume([[("a", Opening), ("b", Down), ("c", Active)], [("b", Active), ("a", Active), ("c", Active)]]);
        assert!(!details(&v).contains("waits"));
        v.shards[0].waits = Some("it waits: node 2 does not answer".into());
        assert!(details(&v).ends_with("shard 1.0: it waits: node 2 does not answer\n"), "{}", details(&v));
    }

    /// Who looks at a chain in which a node stands in sees for whom, and that it will leave.
    #[test]
    fn a_chain_with_a_stand_in_says_so() {
        use MemberState::{Active, Joining};
        let mut v = volume([[("a", Active), ("b", Active), ("d", Joining)]; 2]);
        assert!(!details(&v).contains("stands in"));
        (v.shards[0].away, v.shards[0].standing) = (vec!["c".into()], vec!["d".into()]);
        for line in ["shard 1.0: c is out of the chain", "shard 1.0: d stands in"] {
            assert!(details(&v).contains(line), "{}", details(&v));
        }
        let json = serde_json::to_value(&v).expect("it has a form");
        assert_eq!(json["shards"][0]["standing"][0], "d");
        assert!(json["shards"][1].get("standing").is_none());
    }

    /// A copy that can't be read at all of its snapshots looked like any other.
    #[test]
    fn a_member_that_lacks_history_says_so() {
        use MemberState::Active;
        let mut v = volume([[("a", Active), ("b", Active), ("c", Active)]; 2]);
        v.shards[1].members[2].whole_from = Version(7);
        assert!(!details(&v).contains("history"), "nothing of it is kept");
        v.shards[1].members[2].pins = 2;
        let line = "shard 1.1: c lacks history: snapshots before version 7 can't be read there";
        assert!(details(&v).contains(line), "{}", details(&v));
    }

    /// Whoever looks at a volume sees that something of it was lost, for as long as it is there.
    #[test]
    fn a_volume_that_went_on_by_force_says_so() {
        use MemberState::Active;
        let mut v = volume([[("a", Active), ("b", Active), ("c", Active)]; 2]);
        assert!(!details(&v).contains("force"));
        v.shards[1].branch = Some(Branch { view: ViewNumber(7), at: Sequence(90), version: Version(88) });
        let said = "shard 1.1: view 7 went on by force from version 88; what only lost members had is lost\n";
        assert!(details(&v).ends_with(said), "{}", details(&v));
        v.shards[1].branch = Some(Branch { view: ViewNumber(7), at: Sequence(0), version: Version(0) });
        v.shards[0].forced = true;
        assert!(details(&v).contains("shard 1.0: it is to go on by force"), "{}", details(&v));
        assert!(!details(&v).contains("waits for"), "{}", details(&v));
        v.shards[0].waits_for = vec!["d".into(), "e".into()];
        assert!(details(&v).contains("shard 1.0: that waits for d, e: start"), "{}", details(&v));
        assert!(details(&v).contains("view 7 went on by force; what only"), "{}", details(&v));
    }

    /// The command waited for all members for 10 s, and said that all was done if the head had not come.
    #[test]
    fn a_head_has_moved_when_it_orders_and_others_may_be_away() {
        use MemberState::{Active, Down, Opening};
        let v = volume([[("a", Active), ("b", Down), ("c", Active)], [("b", Opening), ("a", Active), ("c", Active)]]);
        assert!(leads(&v, "a", Some(0)) && !leads(&v, "a", Some(1)) && !leads(&v, "a", None));
        assert!(!leads(&v, "b", Some(1)), "it has not opened its view");
        assert!(!is_settled(&v));
        let v = volume([[("a", Active), ("b", Down), ("c", Active)], [("a", Active), ("b", Down), ("c", Active)]]);
        assert!(leads(&v, "a", None) && is_settled(&v));
        let v = volume([[("b", Down), ("a", Active), ("c", Active)], [("b", Down), ("a", Active), ("c", Active)]]);
        assert!(!leads(&v, "b", None));
    }

    /// A clone whose member was only late lost the snapshot that it was to begin with.
    #[test]
    fn a_clone_has_begun_when_all_that_are_its_members_are_active() {
        use MemberState::{Active, Down, Opening};
        let short = volume([[("a", Active), ("b", Active)]; 2]);
        assert!(has_begun(&short, true) && !has_begun(&short, false));
        for state in [Down, Opening] {
            assert!(!has_begun(&volume([[("a", Active), ("b", state)]; 2]), true), "{state:?}");
        }
    }
}
