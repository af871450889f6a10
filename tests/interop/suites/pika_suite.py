"""pika: the ledger, topology and flow of one queue and of many, as its users see them."""

import contextlib
import datetime
import decimal
import socket
import struct

import pika
import pika.exceptions
import pika.frame

from harness import HOST, LEPUS, PASSWORD, PORT, USER, equal, exchange_name, main, only_lepus, queue_name, test, true
from pika_tools import Inbox, channel, connected, consumers, declared, drain, filled, parameters, ready, refused, send

FRAME_MAX = 131072


# Connection


@test
def connects_and_closes():
    with connected() as connection:
        true(connection.is_open, "open")
        connection.close(200, "bye")
        true(connection.is_closed, "closed")


@test
def capabilities_are_announced():
    with connected() as connection:
        properties = connection._impl.server_properties
        for name in (
            "publisher_confirms exchange_exchange_bindings basic.nack consumer_cancel_notify connection.blocked "
            "consumer_priorities authentication_failure_close per_consumer_qos"
        ).split():
            true(properties["capabilities"].get(name) is True, f"capability {name}")
        for name in ("product", "version", "platform", "copyright", "information", "cluster_name"):
            true(name in properties, f"server property {name}")
        if LEPUS:
            equal(properties["product"], b"Lepus" if isinstance(properties["product"], bytes) else "Lepus", "product")


@test
def the_lower_offer_wins_in_negotiation():
    with connected(frame_max=8192, channel_max=17, heartbeat=11) as connection:
        settings = connection._impl.params
        equal((settings.frame_max, settings.channel_max, settings.heartbeat), (8192, 17, 11), "negotiated")


@test
def a_wrong_password_is_refused_with_a_reason():
    try:
        pika.BlockingConnection(parameters(credentials=pika.PlainCredentials(USER, PASSWORD + "x")))
    except pika.exceptions.ProbableAuthenticationError as error:
        true("403" in str(error) and "Login was refused using authentication mechanism PLAIN" in str(error), str(error))
    else:
        raise AssertionError("was let in")


@test
def an_unknown_vhost_is_refused():
    try:
        pika.BlockingConnection(parameters(virtual_host="nowhere"))
    except pika.exceptions.AMQPConnectionError as error:
        true("530" in repr(error) and "vhost nowhere not found" in repr(error), repr(error))
    else:
        raise AssertionError("was let in")


@test
def an_idle_connection_lives_on_heartbeats():
    with connected(heartbeat=1) as connection:
        ch = connection.channel()
        queue = declared(ch)
        connection.process_data_events(4.5)
        send(ch, queue)
        ch.confirm_delivery()
        send(ch, queue)
        equal(ready(ch, queue), 2, "ready")


@test
def a_silent_client_is_cut_after_its_heartbeats():
    with connected(heartbeat=1) as connection:
        raw = connection._impl._transport._sock
        duplicate = raw.dup()
        duplicate.settimeout(15)
        # The client stops its event loop: nothing is sent any more, the broker must hang up.
        while True:
            try:
                if not duplicate.recv(4096):
                    break
            except ConnectionResetError:
                break
        duplicate.close()
        try:
            connection.close()
        except pika.exceptions.AMQPError:
            pass


@test
def thirty_reconnects_find_everything_as_it_was():
    with channel() as ch:
        queue = declared(ch)
    for number in range(30):
        with channel() as ch:
            ch.confirm_delivery()
            send(ch, queue, b"%d" % number)
            equal(ready(ch, queue), number + 1, "ready")


@test
def two_hundred_channels_on_one_connection():
    with connected() as connection:
        channels = [connection.channel() for _ in range(200)]
        queue = declared(channels[0])
        for ch in channels:
            ch.confirm_delivery()
            send(ch, queue)
        equal(ready(channels[-1], queue), 200, "ready")
        for ch in channels:
            ch.close()
        equal(ready(connection.channel(), queue), 200, "ready on a reopened channel")


@test
def a_credential_can_be_renewed():
    with connected() as connection:
        connection.update_secret(PASSWORD, "renewal")
        declared(connection.channel())


@test
def a_frame_max_of_4096_is_accepted():
    only_lepus("RabbitMQ 4 asks for 8192")
    with channel(frame_max=4096) as ch:
        ch.confirm_delivery()
        queue = declared(ch)
        for size in (4096 - 9, 4096 - 8, 4096 - 7, 100_000):
            send(ch, queue, b"x" * size)
            equal(len(ch.basic_get(queue, auto_ack=True)[2]), size, "size")


# Topology


