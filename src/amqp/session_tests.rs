//! Whole conversations against a real shard, without sockets: cut anywhere, or damaged.

use proptest::prelude::*;

use super::codec::FrameHead;
use super::trial::{Script, Step, Trial, check_codec, check_connection, frame, handshake, method, play};
use super::*;

fn publish(channel: u16, key: &[u8], body: &[u8], part: usize) -> Vec<u8> {
    let mut arguments = vec![0, 0, 0, key.len() as u8];
    arguments.extend_from_slice(key);
    arguments.push(1);
    let mut header = vec![0, 60, 0, 0];
    header.extend_from_slice(&(body.len() as u64).to_be_bytes());
    header.extend_from_slice(&[0x10, 0, 2]);
    let mut out = [method(channel, 60, 40, &arguments), frame(2, channel, &header)].concat();
    body.chunks(part).for_each(|part| out.extend_from_slice(&frame(3, channel, part)));
    out
}

/// A conversation that uses most of what there is: all of it sent before any answer is read. The two
/// channels have a queue each, since nothing orders one channel's frames against another's.
fn conversation() -> Vec<u8> {
    [
        handshake(),
        method(2, 20, 10, &[0]),
        method(1, 50, 10, &[0, 0, 1, b'q', 2, 0, 0, 0, 0]),
        method(2, 50, 10, &[0, 0, 1, b'p', 0, 0, 0, 0, 0]),
        method(1, 85, 10, &[0]),
        publish(1, b"q", b"", 100),
        publish(2, b"p", b"hello", 100),
        publish(1, b"q", &[7; 1_000], 300),
        publish(1, b"nowhere", b"returned", 3),
        publish(2, b"p", &[8; 1_000], 300),
        publish(2, b"p", b"last", 100),
        method(2, 60, 70, &[0, 0, 1, b'p', 0]),
        method(2, 60, 70, &[0, 0, 1, b'p', 1]),
        method(2, 60, 80, &[0, 0, 0, 0, 0, 0, 0, 1, 0]),
        method(2, 60, 10, &[0, 0, 0, 0, 0, 10, 0]),
        method(2, 60, 20, &[0, 0, 1, b'p', 1, b'c', 0, 0, 0, 0, 0]),
        method(2, 60, 120, &[0, 0, 0, 0, 0, 0, 0, 3, 2]),
        // A channel error, frames that it makes void, and its end.
        method(1, 50, 20, &[0, 0, 1, b'q', 2, b'n', b'o', 0, 0, 0, 0, 0, 0]),
        publish(1, b"q", b"void", 100),
        method(1, 20, 41, &[]),
        method(1, 20, 10, &[0]),
        method(1, 50, 40, &[0, 0, 1, b'q', 0]),
        // The close does not overtake what the channels still do.
        method(0, 10, 50, &[0, 200, 2, b'O', b'K', 0, 0, 0, 0]),
    ]
    .concat()
}

/// Class and method of each method frame, in order.
fn methods(mut bytes: &[u8]) -> Vec<(u16, u16, u16)> {
    let mut found = Vec::new();
    while let Some(head) = FrameHead::read(bytes) {
        let payload = &bytes[FrameHead::BYTES..];
        if head.kind == 1 {
            let ids = super::method::ids(payload).unwrap();
            found.push((head.channel, ids.0, ids.1));
        }
        bytes = &bytes[head.frame_bytes()..];
    }
    found
}

/// Code, text and ids of the close frame in `bytes`.
fn close(bytes: &[u8]) -> Option<(u16, String, u16, u16)> {
    let mut rest = bytes;
    while let Some(head) = FrameHead::read(rest) {
        let payload = &rest[FrameHead::BYTES..FrameHead::BYTES + head.size];
        if head.kind == 1 && (payload.starts_with(&[0, 10, 0, 50]) || payload.starts_with(&[0, 20, 0, 40])) {
            let number = |at: usize| u16::from_be_bytes([payload[at], payload[at + 1]]);
            let end = 7 + usize::from(payload[6]);
            let text = String::from_utf8(payload[7..end].to_vec()).unwrap();
            return Some((number(4), text, number(end), number(end + 2)));
        }
        rest = &rest[head.frame_bytes()..];
    }
    None
}

