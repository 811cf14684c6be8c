//! Commands, and what came of them, as bytes: exactly what is replicated and kept.
//!
//! Every form is a byte that names it, then its fields in a fixed order, little-endian; texts have their length before
//! them. Nothing may be left over. What does not decode is `Corrupt`; decoding never panics, and allocates no more
//! than the bytes it was given. Where the bytes lie (a record, a message) they are under a checksum.
//! `docs/formats/control.md` has the table.

use crate::command::{Command, CreateVolume, Done, NewNode, Outcome, RecoverShard};
use crate::limits::{
    COMMAND_BYTES_MAX, COMMAND_TEXT_BYTES_MAX, CUTS_OF_COMMAND_MAX, ERROR_TEXT_BYTES_MAX, FAILED_NODES_MAX,
    KEEP_RULES_MAX, LEFT_SHARDS_MAX, SNAPSHOT_VOLUMES_MAX, TOKENS_MAX,
};
use crate::snapshots::{Cut, Group, Keep, Schedule};
use crate::state::Ack;
use freebs_types::limits::CHAIN_MEMBERS_MAX;
use freebs_types::{
    Error, ErrorKind, Generation, Hash32, HostPublic, NodeId, Past, Result, Sequence, ShardId, SnapshotId, StartNumber,
    Version, ViewNumber, VolumeId,
};

/// Kinds of errors by their byte; appended to, never reordered.
const ERROR_KINDS: [ErrorKind; 10] = [
    ErrorKind::Retry,
    ErrorKind::Fenced,
    ErrorKind::Busy,
    ErrorKind::Corrupt,
    ErrorKind::NoSpace,
    ErrorKind::DeviceFailed,
    ErrorKind::Invalid,
    ErrorKind::NotFound,
    ErrorKind::Os,
    ErrorKind::Bug,
];

fn damaged() -> Error {
    Error::corrupt("a command of the control plane can't be read")
}

