//! The `lepus` command.

fn main() {}