@test
def queues_of_every_kind_are_declared():
    with channel() as ch:
        for options in (
            {"durable": True},
            {"durable": True, "auto_delete": True},
            {"exclusive": True},
            {"exclusive": True, "auto_delete": True},
            {"durable": True, "exclusive": True},
            {"durable": True, "arguments": {"x-queue-type": "classic"}},
        ):
            name = queue_name()
            answer = ch.queue_declare(name, **options).method
            equal((answer.queue, answer.message_count, answer.consumer_count), (name, 0, 0), "declare-ok")
            ch.queue_declare(name, **options)


@test
def a_transient_queue_that_is_not_exclusive_is_accepted():
    only_lepus("RabbitMQ 4.3 refuses them")
    with channel() as ch:
        queue = declared(ch, durable=False)
        with channel() as other:
            other.confirm_delivery()
            send(other, queue)
        equal(drain(ch, queue), [b"m"], "messages")


@test
def an_empty_name_is_given_by_the_server_and_remembered():
    with channel() as ch:
        name = ch.queue_declare("", exclusive=True).method.queue
        true(name.startswith("amq.gen-"), name)
        other = ch.queue_declare("", exclusive=True).method.queue
        true(name != other, "generated twice")
        ch.confirm_delivery()
        send(ch, other)
        equal(ch.basic_get("", auto_ack=True)[2], b"m", "get from the last declared")


@test
def passive_declares_only_look():
    with channel() as ch:
        queue, exchange = declared(ch), exchange_name()
        ch.exchange_declare(exchange, "topic", durable=True)
        ch.queue_declare(queue, passive=True)
        ch.exchange_declare(exchange, passive=True)
        ch.exchange_declare("amq.topic", passive=True)
    with channel() as ch:
        refused(404, "NOT_FOUND - no queue 'interop.none' in vhost '/'", ch.queue_declare, "interop.none", passive=True)
    with channel() as ch:
        refused(404, "no exchange 'interop.none' in vhost '/'", ch.exchange_declare, "interop.none", passive=True)


@test
def exchanges_of_every_kind_are_declared():
    with channel() as ch:
        for kind in ("direct", "fanout", "topic", "headers"):
            for options in ({}, {"durable": True}, {"auto_delete": True}, {"internal": True}):
                name = exchange_name()
                ch.exchange_declare(name, kind, **options)
                ch.exchange_declare(name, kind, **options)
        for name in ("amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"):
            ch.exchange_declare(name, passive=True)


@test
def a_direct_exchange_routes_by_equal_keys():
    with channel() as ch:
        exchange, first, second = exchange_name(), declared(ch), declared(ch)
        ch.exchange_declare(exchange, "direct")
        ch.queue_bind(first, exchange, "a")
        ch.queue_bind(second, exchange, "a")
        ch.queue_bind(second, exchange, "b")
        ch.confirm_delivery()
        for key in ("a", "b", "c", ""):
            ch.basic_publish(exchange, key, key.encode())
        equal(drain(ch, first), [b"a"], "first")
        equal(drain(ch, second), [b"a", b"b"], "second")


@test
def a_queue_binding_without_a_key_uses_the_queue_name():
    with channel() as ch:
        queue = declared(ch)
        ch.queue_bind(queue, "amq.direct")
        ch.confirm_delivery()
        ch.basic_publish("amq.direct", queue, b"m")
        equal(drain(ch, queue), [b"m"], "messages")


@test
def a_fanout_exchange_ignores_keys_and_delivers_once():
    with channel() as ch:
        exchange, first, second = exchange_name(), declared(ch), declared(ch)
        ch.exchange_declare(exchange, "fanout")
        ch.queue_bind(first, exchange, "a")
        ch.queue_bind(first, exchange, "b")
        ch.queue_bind(second, exchange)
        ch.confirm_delivery()
        ch.basic_publish(exchange, "anything", b"m")
        equal((drain(ch, first), drain(ch, second)), ([b"m"], [b"m"]), "messages")


@test
def a_topic_exchange_matches_words():
    with channel() as ch:
        exchange, queue = exchange_name(), declared(ch)
        ch.exchange_declare(exchange, "topic")
        ch.confirm_delivery()
        table = {
            "a.*.c": (["a.b.c", "a..c"], ["a.c", "a.b.b.c", "a.b.c.d"]),
            "a.#": (["a", "a.b", "a.b.c"], ["b", "b.a"]),
            "#.z": (["z", "a.z", "a.b.z"], ["z.a"]),
            "#": (["", "a", "a.b"], []),
            "*": (["a"], ["a.b"]),
            "a.#.b.*": (["a.b.c", "a.x.y.b.c"], ["a.b", "a.x.c"]),
        }
        for pattern, (hits, misses) in table.items():
            ch.queue_bind(queue, exchange, pattern)
            for key in hits + misses:
                ch.basic_publish(exchange, key, key.encode())
            equal(sorted(drain(ch, queue)), sorted(key.encode() for key in hits), pattern)
            ch.queue_unbind(queue, exchange, pattern)