/// Reads fields off the front of bytes that are not trusted.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// The next `len` bytes.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or_else(damaged)?;
        self.0 = rest;
        Ok(taken)
    }

    /// The next byte.
    pub fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    /// The next byte as yes (1) or no (0); anything else is `Corrupt`.
    pub fn flag(&mut self) -> Result<bool> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(damaged()),
        }
    }

    /// The next two bytes, little end first.
    pub fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.take(2)?.try_into().expect("two bytes")))
    }

    /// The next four bytes, little end first.
    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().expect("four bytes")))
    }

    /// The next eight bytes, little end first.
    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("eight bytes")))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("as many bytes as were taken"))
    }

    fn text(&mut self) -> Result<String> {
        let len = self.u16()? as usize;
        let text = std::str::from_utf8(self.take(len)?).map_err(|_| damaged())?;
        Ok(text.to_owned())
    }

    fn optional<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<Option<T>> {
        if self.flag()? { read(self).map(Some) } else { Ok(None) }
    }

    fn shard(&mut self) -> Result<ShardId> {
        Ok(ShardId { volume: VolumeId(self.u64()?), index: self.u32()? })
    }

    /// `Corrupt` if anything is left over.
    pub fn end(&self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(damaged()) }
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    let len = u16::try_from(text.len()).expect("texts are checked before they are encoded");
    out.extend(len.to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_optional<const N: usize>(out: &mut Vec<u8>, value: Option<[u8; N]>) {
    out.push(u8::from(value.is_some()));
    out.extend(value.into_iter().flatten());
}

fn put_shard(out: &mut Vec<u8>, shard: ShardId) {
    out.extend(shard.volume.0.to_le_bytes());
    out.extend(shard.index.to_le_bytes());
}

fn put_numbers(out: &mut Vec<u8>, numbers: &[u64]) {
    numbers.iter().for_each(|n| out.extend(n.to_le_bytes()));
}

/// A command's byte and its numbers.
fn put_form(out: &mut Vec<u8>, form: u8, numbers: &[u64]) {
    out.push(form);
    put_numbers(out, numbers);
}

/// The same with a shard before the numbers.
fn put_of_shard(out: &mut Vec<u8>, form: u8, shard: ShardId, numbers: &[u64]) {
    out.push(form);
    put_shard(out, shard);
    put_numbers(out, numbers);
}

/// A command's byte, one number and a text.
fn put_named(out: &mut Vec<u8>, form: u8, number: u64, name: &str) {
    put_form(out, form, &[number]);
    put_text(out, name);
}

impl Command {
    /// Bytes of its texts.
    fn text_bytes(&self) -> usize {
        match self {
            Self::RegisterNode { name, address, .. } => name.len() + address.len(),
            Self::CreateVolume(new) => new.name.len(),
            Self::CloneVolume { snapshot, name, .. } => snapshot.len() + name.len(),
            Self::AttachVolume { name, .. }
            | Self::RenameVolume { name, .. }
            | Self::BeginSnapshot { name, .. }
            | Self::DeleteSnapshot { name, .. }
            | Self::LockSnapshot { name, .. } => name.len(),
            Self::FailSnapshot { why, .. } => why.len(),
            Self::AddNode(new) => new.name.len() + new.address.len(),
            _ => 0,
        }
    }

    /// The command as it is replicated. `Invalid` if its texts are longer than any valid command's.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let texts = self.text_bytes();
        if texts > COMMAND_TEXT_BYTES_MAX {
            return Err(Error::invalid("a name or an address is far too long"));
        }
        let mut out = Vec::with_capacity(128 + texts);
        self.put(&mut out)?;
        debug_assert!(out.len() <= COMMAND_BYTES_MAX);
        Ok(out)
    }

    /// Appends the command, whose texts were found short enough.
    fn put(&self, out: &mut Vec<u8>) -> Result<()> {
        match self {
            Self::RegisterNode { node, name, address, workers, start } => {
                put_form(out, 1, &[node.0, start.0]);
                out.extend(workers.to_le_bytes());
                put_text(out, name);
                put_text(out, address);
            }
            Self::CreateVolume(new) => {
                out.push(2);
                put_create(out, new);
            }
            Self::DeleteVolume { volume, force } => {
                put_form(out, 3, &[volume.0]);
                out.push(u8::from(*force));
            }
            Self::ResizeVolume { volume, size } => put_form(out, 4, &[volume.0, *size]),
            Self::ProposeView { shard, active, node, start } => {
                put_of_shard(out, 5, *shard, &[active.0, node.0, start.0]);
            }
            Self::ActivateView { shard, view, generation } => put_of_shard(out, 6, *shard, &[view.0, generation.0]),
            Self::AttachVolume { .. } => self.put_attach(out)?,
            Self::DetachVolume { volume, generation, settled } => {
                put_form(out, if *settled { 13 } else { 8 }, &[volume.0, generation.0]);
            }
            Self::NameHostKey { node, start, key } => {
                put_form(out, 9, &[node.0, start.0]);
                out.extend(key.0);
            }
            Self::MoveHead { shard, node } => put_of_shard(out, 10, *shard, &[node.0]),
            Self::ReplaceHead { shard, head, active, node } => {
                put_of_shard(out, 12, *shard, &[head.0, active.0, node.0]);
            }
            Self::FailOver { .. }
            | Self::ReplaceMembers { .. }
            | Self::ExtendChains { .. }
            | Self::DrainChains { .. }
            | Self::DrainNode { .. }
            | Self::RetireNode { .. }
            | Self::RemoveNode { .. }
            | Self::StandIn { .. }
            | Self::LeaveChains { .. } => self.put_of_nodes(out)?,
            Self::MembersComplete { shard, view, nodes } => {
                put_of_shard(out, 16, *shard, &[view.0]);
                put_members(out, nodes)?;
            }
            Self::ActivateBranch { shard, view, generation } => put_of_shard(out, 19, *shard, &[view.0, generation.0]),
            Self::ActivateClone { shard, view, generation, learning } => {
                put_of_shard(out, 30, *shard, &[view.0, generation.0]);
                put_members(out, learning)?;
            }
            Self::RenameVolume { volume, name } => put_named(out, 20, volume.0, name),
            Self::RecoverShard(how) => put_recover(out, how)?,
            Self::DeleteVolumeAndSnapshots { volume, force, now_ms } => {
                put_form(out, 27, &[volume.0, *now_ms]);
                out.push(u8::from(*force));
            }
            Self::FlattenVolume { volume } => put_form(out, 29, &[volume.0]),
            Self::RetainVolume { volume, retain_ms } => put_form(out, 31, &[volume.0, *retain_ms]),
            Self::MakeToken { .. } | Self::AddNode(_) | Self::RevokeTokens { .. } => self.put_of_joining(out)?,
            Self::BeginSnapshot { .. }
            | Self::ReportCuts { .. }
            | Self::ConfirmCuts { .. }
            | Self::FailSnapshot { .. }
            | Self::DeleteSnapshot { .. }
            | Self::LockSnapshot { .. }
            | Self::ScheduleSnapshots { .. }
            | Self::CloneVolume { .. } => self.put_of_snapshot(out)?,
        }
        Ok(())
    }

    fn put_of_nodes(&self, out: &mut Vec<u8>) -> Result<()> {
        match self {
            Self::FailOver { nodes } => put_away(out, 11, nodes),
            Self::ReplaceMembers { gone, failed } => {
                put_away(out, 15, gone)?;
                put_nodes(out, failed, FAILED_NODES_MAX - gone.len())
            }
            Self::ExtendChains { away, waited } if waited.is_empty() => put_away(out, 18, away),
            Self::ExtendChains { away, waited } => {
                put_away(out, 35, away)?;
                put_nodes(out, waited, FAILED_NODES_MAX)
            }
            Self::DrainChains { away } => put_away(out, 45, away),
            Self::StandIn { failed, away } => {
                put_away(out, 49, failed)?;
                put_nodes(out, away, FAILED_NODES_MAX - failed.len())
            }
            Self::DrainNode { node, drains, heir } => {
                match heir {
                    None => put_form(out, 44, &[node.0]),
                    Some(heir) => put_form(out, 46, &[node.0, heir.0]),
                }
                out.push(u8::from(*drains));
                Ok(())
            }
            Self::RemoveNode { node } => {
                put_form(out, 47, &[node.0]);
                Ok(())
            }
            Self::RetireNode { node } => {
                put_form(out, 48, &[node.0]);
                Ok(())
            }
            Self::LeaveChains { failed, shards } => {
                put_away(out, 34, failed)?;
                put_shards(out, shards)
            }
            _ => Err(Error::bug("no command about nodes that are away")),
        }
    }

    fn put_of_joining(&self, out: &mut Vec<u8>) -> Result<()> {
        match self {
            Self::RevokeTokens { tokens } => {
                let count = u16::try_from(tokens.len()).ok().filter(|n| usize::from(*n) <= TOKENS_MAX);
                let count = count.ok_or_else(|| Error::invalid("more tokens than there can be"))?;
                out.push(43);
                out.extend(count.to_le_bytes());
                tokens.iter().for_each(|t| out.extend(t.0));
            }
            Self::MakeToken { token, expires_ms, now_ms } => {
                put_form(out, 41, &[*expires_ms, *now_ms]);
                out.extend(token.0);
            }
            Self::AddNode(new) => {
                put_form(out, 42, &[new.now_ms]);
                out.extend(new.token.0);
                out.extend(new.identity.0);
                out.extend(new.workers.to_le_bytes());
                put_text(out, &new.name);
                put_text(out, &new.address);
            }
            _ => return Err(Error::bug("no command about nodes that join")),
        }
        Ok(())
    }

    fn put_attach(&self, out: &mut Vec<u8>) -> Result<()> {
        let Self::AttachVolume { volume, identity, name, force, since, lapsed } = self else {
            return Err(Error::bug("another command is taken for an attachment"));
        };
        if since.is_none() && *lapsed {
            return Err(Error::invalid("an attachment lapses in one generation, and this names none"));
        }
        put_form(out, if since.is_some() { 14 } else { 7 }, &[volume.0]);
        out.extend(identity.0);
        out.push(u8::from(*force) | u8::from(*lapsed) << 1);
        out.extend(since.iter().flat_map(|g| g.0.to_le_bytes()));
        put_text(out, name);
        Ok(())
    }

    fn put_of_snapshot(&self, out: &mut Vec<u8>) -> Result<()> {
        let too_many = || Error::invalid("more volumes or shards than one command is about");
        match self {
            Self::ScheduleSnapshots { volume, schedule } => {
                put_form(out, 33, &[volume.0]);
                put_schedule(out, schedule.as_ref())?;
            }
            Self::BeginSnapshot { name, volumes, created_ms, past } => {
                let count = u8::try_from(volumes.len()).ok().filter(|n| usize::from(*n) <= SNAPSHOT_VOLUMES_MAX);
                put_form(out, 21, &[*created_ms]);
                out.push(count.ok_or_else(too_many)?);
                volumes.iter().for_each(|v| put_numbers(out, &[v.0]));
                match past {
                    None => out.push(0),
                    Some(Past::Version(v)) => put_form(out, 1, &[v.0]),
                    Some(Past::TimeMs(ms)) => put_form(out, 2, &[*ms]),
                }
                put_text(out, name);
            }
            Self::ReportCuts { snapshot, cuts } => {
                put_form(out, 22, &[snapshot.0]);
                put_count(out, cuts.len()).ok_or_else(too_many)?;
                for (shard, cut) in cuts {
                    put_shard(out, *shard);
                    put_numbers(out, &[cut.view.0, cut.version.0, cut.sequence.0]);
                }
            }
            Self::ConfirmCuts { snapshot, held } => {
                put_form(out, 23, &[snapshot.0]);
                put_count(out, held.len()).ok_or_else(too_many)?;
                for (shard, view) in held {
                    put_shard(out, *shard);
                    put_numbers(out, &[view.0]);
                }
            }
            Self::FailSnapshot { snapshot, why } => put_named(out, 24, snapshot.0, why),
            Self::DeleteSnapshot { volume, name, now_ms } => {
                put_form(out, 25, &[volume.0, *now_ms]);
                put_text(out, name);
            }
            Self::LockSnapshot { volume, name, until_ms, now_ms } => {
                put_form(out, 26, &[volume.0, *until_ms, *now_ms]);
                put_text(out, name);
            }
            Self::CloneVolume { volume, snapshot, name } => {
                put_named(out, 28, volume.0, snapshot);
                put_text(out, name);
            }
            _ => return Err(Error::bug("no command about a snapshot")),
        }
        Ok(())
    }

    /// The command in `bytes`, which hold nothing else.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        if bytes.len() > COMMAND_BYTES_MAX {
            return Err(damaged());
        }
        let f = &mut Fields(bytes);
        let command = match f.byte()? {
            1 => {
                let (node, start) = (NodeId(f.u64()?), StartNumber(f.u64()?));
                let workers = f.u16()?;
                Self::RegisterNode { node, name: f.text()?, address: f.text()?, workers, start }
            }
            2 => Self::CreateVolume(create(f)?),
            3 => Self::DeleteVolume { volume: VolumeId(f.u64()?), force: f.flag()? },
            4 => Self::ResizeVolume { volume: VolumeId(f.u64()?), size: f.u64()? },
            5 => Self::ProposeView {
                shard: f.shard()?,
                active: ViewNumber(f.u64()?),
                node: NodeId(f.u64()?),
                start: StartNumber(f.u64()?),
            },
            kind @ (6 | 19 | 30) => activation(f, kind)?,
            kind @ (7 | 14) => {
                let volume = VolumeId(f.u64()?);
                let identity = Hash32(f.take(32)?.try_into().expect("32 bytes"));
                let flags = f.byte()?;
                let (force, lapsed) = (flags & 1 != 0, flags & 2 != 0);
                if flags > 3 || kind == 7 && lapsed {
                    return Err(damaged());
                }
                let since = if kind == 14 { Some(Generation(f.u64()?)) } else { None };
                Self::AttachVolume { volume, identity, name: f.text()?, force, since, lapsed }
            }
            kind @ (8 | 13) => {
                let (volume, generation) = (VolumeId(f.u64()?), Generation(f.u64()?));
                Self::DetachVolume { volume, generation, settled: kind == 13 }
            }
            9 => {
                let (node, start) = (NodeId(f.u64()?), StartNumber(f.u64()?));
                Self::NameHostKey { node, start, key: HostPublic(f.take(32)?.try_into().expect("32 bytes")) }
            }
            10 => Self::MoveHead { shard: f.shard()?, node: NodeId(f.u64()?) },
            12 => {
                let (shard, head) = (f.shard()?, NodeId(f.u64()?));
                Self::ReplaceHead { shard, head, active: ViewNumber(f.u64()?), node: NodeId(f.u64()?) }
            }
            kind @ (11 | 15 | 18 | 34 | 35 | 45 | 49) => of_nodes(f, kind)?,
            16 => {
                let (shard, view) = (f.shard()?, ViewNumber(f.u64()?));
                Self::MembersComplete { shard, view, nodes: members(f)? }
            }
            17 => Self::RecoverShard(recover(f)?),
            20 => Self::RenameVolume { volume: VolumeId(f.u64()?), name: f.text()? },
            kind @ (21..=26 | 28 | 31 | 33) => of_snapshot(f, kind)?,
            27 => Self::DeleteVolumeAndSnapshots { volume: VolumeId(f.u64()?), now_ms: f.u64()?, force: f.flag()? },
            29 => Self::FlattenVolume { volume: VolumeId(f.u64()?) },
            kind @ (41..=43) => of_joining(f, kind)?,
            kind @ (44 | 46..=48) => of_node(f, kind)?,
            _ => return Err(damaged()),
        };
        f.end()?;
        // A state that could not be encoded again could not be kept.
        if command.text_bytes() > COMMAND_TEXT_BYTES_MAX {
            return Err(damaged());
        }
        Ok(command)
    }
}

