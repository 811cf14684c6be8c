//! Rules left out, one at a time: what each of them keeps from happening happens then.

use freebs_control::{Command, CreateVolume, Done, Mutant, RecoverShard, Shard, State};
use freebs_types::*;

const SHARD: ShardId = ShardId { volume: VolumeId(1), index: 0 };

/// Five nodes; the chain is `members`, whose second one has been replaced by `new`, and view 1 is active.
struct Scene {
    state: State,
    mutant: Option<Mutant>,
    members: [NodeId; 3],
    new: NodeId,
}

impl Scene {
    fn new(mutant: Option<Mutant>) -> Self {
        let mut scene = Self { state: State::new(ClusterId([7; 16])), mutant, members: [NodeId(0); 3], new: NodeId(0) };
        for n in 1..=5 {
            scene.does(register(n, 1));
        }
        scene.does(Command::CreateVolume(CreateVolume { name: "a".into(), size: 1 << 30, ..CreateVolume::default() }));
        scene.members = scene.shard().members.clone().try_into().expect("three copies");
        scene.opens(1);
        let replace = Command::ReplaceMembers { gone: vec![(scene.members[1], StartNumber(1))], failed: Vec::new() };
        scene.does(replace);
        let is_new = |n: &&NodeId| !scene.members.contains(n);
        scene.new = *scene.shard().members.iter().find(is_new).expect("one is to spare");
        scene
    }

    fn tries(&mut self, command: Command) -> Result<Done> {
        self.state.apply_with(command, self.mutant)
    }

    fn does(&mut self, command: Command) -> Done {
        self.tries(command).expect("it is as it should be")
    }

    fn shard(&self) -> &Shard {
        self.state.shard(SHARD).expect("it was made")
    }

    fn proposes(&mut self, start: u64) -> Result<Done> {
        let (active, node) = (self.shard().active, self.shard().head().expect("three members"));
        self.tries(Command::ProposeView { shard: SHARD, active, node, start: StartNumber(start) })
    }

    fn activates(&mut self, view: u64) -> Result<Done> {
        self.tries(Command::ActivateView { shard: SHARD, view: ViewNumber(view), generation: Generation(0) })
    }

    /// The head alone is left of view 1.
    fn forces(&mut self) {
        let first = |n: NodeId| (n, StartNumber(1));
        let [head, others @ ..] = self.members;
        let how = RecoverShard {
            shard: SHARD,
            active: self.shard().active,
            by_force: true,
            members: self.shard().members.clone(),
            survivors: vec![first(head)],
            lost: others.map(first).to_vec(),
            chain: vec![head, self.new],
            least: Sequence(1),
            version: Version(0),
            known: Sequence(0),
            gives_up: 0,
            same: Sequence(1),
            learn: Vec::new(),
        };
        self.does(Command::RecoverShard(how));
    }

    fn opens(&mut self, view: u64) {
        self.proposes(1).expect("the head asks");
        self.activates(view).expect("it is the pending one");
    }
}

fn register(node: u64, start: u64) -> Command {
    let (name, address) = (format!("node{node}"), format!("h{node}:1"));
    Command::RegisterNode { node: NodeId(node), name, address, workers: 1, start: StartNumber(start) }
}

/// True if what the rule keeps from happening has happened.
type Wrong = fn(&mut Scene) -> bool;

#[test]
fn a_rule_that_is_left_out_is_missed() {
    let wrongs: [(Mutant, Wrong); 7] = [
        (Mutant::NewMembersFirst, |s| s.shard().members != [s.members[0], s.members[2], s.new]),
        (Mutant::LearnersLead, |s| s.tries(Command::MoveHead { shard: SHARD, node: s.new }).is_ok()),
        (Mutant::OldStartsPropose, |s| {
            s.does(register(s.members[0].0, 2));
            s.proposes(1).is_ok()
        }),
        (Mutant::OldGenerationsActive, |s| {
            s.proposes(1).expect("the head asks");
            let (volume, identity, name) = (SHARD.volume, Hash32([1; 32]), "gateway".into());
            s.does(Command::AttachVolume { volume, identity, name, force: false, since: None, lapsed: false });
            s.activates(2).is_ok()
        }),
        // View 1 is another chain's: who was a member of that may have said so before it was replaced and came back.
        (Mutant::CompleteForEver, |s| {
            drop(s.tries(Command::MembersComplete { shard: SHARD, view: ViewNumber(1), nodes: vec![s.new] }));
            s.shard().joining.is_empty()
        }),
        (Mutant::KeepersLetGo, |s| {
            s.opens(2);
            !s.shard().is_kept_by(s.members[1])
        }),
        (Mutant::SealsAreBranches, |s| {
            s.forces();
            s.proposes(1).expect("the head asks");
            let generation = Generation(1);
            s.does(Command::ActivateView { shard: SHARD, view: ViewNumber(2), generation });
            s.shard().branch.is_some()
        }),
    ];
    for (rule, happens) in wrongs {
        assert!(!happens(&mut Scene::new(None)), "{rule:?}: the rule does not hold");
        assert!(happens(&mut Scene::new(Some(rule))), "{rule:?}: nothing is missed");
    }
}
