//! Any script - bytes cut anywhere, time passing, two clients - against a real kernel.
#![no_main]

use lepus::amqp::trial::{Script, play};
use libfuzzer_sys::arbitrary::{Arbitrary, Result, Unstructured};
use libfuzzer_sys::fuzz_target;

/// A script, so that `cargo fuzz fmt` and a crash show its steps.
#[derive(Debug)]
struct Input(Script);

impl<'a> Arbitrary<'a> for Input {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Result<Input> {
        let count = bytes.len();
        Ok(Input(Script::read(bytes.bytes(count)?)))
    }
}

fuzz_target!(|input: Input| play(&input.0));
