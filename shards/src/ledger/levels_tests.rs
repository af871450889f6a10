//! Tests of the ledger with priorities.

use proptest::prelude::*;

use super::*;

fn claim(ledger: &mut Ledger) -> Option<Claim> {
    ledger.claim(ledger.cursor(), Holder::GET).unwrap()
}

/// Messages with priorities are always in memory.
fn number(kept: Kept) -> u32 {
    match kept {
        Kept::InMemory(message) => message,
        Kept::InLog(name) => panic!("{name} is paged out"),
    }
}

#[test]
fn higher_priorities_come_first_and_each_keeps_its_order() {
    let mut ledger = Ledger::new(0, Some(5));
    for (message, priority) in [(0, 1), (1, 5), (2, 3), (3, 0), (4, 9), (5, 5)] {
        ledger.restore(message, priority, Returns::default());
    }
    let order: Vec<u32> = std::iter::from_fn(|| claim(&mut ledger)).map(|claim| claim.message).collect();
    assert_eq!(order, [1, 4, 5, 2, 0, 3], "9 is above the highest and counts as 5");
}

#[test]
fn a_plain_ledger_takes_no_notice_of_priorities() {
    let mut ledger = Ledger::new(0, None);
    for (message, priority) in [(0, 1), (1, 5), (2, 3)] {
        ledger.restore(message, priority, Returns::default());
    }
    let order: Vec<u32> = std::iter::from_fn(|| claim(&mut ledger)).map(|claim| claim.message).collect();
    assert_eq!(order, [0, 1, 2]);
}

#[test]
fn a_claim_is_stale_once_any_level_has_moved() {
    let mut ledger = Ledger::new(7, Some(255));
    ledger.restore(0, 0, Returns::default());
    ledger.restore(1, 255, Returns::default());
    let seen = ledger.cursor();
    let high = claim(&mut ledger).unwrap();
    assert!(ledger.claim(seen, Holder::GET).is_err());
    ledger.settle(high.position, Verdict::Requeue);
    assert_eq!(claim(&mut ledger).map(|claim| (claim.message, claim.redelivered)), Some((1, true)));
}

proptest! {
    /// Against a map from (priority, order) to message.
    #[test]
    fn behaves_like_a_sorted_list(steps in prop::collection::vec((0u8..7, any::<u16>()), 0..400)) {
        let mut ledger = Ledger::new(0, Some(200));
        let mut ready = std::collections::BTreeMap::new();
        let mut held: Vec<(Claim, (u8, u32))> = Vec::new();
        let mut next = 0u32;
        for (step, n) in steps {
            match step {
                0 | 1 => {
                    let priority = (n % 256) as u8;
                    ledger.restore(next, priority, Returns::default());
                    ready.insert((200 - priority.min(200), next), next);
                    next += 1;
                }
                2 => {
                    let want = ready.pop_first();
                    let got = claim(&mut ledger);
                    prop_assert_eq!(got.map(|claim| claim.message), want.map(|(_, message)| message));
                    if let (Some(claim), Some((key, _))) = (got, want) { held.push((claim, key)); }
                }
                3 | 4 => if !held.is_empty() {
                    let (claim, key) = held.swap_remove(usize::from(n) % held.len());
                    let verdict = if step == 3 { Verdict::Fail } else { Verdict::Accept };
                    let settled = ledger.settle(claim.position, verdict).unwrap();
                    prop_assert_eq!(settled.released, (step == 4).then_some(claim.message));
                    if step == 3 { ready.insert(key, claim.message); }
                },
                5 => {
                    let mut dropped = Vec::new();
                    ledger.drop_ready(u64::from(n % 3), |kept| dropped.push(number(kept)));
                    for message in dropped {
                        prop_assert_eq!(ready.pop_first().map(|(_, message)| message), Some(message));
                    }
                }
                _ => if n % 8 == 0 {
                    let mut purged = Vec::new();
                    let (mut rest, count) = ledger.split_ready(|kept| purged.push(number(kept)));
                    while !rest.demolish(1, |kept| purged.push(number(kept))) {}
                    purged.sort_unstable();
                    let mut want: Vec<u32> = std::mem::take(&mut ready).into_values().collect();
                    want.sort_unstable();
                    prop_assert_eq!((count as usize, purged), (want.len(), want));
                },
            }
            ledger.assert_consistent();
            prop_assert_eq!((ledger.ready() as usize, ledger.unacked() as usize), (ready.len(), held.len()));
        }
    }
}