/// The number of rules, 0 for no schedule; then the time between two snapshots, and the rules.
fn put_schedule(out: &mut Vec<u8>, schedule: Option<&Schedule>) -> Result<()> {
    let rules = schedule.map_or(0, |s| s.keep.len());
    if rules > KEEP_RULES_MAX || schedule.is_some() && rules == 0 {
        return Err(Error::invalid("more rules than a schedule has, or none"));
    }
    out.push(rules as u8);
    if let Some(s) = schedule {
        put_numbers(out, &[s.every_ms]);
        for k in &s.keep {
            out.push(k.by as u8);
            out.extend(k.count.to_le_bytes());
        }
    }
    Ok(())
}

fn schedule(f: &mut Fields<'_>) -> Result<Option<Schedule>> {
    let rules = usize::from(f.byte()?);
    match rules {
        0 => return Ok(None),
        _ if rules > KEEP_RULES_MAX => return Err(damaged()),
        _ => {}
    }
    let every_ms = f.u64()?;
    let rule = |f: &mut Fields<'_>| {
        let by = *Group::ALL.get(usize::from(f.byte()?)).ok_or_else(damaged)?;
        Ok(Keep { by, count: f.u32()? })
    };
    let keep = (0..rules).map(|_| rule(f)).collect::<Result<_>>()?;
    Ok(Some(Schedule { every_ms, keep }))
}