@test
def a_headers_exchange_matches_headers():
    with channel() as ch:
        exchange, every, some, extended = exchange_name(), declared(ch), declared(ch), declared(ch)
        ch.exchange_declare(exchange, "headers")
        ch.queue_bind(every, exchange, arguments={"x-match": "all", "a": 1, "b": "two"})
        ch.queue_bind(some, exchange, arguments={"x-match": "any", "a": 1, "b": "two"})
        ch.queue_bind(extended, exchange, arguments={"x-match": "all-with-x", "x-tag": "t", "a": 1})
        ch.confirm_delivery()
        for body, headers in (
            (b"both", {"a": 1, "b": "two", "c": 3}),
            (b"one", {"a": 1}),
            (b"none", {"a": 2, "b": "three"}),
            (b"x", {"a": 1, "x-tag": "t"}),
        ):
            ch.basic_publish(exchange, "", body, pika.BasicProperties(headers=headers))
        ch.basic_publish(exchange, "", b"bare")
        equal(drain(ch, every), [b"both"], "all")
        equal(drain(ch, some), [b"both", b"one", b"x"], "any")
        equal(drain(ch, extended), [b"x"], "all-with-x")


@test
def exchanges_bound_in_a_circle_deliver_once():
    with channel() as ch:
        one, two, three, queue = exchange_name(), exchange_name(), exchange_name(), declared(ch)
        for name in (one, two, three):
            ch.exchange_declare(name, "fanout")
        ch.exchange_bind(two, one)
        ch.exchange_bind(three, two)
        ch.exchange_bind(one, three)
        ch.queue_bind(queue, three)
        ch.confirm_delivery()
        ch.basic_publish(one, "", b"m")
        equal(drain(ch, queue), [b"m"], "messages")
        ch.exchange_unbind(three, two)
        ch.basic_publish(one, "", b"m")
        equal(drain(ch, queue), [], "after unbind")


@test
def an_alternate_exchange_takes_what_finds_no_queue():
    with channel() as ch:
        main_exchange, other, queue = exchange_name(), exchange_name(), declared(ch)
        ch.exchange_declare(other, "fanout")
        ch.exchange_declare(main_exchange, "direct", arguments={"alternate-exchange": other})
        ch.queue_bind(queue, other)
        ch.confirm_delivery()
        ch.basic_publish(main_exchange, "lost", b"m", mandatory=True)
        method, _, body = ch.basic_get(queue, auto_ack=True)
        equal((method.exchange, method.routing_key, body), (main_exchange, "lost", b"m"), "message")


@test
def unbinding_and_deleting_what_is_not_there_is_ok():
    with channel() as ch:
        queue = declared(ch)
        ch.queue_unbind(queue, "amq.direct", "never")
        equal(ch.queue_delete("interop.never").method.message_count, 0, "count")
        ch.exchange_delete("interop.never")


@test
def a_deleted_queue_reports_its_messages_and_loses_its_bindings():
    with channel() as ch:
        queue = filled(ch, 3)
        ch.queue_bind(queue, "amq.direct", queue)
        equal(ch.queue_delete(queue).method.message_count, 3, "count")
        ch.queue_declare(queue, durable=True)
        ch.basic_publish("amq.direct", queue, b"m")
        equal(ready(ch, queue), 0, "ready")


@test
def a_deleted_exchange_loses_its_bindings():
    with channel() as ch:
        exchange, queue = exchange_name(), declared(ch)
        ch.exchange_declare(exchange, "fanout")
        ch.queue_bind(queue, exchange)
        ch.exchange_delete(exchange)
        ch.exchange_declare(exchange, "fanout")
        ch.confirm_delivery()
        ch.basic_publish(exchange, "", b"m")
        equal(ready(ch, queue), 0, "ready")


@test
def an_auto_delete_queue_goes_with_its_last_consumer():
    with channel() as ch:
        queue = declared(ch, auto_delete=True)
        first = ch.basic_consume(queue, lambda *_: None)
        second = ch.basic_consume(queue, lambda *_: None)
        ch.basic_cancel(first)
        ch.queue_declare(queue, passive=True)
        ch.basic_cancel(second)
        refused(404, "no queue", ch.queue_declare, queue, passive=True)


