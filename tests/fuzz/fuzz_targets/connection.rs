//! Any script - bytes cut anywhere, time passing - against a connection on a real kernel.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| lepus::amqp::trial::check_connection(script));