/// How many cuts follow; `None` if they are too many for a command.
fn put_count(out: &mut Vec<u8>, count: usize) -> Option<()> {
    let count = u16::try_from(count).ok().filter(|n| usize::from(*n) <= CUTS_OF_COMMAND_MAX)?;
    out.extend(count.to_le_bytes());
    Some(())
}

fn count(f: &mut Fields<'_>) -> Result<usize> {
    Some(usize::from(f.u16()?)).filter(|n| *n <= CUTS_OF_COMMAND_MAX).ok_or_else(damaged)
}

fn of_nodes(f: &mut Fields<'_>, kind: u8) -> Result<Command> {
    let first = nodes(f, FAILED_NODES_MAX)?;
    Ok(match kind {
        11 => Command::FailOver { nodes: first },
        15 => {
            let failed = nodes(f, FAILED_NODES_MAX - first.len())?;
            Command::ReplaceMembers { gone: first, failed }
        }
        18 => Command::ExtendChains { away: first, waited: Vec::new() },
        34 => Command::LeaveChains { failed: first, shards: shards(f)? },
        45 => Command::DrainChains { away: first },
        49 => {
            let away = nodes(f, FAILED_NODES_MAX - first.len())?;
            Command::StandIn { failed: first, away }
        }
        _ => {
            let waited = nodes(f, FAILED_NODES_MAX)?;
            // With none it has another form.
            if waited.is_empty() {
                return Err(damaged());
            }
            Command::ExtendChains { away: first, waited }
        }
    })
}

