//! One command applied to the state. A command that is refused leaves the state as it was; one that changes nothing
//! (a repeat) does not raise the revision.

use crate::command::{Command, CreateVolume, Done, Outcome};
use crate::mutant::Mutant;
use crate::state::{Holder, Node, Pending, Shard, State, Volume};
use crate::{limits, rules};
use freebs_types::{
    Error, Generation, HostPublic, NodeId, Result, ShardId, StartNumber, ViewNumber, VolumeId, limits as common,
};
use std::sync::Arc;

/// Copies of a volume unless asked otherwise.
const DEFAULT_COPIES: usize = 3;
/// Least copies of a volume of more than one, unless asked otherwise.
const DEFAULT_MIN_COPIES: u8 = 2;

impl State {
    /// Applies one command: all of it, or nothing and an error that says why.
    pub fn apply(&mut self, command: Command) -> Result<Done> {
        self.apply_with(command, None)
    }

    /// The same with a rule left out, for tests.
    #[doc(hidden)]
    pub fn apply_with(&mut self, command: Command, mutant: Option<Mutant>) -> Result<Done> {
        let outcome = match command {
            Command::RegisterNode { node, name, address, workers, start } => {
                self.register(Node::new(node, (name, address), workers, start, 0), mutant)
            }
            Command::CreateVolume(new) => self.create(new),
            Command::CloneVolume { volume, snapshot, name } => self.clone_volume(volume, &snapshot, name),
            Command::FlattenVolume { volume } => self.flatten_volume(volume),
            Command::DeleteVolume { volume, force } => self.delete(volume, force, None),
            Command::DeleteVolumeAndSnapshots { volume, force, now_ms } => self.delete(volume, force, Some(now_ms)),
            Command::ResizeVolume { volume, size } => self.resize(volume, size),
            Command::RenameVolume { volume, name } => self.rename(volume, name),
            Command::RetainVolume { volume, retain_ms } => self.retain(volume, retain_ms),
            Command::ProposeView { shard, active, node, start } => self.propose(shard, active, (node, start), mutant),
            Command::ActivateView { shard, view, generation } => {
                self.activate(shard, (view, false, &[]), generation, mutant)
            }
            Command::ActivateBranch { shard, view, generation } => {
                self.activate(shard, (view, true, &[]), generation, mutant)
            }
            Command::ActivateClone { shard, view, generation, learning } => {
                self.activate(shard, (view, false, &learning), generation, mutant)
            }
            Command::AttachVolume { volume, identity, name, force, since, lapsed } => {
                self.attach(volume, Holder { identity, name }, force || lapsed, since)
            }
            Command::DetachVolume { volume, generation, settled } => self.detach(volume, generation, settled),
            Command::NameHostKey { node, start, key } => self.name_host_key(node, start, key),
            Command::MoveHead { shard, node } => self.move_head(shard, node, mutant),
            Command::ReplaceHead { shard, head, active, node } => {
                self.replace_head(shard, (head, active), node, mutant)
            }
            Command::FailOver { nodes } => self.fail_over(&nodes, mutant),
            Command::ReplaceMembers { gone, failed } => self.replace_members(&gone, &failed, mutant),
            Command::MembersComplete { shard, view, nodes } => self.members_complete(shard, view, &nodes, mutant),
            Command::ExtendChains { away, waited } => self.extend_chains(&away, &waited),
            Command::LeaveChains { failed, shards } => self.leave_chains(&failed, &shards, mutant),
            Command::RecoverShard(how) => self.recover_shard(&how),
            Command::MakeToken { token, expires_ms, now_ms } => self.make_token(token, expires_ms, now_ms),
            Command::AddNode(new) => self.add_node(new),
            Command::RevokeTokens { tokens } => self.revoke_tokens(&tokens),
            Command::DrainNode { node, drains, heir } => self.drain_node(node, drains, heir),
            Command::RetireNode { node } => self.retire_node(node),
            Command::RemoveNode { node } => self.remove_node(node),
            Command::StandIn { failed, away } => self.stand_in(&failed, &away, mutant),
            Command::DrainChains { away } => self.drain_chains(&away),
            Command::ScheduleSnapshots { volume, schedule } => self.schedule_snapshots(volume, schedule),
            Command::BeginSnapshot { name, volumes, created_ms, past } => {
                self.begin_snapshot(name, &volumes, created_ms, past)
            }
            Command::ReportCuts { snapshot, cuts } => self.report_cuts(snapshot, &cuts, mutant),
            Command::ConfirmCuts { snapshot, held } => self.confirm_cuts(snapshot, &held),
            Command::FailSnapshot { snapshot, why } => self.fail_snapshot(snapshot, &why),
            Command::DeleteSnapshot { volume, name, now_ms } => self.delete_snapshot(volume, &name, now_ms),
            Command::LockSnapshot { volume, name, until_ms, now_ms } => {
                self.lock_snapshot(volume, &name, (until_ms, now_ms))
            }
        }?;
        Ok(Done { revision: self.revision, outcome })
    }