@test
def an_auto_delete_exchange_goes_with_its_last_binding():
    with channel() as ch:
        exchange, queue = exchange_name(), declared(ch)
        ch.exchange_declare(exchange, "direct", auto_delete=True)
        ch.queue_bind(queue, exchange, "a")
        ch.queue_bind(queue, exchange, "b")
        ch.queue_unbind(queue, exchange, "a")
        ch.exchange_declare(exchange, passive=True)
        ch.queue_unbind(queue, exchange, "b")
        refused(404, "no exchange", ch.exchange_declare, exchange, passive=True)


@test
def an_exclusive_queue_is_locked_and_goes_with_its_connection():
    with connected() as owner:
        queue = declared(owner.channel(), durable=False, exclusive=True)
        for action in (
            lambda ch: ch.queue_declare(queue, passive=True),
            lambda ch: ch.queue_delete(queue),
            lambda ch: ch.basic_get(queue),
            lambda ch: ch.basic_consume(queue, lambda *_: None),
            lambda ch: ch.queue_purge(queue),
            lambda ch: ch.queue_bind(queue, "amq.direct"),
        ):
            with channel() as ch:
                refused(405, f"cannot obtain exclusive access to locked queue '{queue}' in vhost '/'", action, ch)
        # A second channel of the owner may use it; anybody may publish to it.
        owner.channel().queue_declare(queue, passive=True)
        with channel() as ch:
            ch.confirm_delivery()
            ch.basic_publish("", queue, b"m", mandatory=True)
    with channel() as ch:
        refused(404, "no queue", ch.queue_declare, queue, passive=True)


@test
def another_declaration_is_not_equivalent():
    with channel() as ch:
        queue = declared(ch)
        text = f"PRECONDITION_FAILED - inequivalent arg 'durable' for queue '{queue}' in vhost '/': received 'false' but current is 'true'"
        refused(406, text, ch.queue_declare, queue, durable=False)
    with channel() as ch:
        exchange = exchange_name()
        ch.exchange_declare(exchange, "direct")
        text = f"inequivalent arg 'type' for exchange '{exchange}' in vhost '/': received 'fanout' but current is 'direct'"
        refused(406, text, ch.exchange_declare, exchange, "fanout")


@test
def no_queue_type_means_classic():
    with channel() as ch:
        queue = declared(ch)
        ch.queue_declare(queue, durable=True, arguments={"x-queue-type": "classic"})


# Messages


@test
def publish_get_and_ack():
    with channel() as ch:
        queue = filled(ch, 3)
        for number in range(3):
            method, _, body = ch.basic_get(queue)
            got = (body, method.delivery_tag, method.message_count, method.redelivered, method.routing_key, method.exchange)
            equal(got, (b"%d" % number, number + 1, 2 - number, False, queue, ""), "get-ok")
            ch.basic_ack(method.delivery_tag)
        equal(ch.basic_get(queue), (None, None, None), "get-empty")


@test
def a_got_message_is_not_ready_until_it_comes_back():
    with channel() as ch:
        queue = filled(ch, 1)
        method, _, _ = ch.basic_get(queue)
        equal(ready(ch, queue), 0, "ready while unacked")
        ch.basic_nack(method.delivery_tag, requeue=True)
        method, _, body = ch.basic_get(queue, auto_ack=True)
        equal((body, method.redelivered, method.delivery_tag), (b"0", True, 2), "redelivery")
        equal(ready(ch, queue), 0, "ready after auto-ack")


@test
def reject_without_requeue_drops():
    with channel() as ch:
        queue = filled(ch, 2)
        ch.basic_reject(ch.basic_get(queue)[0].delivery_tag, requeue=False)
        ch.basic_reject(ch.basic_get(queue)[0].delivery_tag, requeue=True)
        method, _, body = ch.basic_get(queue)
        equal((body, method.redelivered), (b"1", True), "what is left")


@test
def nack_multiple_requeues_up_to_the_tag():
    with channel() as ch:
        queue = filled(ch, 5)
        for _ in range(5):
            ch.basic_get(queue)
        ch.basic_nack(3, multiple=True, requeue=True)
        equal(drain(ch, queue), [b"0", b"1", b"2"], "requeued")


@test
def ack_of_zero_with_multiple_settles_all():
    with connected() as connection:
        ch = connection.channel()
        queue = filled(ch, 4)
        for _ in range(4):
            ch.basic_get(queue)
        ch.basic_ack(0, multiple=True)
        ch.close()
        equal(ready(connection.channel(), queue), 0, "ready")


@test
def requeued_messages_keep_their_place():
    with channel() as ch:
        queue = filled(ch, 6)
        tags = [ch.basic_get(queue)[0].delivery_tag for _ in range(4)]
        ch.basic_nack(tags[2])
        ch.basic_nack(tags[0])
        ch.basic_ack(tags[1])
        ch.basic_nack(tags[3])
        equal(drain(ch, queue), [b"0", b"2", b"3", b"4", b"5"], "order")


