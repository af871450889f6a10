//! Tests of the entries, against the plainest ledger that could be right.

use super::*;
use proptest::prelude::*;

fn claim(entries: &mut Entries) -> Option<Claim> {
    entries.claim(entries.cursor(), Holder::GET).expect("the cursor was just read")
}

#[test]
fn a_stale_claim_is_refused_with_the_current_cursor_and_takes_nothing() {
    let mut entries = Entries::new(3);
    entries.push(0);
    entries.push(1);
    let seen = entries.cursor();
    assert_eq!(claim(&mut entries).unwrap().message, 0);
    let refused = entries.claim(seen, Holder::GET).unwrap_err();
    assert_eq!(refused.current, entries.cursor());
    assert_eq!((entries.ready(), entries.unacked()), (1, 1));
    assert_eq!(entries.claim(refused.current, Holder::GET).unwrap().unwrap().message, 1);
}

#[test]
fn a_former_owner_is_refused_by_its_epoch() {
    let mut entries = Entries::new(3);
    entries.push(0);
    let former = Cursor { epoch: 2, ..entries.cursor() };
    assert!(entries.claim(former, Holder::GET).is_err());
    assert_eq!(entries.ready(), 1);
}

#[test]
fn requeued_messages_come_back_at_their_own_place() {
    let mut entries = Entries::new(0);
    for message in 0..5 {
        entries.push(message);
    }
    let claims: Vec<_> = (0..3).map(|_| claim(&mut entries).unwrap()).collect();
    for index in [2, 0, 1] {
        entries.settle(claims[index].position, Verdict::Requeue).unwrap();
    }
    let order: Vec<_> = std::iter::from_fn(|| claim(&mut entries)).collect();
    assert_eq!(order.iter().map(|c| c.message).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!(order.iter().map(|c| c.redelivered).collect::<Vec<_>>(), [true, true, true, false, false]);
}

#[test]
fn settling_twice_changes_nothing() {
    let mut entries = Entries::new(0);
    entries.push(7);
    let position = claim(&mut entries).unwrap().position;
    assert_eq!(entries.settle(position, Verdict::Accept).unwrap().released, Some(7));
    assert_eq!(entries.settle(position, Verdict::Requeue), None);
    assert_eq!((entries.ready(), entries.unacked()), (0, 0));
    entries.assert_consistent();
}

#[test]
fn one_message_held_for_long_does_not_keep_the_blocks_behind_it() {
    let mut entries = Entries::new(0);
    entries.push(0);
    let held = claim(&mut entries).unwrap();
    for message in 1..100_000 {
        entries.push(message);
        let position = claim(&mut entries).unwrap().position;
        entries.settle(position, Verdict::Accept).unwrap();
    }
    assert!(entries.blocks.iter().flatten().count() <= 2, "only the held block and the last one are left");
    assert_eq!(entries.settle(held.position, Verdict::Accept).unwrap().released, Some(0));
    assert!(entries.blocks.len() <= 1);
}

#[test]
fn a_purge_leaves_the_unacked_and_moves_the_rest_in_whole_blocks() {
    let mut entries = Entries::new(0);
    for message in 0..1_000 {
        entries.push(message);
    }
    let held: Vec<_> = (0..10).map(|_| claim(&mut entries).unwrap()).collect();
    entries.settle(held[3].position, Verdict::Requeue).unwrap();
    let mut dropped = 0;
    let (mut rest, total) = entries.split_ready(|_| dropped += 1);
    assert_eq!(total, 991);
    while !rest.demolish(1, |_| dropped += 1) {}
    assert_eq!(dropped, 991);
    assert_eq!((entries.ready(), entries.unacked()), (0, 9));
    entries.assert_consistent();
    entries.push(5_000);
    assert_eq!(claim(&mut entries).unwrap().message, 5_000);
}

#[test]
fn a_message_that_expires_while_held_is_dropped_when_it_comes_back() {
    let mut entries = Entries::new(0);
    entries.push(1);
    let position = claim(&mut entries).unwrap().position;
    assert_eq!(entries.expire(position), None);
    let settled = entries.settle(position, Verdict::Requeue).unwrap();
    assert_eq!((settled.released, settled.expired), (Some(1), true));
    entries.assert_consistent();
}

#[test]
fn returns_are_counted_and_failures_among_them() {
    let mut entries = Entries::new(0);
    entries.push(1);
    for verdict in [Verdict::Requeue, Verdict::Fail, Verdict::Requeue, Verdict::Fail] {
        let position = claim(&mut entries).unwrap().position;
        entries.settle(position, verdict).unwrap();
    }
    assert_eq!(entries.returns(Position(0)), Returns { all: 4, failures: 2 });
    assert!(entries.is_live(Position(0)) && !entries.is_live(Position(1)));
    assert_eq!(entries.ready_messages().collect::<Vec<_>>(), [1]);
}

#[derive(Debug, Clone)]
enum Step {
    Push,
    PassThrough,
    Claim,
    Settle(usize, Verdict),
    Expire(usize),
    Drop(u64),
    Purge,
    PageOut(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let verdict = prop_oneof![
        Just(Verdict::Accept),
        Just(Verdict::Requeue),
        Just(Verdict::Fail),
        Just(Verdict::Reject)
    ];
    let step = prop_oneof![
        6 => Just(Step::Push),
        1 => Just(Step::PassThrough),
        5 => Just(Step::Claim),
        4 => (any::<usize>(), verdict).prop_map(|(n, v)| Step::Settle(n, v)),
        1 => any::<usize>().prop_map(Step::Expire),
        1 => (0u64..3).prop_map(Step::Drop),
        1 => Just(Step::Purge),
        2 => any::<usize>().prop_map(Step::PageOut),
    ];
    prop::collection::vec(step, 0..600)
}

proptest! {
    /// Against a list of (position, state): the plainest ledger that could be right.
    #[test]
    fn behaves_like_a_plain_list(steps in steps()) {
        let mut entries = Entries::new(0);
        let mut ready: std::collections::BTreeMap<u64, u32> = Default::default();
        let mut held: Vec<(Position, u32)> = Vec::new();
        let mut expired: std::collections::BTreeSet<u64> = Default::default();
        let mut next = 0u32;
        // A message's name in the log is its number, far up.
        let named = |message: u32| (7 << 40) + u64::from(message);
        let number = |kept: Kept| match kept {
            Kept::InMemory(message) => message,
            Kept::InLog(name) => (name - (7 << 40)) as u32,
        };
        for step in steps {
            match step {
                Step::Push => { let p = entries.push(next); ready.insert(p.0, next); next += 1; }
                Step::PassThrough => if ready.is_empty() { entries.pass_through(); },
                Step::PageOut(n) => {
                    let from = n as u64 % (entries.end + 1);
                    if let (Some((position, message)), next) = entries.next_in_memory(from, 8) {
                        prop_assert!(position.0 >= from && next == position.0 + 1);
                        prop_assert_eq!(ready.get(&position.0), Some(&message));
                        prop_assert!(!entries.page_out(position, message + 1, 1), "another message");
                        prop_assert!(entries.page_out(position, message, named(message)));
                    }
                }
                Step::Claim => {
                    if let Some((position, name)) = entries.next_paged_out() {
                        entries.page_in(position, number(Kept::InLog(name)));
                    }
                    let got = claim(&mut entries);
                    let want = ready.pop_first();
                    prop_assert_eq!(got.map(|c| (c.position.0, c.message)), want);
                    if let Some(c) = got { held.push((c.position, c.message)); }
                }
                Step::Settle(n, verdict) => if !held.is_empty() {
                    let (position, message) = held.swap_remove(n % held.len());
                    let settled = entries.settle(position, verdict).unwrap();
                    if matches!(verdict, Verdict::Requeue | Verdict::Fail) && !expired.contains(&position.0) {
                        prop_assert_eq!(settled.released, None);
                        ready.insert(position.0, message);
                    } else {
                        prop_assert_eq!(settled.released, Some(message));
                    }
                },
                Step::Expire(n) => {
                    let position = n as u64 % (entries.end + 1);
                    let was_ready = ready.remove(&position);
                    prop_assert_eq!(entries.expire(Position(position)).map(number), was_ready);
                    if held.iter().any(|(p, _)| p.0 == position) { expired.insert(position); }
                }
                Step::Drop(most) => {
                    let mut got = Vec::new();
                    entries.drop_ready(most, |kept| got.push(number(kept)));
                    let want: Vec<_> = (0..most).map_while(|_| ready.pop_first().map(|(_, m)| m)).collect();
                    prop_assert_eq!(got, want);
                }
                Step::Purge => {
                    let mut got = Vec::new();
                    let (mut rest, total) = entries.split_ready(|kept| got.push(number(kept)));
                    while !rest.demolish(1, |kept| got.push(number(kept))) {}
                    got.sort_unstable();
                    let mut want: Vec<_> = std::mem::take(&mut ready).into_values().collect();
                    want.sort_unstable();
                    prop_assert_eq!(total as usize, want.len());
                    prop_assert_eq!(got, want);
                }
            }
            entries.assert_consistent();
            prop_assert_eq!(entries.ready() as usize, ready.len());
            prop_assert_eq!(entries.unacked() as usize, held.len());
        }
    }
}