    /// The number of a node's next start, given those that its devices come with (rule V8). Asked before anything is
    /// written to them: one that comes with less than the node was seen with is an old image, and each raise would
    /// bring it nearer to being taken for the present one. All devices of a node get the same number.
    ///
    /// Of a node that was not looked at when the state was made again no start is known: these may be devices of
    /// yesterday, and newer ones may be found later. Its first start is above all that it can have had, which were
    /// counted from 1, or from an earlier revision.
    pub fn next_start(&self, node: NodeId, came_with: &[StartNumber]) -> Result<StartNumber> {
        let node_before = self.node(node);
        let seen = node_before.map(|n| n.start).unwrap_or_default();
        let known = if node_before.is_some() && seen.0 == 0 { StartNumber(self.revision) } else { seen };
        let highest = came_with.iter().copied().fold(known, StartNumber::max);
        match came_with.iter().position(|c| *c < seen) {
            Some(worker) => Err(Error::corrupt(format!(
                "the device of worker {worker} comes with start number {}, and node {node} was seen with {seen}: it \
                 is an old image, or another image of it was started since `freebs control rebuild`. Put back the one \
                 that ran last; a node without it can't be taken in again yet, and the other copies go on without it",
                came_with[worker]
            ))),
            None if highest.0 >= u64::MAX - 1 => Err(Error::corrupt(format!("start number {highest} can't be raised"))),
            None => Ok(highest.next()),
        }
    }

    fn register(&mut self, mut node: Node, mutant: Option<Mutant>) -> Result<Outcome> {
        if node.id.0 == 0 {
            return Err(Error::invalid("node ids begin with 1"));
        }
        rules::check_node(&node.name, &node.address, node.workers)?;
        self.check_member(node.id)?;
        self.check_place(node.id, &node.address)?;
        if let Some(other) = self.nodes.values().find(|n| n.id != node.id && n.name == node.name) {
            return Err(Error::invalid(format!("the name {} is node {}'s; choose another", node.name, other.id)));
        }
        match self.nodes.get(&node.id) {
            Some(old) if mutant == Some(Mutant::OldImagesRegister) => {
                (node.start, node.host_key) = (node.start.max(old.start), old.host_key);
                (node.identity, node.drains) = (old.identity, old.drains);
                (node.heir, node.retires) = (old.heir, old.retires);
            }
            None if self.nodes.len() >= common::NODES_MAX => {
                return Err(Error::invalid(format!("a cluster has at most {} nodes", common::NODES_MAX)));
            }
            // Rule V8: who comes with a lower number than was seen runs on an old image of its device.
            Some(old) if node.start < old.start => {
                return Err(Error::corrupt(format!(
                    "node {} comes with start number {}, and was seen with {}: its device is an old image",
                    node.name, node.start, old.start
                )));
            }
            Some(old) if old.start.0 > 0 && old.workers != node.workers => {
                return Err(Error::invalid(format!(
                    "node {} has {} workers since its device was created; it can't have {}",
                    node.name, old.workers, node.workers
                )));
            }
            Some(old) => {
                (node.changed, node.host_key) = (old.changed, old.host_key);
                (node.identity, node.drains) = (old.identity, old.drains);
                (node.heir, node.retires) = (old.heir, old.retires);
                if **old == node {
                    return Ok(Outcome::Registered);
                }
                // Each start has a number of its own, so this is another process, on a copy of the same device.
                if node.start == old.start && old.start.0 > 0 {
                    return Err(Error::corrupt(format!(
                        "node {} was seen with start number {} at {} already: its device is an old image, or it runs \
                         twice",
                        node.name, node.start, old.address
                    )));
                }
            }
            None => {}
        }
        self.revision += 1;
        node.changed = self.revision;
        self.nodes.insert(node.id, Arc::new(node));
        Ok(Outcome::Registered)
    }

