//! Frames in and out.

use std::hint::black_box;

use gungraun::{library_benchmark, library_benchmark_group};
use lepus::amqp::trial::{ContentHeader, FrameHead, PublishMethod, put_confirm, put_deliver};
use lepus_shards::message::MessageView;

use crate::TIMES;
use crate::path::publish;

const FRAME_MAX: usize = 131_072;

fn publishes() -> Vec<u8> {
    publish(16, true).repeat(TIMES)
}

#[library_benchmark]
#[bench::all(publishes())]
fn read_publish(bytes: Vec<u8>) -> (Vec<u8>, usize) {
    let (mut rest, mut read) = (black_box(&bytes[..]), 0);
    while let Some(head) = FrameHead::read(rest) {
        let (frame, behind) = rest.split_at(head.frame_bytes());
        let payload = &frame[FrameHead::BYTES..FrameHead::BYTES + head.size];
        read += match head.kind {
            1 => PublishMethod::read(&payload[4..]).map_or(0, |method| method.routing_key.len()),
            2 => ContentHeader::read(payload).map_or(0, |header| header.properties.len()),
            _ => black_box(payload).len(),
        };
        rest = behind;
    }
    (bytes, read)
}

/// A buffer that need not grow, and a body.
fn output(body_bytes: usize) -> (Vec<u8>, Vec<u8>) {
    (Vec::with_capacity(TIMES * (body_bytes + 256)), vec![b'x'; body_bytes])
}

#[library_benchmark]
#[bench::body_16(output(16))]
#[bench::body_1024(output(1024))]
fn write_deliver((mut out, body): (Vec<u8>, Vec<u8>)) -> (Vec<u8>, Vec<u8>) {
    for tag in 0..TIMES as u64 {
        let message = MessageView {
            exchange: b"exchange",
            routing_key: black_box(b"routing.key"),
            properties: &[0x10, 0, 2],
            body: &body,
        };
        put_deliver(&mut out, 1, b"consumer", tag, false, &message, FRAME_MAX);
    }
    (out, body)
}

#[library_benchmark]
#[bench::all(output(0))]
fn write_confirm((mut out, body): (Vec<u8>, Vec<u8>)) -> (Vec<u8>, Vec<u8>) {
    for tag in 0..TIMES as u64 {
        put_confirm(&mut out, 1, black_box(tag), true, true);
    }
    (out, body)
}

library_benchmark_group!(name = codec_group, benchmarks = [read_publish, write_deliver, write_confirm]);