@test
def a_tag_that_is_unknown_or_spent_is_refused():
    for action in (
        lambda ch: ch.basic_ack(5),
        lambda ch: ch.basic_nack(5),
        lambda ch: ch.basic_reject(5),
    ):
        with channel() as ch:
            declared(ch)
            action(ch)
            refused(406, "PRECONDITION_FAILED - unknown delivery tag 5", ch.queue_declare, "", exclusive=True)
    with channel() as ch:
        queue = filled(ch, 1)
        ch.basic_get(queue)
        ch.basic_ack(1)
        ch.basic_ack(1)
        refused(406, "unknown delivery tag 1", ch.queue_declare, "", exclusive=True)


@test
def consume_and_ack():
    with channel() as ch:
        queue = filled(ch, 10)
        inbox = Inbox(ch, queue).wait(10)
        equal(inbox.bodies(), [b"%d" % n for n in range(10)], "order")
        equal([m.delivery_tag for m, _, _ in inbox.items], list(range(1, 11)), "tags")
        equal({m.consumer_tag for m, _, _ in inbox.items}, {inbox.tag}, "consumer tags")
        for method, _, _ in reversed(inbox.items):
            ch.basic_ack(method.delivery_tag)
        equal((ready(ch, queue), consumers(ch, queue)), (0, 1), "ready and consumers")


@test
def no_ack_consumers_leave_nothing_behind():
    with connected() as connection:
        ch = connection.channel()
        queue = filled(ch, 50)
        Inbox(ch, queue, auto_ack=True).wait(50)
        ch.close()
        equal(ready(connection.channel(), queue), 0, "ready")


@test
def a_closed_channel_requeues_in_order_and_marked():
    with connected() as connection:
        ch = connection.channel()
        queue = filled(ch, 5)
        inbox = Inbox(ch, queue).wait(5)
        ch.basic_ack(inbox.items[1][0].delivery_tag)
        ch.close()
        ch = connection.channel()
        got = [ch.basic_get(queue, auto_ack=True) for _ in range(4)]
        equal([body for _, _, body in got], [b"0", b"2", b"3", b"4"], "order")
        true(all(method.redelivered for method, _, _ in got), "redelivered")


@test
def a_lost_connection_requeues():
    with channel() as watcher:
        victim = pika.BlockingConnection(parameters())
        queue = filled(watcher, 3)
        Inbox(victim.channel(), queue).wait(3)
        victim._impl._transport._sock.shutdown(socket.SHUT_RDWR)
        inbox = Inbox(watcher, queue).wait(3)
        equal(inbox.bodies(), [b"0", b"1", b"2"], "order")
        true(all(method.redelivered for method, _, _ in inbox.items), "redelivered on Deliver")
        try:
            victim.close()
        except pika.exceptions.AMQPError:
            pass


@test
def recover_redelivers_on_the_channel():
    with channel() as ch:
        queue = filled(ch, 3)
        inbox = Inbox(ch, queue).wait(3)
        ch.basic_recover(requeue=True)
        inbox.wait(6)
        equal(inbox.bodies()[3:], [b"0", b"1", b"2"], "again")
        equal([m.redelivered for m, _, _ in inbox.items], [False] * 3 + [True] * 3, "redelivered")
        equal([m.delivery_tag for m, _, _ in inbox.items], list(range(1, 7)), "tags are never used twice")


@test
def cancel_stops_deliveries_and_keeps_what_is_unacked():
    with channel() as ch:
        queue = declared(ch)
        ch.confirm_delivery()
        inbox = Inbox(ch, queue)
        send(ch, queue, b"first")
        inbox.wait(1)
        ch.basic_cancel(inbox.tag)
        equal(consumers(ch, queue), 0, "consumers")
        send(ch, queue, b"second")
        equal(inbox.quiet(), 1, "deliveries")
        ch.basic_ack(inbox.items[0][0].delivery_tag)
        equal(drain(ch, queue), [b"second"], "left")


@test
def a_consumer_of_a_deleted_queue_is_told():
    with connected() as connection:
        ch, other = connection.channel(), connection.channel()
        queue = declared(ch)
        told = []
        ch.add_on_cancel_callback(lambda frame: told.append(frame.method.consumer_tag))
        inbox = Inbox(ch, queue)
        other.queue_delete(queue)
        for _ in range(100):
            if told:
                break
            connection.process_data_events(0.05)
        equal(told, [inbox.tag], "cancelled")