    /// Only of the present start: a process that lives on beside its successor has no say.
    fn name_host_key(&mut self, id: NodeId, start: StartNumber, key: HostPublic) -> Result<Outcome> {
        let Some(node) = self.nodes.get(&id).filter(|n| n.start == start && start.0 > 0) else {
            return Err(Error::retry(format!("node {id} must register its start {start} first")));
        };
        if node.host_key != Some(key) {
            self.revision += 1;
            let node = Node { host_key: Some(key), changed: self.revision, ..(**node).clone() };
            self.nodes.insert(id, Arc::new(node));
        }
        Ok(Outcome::Named)
    }

    /// Refuses if no volume of this name can be made.
    pub(crate) fn may_be_created(&self, name: &str) -> Result<()> {
        rules::check_name("volume", name)?;
        if self.names.contains_key(name) {
            return Err(Error::invalid(format!("there is a volume '{name}' already; choose another name")));
        }
        if self.volumes.len() >= common::VOLUMES_MAX {
            return Err(Error::no_space(format!("a cluster has at most {} volumes", common::VOLUMES_MAX)));
        }
        Ok(())
    }

    /// Refuses if there can't be so many more shards.
    pub(crate) fn has_room_for(&self, shards: usize) -> Result<()> {
        if self.shards_total() + shards > limits::SHARDS_TOTAL_MAX {
            return Err(Error::no_space(format!("a cluster has at most {} shards", limits::SHARDS_TOTAL_MAX)));
        }
        Ok(())
    }

    fn create(&mut self, new: CreateVolume) -> Result<Outcome> {
        self.may_be_created(&new.name)?;
        let (copies, min_copies) = self.copies(&new)?;
        rules::check_size(new.size)?;
        let stripe = new.stripe.unwrap_or(limits::DEFAULT_STRIPE_BYTES);
        rules::check_stripe(stripe)?;
        let shards = new.shards.unwrap_or_else(|| rules::default_shards(new.size));
        rules::check_shards(new.size, stripe, shards)?;
        let retain_ms = new.retain_ms.unwrap_or(0);
        rules::check_retain(retain_ms)?;
        self.has_room_for(shards as usize)?;
        let mut loads = self.loads.clone();
        let mut chain = |index| {
            let members = loads.choose(self.places(), copies as usize);
            loads.add_chain(&members);
            Shard::new(index, members)
        };
        let shards = (0..shards).map(&mut chain).collect();
        self.revision += 1;
        self.last_volume = self.last_volume.next();
        let id = self.last_volume;
        self.put_volume(Volume {
            id,
            name: new.name,
            size: new.size,
            copies,
            ack: new.ack,
            min_copies,
            stripe,
            retain_ms,
            shards,
            generation: Generation(0),
            settled: Generation(0),
            holder: None,
            origin: None,
            schedule: None,
            changed: self.revision,
        });
        Ok(Outcome::Created { volume: id })
    }

    /// Copies and least copies of a new volume.
    fn copies(&self, new: &CreateVolume) -> Result<(u8, u8)> {
        let nodes = self.places().count();
        if nodes == 0 {
            return Err(Error::retry("the cluster has no node yet; start one with `freebs node`"));
        }
        let copies = new.copies.unwrap_or(DEFAULT_COPIES.min(nodes) as u8);
        if copies == 0 || copies as usize > common::CHAIN_MEMBERS_MAX {
            let most = common::CHAIN_MEMBERS_MAX;
            return Err(Error::invalid(format!("a volume has 1 to {most} copies, not {copies}")));
        }
        if copies as usize > nodes {
            let noun = if nodes == 1 { "node" } else { "nodes" };
            return Err(Error::invalid(format!(
                "{copies} copies need {copies} nodes, and the cluster has {nodes} {noun}; ask for --copies {nodes} or add nodes"
            )));
        }
        let min_copies = new.min_copies.unwrap_or(DEFAULT_MIN_COPIES.min(copies));
        if min_copies == 0 || min_copies > copies {
            return Err(Error::invalid(format!(
                "min copies is 1 to the number of copies ({copies}), not {min_copies}"
            )));
        }
        Ok((copies, min_copies))
    }

    /// A copy of the volume, to be changed and put back.
    pub(crate) fn volume_to_change(&self, id: VolumeId) -> Result<Volume> {
        let found = self.volumes.get(&id).map(|v| (**v).clone());
        found.ok_or_else(|| Error::not_found(format!("there is no volume with id {id} (any more)")))
    }

    pub(crate) fn commit(&mut self, mut volume: Volume) {
        self.revision += 1;
        volume.changed = self.revision;
        volume.shards.iter_mut().for_each(Shard::tidy_standing);
        assert!(volume.check().is_ok(), "a command leaves a volume as one may be: {:?}", volume.check());
        self.put_volume(volume);
    }