fn of_snapshot(f: &mut Fields<'_>, kind: u8) -> Result<Command> {
    let first = f.u64()?;
    let (snapshot, volume) = (SnapshotId(first), VolumeId(first));
    Ok(match kind {
        21 => {
            let count = usize::from(f.byte()?);
            if count > SNAPSHOT_VOLUMES_MAX {
                return Err(damaged());
            }
            let volumes = (0..count).map(|_| f.u64().map(VolumeId)).collect::<Result<_>>()?;
            let past = match f.byte()? {
                0 => None,
                1 => Some(Past::Version(Version(f.u64()?))),
                2 => Some(Past::TimeMs(f.u64()?)),
                _ => return Err(damaged()),
            };
            Command::BeginSnapshot { created_ms: first, volumes, past, name: f.text()? }
        }
        22 => {
            let cut = |f: &mut Fields<'_>| {
                let (view, version, sequence) = (ViewNumber(f.u64()?), Version(f.u64()?), Sequence(f.u64()?));
                Ok(Cut { view, version, sequence })
            };
            let cuts = (0..count(f)?).map(|_| Ok((f.shard()?, cut(f)?))).collect::<Result<_>>()?;
            Command::ReportCuts { snapshot, cuts }
        }
        23 => {
            let held = (0..count(f)?).map(|_| Ok((f.shard()?, ViewNumber(f.u64()?)))).collect::<Result<_>>()?;
            Command::ConfirmCuts { snapshot, held }
        }
        24 => Command::FailSnapshot { snapshot, why: f.text()? },
        25 => Command::DeleteSnapshot { volume, now_ms: f.u64()?, name: f.text()? },
        31 => Command::RetainVolume { volume, retain_ms: f.u64()? },
        33 => Command::ScheduleSnapshots { volume, schedule: schedule(f)? },
        28 => Command::CloneVolume { volume, snapshot: f.text()?, name: f.text()? },
        _ => Command::LockSnapshot { volume, until_ms: f.u64()?, now_ms: f.u64()?, name: f.text()? },
    })
}

