//! The table of mutants in this crate's README: each mutant of any crate, the rule that it leaves out, where that is
//! noticed, and by how many seeds. Nothing in it but the counts is free: all else follows from the code.

use super::mutants::{SEEDS_MAX, hunted, kind};
use freebs_sim::mutants::LEADER;
use freebs_testing::Table;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The enums of mutants: crate, file below `crates`, and name.
const ENUMS: [(&str, &str, &str); 7] = [
    ("chain", "chain/src/event.rs", "Mutant"),
    ("driver", "driver/src/lib.rs", "Mutant"),
    ("control", "control/src/mutant.rs", "Mutant"),
    ("consensus", "consensus/src/mutant.rs", "Mutant"),
    ("lsvd", "lsvd/src/api/mod.rs", "RuleMutant"),
    ("lsvd", "lsvd/src/api/mod.rs", "CleanMutant"),
    ("backup", "backup/src/prune.rs", "Mutant"),
];

/// Hunts by seeds other than the one here: crate, and what the README says of it.
const HUNTS: [(&str, &str); 3] = [
    ("driver", "a model, `driver/tests/suite/property`"),
    ("consensus", "the simulator of `consensus/tests/suite/sim`"),
    ("lsvd", "a model, `lsvd/tests/suite`"),
];

/// Mutants that no seed is recorded for, and the test that notices each: crate, mutant, file below `crates`, and name.
/// Why the simulator has no run that shows those of chain, driver and control, `freebs_sim::mutants` and `mutants.rs` say.
const STORIES: [(&str, &str, &str, &str); 68] = [
    (
        "consensus",
        "EveryFoundingIsHeard",
        "consensus/tests/suite/sim/alone.rs",
        "who_founded_the_cluster_again_is_not_old",
    ),
    (
        "consensus",
        "HeardIsEnough",
        "consensus/tests/suite/sim/devices.rs",
        "a_node_whose_device_does_not_answer_has_failed",
    ),
    ("chain", "RequestsOfAnyone", "chain/src/orders.rs", "requests_of_others_are_refused"),
    ("chain", "FloorIgnored", "chain/src/orders/rules.rs", "a_read_above_what_is_durable_is_refused"),
    ("chain", "ShortChainsOrder", "chain/src/orders/rules.rs", "a_chain_that_is_too_short_orders_no_write"),
    ("chain", "EmptyLogsCount", "chain/src/orders/seals.rs", "an_empty_log_does_not_seal"),
    (
        "chain",
        "SealsBelowCommitted",
        "chain/src/orders/seals.rs",
        "nothing_is_sealed_below_what_any_answer_calls_committed",
    ),
    ("chain", "LeasesToAnyone", "chain/src/orders/leases.rs", "without_the_rule_an_older_driver_gets_one"),
    (
        "chain",
        "LeasesInPendingViews",
        "chain/src/orders/leases.rs",
        "a_lease_is_given_in_an_active_view_without_a_promise",
    ),
    ("chain", "LeasesBeforeDurable", "chain/src/orders/leases.rs", "the_attachment_is_durable_before_a_lease"),
    (
        "chain",
        "OlderLeasesUntold",
        "chain/src/orders/leases.rs",
        "without_the_rule_a_newer_driver_hears_nothing_of_older_leases",
    ),
    (
        "chain",
        "OlderDriversAnswered",
        "chain/src/orders/leases.rs",
        "an_older_driver_hears_nothing_of_frames_that_were_ordered_before",
    ),
    (
        "chain",
        "ForeignLeasesUnknown",
        "chain/src/orders/leases.rs",
        "who_has_missed_a_view_knows_nothing_of_its_leases",
    ),
    (
        "chain",
        "QuorumsApart",
        "chain/src/orders/leases.rs",
        "leases_of_a_view_whose_quorums_need_not_meet_are_reckoned_with",
    ),
    ("chain", "LeftOnesSeal", "chain/src/orders/seals.rs", "who_left_seals_nothing"),
    (
        "chain",
        "PlansStopOrders",
        "chain/tests/suite/views.rs",
        "a_planned_view_waits_for_the_control_plane_and_writes_do_not",
    ),
    ("chain", "BranchNamesTheToken", "chain/tests/suite/forced.rs", "the_last_survivor_goes_on_by_force"),
    ("chain", "SurvivorsBeginAnew", "chain/tests/suite/forced.rs", "a_slow_survivor_keeps_what_it_has"),
    ("chain", "LostLogsGoOn", "chain/tests/suite/forced.rs", "what_was_lost_does_not_come_back"),
    ("chain", "ForcedAlone", "chain/src/orders/forced.rs", "a_survivor_that_is_no_member_counts"),
    ("chain", "BackPassedOver", "chain/src/orders/forced.rs", "who_is_back_with_more_is_not_passed_over"),
    ("chain", "GivenUpCounts", "chain/src/orders/forced.rs", "a_log_that_gave_frames_up_does_not_count_as_a_whole_one"),
    ("chain", "ForksGivenUp", "chain/src/orders/forks.rs", "a_log_with_nothing_but_promises_makes_its_fork"),
    ("chain", "LateForksUntold", "chain/src/orders/forks.rs", "who_does_not_begin_at_the_fork_is_named"),
    ("chain", "ForksToComeUnread", "chain/src/orders/forks.rs", "a_parent_is_read_from_when_the_mark_is_on_its_way"),
    ("chain", "ForksToComeAlone", "chain/src/orders/forks.rs", "a_fork_that_is_to_be_made_has_links"),
    (
        "chain",
        "OrphansGoOn",
        "chain/src/flatten/tests.rs",
        "a_fork_without_its_parent_begins_anew_or_learns_what_it_lacks",
    ),
    ("chain", "TurnsStay", "chain/src/flatten/tests.rs", "one_that_can_not_be_made_flat_stops_no_other"),
    ("chain", "ConfirmsWithoutHold", "chain/src/orders/cuts.rs", "a_head_holds_for_so_long_and_then_fails_it"),
    (
        "chain",
        "PreparesWait",
        "chain/src/orders/intervals.rs",
        "a_prepare_that_meets_another_is_refused_and_not_queued",
    ),
    ("chain", "WritesOverPrepared", "chain/src/orders/intervals.rs", "writes_wait_for_what_is_prepared"),
    ("driver", "OneLeaseIsEnough", "driver/tests/suite/rules/leases.rs", "l1_ready_waits_for_leases_of_a_members"),
    (
        "driver",
        "LeasesOfAnyView",
        "driver/tests/suite/rules/leases.rs",
        "l1_a_lease_of_a_view_that_is_not_known_is_none",
    ),
    ("control", "NewMembersFirst", "control/tests/suite/left_out.rs", "a_rule_that_is_left_out_is_missed"),
    ("control", "LearnersLead", "control/tests/suite/left_out.rs", "a_rule_that_is_left_out_is_missed"),
    ("control", "OldStartsPropose", "control/tests/suite/left_out.rs", "a_rule_that_is_left_out_is_missed"),
    ("control", "CompleteForEver", "control/tests/suite/left_out.rs", "a_rule_that_is_left_out_is_missed"),
    ("control", "KeepersLetGo", "control/tests/suite/left_out.rs", "a_rule_that_is_left_out_is_missed"),
    ("control", "SealsAreBranches", "control/tests/suite/left_out.rs", "a_rule_that_is_left_out_is_missed"),
    ("control", "RebuiltIsActive", "control/tests/suite/openings.rs", "rebuilds_without_a_rule_are_noticed"),
    ("control", "LeavesBelowLeast", "control/tests/suite/shorter.rs", "chains_become_shorter_as_the_rule_says"),
    ("control", "LeavesUnsealed", "control/tests/suite/shorter.rs", "chains_become_shorter_as_the_rule_says"),
    ("control", "LearnersStay", "control/tests/suite/shorter.rs", "chains_become_shorter_as_the_rule_says"),
    ("control", "AwayForgotten", "control/tests/suite/shorter.rs", "who_is_to_come_and_fails_leaves_the_plan"),
    ("control", "ComingHoldsUp", "control/tests/suite/shorter.rs", "who_is_to_come_and_fails_leaves_the_plan"),
    ("control", "LeastIsOwn", "control/tests/suite/rebuild.rs", "a_later_chain_may_be_shorter"),
    ("control", "OldViewsReport", "control/tests/suite/snapshots.rs", "each_rule_of_the_cuts_is_needed"),
    ("control", "SnapshotsOutliveViews", "control/tests/suite/snapshots.rs", "each_rule_of_the_cuts_is_needed"),
    ("consensus", "BackAtOnce", "consensus/tests/suite/returns.rs", "who_fails_often_comes_back_later_each_time"),
    ("consensus", "DamageIsATornTail", "consensus/tests/suite/store.rs", "damage_is_never_a_shorter_log"),
    ("lsvd", "TrimsUntold", "lsvd/tests/suite/rules.rs", "rules_that_are_left_out_are_caught"),
    ("lsvd", "PinsForgotten", "lsvd/tests/suite/history.rs", "pins_that_do_not_hold_are_caught"),
    ("lsvd", "PinnedTrimsDie", "lsvd/tests/suite/history.rs", "pins_that_do_not_hold_are_caught"),
    ("lsvd", "PinsUntold", "lsvd/tests/suite/history.rs", "pins_that_do_not_hold_are_caught"),
    ("lsvd", "PastUntold", "lsvd/tests/suite/copies.rs", "copies_that_lose_history_are_caught"),
    ("lsvd", "ReleasedPinStays", "lsvd/tests/suite/copies.rs", "copies_that_lose_history_are_caught"),
    ("lsvd", "ForksForgotten", "lsvd/tests/suite/forks.rs", "forks_that_do_not_hold_are_caught"),
    (
        "lsvd",
        "ForksToComeForgotten",
        "lsvd/tests/suite/forks.rs",
        "a_version_is_kept_while_the_mark_of_its_fork_is_written",
    ),
    ("lsvd", "LostToForksUntold", "lsvd/tests/suite/forks.rs", "forks_that_do_not_hold_are_caught"),
    ("lsvd", "ForksUntold", "lsvd/tests/suite/forks.rs", "forks_that_do_not_hold_are_caught"),
    ("lsvd", "InheritedUntold", "lsvd/tests/suite/forks.rs", "parents_that_are_left_out_of_a_copy_are_missed"),
    ("lsvd", "CommittedIsCut", "lsvd/tests/suite/rules.rs", "nothing_takes_the_place_of_a_committed_frame"),
    ("lsvd", "TrustBytes", "lsvd/tests/suite/cleaning.rs", "a_damaged_block_is_told_and_not_moved"),
    ("lsvd", "NoReserve", "lsvd/tests/suite/full.rs", "a_full_log_comes_back_by_what_is_kept_for_cleaning"),
    ("backup", "IgnoresCreates", "backup/tests/suite/races.rs", "a_prune_that_ignores_creates_is_noticed"),
    ("backup", "LeavesDeadCreates", "backup/tests/suite/races.rs", "a_prune_that_does_not_tell_the_dead_is_noticed"),
    ("backup", "OwnersNotAsked", "backup/tests/suite/races.rs", "a_prune_that_does_not_ask_for_owners_is_noticed"),
    ("backup", "CreatesFirst", "backup/tests/suite/races.rs", "a_prune_that_looks_at_creates_first_is_noticed"),
];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn text_of(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A mutant, as its source has it.
struct Mutant {
    of: &'static str,
    rule: String,
    name: String,
    says: String,
}

/// The mutants of an enum. Their docs name the rule, or nothing if it is none that has a number, and what is left out.
fn mutants_in(of: &'static str, text: &str, name: &str) -> Vec<Mutant> {
    let head = format!("pub enum {name} {{");
    let body = text.split_once(&head).and_then(|(_, b)| b.split_once("\n}")).expect("the enum").0;
    let (mut all, mut doc) = (Vec::new(), String::new());
    for line in body.lines().map(str::trim).filter(|l| !l.is_empty()) {
        if let Some(more) = line.strip_prefix("///") {
            doc += more;
            continue;
        }
        let is_number = |n: &str| !n.is_empty() && n.chars().all(|c| c.is_ascii_digit());
        let is_rule = |r: &str| r.strip_prefix(|c: char| c.is_ascii_uppercase()).is_some_and(is_number);
        let numbered = doc.trim().split_once(": ").filter(|(r, _)| r.split(", ").all(is_rule));
        let (rule, says) = numbered.unwrap_or(("-", doc.trim()));
        let (first, rest) = says.trim_end_matches('.').split_at(1);
        let is_word = rest.starts_with(|c: char| !c.is_uppercase());
        let says = if is_word { first.to_lowercase() } else { first.to_owned() } + rest;
        let rule = rule.to_owned();
        all.push(Mutant { of, rule, name: line.strip_suffix(',').expect("a name").to_owned(), says });
        doc.clear();
    }
    all
}

/// The mutants that there are.
fn mutants() -> Vec<Mutant> {
    ENUMS.into_iter().flat_map(|(of, file, name)| mutants_in(of, &text_of(&crates().join(file)), name)).collect()
}

/// Place where the mutant `name` of the crate `of` is hunted, if a seed is recorded for it.
fn hunt(of: &str, name: &str, here: &BTreeSet<String>, others: &BTreeMap<&str, Table>) -> Option<String> {
    // Some have a namesake in another crate.
    let leads = of == "consensus" && LEADER.iter().any(|m| format!("{m:?}") == name);
    if (matches!(of, "chain" | "driver" | "control") || leads) && here.contains(name) {
        let runs = kind(name).map(|k| format!(", `{k}` runs")).unwrap_or_default();
        return Some(format!("the simulator{runs}"));
    }
    let (_, said) = HUNTS.iter().find(|(c, _)| *c == of)?;
    others[of].names().any(|n| n == name).then(|| (*said).to_owned())
}

fn other_tables() -> BTreeMap<&'static str, Table> {
    BTreeMap::from([
        ("driver", Table::new("", include_str!("../../../driver/tests/suite/property/mutant_seeds.txt"))),
        ("consensus", Table::new("", include_str!("../../../consensus/tests/suite/sim/mutant_seeds.txt"))),
        ("lsvd", Table::new("", include_str!("../../../lsvd/tests/suite/mutant_seeds.txt"))),
    ])
}