    fn delete(&mut self, id: VolumeId, force: bool, with_snapshots: Option<u64>) -> Result<Outcome> {
        let volume = self.volume_to_change(id)?;
        self.may_lose_snapshots(&volume, with_snapshots)?;
        self.may_leave_clones(&volume, None)?;
        if let (Some(holder), false) = (&volume.holder, force) {
            return Err(Error::busy(format!(
                "volume '{}' is attached by {}; disconnect its clients, detach it, or delete it with --force",
                volume.name, holder.name
            )));
        }
        if volume.settled != volume.generation && !force {
            return Err(Error::busy(format!(
                "volume '{}' may be in use: whether whoever had it last has ended is not known. `freebs volume detach {}` \
                 ends that, and then it can be deleted; or delete it with --force",
                volume.name, volume.name
            )));
        }
        self.revision += 1;
        self.drop_volume(id);
        self.bury(id);
        self.drop_snapshots(id);
        Ok(Outcome::Deleted)
    }

    fn resize(&mut self, id: VolumeId, size: u64) -> Result<Outcome> {
        let mut volume = self.volume_to_change(id)?;
        if size == volume.size {
            return Ok(Outcome::Resized { size });
        }
        if size < volume.size {
            return Err(Error::invalid(format!(
                "volume '{}' has {}, and shrinking it to {} would lose what lies behind; volumes only grow. \
                 Create a smaller one and copy what you need",
                volume.name,
                rules::format_size(volume.size),
                rules::format_size(size)
            )));
        }
        rules::check_size(size)?;
        rules::check_shards(size, volume.stripe, volume.shards.len() as u32)?;
        volume.size = size;
        self.commit(volume);
        Ok(Outcome::Resized { size })
    }

    fn retain(&mut self, id: VolumeId, retain_ms: u64) -> Result<Outcome> {
        let mut volume = self.volume_to_change(id)?;
        rules::check_retain(retain_ms)?;
        if volume.retain_ms != retain_ms {
            volume.retain_ms = retain_ms;
            self.commit(volume);
        }
        Ok(Outcome::Noted)
    }

    fn rename(&mut self, id: VolumeId, name: String) -> Result<Outcome> {
        let mut volume = self.volume_to_change(id)?;
        rules::check_name("volume", &name)?;
        match self.names.get(&name) {
            Some(of) if *of == id => return Ok(Outcome::Named),
            Some(_) => {
                return Err(Error::invalid(format!("there is a volume '{name}' already; choose another name")));
            }
            None => {}
        }
        volume.name = name;
        self.commit(volume);
        Ok(Outcome::Named)
    }

    /// Rules W2, V1: only the head, in its present start, gets a number, above all numbers given out before. The last
    /// active view stays the predecessor until the new one is active.
    fn propose(
        &mut self,
        shard: ShardId,
        active: ViewNumber,
        (node, start): (NodeId, StartNumber),
        mutant: Option<Mutant>,
    ) -> Result<Outcome> {
        let mut volume = self.volume_to_change(shard.volume)?;
        let registered = self.nodes.get(&node).map(|n| n.start);
        let s = shard_of(&mut volume, shard)?;
        if s.head() != Some(node) {
            return Err(Error::invalid(format!("node {node} is not the head of shard {shard}")));
        }
        match registered {
            Some(now) if start == now && start.0 > 0 => {}
            Some(_) if mutant == Some(Mutant::OldStartsPropose) => {}
            Some(now) if start < now => {
                return Err(Error::fenced(format!(
                    "node {node} was started again (start {now}); a proposal of its start {start} no longer counts"
                )));
            }
            _ => return Err(Error::retry(format!("node {node} must register its start {start} first"))),
        }
        if active != s.active {
            return Err(Error::retry(format!("the active view of shard {shard} is {}, not {active}", s.active)));
        }
        let view = s.highest.next();
        s.highest = view;
        s.pending = Some(Pending { view, start });
        let generation = volume.generation;
        self.commit(volume);
        Ok(Outcome::Proposed { view, pred: active, generation })
    }