@test
def prefetch_holds_for_each_consumer():
    with channel() as ch:
        queue = filled(ch, 20)
        ch.basic_qos(prefetch_count=3)
        first = Inbox(ch, queue).wait(3)
        ch.basic_qos(prefetch_count=5)
        second = Inbox(ch, queue).wait(5)
        equal((first.quiet(), second.quiet()), (3, 5), "unacked")
        ch.basic_ack(first.items[0][0].delivery_tag)
        first.wait(4)
        equal((first.quiet(), second.quiet()), (4, 5), "after one ack")


@test
def global_prefetch_holds_for_the_channel():
    with channel() as ch:
        queue, other = filled(ch, 20), filled(ch, 20)
        ch.basic_qos(prefetch_count=4, global_qos=True)
        first, second = Inbox(ch, queue), Inbox(ch, other)
        for _ in range(100):
            if len(first.items) + len(second.items) >= 4:
                break
            ch.connection.process_data_events(0.05)
        equal(first.quiet() + second.quiet(), 4, "unacked on the channel")
        ch.basic_ack(2, multiple=True)
        for _ in range(100):
            if len(first.items) + len(second.items) >= 6:
                break
            ch.connection.process_data_events(0.05)
        equal(first.quiet() + second.quiet(), 6, "after two acks")


@test
def get_is_not_bound_by_prefetch():
    with channel() as ch:
        queue = filled(ch, 3)
        ch.basic_qos(prefetch_count=1)
        equal([ch.basic_get(queue)[2] for _ in range(3)], [b"0", b"1", b"2"], "got")


@test
def equal_consumers_take_turns():
    with channel() as ch:
        queue = declared(ch)
        ch.basic_qos(prefetch_count=100)
        inboxes = [Inbox(ch, queue) for _ in range(4)]
        ch.confirm_delivery()
        for number in range(40):
            send(ch, queue, b"%d" % number)
        for inbox in inboxes:
            inbox.wait(10)
        equal([len(inbox.items) for inbox in inboxes], [10] * 4, "shares")


@test
def a_higher_consumer_priority_comes_first():
    with channel() as ch:
        queue = declared(ch)
        ch.basic_qos(prefetch_count=2)
        low = Inbox(ch, queue)
        high = Inbox(ch, queue, arguments={"x-priority": 10})
        ch.confirm_delivery()
        for number in range(3):
            send(ch, queue, b"%d" % number)
        high.wait(2)
        low.wait(1)
        equal((high.bodies(), low.bodies()), ([b"0", b"1"], [b"2"]), "deliveries")


@test
def an_exclusive_consumer_stands_alone():
    with connected() as connection:
        ch = connection.channel()
        queue = declared(ch)
        tag = ch.basic_consume(queue, lambda *_: None, exclusive=True)
        refused(403, f"queue '{queue}' in vhost '/' in exclusive use", connection.channel().basic_consume, queue, lambda *_: None)
        ch.basic_cancel(tag)
        other = connection.channel()
        other.basic_consume(queue, lambda *_: None)
        refused(403, "in exclusive use", ch.basic_consume, queue, lambda *_: None, exclusive=True)


@test
def purge_counts_the_ready_and_spares_the_unacked():
    with channel() as ch:
        queue = filled(ch, 5)
        method, _, _ = ch.basic_get(queue)
        equal(ch.queue_purge(queue).method.message_count, 4, "purged")
        equal(ready(ch, queue), 0, "ready")
        ch.basic_nack(method.delivery_tag)
        equal(drain(ch, queue), [b"0"], "the unacked one")


@test
def delete_is_refused_for_what_is_in_use_or_not_empty():
    with connected() as connection:
        queue = filled(connection.channel(), 1)
        refused(406, f"queue '{queue}' in vhost '/' not empty", connection.channel().queue_delete, queue, if_empty=True)
        connection.channel().basic_consume(queue, lambda *_: None)
        refused(406, f"queue '{queue}' in vhost '/' in use", connection.channel().queue_delete, queue, if_unused=True)
        exchange = exchange_name()
        ch = connection.channel()
        ch.exchange_declare(exchange, "fanout")
        ch.queue_bind(queue, exchange)
        refused(406, f"exchange '{exchange}' in vhost '/' in use", ch.exchange_delete, exchange, if_unused=True)


# Confirms and returns


@test
def a_mandatory_message_without_a_queue_comes_back():
    with channel() as ch:
        ch.confirm_delivery()
        properties = pika.BasicProperties(message_id="m1", headers={"spring_returned_message_correlation": "c", "n": 7})
        try:
            ch.basic_publish("amq.direct", "interop.nobody", b"body", properties, mandatory=True)
        except pika.exceptions.UnroutableError as error:
            (message,) = error.messages
            method = message.method
            got = (method.reply_code, method.reply_text, method.exchange, method.routing_key, message.body)
            equal(got, (312, "NO_ROUTE", "amq.direct", "interop.nobody", b"body"), "basic.return")
            equal((message.properties.message_id, message.properties.headers), ("m1", properties.headers), "properties")
        else:
            raise AssertionError("no return")
        # Without mandatory it is dropped and confirmed.
        ch.basic_publish("amq.direct", "interop.nobody", b"body")


