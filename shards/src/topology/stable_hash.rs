//! The hash by which exchanges spread messages: the same on every shard, in every run and in every
//! version, because consumers rely on a key staying where it is.
//!
//! FNV-1a with the finalizer of SplitMix64, which spreads what FNV leaves close together. Not keyed:
//! a client that wants all its messages in one queue can have that more easily.

#![forbid(unsafe_code)]

use crate::Value;

/// A hash in the making.
#[derive(Clone, Copy, Debug)]
pub(super) struct StableHash(u64);

impl StableHash {
    pub fn new() -> StableHash {
        StableHash(0xcbf2_9ce4_8422_2325)
    }

    pub fn bytes(mut self, bytes: &[u8]) -> StableHash {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self
    }

    /// A part of several: its length keeps `ab`, `c` and `a`, `bc` apart.
    pub fn part(self, bytes: &[u8]) -> StableHash {
        self.bytes(&(bytes.len() as u64).to_le_bytes()).bytes(bytes)
    }

    /// A value of a header; none for one that is not there. Integers of any width are equal, and so are
    /// text and bytes.
    pub fn value(self, value: Option<&Value>) -> StableHash {
        match value {
            None => self.bytes(b"-"),
            Some(Value::LongString(bytes) | Value::Bytes(bytes)) => self.bytes(b"s").bytes(bytes),
            Some(value) => match value.as_integer() {
                Some(integer) => self.bytes(b"i").bytes(&integer.to_le_bytes()),
                None => {
                    let encoded = rmp_serde::to_vec(value).expect("header values are plain values");
                    self.bytes(b"v").bytes(&encoded)
                }
            },
        }
    }

    pub fn finish(self) -> u64 {
        mix(self.0)
    }
}

/// Changes about half of the bits when one bit changes.
pub(super) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_stay_as_they_are() {
        // Frozen: a key must not change its queue because the broker was updated.
        let key = |key: &[u8]| StableHash::new().bytes(key).finish();
        assert_eq!(key(b""), 0xc381_7c01_6ba4_ff30);
        assert_eq!(key(b"order.17"), 0x4213_299f_441e_9617);
        let value = |value: &Value| StableHash::new().value(Some(value)).finish();
        assert_eq!(value(&Value::I64(7)), 0x5de9_9089_3d45_d10a);
        assert_eq!(value(&Value::LongString(b"a".to_vec())), 0xb500_1f71_0f9b_7af3);
        assert_eq!(value(&Value::I64(7)), value(&Value::U8(7)));
        assert_eq!(value(&Value::LongString(b"a".to_vec())), value(&Value::Bytes(b"a".to_vec())));
        assert_ne!(value(&Value::I64(7)), value(&Value::LongString(b"7".to_vec())));
    }

    #[test]
    fn parts_are_told_apart() {
        let parts = |a: &[u8], b: &[u8]| StableHash::new().part(a).part(b).finish();
        assert_ne!(parts(b"ab", b"c"), parts(b"a", b"bc"));
    }
}
