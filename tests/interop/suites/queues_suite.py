"""pika: what queues do beyond keeping messages in order. All of it but what says so is true of RabbitMQ 4.3 too."""

import datetime
import time

import pika
import pika.exceptions

from harness import equal, exchange_name, main, only_lepus, queue_name, test, true
from pika_tools import Inbox, channel, connected, declared, drain, ready, refused, send


def arguments(**named):
    return {"x-" + name.replace("_", "-"): value for name, value in named.items()}


def with_dead_letters(ch, **more):
    """A queue, and the one that its dead letters go to."""
    dead = declared(ch)
    to = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    return declared(ch, arguments={**to, **arguments(**more)}), dead


def get(ch, queue, auto_ack=True, seconds=5):
    """A message that is there, or comes soon."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        method, properties, body = ch.basic_get(queue, auto_ack=auto_ack)
        if method is not None:
            return method, properties, body
        time.sleep(0.02)
    raise AssertionError("no message came")


def reject(ch, queue):
    method, _, _ = get(ch, queue, auto_ack=False)
    ch.basic_reject(method.delivery_tag, requeue=False)


def death(queue, reason, count=1, key=None, exchange="", **more):
    return {**more, "count": count, "reason": reason, "queue": queue, "exchange": exchange, "routing-keys": [key or queue]}


def history(properties):
    """x-death without the times, which must be there and recent."""
    entries = [dict(entry) for entry in properties.headers["x-death"]]
    for entry in entries:
        age = datetime.datetime.now(datetime.timezone.utc) - entry.pop("time")
        true(abs(age.total_seconds()) < 60, f"time of death is {age} ago")
    return entries


@test
def a_rejected_message_carries_its_history():
    with channel() as ch:
        queue, dead = with_dead_letters(ch)
        send(ch, queue, b"m", headers={"z": 1, "a": "x"}, delivery_mode=2, priority=3, content_type="text/plain")
        reject(ch, queue)
        method, properties, body = get(ch, dead)
        equal((method.exchange, method.routing_key, body), ("", dead, b"m"), "dead letter")
        equal(history(properties), [death(queue, "rejected")], "x-death")
        names = [f"x-{which}-death-{what}" for which in ("first", "last") for what in ("exchange", "queue", "reason")]
        equal(list(properties.headers), ["a", "x-death", *names, "z"], "headers, in this order")
        equal([properties.headers[name] for name in names], ["", queue, "rejected"] * 2, "first and last death")
        equal((properties.delivery_mode, properties.priority, properties.content_type), (2, 3, "text/plain"), "rest")


@test
def an_entry_of_the_history_has_its_fields_in_a_known_order():
    with channel() as ch:
        queue, dead = with_dead_letters(ch)
        send(ch, queue, expiration="20")
        _, properties, _ = get(ch, dead)
        known = ["original-expiration", "count", "reason", "queue", "time", "exchange", "routing-keys"]
        equal(list(properties.headers["x-death"][0]), known, "fields")


@test
def the_time_to_live_is_taken_out_and_kept_in_the_history():
    with channel() as ch:
        queue, dead = with_dead_letters(ch)
        for expiration, reason in (("20", "expired"), ("60000", "rejected")):
            send(ch, queue, expiration=expiration)
            if reason == "rejected":
                reject(ch, queue)
            _, properties, _ = get(ch, dead)
            equal(properties.expiration, None, "expiration")
            equal(history(properties), [death(queue, reason, **{"original-expiration": expiration})], "x-death")


@test
def repeated_deaths_are_counted_and_the_last_one_comes_first():
    with channel() as ch:
        a, b = queue_name(), queue_name()
        for queue, to, more in ((a, b, {"x-message-ttl": 30}), (b, a, {})):
            to = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": to}
            ch.queue_declare(queue, durable=True, arguments={**to, **more})
        send(ch, a, headers={"u": 1})
        for _ in range(2):
            reject(ch, b)
        _, properties, _ = get(ch, b)
        equal(history(properties), [death(a, "expired", 3), death(b, "rejected", 2)], "x-death")
        equal(properties.headers["x-first-death-queue"], a, "first")
        equal(properties.headers["x-last-death-queue"], a, "last")


@test
def a_message_that_circles_without_a_rejection_is_dropped():
    with channel() as ch:
        a, b = queue_name(), queue_name()
        for queue, to in ((a, b), (b, a)):
            to = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": to, "x-message-ttl": 30}
            ch.queue_declare(queue, durable=True, arguments=to)
        send(ch, a)
        end = time.monotonic() + 20
        while (ready(ch, a), ready(ch, b)) != (0, 0):
            true(time.monotonic() < end, "it still circles")
            time.sleep(0.02)


@test
def a_history_that_a_client_wrote_is_replaced():
    with channel() as ch:
        queue, dead = with_dead_letters(ch)
        forged = {"x-death": [{"queue": "q", "reason": "rejected", "count": 7}], "x-first-death-queue": "q", "k": 2}
        send(ch, queue, headers=forged)
        method, properties, _ = get(ch, queue, auto_ack=False)
        equal(properties.headers["x-first-death-queue"], "q", "until then it is delivered as it is")
        ch.basic_nack(method.delivery_tag, requeue=False)
        _, properties, _ = get(ch, dead)
        equal(history(properties), [death(queue, "rejected")], "x-death")
        equal((properties.headers["x-first-death-queue"], properties.headers["k"]), (queue, 2), "headers")


@test
def dead_letters_are_routed_by_the_exchange_with_their_own_key_or_another():
    with channel() as ch:
        exchange = exchange_name()
        ch.exchange_declare(exchange, "topic", durable=True, internal=True)
        dead = declared(ch)
        ch.queue_bind(dead, exchange, "#")
        for more in ({}, {"x-dead-letter-routing-key": "other.key"}):
            queue = declared(ch, arguments={"x-dead-letter-exchange": exchange, **more})
            send(ch, queue)
            reject(ch, queue)
            method, properties, _ = get(ch, dead)
            key = more.get("x-dead-letter-routing-key", queue)
            equal((method.exchange, method.routing_key), (exchange, key), "as published")
            equal(history(properties), [death(queue, "rejected")], "x-death")


@test
def a_full_queue_drops_its_oldest_message():
    with channel() as ch:
        queue, dead = with_dead_letters(ch, max_length=2)
        for number in range(4):
            send(ch, queue, b"%d" % number)
        equal([get(ch, dead)[2] for _ in range(2)], [b"0", b"1"], "dropped")
        equal(drain(ch, queue), [b"2", b"3"], "left")


@test
def bytes_of_bodies_are_bounded():
    with channel() as ch:
        queue = declared(ch, arguments=arguments(max_length_bytes=10))
        ch.confirm_delivery()
        for body, left in ((b"12345", 1), (b"67890", 2), (b"a", 2), (b"x" * 11, 0)):
            send(ch, queue, body, headers={"large": "y" * 100})
            equal(ready(ch, queue), left, f"after {body!r}")


@test
def a_queue_that_rejects_publishes_nacks_them():
    with channel() as ch:
        for overflow in ("reject-publish", "reject-publish-dlx"):
            queue, dead = with_dead_letters(ch, max_length=1, overflow=overflow)
            confirming = ch.connection.channel()
            confirming.confirm_delivery()
            send(confirming, queue, b"in")
            try:
                send(confirming, queue, b"out")
            except pika.exceptions.NackError:
                pass
            else:
                raise AssertionError("a full queue confirmed")
            equal(drain(ch, queue), [b"in"], "queue")
            if overflow == "reject-publish-dlx":
                _, properties, body = get(ch, dead)
                equal((body, history(properties)), (b"out", [death(queue, "maxlen")]), "dead letter")
            else:
                equal(ready(ch, dead), 0, "dead letters")


@test
def a_message_of_ten_milliseconds_goes_before_one_of_an_hour():
    with channel() as ch:
        only_lepus("RabbitMQ looks at the head of the queue only")
        queue, dead = with_dead_letters(ch)
        send(ch, queue, b"hour", expiration="3600000")
        send(ch, queue, b"quick", expiration="10")
        equal(get(ch, dead)[2], b"quick", "expired")
        equal(drain(ch, queue), [b"hour"], "left")


@test
def higher_priorities_come_first():
    with channel() as ch:
        queue = declared(ch, arguments=arguments(max_priority=5))
        ch.confirm_delivery()
        for priority in (1, 5, 3, None, 9, 5):
            send(ch, queue, str(priority).encode(), priority=priority)
        equal(drain(ch, queue), [b"5", b"9", b"5", b"3", b"1", b"None"], "order")


@test
def a_single_active_consumer_gets_everything_until_it_goes():
    with connected() as connection:
        ch = connection.channel()
        queue = declared(ch, arguments={"x-single-active-consumer": True})
        first, second = connection.channel(), connection.channel()
        one, other = Inbox(first, queue, auto_ack=True), Inbox(second, queue, auto_ack=True)
        for number in range(3):
            send(ch, queue, b"%d" % number)
        equal((one.wait(3).bodies(), other.quiet()), ([b"0", b"1", b"2"], 0), "the first one's")
        first.basic_cancel(one.tag)
        send(ch, queue, b"3")
        equal(other.wait(1).bodies(), [b"3"], "the second one's")
        refused(403, "in exclusive use", connection.channel().basic_consume, queue, print, exclusive=True)


@test
def what_a_single_active_consumer_held_comes_first_to_the_next():
    only_lepus("RabbitMQ's classic queues go on with what is ready, and redeliver the rest later")
    with connected() as connection, connected() as leaving:
        ch = connection.channel()
        queue = declared(ch, arguments={"x-single-active-consumer": True})
        first = leaving.channel()
        first.basic_qos(prefetch_count=2)
        one = Inbox(first, queue)
        other = Inbox(ch, queue, auto_ack=True)
        for number in range(5):
            send(ch, queue, b"%d" % number)
        one.wait(2)
        leaving.close()
        equal(other.wait(5).bodies(), [b"%d" % number for number in range(5)], "in order")


@test
def a_message_that_fails_too_often_is_given_up():
    only_lepus("RabbitMQ has delivery limits in quorum queues only")
    with channel() as ch:
        queue, dead = with_dead_letters(ch, delivery_limit=2)
        send(ch, queue, headers={"h": 1})
        method, properties, _ = get(ch, queue, auto_ack=False)
        ch.basic_nack(method.delivery_tag, requeue=True)
        seen = []
        for _ in range(3):
            method, properties, _ = get(ch, queue, auto_ack=False)
            seen.append(properties.headers)
            ch.basic_reject(method.delivery_tag, requeue=True)
        first = {"h": 1, "x-acquired-count": 1}
        equal(seen[0], first, "a nack does not count against the limit")
        equal(seen[1:], [{**first, "x-acquired-count": n + 1, "x-delivery-count": n} for n in (1, 2)], "headers")
        equal(history(get(ch, dead)[1]), [death(queue, "delivery_limit")], "x-death")


@test
def a_full_queue_makes_its_publisher_wait_and_acks_go_on():
    only_lepus("RabbitMQ has no such overflow")
    with channel() as ch:
        queue = declared(ch, arguments=arguments(max_length=2, overflow="block"))
        held = [get_after_send(ch, queue, number) for number in range(2)]
        for number in range(2, 8):
            send(ch, queue, b"%d" % number)
        other = ch.connection.channel()
        equal(ready(other, queue), 2, "full, and other channels go on")
        for tag in held:
            ch.basic_ack(tag)
        equal([get(other, queue)[2] for _ in range(6)], [b"%d" % number for number in range(2, 8)], "all, in order")
        equal(ready(ch, queue), 0, "the channel goes on")


def get_after_send(ch, queue, number):
    send(ch, queue, b"%d" % number)
    return get(ch, queue, auto_ack=False)[0].delivery_tag


@test
def wrong_arguments_are_refused_in_the_known_words():
    with connected() as connection:
        for named, why in (
            ({"max_length": -1}, "{value_negative,-1}"),
            ({"max_length_bytes": "a"}, '"expected integer, got longstr"'),
            ({"overflow": "foo"}, "invalid_overflow"),
            ({"overflow": 1}, "{unacceptable_type,signedint}"),
            ({"dead_letter_routing_key": "k"}, "routing_key_but_no_dlx_defined"),
            ({"max_priority": 256}, "{max_value_exceeded,256}"),
            ({"max_priority": -1}, "{value_negative,-1}"),
            ({"single_active_consumer": 1}, "{unacceptable_type,signedint}"),
        ):
            given = arguments(**named)
            text = f"invalid arg '{next(iter(given))}' for queue 'wrong' in vhost '/': {why}"
            refused(406, text, connection.channel().queue_declare, "wrong", durable=True, arguments=given)
        text = "invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'wrong' in vhost '/'"
        given = arguments(dead_letter_exchange=1)
        refused(406, text, connection.channel().queue_declare, "wrong", durable=True, arguments=given)


main()
