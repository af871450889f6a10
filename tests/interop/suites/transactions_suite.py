"""pika: transactions. All of it but what says so is true of RabbitMQ 4.3 too."""

import pika

from harness import equal, main, only_lepus, test, true
from pika_tools import Inbox, channel, connected, declared, drain, filled, ready, refused, send


@test
def transactions_and_confirms_exclude_each_other():
    with channel() as ch:
        ch.confirm_delivery()
        refused(406, "cannot switch from confirm to tx mode", ch.tx_select)
    with channel() as ch:
        ch.tx_select()
        refused(406, "cannot switch from tx to confirm mode", ch.confirm_delivery)


@test
def a_commit_and_a_rollback_need_a_select():
    for name in ("tx_commit", "tx_rollback"):
        with channel() as ch:
            refused(406, "channel is not transactional", getattr(ch, name))


@test
def selecting_twice_and_committing_nothing_is_fine():
    with channel() as ch:
        ch.tx_select()
        ch.tx_select()
        ch.tx_commit()
        ch.tx_rollback()
        ch.tx_commit()


@test
def messages_are_there_with_the_commit_in_the_order_of_publishing():
    with channel() as ch, channel() as other:
        first, second = declared(ch), declared(ch)
        ch.tx_select()
        for number in range(5):
            send(ch, first, b"%d" % number, delivery_mode=2)
            send(ch, second, b"%d" % number)
        equal((ready(ch, first), ready(ch, second)), (0, 0), "before")
        ch.tx_commit()
        for queue in (first, second):
            equal(drain(other, queue), [b"%d" % number for number in range(5)], "after")


@test
def a_rollback_drops_publishes():
    with channel() as ch:
        queue = declared(ch)
        ch.tx_select()
        send(ch, queue, b"dropped")
        ch.tx_rollback()
        send(ch, queue, b"kept")
        ch.tx_commit()
        equal(drain(ch, queue), [b"kept"], "messages")


@test
def a_rollback_leaves_deliveries_unacked_under_their_tags():
    with channel() as setup, channel() as ch:
        queue = filled(setup, 6)
        ch.tx_select()
        tags = [ch.basic_get(queue)[0].delivery_tag for _ in range(6)]
        equal(tags, [1, 2, 3, 4, 5, 6], "tags")
        ch.basic_ack(2)
        ch.basic_nack(4, requeue=True)
        ch.basic_reject(5, requeue=False)
        equal(ready(ch, queue), 0, "before the rollback")
        ch.tx_rollback()
        equal(ready(ch, queue), 0, "nothing is requeued by it")
        ch.basic_ack(2)
        ch.basic_nack(6, multiple=True, requeue=True)
        equal(ready(ch, queue), 0, "before the commit")
        ch.tx_commit()
        equal(drain(ch, queue), [b"0", b"2", b"3", b"4", b"5"], "requeued")


@test
def a_tag_is_settled_once_within_a_transaction():
    with channel() as setup, channel() as ch:
        queue = filled(setup, 1)
        ch.tx_select()
        ch.basic_get(queue)
        ch.basic_ack(1)
        ch.basic_ack(1)
        refused(406, "unknown delivery tag 1", ch.tx_commit)


@test
def recover_leaves_alone_what_the_transaction_has_acked():
    with channel() as setup, channel() as ch:
        queue = filled(setup, 4)
        ch.tx_select()
        for _ in range(4):
            ch.basic_get(queue)
        ch.basic_ack(2)
        ch.basic_recover(True)
        equal(ready(ch, queue), 3, "recovered")
        ch.tx_rollback()
        equal(ready(ch, queue), 3, "after the rollback")
        ch.basic_ack(2)
        ch.tx_commit()
        equal(drain(setup, queue), [b"0", b"2", b"3"], "left")


@test
def a_channel_that_closes_requeues_what_was_not_committed():
    with channel() as setup, connected() as connection:
        queue = filled(setup, 1)
        ch = connection.channel()
        ch.tx_select()
        ch.basic_get(queue)
        ch.basic_ack(1)
        send(ch, queue, b"never")
        ch.close()
        method, _, body = setup.basic_get(queue, auto_ack=True)
        equal((body, method.redelivered), (b"0", True), "message")
        equal(drain(setup, queue), [], "the rest")