/// Hands a stream in as these pieces; gives the bytes that came out.
fn answer(stream: &[u8], pieces: &[usize]) -> Vec<u8> {
    let mut broker = Trial::new(u64::MAX);
    let slot = broker.accept();
    let (mut rest, mut out, mut pieces) = (stream, Vec::new(), pieces.iter().cycle());
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(rest.len().min(*pieces.next().unwrap()));
        broker.send(slot, piece);
        out.extend(broker.take(slot));
        rest = behind;
    }
    assert_eq!(broker.around.front.disposition(slot), Disposition::FlushThenClose);
    disconnected(&mut broker.shard, &mut broker.around, slot);
    assert_eq!(broker.around.front.assembly_reserved_bytes, 0);
    broker.shard.assert_consistent();
    out
}

#[test]
fn a_pipelined_conversation_is_answered_in_order() {
    let out = answer(&conversation(), &[usize::MAX]);
    let on = |channel: u16| -> Vec<(u16, u16)> {
        methods(&out).into_iter().filter(|m| m.0 == channel).map(|m| (m.1, m.2)).collect()
    };
    assert_eq!(on(0), [(10, 10), (10, 30), (10, 41), (10, 51)]);
    let first = [(20, 11), (50, 11), (85, 11), (60, 50)];
    assert_eq!(on(1)[..4], first, "the return comes before the confirms");
    assert!(on(1)[4..].starts_with(&[(60, 80)]) || on(1)[4..].starts_with(&[(20, 40)]));
    assert_eq!(on(1).last(), Some(&(50, 41)), "the reopened channel deletes the queue");
    let second = [(20, 11), (50, 11), (60, 71), (60, 71), (60, 11), (60, 21), (60, 60)];
    assert_eq!(on(2)[..7], second);
    let (code, text, class, id) = close(&out).unwrap();
    assert_eq!((code, class, id), (404, 50, 20));
    assert_eq!(text, "NOT_FOUND - no exchange 'no' in vhost '/'");
}

#[test]
fn a_byte_at_a_time_is_as_good_as_all_at_once() {
    // Confirms may be coalesced differently: compare what is not one.
    let count = |bytes: &[u8]| {
        let mut all = methods(bytes);
        all.retain(|m| (m.1, m.2) != (60, 80));
        all.sort_unstable();
        all
    };
    let (whole, bytes) = (answer(&conversation(), &[usize::MAX]), answer(&conversation(), &[1]));
    assert_eq!(count(&whole), count(&bytes));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn a_conversation_may_be_cut_anywhere(pieces in prop::collection::vec(1usize..200, 1..20)) {
        let count = |bytes: &[u8]| methods(bytes).iter().filter(|m| (m.1, m.2) != (60, 80)).count();
        prop_assert_eq!(count(&answer(&conversation(), &pieces)), count(&answer(&conversation(), &[usize::MAX])));
    }

    /// Damage anywhere, cut anywhere.
    #[test]
    fn damage_does_no_harm(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        pieces in prop::collection::vec(1usize..400, 1..10),
        end in any::<prop::sample::Index>(),
        lazy: bool,
        short: bool,
    ) {
        let mut stream = conversation();
        for (at, byte) in damage {
            let at = at.index(stream.len());
            stream[at] = byte;
        }
        stream.truncate(end.index(stream.len()) + 1);
        let (mut rest, mut pieces, mut steps) = (stream.as_slice(), pieces.iter().cycle(), Vec::new());
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(rest.len().min(*pieces.next().unwrap()));
            steps.push(Step::Send(piece.to_vec()));
            rest = behind;
        }
        steps.push(Step::Wait { ms: 20_000 });
        play(&Script { open: false, lazy, short, steps: steps.clone() });
        // A client that goes at once leaves as little behind.
        steps.pop();
        play(&Script { open: false, lazy, short, steps });
    }

    #[test]
    fn garbage_is_answered_with_the_protocol_header_and_a_closed_socket(bytes in prop::collection::vec(any::<u8>(), 8..200)) {
        prop_assume!(!bytes.starts_with(b"AMQP\0\0\x09\x01"));
        let mut broker = Trial::new(u64::MAX);
        let slot = broker.accept();
        broker.send(slot, &bytes);
        prop_assert_eq!(broker.take(slot), b"AMQP\x00\x00\x09\x01");
        prop_assert_eq!(broker.around.front.disposition(slot), Disposition::FlushThenClose);
    }
}