/// The table has a line for each mutant there is, in the order of the sources. Each is hunted, or noticed by a test that is
/// there and names it.
#[test]
fn the_readme_has_every_mutant() {
    let here: BTreeSet<String> = hunted().into_iter().map(|m| m.0).collect();
    let others = other_tables();
    let readme = text_of(&crates().join("sim/README.md"));
    let part = readme.split_once("\n## Mutants\n").expect("a part on mutants").1;
    let rows: Vec<&str> = part.lines().filter(|l| l.starts_with("| ") && l.contains(" | `")).collect();
    let (mut wanted, mut is_right) = (Vec::new(), true);
    for Mutant { of, rule, name, says } in mutants() {
        let head = format!("| {of} | {rule} | `{name}` | {says} | ");
        if let Some(at) = hunt(of, &name, &here, &others) {
            let head = format!("{head}{at} | ");
            let row = rows.iter().find(|r| r.starts_with(&head)).map(|r| (*r).to_owned());
            let count = row.as_ref().and_then(|r| r.strip_prefix(&head)?.strip_suffix(" |")?.parse().ok());
            is_right &= count.is_some_and(|c: u64| (1..=SEEDS_MAX).contains(&c));
            wanted.push(row.unwrap_or(format!("{head}? |")));
            continue;
        }
        let story = STORIES.iter().find(|s| (s.0, s.1) == (of, name.as_str()));
        let (_, _, file, test) =
            story.unwrap_or_else(|| panic!("{name} of {of} is hunted by no seeds and has no story"));
        let source = text_of(&crates().join(file));
        let is_there = source.contains(&format!("fn {test}()")) && source.contains(&format!("Mutant::{name}"));
        assert!(is_there, "{name} of {of}: {file} has no test {test} that names it");
        wanted.push(format!("{head}`{file}`, `{test}` | - |"));
    }
    assert!(
        is_right && rows == wanted,
        "the table is to be, with counts by cargo xtask mutants --write:\n{}",
        wanted.join("\n")
    );
}