@test
def returns_come_without_confirms_too():
    with channel() as ch:
        returned = []
        ch.add_on_return_callback(lambda _ch, method, _properties, body: returned.append((method.reply_code, body)))
        for size in (0, 1, FRAME_MAX):
            ch.basic_publish("", "interop.nobody", b"x" * size, mandatory=True)
        for _ in range(100):
            if len(returned) == 3:
                break
            ch.connection.process_data_events(0.05)
        equal([(code, len(body)) for code, body in returned], [(312, 0), (312, 1), (312, FRAME_MAX)], "returns")


@test
def publishing_to_a_missing_exchange_closes_only_the_channel():
    with connected() as connection:
        ch, other = connection.channel(), connection.channel()
        ch.confirm_delivery()
        refused(404, "no exchange 'interop.none' in vhost '/'", ch.basic_publish, "interop.none", "", b"m")
        declared(other)
        true(other.is_open, "the other channel")
        declared(connection.channel(ch.channel_number))


# Contents


class RawProperties(pika.BasicProperties):
    """Properties whose wire form the test wrote itself."""

    def __init__(self, wire):
        super().__init__()
        self.wire = wire

    def encode(self):
        return [self.wire]


@contextlib.contextmanager
def header_frames():
    """The payloads of the content headers that arrive, as they were on the wire."""
    seen, decode = [], pika.frame.decode_frame

    def spy(data):
        consumed, value = decode(data)
        if isinstance(value, pika.frame.Header):
            seen.append(bytes(data[7 : consumed - 1]))
        return consumed, value

    pika.frame.decode_frame = spy
    try:
        yield seen
    finally:
        pika.frame.decode_frame = decode


def short(text):
    return bytes([len(text)]) + text


def table(*fields):
    data = b"".join(short(name) + value for name, value in fields)
    return struct.pack(">I", len(data)) + data


def longstr(data):
    return struct.pack(">I", len(data)) + data


EVERY_TYPE = sorted(
    [
        (b"void", b"V"),
        (b"true", b"t\x01"),
        (b"false", b"t\x00"),
        (b"i8", b"b\x85"),
        (b"u8", b"B\xfa"),
        (b"i16", b"s" + struct.pack(">h", -300)),
        (b"u16", b"u" + struct.pack(">H", 65000)),
        (b"i32", b"I" + struct.pack(">i", -70000)),
        (b"u32", b"i" + struct.pack(">I", 4000000000)),
        (b"i64", b"l" + struct.pack(">q", -(2**40))),
        (b"f32", b"f" + struct.pack(">f", 0.1)),
        (b"f64", b"d" + struct.pack(">d", 0.1)),
        (b"decimal", b"D\x02" + struct.pack(">i", 12345)),
        (b"text", b"S" + longstr("grün".encode())),
        (b"not text", b"S" + longstr(b"\xff\xfe\x00")),
        (b"bytes", b"x" + longstr(b"\x00\x01\x02")),
        (b"time", b"T" + struct.pack(">Q", 1700000000)),
        (b"list", b"A" + longstr(b"I" + struct.pack(">i", 1) + b"S" + longstr(b"two") + b"t\x01")),
        (b"nested", b"F" + table((b"deeper", b"F" + table((b"n", b"b\x01"))))),
        (b"empty list", b"A" + longstr(b"")),
        (b"empty table", b"F" + table()),
    ]
)


def headers_come_back(fields):
    wire = struct.pack(">H", 1 << 13) + table(*fields)
    expected = struct.pack(">HHQ", 60, 0, 4) + wire
    with channel() as ch, header_frames() as seen:
        queue = declared(ch)
        ch.confirm_delivery()
        ch.basic_publish("", queue, b"body", RawProperties(wire))
        ch.basic_get(queue)
        Inbox(ch, queue)
        ch.basic_nack(1)
        for _ in range(100):
            if len(seen) == 2:
                break
            ch.connection.process_data_events(0.05)
        equal(len(seen), 2, "headers seen")
        equal(seen[0], expected, "header of get-ok")
        equal(seen[1], expected, "header of the redelivery")


@test
def typed_headers_come_back_byte_for_byte():
    headers_come_back(EVERY_TYPE)