@test
def what_nobody_takes_comes_back_with_the_commit_and_not_with_a_rollback():
    with channel() as ch:
        returns = []
        ch.add_on_return_callback(lambda _, method, __, body: returns.append((method.reply_code, method.reply_text, body)))
        ch.tx_select()
        ch.basic_publish("", "nowhere", b"0", mandatory=True)
        ch.tx_rollback()
        ch.basic_publish("", "nowhere", b"1", mandatory=True)
        ch.basic_publish("", "nowhere", b"not mandatory")
        ch.connection.process_data_events(0.2)
        equal(returns, [], "before the commit")
        ch.tx_commit()
        ch.connection.process_data_events(0.2)
        equal(returns, [(312, "NO_ROUTE", b"1")], "after it")


@test
def an_unknown_exchange_is_an_error_before_the_commit():
    with channel() as ch:
        ch.tx_select()
        ch.basic_publish("there.is.none", "k", b"m")
        refused(404, "no exchange 'there.is.none' in vhost '/'", ch.tx_commit)


@test
def a_full_queue_that_rejects_fails_the_commit():
    with channel() as ch, channel() as other:
        full = declared(ch, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
        free = declared(ch)
        ch.tx_select()
        for number in range(5):
            send(ch, full, b"%d" % number)
            send(ch, free, b"%d" % number)
        refused(406, "PRECONDITION_FAILED - ", ch.tx_commit)
        only_lepus("RabbitMQ keeps what it could take, and says 'partial tx completion'")
        equal((ready(other, full), ready(other, free)), (0, 0), "nothing is kept")


@test
def prefetch_is_used_until_the_commit():
    with channel() as setup, channel() as ch:
        queue = filled(setup, 6)
        ch.basic_qos(prefetch_count=2)
        ch.tx_select()
        inbox = Inbox(ch, queue).wait(2)
        ch.basic_ack(2, multiple=True)
        equal(inbox.quiet(), 2, "not before the commit")
        ch.tx_rollback()
        equal(inbox.quiet(), 2, "nor after a rollback")
        ch.basic_ack(2, multiple=True)
        ch.tx_commit()
        inbox.wait(4)
        equal(inbox.bodies(), [b"0", b"1", b"2", b"3"], "deliveries")
        equal(inbox.quiet(), 4, "and no more")


@test
def a_queue_that_is_deleted_meanwhile_takes_its_share_with_it():
    only_lepus("RabbitMQ 4.3 closes the connection with 506")
    with channel() as ch, channel() as other:
        gone, kept = declared(ch), declared(ch)
        ch.tx_select()
        for queue in (gone, kept):
            send(ch, queue, b"m")
        other.queue_delete(gone)
        ch.tx_commit()
        equal(drain(ch, kept), [b"m"], "messages")


@test
def direct_replies_go_out_with_the_commit():
    with channel() as asking, channel() as answering:
        queue = declared(answering)
        replies = Inbox(asking, "amq.rabbitmq.reply-to", auto_ack=True)
        send(asking, queue, b"question", reply_to="amq.rabbitmq.reply-to")
        method = None
        while method is None:
            method, properties, _ = answering.basic_get(queue)
        answering.tx_select()
        answering.basic_ack(method.delivery_tag)
        answering.basic_publish("", properties.reply_to, b"answer")
        equal(replies.quiet(), 0, "before the commit")
        answering.tx_commit()
        equal(replies.wait(1).bodies(), [b"answer"], "after it")


@test
def a_large_transaction_is_one():
    with channel() as ch, channel() as other:
        queues = [declared(ch) for _ in range(3)]
        ch.tx_select()
        persistent = pika.BasicProperties(delivery_mode=2)
        for number in range(3000):
            ch.basic_publish("", queues[number % 3], b"%d" % number * 50, persistent)
        equal([ready(other, queue) for queue in queues], [0, 0, 0], "before")
        ch.tx_commit()
        equal([ready(other, queue) for queue in queues], [1000, 1000, 1000], "after")
        true(drain(other, queues[1])[1] == b"4" * 50, "in order")


main()
