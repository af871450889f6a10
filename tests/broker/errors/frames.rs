//! What is wrong below the level of methods: frames, their order, and arguments that cannot be read.

use lepus_tests::wire::{
    FRAME_BODY, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD, basic_publish, frame, header_frame,
    method_frame, queue_declare,
};
use lepus_tests::{Arguments, Method, Properties};

use super::bench::{Bench, DURABLE, PASSIVE};

fn passive_queue(name: &str) -> Method {
    queue_declare(name, PASSIVE, &Arguments::new())
}

#[test]
fn a_wrong_end_byte_is_501() {
    let bench = Bench::new();
    let mut bytes = method_frame(1, &passive_queue("q"));
    *bytes.last_mut().expect("a frame has an end") = 0xCD;
    bench.bytes_error(&bytes, &[501]);
}

#[test]
fn a_frame_longer_than_agreed_is_501() {
    let bench = Bench::new();
    let mut publish = method_frame(1, &basic_publish("", "q", false));
    publish.extend(header_frame(1, 200_000, &Properties::none()));
    publish.extend(frame(FRAME_BODY, 1, &[0; 131_072 + 1000]));
    bench.bytes_error(&publish, &[501]);
    // A length that nobody could keep is refused before anybody tries.
    bench.bytes_error(&[FRAME_METHOD, 0, 1, 0xFF, 0xFF, 0xFF, 0xFF, 0, 10, 0, 10], &[501]);
}

#[test]
fn the_longest_frame_that_was_agreed_is_taken() {
    let bench = Bench::new();
    let mut wire = bench.wire();
    let queue = wire.declare_exclusive(1);
    wire.publish(1, "", &queue, &vec![1; 131_072 - 8]);
    assert_eq!(wire.get(1, &queue, true).expect("published before").body.len(), 131_072 - 8);
}

#[test]
fn contents_out_of_place_are_505() {
    let bench = Bench::new();
    let header = header_frame(1, 4, &Properties::none());
    let body = frame(FRAME_BODY, 1, b"body");
    let publish = method_frame(1, &basic_publish("", "nobody", false));
    bench.bytes_error(&header, &[505]);
    bench.bytes_error(&body, &[505]);
    bench.bytes_error(&[&publish[..], &body].concat(), &[505]);
    bench.bytes_error(&[&publish[..], &publish].concat(), &[505]);
    bench.bytes_error(&[&publish[..], &header, &header].concat(), &[505]);
    bench.bytes_error(&[&publish[..], &header, &method_frame(1, &passive_queue("q"))].concat(), &[505]);
    bench.bytes_error(&frame(FRAME_HEARTBEAT, 1, b""), &[505]);
}

#[test]
fn more_body_than_announced_is_refused() {
    let bench = Bench::new();
    let mut bytes = method_frame(1, &basic_publish("", "nobody", false));
    bytes.extend(header_frame(1, 4, &Properties::none()));
    bytes.extend(frame(FRAME_BODY, 1, b"five!"));
    // RabbitMQ takes the frame and then finds one too many; either way the connection goes.
    bytes.extend(frame(FRAME_BODY, 1, b"more"));
    bench.bytes_error(&bytes, &[501, 502, 505]);
}

#[test]
fn a_header_of_another_class_is_refused() {
    let bench = Bench::new();
    let mut bytes = method_frame(1, &basic_publish("", "nobody", false));
    let mut header = vec![0, 50, 0, 0];
    header.extend(0u64.to_be_bytes());
    header.extend([0, 0]);
    bytes.extend(frame(FRAME_HEADER, 1, &header));
    bench.bytes_error(&bytes, &[501, 502, 505]);
}

#[test]
fn unknown_frames_and_methods_close_the_connection() {
    let bench = Bench::new();
    bench.bytes_error(&frame(9, 1, b"what"), &[0, 501, 505]);
    bench.bytes_error(&method_frame(1, &Method::new(60, 200)), &[0, 501, 502, 503, 540]);
    bench.bytes_error(&method_frame(1, &Method::new(99, 10)), &[0, 501, 502, 503, 540]);
    // A method that only the broker sends.
    bench.bytes_error(
        &method_frame(1, &Method::new(50, 11).shortstr("q").long(0).long(0)),
        &[0, 503, 540, 541],
    );
}

#[test]
fn cut_off_arguments_are_a_syntax_error() {
    let bench = Bench::new();
    let whole = queue_declare("a-queue-with-a-name", DURABLE, &Arguments::new()).payload().to_vec();
    for length in [4, 5, 6, 7, 12, whole.len() - 3] {
        bench.bytes_error(&frame(FRAME_METHOD, 1, &whole[..length]), &[501, 502]);
    }
    // A table that claims to be longer than its frame.
    let lying = Method::new(50, 10).short(0).shortstr("q").bits(&[false; 5]).long(1000).octet(1);
    bench.bytes_error(&method_frame(1, &lying), &[501, 502]);
    for payload in [&b""[..], b"\0", b"\0\x32\0"] {
        bench.bytes_error(&frame(FRAME_METHOD, 1, payload), &[501, 502]);
    }
}