fn of_node(f: &mut Fields<'_>, kind: u8) -> Result<Command> {
    let node = NodeId(f.u64()?);
    Ok(match kind {
        47 => Command::RemoveNode { node },
        48 => Command::RetireNode { node },
        _ => {
            let heir = (kind == 46).then(|| f.u64().map(NodeId)).transpose()?;
            Command::DrainNode { node, drains: f.flag()?, heir }
        }
    })
}

fn of_joining(f: &mut Fields<'_>, kind: u8) -> Result<Command> {
    if kind == 43 {
        let count = usize::from(f.u16()?);
        if count > TOKENS_MAX {
            return Err(Error::corrupt("more tokens than there can be"));
        }
        let tokens = (0..count).map(|_| Ok(Hash32(f.array()?))).collect::<Result<_>>()?;
        return Ok(Command::RevokeTokens { tokens });
    }
    let first = f.u64()?;
    Ok(match kind {
        41 => {
            let now_ms = f.u64()?;
            Command::MakeToken { token: Hash32(f.array()?), expires_ms: first, now_ms }
        }
        _ => {
            let (token, identity) = (Hash32(f.array()?), HostPublic(f.array()?));
            let workers = f.u16()?;
            Command::AddNode(NewNode { token, identity, name: f.text()?, address: f.text()?, workers, now_ms: first })
        }
    })
}

fn activation(f: &mut Fields<'_>, kind: u8) -> Result<Command> {
    let (shard, view, generation) = (f.shard()?, ViewNumber(f.u64()?), Generation(f.u64()?));
    Ok(match kind {
        6 => Command::ActivateView { shard, view, generation },
        19 => Command::ActivateBranch { shard, view, generation },
        _ => Command::ActivateClone { shard, view, generation, learning: members(f)? },
    })
}

/// Nodes that have failed or are away, behind the kind of a command.
fn put_away(out: &mut Vec<u8>, kind: u8, nodes: &[(NodeId, StartNumber)]) -> Result<()> {
    out.push(kind);
    put_nodes(out, nodes, FAILED_NODES_MAX)
}