/// No crate has mutants that the table does not know of, and no story is of a mutant that seeds hunt.
#[test]
fn all_enums_of_mutants_are_known() {
    fn look(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).expect("a folder of sources").map(|e| e.expect("an entry").path()) {
            if entry.is_dir() {
                look(&entry, found);
            } else if entry.extension().is_some_and(|e| e == "rs") {
                let names = text_of(&entry);
                let names = names.lines().filter_map(|l| l.trim().strip_prefix("pub enum ")?.strip_suffix(" {"));
                let file = entry.strip_prefix(crates()).expect("below it").display().to_string();
                found.extend(names.filter(|n| n.ends_with("Mutant")).map(|n| format!("{file} {n}")));
            }
        }
    }
    let mut found = BTreeSet::new();
    for of in std::fs::read_dir(crates()).expect("the crates").map(|e| e.expect("an entry").path().join("src")) {
        if of.is_dir() {
            look(&of, &mut found);
        }
    }
    assert_eq!(found, ENUMS.iter().map(|(_, file, name)| format!("{file} {name}")).collect());
    let (here, others) = (hunted().into_iter().map(|m| m.0).collect(), other_tables());
    for (of, name, ..) in STORIES {
        assert_eq!(hunt(of, name, &here, &others), None, "{name} of {of} has seeds");
        assert!(mutants().iter().any(|m| (m.of, m.name.as_str()) == (of, name)), "{of} has no {name}");
    }
}
