//! Any bytes through every reader of the hot codec.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lepus::amqp::trial::check_codec(bytes));