@test
def headers_keep_their_order():
    only_lepus("RabbitMQ 4 sorts them")
    headers_come_back(list(reversed(EVERY_TYPE)))


@test
def all_fourteen_properties_come_back():
    sent = dict(
        content_type="text/plain",
        content_encoding="utf-8",
        headers={"k": "v"},
        delivery_mode=2,
        priority=7,
        correlation_id="correlation",
        reply_to="reply",
        expiration="3600000",
        message_id="message",
        timestamp=1700000000,
        type="type",
        user_id=USER,
        app_id="app",
        cluster_id="cluster",
    )
    with channel() as ch, header_frames() as seen:
        queue = declared(ch)
        ch.confirm_delivery()
        properties = pika.BasicProperties(**sent)
        ch.basic_publish("", queue, b"", properties)
        _, got, _ = ch.basic_get(queue, auto_ack=True)
        equal({name: getattr(got, name) for name in sent}, sent, "properties")
        equal(seen[0][12:], b"".join(properties.encode()), "wire form")
        ch.basic_publish("", queue, b"")
        _, got, _ = ch.basic_get(queue, auto_ack=True)
        equal(seen[1][12:], b"\x00\x00", "no properties")


@test
def header_values_keep_their_python_types():
    headers = {
        "bool": True,
        "int": 42,
        "long": 2**40,
        "negative": -5,
        "text": "grün",
        "bytes": b"\x00\xff",
        "decimal": decimal.Decimal("123.45"),
        "time": datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc),
        "none": None,
        "list": [1, "two", {"three": 3}],
        "table": {"nested": {"deep": True}},
    }
    with channel() as ch:
        queue = declared(ch)
        ch.confirm_delivery()
        send(ch, queue, b"", headers=headers)
        got = ch.basic_get(queue, auto_ack=True)[1].headers
        time = got.pop("time")
        sent_time = headers.pop("time")
        equal(time.replace(tzinfo=datetime.timezone.utc), sent_time, "time")
        equal(got, headers, "headers")


def body_of(size):
    pattern = bytes(range(256)) * 512
    return (pattern * (size // len(pattern) + 1))[:size]


def sizes_by_get_and_by_consume(sizes):
    with channel() as ch:
        queue = declared(ch)
        ch.confirm_delivery()
        for size in sizes:
            send(ch, queue, body_of(size))
            true(ch.basic_get(queue, auto_ack=True)[2] == body_of(size), f"body of {size} by get")
        inbox = Inbox(ch, queue, auto_ack=True)
        for size in sizes:
            send(ch, queue, body_of(size))
        inbox.wait(len(sizes))
        equal([len(body) for body in inbox.bodies()], list(sizes), "sizes by consume")
        true(inbox.bodies() == [body_of(size) for size in sizes], "bodies by consume")


@test
def empty_and_tiny_bodies():
    sizes_by_get_and_by_consume([0, 1, 0, 2, 0])


@test
def bodies_around_the_frame_size():
    whole = FRAME_MAX - 8
    sizes_by_get_and_by_consume([whole - 1, whole, whole + 1, 2 * whole - 1, 2 * whole, 2 * whole + 1])


@test
def a_body_of_five_mebibytes():
    sizes_by_get_and_by_consume([5 << 20])


@test
def a_large_body_reaches_a_client_with_small_frames():
    with channel() as sender, channel(frame_max=8192) as reader:
        queue = declared(sender)
        sender.confirm_delivery()
        for size in (8192 - 8, 8192 - 7, 1 << 20):
            send(sender, queue, body_of(size))
            true(reader.basic_get(queue, auto_ack=True)[2] == body_of(size), f"body of {size}")


@test
def one_publish_reaches_a_hundred_queues():
    with channel() as ch:
        exchange = exchange_name()
        ch.exchange_declare(exchange, "fanout")
        names = [declared(ch) for _ in range(100)]
        for name in names:
            ch.queue_bind(name, exchange)
        ch.confirm_delivery()
        ch.basic_publish(exchange, "", b"m")
        equal([drain(ch, name) for name in names], [[b"m"]] * 100, "messages")


@test
def consumers_on_many_connections_share_a_queue():
    with channel() as ch, contextlib.ExitStack() as stack:
        queue = declared(ch)
        readers = [stack.enter_context(channel()) for _ in range(6)]
        for reader in readers:
            reader.basic_qos(prefetch_count=10)
        inboxes = [Inbox(reader, queue) for reader in readers]
        ch.confirm_delivery()
        for number in range(60):
            send(ch, queue, b"%d" % number)
        for inbox in inboxes:
            inbox.wait(10)
        everything = sorted(int(body) for inbox in inboxes for body in inbox.bodies())
        equal(everything, list(range(60)), "each message once")


main()