    /// Rule V6: only the view that is pending now, with the attachment generation of now in it. `begins_branch`: it was
    /// opened by force (V10). `lack`: these do not have what a clone begins with.
    fn activate(
        &mut self,
        shard: ShardId,
        (view, begins_branch, lack): (ViewNumber, bool, &[NodeId]),
        generation: Generation,
        mutant: Option<Mutant>,
    ) -> Result<Outcome> {
        let mut volume = self.volume_to_change(shard.volume)?;
        let (current, copies) = (volume.generation, volume.copies);
        let lack = if volume.origin.is_some() { lack } else { &[] };
        let is_known = |n: &NodeId| self.node(*n).is_some_and(|n| n.start.0 > 0);
        let s = shard_of(&mut volume, shard)?;
        if view.0 > 0 && s.active == view {
            return Ok(Outcome::Activated);
        }
        if mutant == Some(Mutant::ActivatesAnyView) && s.pending.is_none_or(|p| p.view != view) && view > s.active {
            s.active = view;
            self.commit(volume);
            self.fail_unconfirmed(shard, mutant);
            return Ok(Outcome::Activated);
        }
        let Some(pending) = s.pending.filter(|p| p.view == view) else {
            return Err(Error::fenced(format!(
                "view {view} of shard {shard} is not the pending one ({}); it can't become active",
                s.pending.map_or("none is".into(), |p| p.view.to_string())
            )));
        };
        if generation != current && mutant != Some(Mutant::OldGenerationsActive) {
            return Err(Error::fenced(format!(
                "the volume was attached meanwhile (generation {current}, the view has {generation}); propose again"
            )));
        }
        if begins_branch && s.forced.is_none() {
            return Err(Error::fenced(format!("nobody has said that shard {shard} may go on by force; propose again")));
        }
        s.end_force(view, begins_branch || mutant == Some(Mutant::SealsAreBranches));
        s.begin_without(lack);
        s.active = view;
        s.known = None;
        s.head_start = pending.start;
        s.opened_by = s.head();
        s.pending = None;
        s.active_members.clear();
        s.learning = s.joining.iter().copied().filter(is_known).collect();
        // In this view a node answers with a device that is known by now.
        let still = s.view_members().to_vec();
        s.unseen.retain(|n| still.contains(n) && !is_known(n));
        s.let_go(copies, mutant);
        self.commit(volume);
        self.fail_unconfirmed(shard, mutant);
        Ok(Outcome::Activated)
    }

    /// The old head can't make its pending view active any more (V6); the new one gets a number when it asks.
    fn move_head(&mut self, shard: ShardId, node: NodeId, mutant: Option<Mutant>) -> Result<Outcome> {
        let mut volume = self.volume_to_change(shard.volume)?;
        let s = shard_of(&mut volume, shard)?;
        let Some(at) = s.members.iter().position(|m| *m == node) else {
            return Err(Error::invalid(format!("node {node} is no member of shard {shard}; its head is one of them")));
        };
        if at > 0 {
            s.may_lead(shard, node, mutant)?;
            s.members[..=at].rotate_right(1);
            s.pending = None;
            self.commit(volume);
        }
        Ok(Outcome::Moved)
    }

    fn attach(&mut self, id: VolumeId, new: Holder, force: bool, since: Option<Generation>) -> Result<Outcome> {
        rules::check_name("attachment", &new.name)?;
        let mut volume = self.volume_to_change(id)?;
        if since.is_some_and(|since| since != volume.generation) {
            return Err(Error::retry(format!(
                "volume '{}' was attached meanwhile (generation {}); ask again",
                volume.name, volume.generation
            )));
        }
        if let Some(holder) = volume.holder.as_ref().filter(|h| h.identity != new.identity && !force) {
            return Err(Error::busy(format!(
                "volume '{}' is attached by {}; disconnect its clients there. If it is gone, the volume can be had a \
                 few seconds later, or at once with `freebs volume attach {} --force`",
                volume.name, holder.name, volume.name
            )));
        }
        let alone = volume.settled == volume.generation;
        volume.generation = volume.generation.next();
        volume.holder = Some(new);
        let generation = volume.generation;
        self.commit(volume);
        Ok(Outcome::Attached { generation, alone })
    }

    /// A late detach of an older generation changes nothing.
    fn detach(&mut self, id: VolumeId, generation: Generation, settled: bool) -> Result<Outcome> {
        let mut volume = self.volume_to_change(id)?;
        if volume.generation == generation && volume.holder.is_some() {
            volume.holder = None;
            if settled {
                volume.settled = generation;
            }
            self.commit(volume);
        }
        Ok(Outcome::Detached)
    }
}

pub(crate) fn shard_of(volume: &mut Volume, shard: ShardId) -> Result<&mut Shard> {
    let found = volume.shards.get_mut(shard.index as usize);
    found.ok_or_else(|| Error::not_found(format!("there is no shard {shard}")))
}