#[test]
fn each_kind_of_broken_frame_has_its_code() {
    let mut wrong_end = method(1, 20, 20, &[1]);
    *wrong_end.last_mut().unwrap() = 0;
    let cases: [(&str, Vec<u8>, u16); 10] = [
        ("wrong end byte", wrong_end, 501),
        ("too large", vec![1, 0, 1, 0, 2, 0, 0], 501),
        ("unknown type", frame(9, 1, b"x"), 501),
        ("heartbeat on a channel", frame(8, 1, b""), 505),
        ("header without a method", frame(2, 1, &[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), 505),
        ("body without a header", frame(3, 1, b"x"), 505),
        ("content on channel 0", frame(3, 0, b"x"), 505),
        ("channel not open", method(7, 50, 10, &[0, 0, 1, b'q', 0, 0, 0, 0, 0]), 504),
        ("channel above the maximum", method(3_000, 20, 10, &[0]), 530),
        ("unknown method", method(1, 60, 99, &[]), 503),
    ];
    for (name, bytes, code) in cases {
        let mut broker = Trial::new(u64::MAX);
        let slot = broker.open();
        broker.send(slot, &bytes);
        let out = broker.take(slot);
        assert_eq!(close(&out).map(|close| close.0), Some(code), "{name}");
        assert_eq!(methods(&out).last().map(|m| (m.0, m.1, m.2)), Some((0, 10, 50)), "{name}");
        broker.send(slot, &method(0, 10, 51, &[]));
        broker.pass(10_000);
        assert_ne!(broker.around.front.disposition(slot), Disposition::Open, "{name}");
    }
}

#[test]
fn a_wrong_password_closes_after_a_delay_or_with_a_reason() {
    let login = |capability: &[u8]| {
        let mut table = (capability.len() as u32).to_be_bytes().to_vec();
        table.extend_from_slice(capability);
        table.extend_from_slice(b"\x05PLAIN\0\0\0\x0c\0guest\0wrong\x05en_US");
        [b"AMQP\x00\x00\x09\x01".to_vec(), method(0, 10, 11, &table)].concat()
    };
    let mut broker = Trial::new(u64::MAX);
    let slot = broker.accept();
    broker.send(slot, &login(b""));
    broker.take(slot);
    assert_eq!(broker.around.front.disposition(slot), Disposition::Open, "not yet");
    broker.pass(2_000);
    assert_eq!(broker.around.front.disposition(slot), Disposition::CloseNow);
    assert!(broker.take(slot).is_empty(), "without a word");

    let slot = broker.accept();
    broker.send(slot, &login(b"\x0ccapabilitiesF\0\0\0\x1f\x1cauthentication_failure_closet\x01"));
    let (code, text, class, id) = close(&broker.take(slot)).unwrap();
    assert_eq!((code, class, id), (403, 0, 0));
    assert_eq!(
        text,
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile."
    );
}

#[test]
fn a_handshake_that_stops_half_way_is_cut_off() {
    for sent in [0, 4, 8, 30] {
        let mut broker = Trial::new(u64::MAX);
        let slot = broker.accept();
        broker.send(slot, &handshake()[..sent]);
        broker.take(slot);
        broker.pass(9_000);
        assert_eq!(broker.around.front.disposition(slot), Disposition::Open);
        broker.pass(2_000);
        assert_eq!(broker.around.front.disposition(slot), Disposition::CloseNow, "after {sent} bytes");
    }
}

#[test]
fn heartbeats_go_out_in_silence_and_a_silent_client_is_cut_off() {
    let mut broker = Trial::new(u64::MAX);
    let slot = broker.open();
    broker.pass(29_000);
    assert!(broker.take(slot).is_empty());
    broker.pass(2_000);
    assert_eq!(broker.take(slot), codec::HEARTBEAT_FRAME);
    broker.send(slot, &codec::HEARTBEAT_FRAME);
    for _ in 0..11 {
        broker.pass(10_000);
        broker.take(slot);
    }
    assert_eq!(broker.around.front.disposition(slot), Disposition::Open);
    broker.pass(10_000);
    broker.take(slot);
    broker.pass(1_000);
    assert_eq!(broker.around.front.disposition(slot), Disposition::CloseNow);
}

#[test]
fn a_client_that_does_not_read_is_cut_off() {
    let mut broker = Trial::new(u64::MAX);
    let slot = broker.open();
    broker.send(slot, &method(1, 20, 20, &[1]));
    broker.pass(14_000);
    assert_eq!(broker.around.front.disposition(slot), Disposition::Open);
    broker.pass(3_000);
    assert_eq!(broker.around.front.disposition(slot), Disposition::CloseNow);
}

#[test]
fn publishers_wait_while_memory_is_short_and_go_on_where_they_were() {
    let mut broker = Trial::new(1_000);
    let (publisher, reader) = (broker.open(), broker.open());
    broker.send(reader, &method(1, 50, 10, &[0, 0, 1, b'q', 0, 0, 0, 0, 0]));
    for _ in 0..20 {
        broker.send(publisher, &publish(1, b"q", &[1; 100], 1_000));
    }
    assert!(!broker.around.front.wants_input(publisher), "it is not read");
    assert!(broker.around.front.wants_input(reader), "who does not publish is");
    broker.take(reader);
    let mut got = 0;
    for _ in 0..40 {
        broker.send(reader, &method(1, 60, 70, &[0, 0, 1, b'q', 1]));
        got += methods(&broker.take(reader)).iter().filter(|m| (m.1, m.2) == (60, 71)).count();
    }
    assert_eq!(got, 20, "what was held back came in, once");
    assert!(broker.around.front.wants_input(publisher));
}

/// Bodies that together do not fit into the budget, sent side by side.
struct LargeBodies {
    broker: Trial,
    first: u32,
    second: u32,
}

impl LargeBodies {
    /// Both have sent 900,000 bytes of which the second waits.
    fn begin() -> (LargeBodies, Vec<u8>) {
        let mut broker = Trial::new(u64::MAX);
        let (first, second) = (broker.open(), broker.open());
        broker.send(first, &method(1, 50, 10, &[0, 0, 1, b'q', 0, 0, 0, 0, 0]));
        let stream = publish(1, b"q", &vec![3; 1_000_000], 100_000);
        let (front, back) = stream.split_at(900_000);
        broker.send(first, front);
        assert!(broker.around.front.wants_input(first));
        broker.send(second, front);
        assert!(broker.around.front.wants_input(second), "past the budget one may go on");
        broker.send(first, &back[..50_000]);
        assert!(!broker.around.front.wants_input(first), "it has to wait for the other");
        (LargeBodies { broker, first, second }, back.to_vec())
    }

    fn messages(&mut self) -> u32 {
        self.broker.take(self.first);
        self.broker.send(self.first, &method(1, 50, 10, &[0, 0, 1, b'q', 0, 0, 0, 0, 0]));
        let out = self.broker.take(self.first);
        u32::from_be_bytes(out[out.len() - 9..out.len() - 5].try_into().unwrap())
    }
}

#[test]
fn large_bodies_take_turns_and_none_is_lost() {
    let (mut large, back) = LargeBodies::begin();
    let (first, second) = (large.first, large.second);
    large.broker.send(second, &back);
    assert!(large.broker.around.front.wants_input(first));
    large.broker.send(first, &back[50_000..]);
    assert_eq!(large.messages(), 2);
    assert_eq!(large.broker.around.front.assembly_reserved_bytes, 0);
}

#[test]
fn a_body_that_never_gets_complete_keeps_others_waiting_for_a_bounded_time() {
    let (mut large, back) = LargeBodies::begin();
    let (first, second) = (large.first, large.second);
    for _ in 0..31 {
        large.broker.pass(1_000);
        large.broker.turn();
        large.broker.take(first);
        // It lives, but it does not go on.
        large.broker.send(second, &[]);
    }
    let (code, text, ..) = close(&large.broker.take(second)).unwrap();
    assert_eq!((code, text.starts_with("RESOURCE_ERROR - ")), (506, true), "{text}");
    assert!(large.broker.around.front.wants_input(first));
    large.broker.send(first, &back[50_000..]);
    assert_eq!(large.messages(), 1);
    assert_eq!(large.broker.around.front.assembly_reserved_bytes, 0);
}

#[test]
fn an_empty_part_of_a_body_takes_no_turn() {
    let begin = |number, part: &[u8]| {
        let header = [&[0, 60, 0, 0][..], &300u64.to_be_bytes(), &[0, 0]].concat();
        [method(number, 60, 40, &[0, 0, 0, 1, b'q', 0]), frame(2, number, &header), frame(3, number, part)]
            .concat()
    };
    let mut broker = Trial::with_budgets(u64::MAX, 200);
    let (first, second) = (broker.open(), broker.open());
    // The first goes past the budget, and stays there when one of its two bodies is complete.
    broker.send(first, &method(2, 20, 10, &[0]));
    broker.send(first, &[begin(1, &[1; 100]), begin(2, &[2; 250]), frame(3, 1, &[1; 200])].concat());
    broker.send(second, &begin(1, &[]));
    disconnected(&mut broker.shard, &mut broker.around, second);
    broker.send(first, &frame(3, 2, &[2; 20]));
    assert!(broker.around.front.wants_input(first), "nobody is there to wait for");
    for _ in 0..35 {
        broker.pass(1_000);
        broker.take(first);
        broker.send(first, &[]);
    }
    broker.send(first, &frame(3, 2, &[2; 30]));
    assert_eq!(broker.around.front.assembly_reserved_bytes, 0, "the body is complete");
}

#[test]
fn a_silent_one_is_not_waited_for_as_long_as_one_that_goes_on() {
    let (mut large, _) = LargeBodies::begin();
    let second = large.second;
    for _ in 0..6 {
        large.broker.pass(1_000);
        large.broker.turn();
    }
    assert_eq!(close(&large.broker.take(second)).unwrap().0, 506);
    assert!(large.broker.around.front.wants_input(large.first));
}

#[test]
fn one_connection_cannot_keep_many_large_bodies_incomplete() {
    let mut broker = Trial::new(u64::MAX);
    let slot = broker.open();
    let stream = |channel| publish(channel, b"nowhere", &vec![3; 1_000_000], 100_000);
    let mut ended = None;
    for channel in 1..8 {
        if channel > 1 {
            broker.send(slot, &method(channel, 20, 10, &[0]));
        }
        // All but the last three frames.
        let stream = stream(channel);
        broker.send(slot, &stream[..stream.len() - 3 * 100_008]);
        ended = ended.or(close(&broker.take(slot)));
    }
    assert_eq!(ended.expect("it is refused").0, 506);
    assert_eq!(broker.around.front.assembly_reserved_bytes, 0);
}

#[test]
fn what_is_only_announced_costs_nothing() {
    let mut broker = Trial::new(u64::MAX);
    let announced: Vec<u32> = (0..20)
        .map(|_| {
            let slot = broker.open();
            let stream = publish(1, b"nowhere", &vec![0; 1 << 20], 100_000);
            broker.send(slot, &stream[..54]);
            slot
        })
        .collect();
    assert_eq!(broker.around.front.assembly_reserved_bytes, 0);
    assert!(announced.iter().all(|&slot| broker.around.front.wants_input(slot)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, max_shrink_iters: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn any_script_does_no_harm(script in prop::collection::vec(any::<u8>(), 0..400)) {
        check_connection(&script);
    }

    /// Frames with the right shape and anything in them get further than plain noise.
    #[test]
    fn any_frames_do_no_harm(
        lazy: bool,
        short: bool,
        steps in prop::collection::vec(prop_oneof![8 => any_frame().prop_map(Step::Send), 2 => any_step()], 1..16),
    ) {
        for step in &steps {
            if let Step::Send(frame) = step {
                check_codec(frame);
            }
        }
        play(&Script { open: true, lazy, short, steps });
    }
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![(100u64..15_000).prop_map(|ms| Step::Wait { ms }), Just(Step::Other)]
}

fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let class = prop::sample::select(vec![10u16, 20, 40, 50, 60, 85, 90, 99]);
    let id = prop_oneof![
        prop::sample::select(vec![10u16, 11, 20, 21, 30, 40, 50, 70, 80, 90, 100, 110, 120]),
        0u16..130
    ];
    let noise = prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(b'q'), any::<u8>()], 0..60);
    let any_method =
        (0u16..3, class, id, noise.clone()).prop_map(|(n, class, id, bytes)| method(n, class, id, &bytes));
    let any_content = (1u8..10, 0u16..3, noise).prop_map(|(kind, n, bytes)| frame(kind, n, &bytes));
    prop_oneof![4 => any_method, 2 => any_content, 1 => Just(publish(1, b"q", b"body", 2))]
}

/// What a fuzzer begins with, and what it found.
#[test]
fn the_fuzzers_corpus_does_no_harm() {
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus");
    let mut count = 0;
    for (target, check) in [("codec", check_codec as fn(&[u8])), ("connection", check_connection)] {
        for entry in std::fs::read_dir(corpus.join(target)).unwrap() {
            check(&std::fs::read(entry.unwrap().path()).unwrap());
            count += 1;
        }
    }
    assert!(count >= 5, "the corpus is there");
}
