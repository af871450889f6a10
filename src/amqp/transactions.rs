//! Transactions of a channel: `tx.select`, `tx.commit`, `tx.rollback`, and how they exclude confirms.

use amq_protocol::protocol::{AMQPClass, confirm, tx};
use lepus_shards::shard::Shard;

use super::failure::{Failure, PRECONDITION_FAILED};
use super::front::HasFront;
use super::method;
use super::methods::{At, open};
use super::peer::{Asked, Mode};

/// `confirm.select`.
pub(super) fn select_confirms<E: HasFront>(
    shard: &mut Shard,
    fx: &mut E,
    at: At,
    nowait: bool,
) -> Result<(), Failure> {
    let channel = open(fx, at.slot, at.number);
    if channel.mode == Mode::Transactional {
        return at.refuse(PRECONDITION_FAILED, "cannot switch from tx to confirm mode");
    }
    channel.mode = Mode::Confirming;
    shard.select_confirms(channel.id);
    if !nowait {
        let ok = confirm::AMQPMethod::SelectOk(confirm::SelectOk {});
        method::write(fx.front().out(at.slot), at.number, &AMQPClass::Confirm(ok));
    }
    Ok(())
}

/// A method of the class tx.
pub(super) fn take<E: HasFront>(
    shard: &mut Shard,
    fx: &mut E,
    at: At,
    method: tx::AMQPMethod,
) -> Result<(), Failure> {
    let channel = open(fx, at.slot, at.number);
    let (id, mode) = (channel.id, channel.mode);
    let ok = match (method, mode) {
        (tx::AMQPMethod::Select(_), Mode::Confirming) => {
            return at.refuse(PRECONDITION_FAILED, "cannot switch from confirm to tx mode");
        }
        (tx::AMQPMethod::Select(_), _) => {
            channel.mode = Mode::Transactional;
            shard.select_transactions(id);
            tx::AMQPMethod::SelectOk(tx::SelectOk {})
        }
        (tx::AMQPMethod::Commit(_), Mode::Transactional) => {
            at.begin(fx, Asked::Commit, false);
            shard.commit(fx, id);
            return Ok(());
        }
        (tx::AMQPMethod::Rollback(_), Mode::Transactional) => {
            shard.roll_back(id);
            tx::AMQPMethod::RollbackOk(tx::RollbackOk {})
        }
        (tx::AMQPMethod::Commit(_) | tx::AMQPMethod::Rollback(_), _) => {
            return at.refuse(PRECONDITION_FAILED, "channel is not transactional");
        }
        _ => return at.refuse_unimplemented(),
    };
    method::write(fx.front().out(at.slot), at.number, &AMQPClass::Tx(ok));
    Ok(())
}
