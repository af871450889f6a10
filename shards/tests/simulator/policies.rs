//! Policies that come and go, for the queues that are not accounted for: bounds, times to live and
//! expiry change while messages wait, are unacked, or lie in the log.

use lepus_shards::topology::{ApplyTo, Operation, Policy, PolicyOf};
use lepus_shards::{Arguments, Value, VhostId};

const VHOST: VhostId = VhostId(0);

/// Sets or clears one of a few policies. None of them makes a publisher wait or refuses a message: the model
/// expects that of no queue.
pub fn change(random: &mut fastrand::Rng) -> Operation {
    let name = format!("p{}", random.u8(..2));
    let of = if random.bool() { PolicyOf::User } else { PolicyOf::Operator };
    if random.u8(..3) == 0 {
        return Operation::ClearPolicy { vhost: VHOST, of, name };
    }
    let mut definition = Arguments::new();
    for (setting, most) in
        [("max-length", 6), ("max-length-bytes", 60), ("message-ttl", 60), ("expires", 200)]
    {
        if definition.is_empty() || random.bool() {
            definition.insert(setting.to_owned(), Value::I64(random.i64(1..=most)));
        }
    }
    let pattern = ["^loose-", "^loose-0$", "-1$"][random.usize(..3)];
    // The last one also fits a queue that is accounted for.
    let apply_to = if pattern == "-1$" { ApplyTo::Exchanges } else { ApplyTo::Queues };
    let policy = Policy { name, pattern: pattern.into(), apply_to, priority: random.i64(..3), definition };
    Operation::SetPolicy { vhost: VHOST, of, policy }
}