/// Nodes, each with its start, their number before them.
fn put_nodes(out: &mut Vec<u8>, nodes: &[(NodeId, StartNumber)], most: usize) -> Result<()> {
    let count = u8::try_from(nodes.len()).ok().filter(|n| usize::from(*n) <= most);
    out.push(count.ok_or_else(|| Error::invalid("too many nodes fail at a time"))?);
    nodes.iter().for_each(|(node, start)| put_numbers(out, &[node.0, start.0]));
    Ok(())
}

/// Shards with their active views, their number before them.
fn put_shards(out: &mut Vec<u8>, shards: &[(ShardId, ViewNumber)]) -> Result<()> {
    let count = u16::try_from(shards.len()).ok().filter(|n| usize::from(*n) <= LEFT_SHARDS_MAX);
    let count = count.ok_or_else(|| Error::invalid("more shards than one command is about"))?;
    out.extend(count.to_le_bytes());
    for (shard, active) in shards {
        put_shard(out, *shard);
        put_numbers(out, &[active.0]);
    }
    Ok(())
}

fn shards(f: &mut Fields<'_>) -> Result<Vec<(ShardId, ViewNumber)>> {
    let count = usize::from(f.u16()?);
    if count > LEFT_SHARDS_MAX {
        return Err(damaged());
    }
    (0..count).map(|_| Ok((f.shard()?, ViewNumber(f.u64()?)))).collect()
}

/// Members of a chain, their number before them.
fn put_members(out: &mut Vec<u8>, nodes: &[NodeId]) -> Result<()> {
    if nodes.len() > CHAIN_MEMBERS_MAX {
        return Err(Error::invalid("more members than a chain has"));
    }
    out.push(nodes.len() as u8);
    nodes.iter().for_each(|n| put_numbers(out, &[n.0]));
    Ok(())
}

fn members(f: &mut Fields<'_>) -> Result<Vec<NodeId>> {
    let count = usize::from(f.byte()?);
    if count > CHAIN_MEMBERS_MAX {
        return Err(damaged());
    }
    (0..count).map(|_| f.u64().map(NodeId)).collect()
}

fn nodes(f: &mut Fields<'_>, most: usize) -> Result<Vec<(NodeId, StartNumber)>> {
    let count = usize::from(f.byte()?);
    if count > most {
        return Err(damaged());
    }
    (0..count).map(|_| Ok((NodeId(f.u64()?), StartNumber(f.u64()?)))).collect()
}

fn put_recover(out: &mut Vec<u8>, how: &RecoverShard) -> Result<()> {
    let numbers = [how.active.0, how.least.0, how.version.0, how.same.0, how.known.0, how.gives_up];
    put_of_shard(out, 17, how.shard, &numbers);
    out.push(u8::from(how.by_force));
    put_members(out, &how.members)?;
    put_members(out, &how.chain)?;
    put_members(out, &how.learn)?;
    put_nodes(out, &how.survivors, CHAIN_MEMBERS_MAX)?;
    put_nodes(out, &how.lost, 2 * CHAIN_MEMBERS_MAX)
}

fn recover(f: &mut Fields<'_>) -> Result<RecoverShard> {
    let (shard, active) = (f.shard()?, ViewNumber(f.u64()?));
    let (least, version, same) = (Sequence(f.u64()?), Version(f.u64()?), Sequence(f.u64()?));
    let (known, gives_up) = (Sequence(f.u64()?), f.u64()?);
    let by_force = f.flag()?;
    let (members, chain, learn) = (members(f)?, members(f)?, members(f)?);
    let (survivors, lost) = (nodes(f, CHAIN_MEMBERS_MAX)?, nodes(f, 2 * CHAIN_MEMBERS_MAX)?);
    Ok(RecoverShard {
        shard,
        active,
        by_force,
        members,
        survivors,
        lost,
        chain,
        least,
        version,
        known,
        gives_up,
        same,
        learn,
    })
}

fn put_create(out: &mut Vec<u8>, new: &CreateVolume) {
    put_numbers(out, &[new.size]);
    out.push(match new.ack {
        Ack::Majority => 0,
        Ack::All => 1,
    });
    put_optional(out, new.copies.map(|n| [n]));
    put_optional(out, new.min_copies.map(|n| [n]));
    put_optional(out, new.shards.map(u32::to_le_bytes));
    put_optional(out, new.stripe.map(u64::to_le_bytes));
    put_optional(out, new.retain_ms.map(u64::to_le_bytes));
    put_text(out, &new.name);
}

fn create(f: &mut Fields<'_>) -> Result<CreateVolume> {
    let size = f.u64()?;
    let ack = match f.byte()? {
        0 => Ack::Majority,
        1 => Ack::All,
        _ => return Err(damaged()),
    };
    Ok(CreateVolume {
        size,
        ack,
        copies: f.optional(Fields::byte)?,
        min_copies: f.optional(Fields::byte)?,
        shards: f.optional(Fields::u32)?,
        stripe: f.optional(Fields::u64)?,
        retain_ms: f.optional(Fields::u64)?,
        name: f.text()?,
    })
}

/// What came of a command, as it is kept for those that ask again. A text longer than the maximum is cut.
#[must_use]
pub fn encode_result(result: &Result<Done>) -> Vec<u8> {
    let mut out = Vec::with_capacity(40);
    match result {
        Ok(Done { revision, outcome }) => {
            let (kind, numbers): (u8, &[u64]) = match outcome {
                Outcome::Registered => (1, &[]),
                Outcome::Created { volume } => (2, &[volume.0]),
                Outcome::Deleted => (3, &[]),
                Outcome::Resized { size } => (4, &[*size]),
                Outcome::Proposed { view, pred, generation } => (5, &[view.0, pred.0, generation.0]),
                Outcome::Activated => (6, &[]),
                Outcome::Attached { generation, alone: false } => (7, &[generation.0]),
                Outcome::Attached { generation, alone: true } => (11, &[generation.0]),
                Outcome::Detached => (8, &[]),
                Outcome::Named => (9, &[]),
                Outcome::Moved => (10, &[]),
                Outcome::SnapshotBegun { snapshot } => (12, &[snapshot.0]),
                Outcome::Noted => (13, &[]),
                Outcome::Added { node } => (40, &[node.0]),
            };
            out.push(kind);
            put_numbers(&mut out, &[*revision]);
            put_numbers(&mut out, numbers);
        }
        Err(e) => {
            let kind = ERROR_KINDS.iter().position(|k| *k == e.kind).expect("all kinds are listed");
            out.extend([0, kind as u8]);
            put_text(&mut out, &e.text[..e.text.floor_char_boundary(ERROR_TEXT_BYTES_MAX)]);
        }
    }
    out
}

/// What came of a command; the outer error is about the bytes.
pub fn decode_result(bytes: &[u8]) -> Result<Result<Done>> {
    let f = &mut Fields(bytes);
    let kind = f.byte()?;
    if kind == 0 {
        let kind = *ERROR_KINDS.get(f.byte()? as usize).ok_or_else(damaged)?;
        let text = f.text()?;
        f.end()?;
        return Ok(Err(Error { kind, text: text.into() }));
    }
    let revision = f.u64()?;
    let outcome = match kind {
        1 => Outcome::Registered,
        2 => Outcome::Created { volume: VolumeId(f.u64()?) },
        3 => Outcome::Deleted,
        4 => Outcome::Resized { size: f.u64()? },
        5 => Outcome::Proposed {
            view: ViewNumber(f.u64()?),
            pred: ViewNumber(f.u64()?),
            generation: Generation(f.u64()?),
        },
        6 => Outcome::Activated,
        7 | 11 => Outcome::Attached { generation: Generation(f.u64()?), alone: kind == 11 },
        8 => Outcome::Detached,
        9 => Outcome::Named,
        10 => Outcome::Moved,
        12 => Outcome::SnapshotBegun { snapshot: SnapshotId(f.u64()?) },
        13 => Outcome::Noted,
        40 => Outcome::Added { node: NodeId(f.u64()?) },
        _ => return Err(damaged()),
    };
    f.end()?;
    Ok(Ok(Done { revision, outcome }))
}
