"""py-amqp: what closes with which code, ids and text, and what stays open; and the ways of publishing."""

import contextlib
import time

import amqp
import amqp.exceptions

from harness import HOST, PASSWORD, PORT, USER, add_test, equal, exchange_name, main, queue_name, test, true


def connect(**options):
    options = {"host": f"{HOST}:{PORT}", "userid": USER, "password": PASSWORD, "connect_timeout": 10, **options}
    connection = amqp.Connection(**options)
    connection.connect()
    return connection


@contextlib.contextmanager
def connected(**options):
    connection = connect(**options)
    try:
        yield connection
    finally:
        with contextlib.suppress(amqp.exceptions.AMQPError, OSError):
            connection.close()


def declared(ch, **options):
    options = {"durable": True, "auto_delete": False, **options}
    name = queue_name()
    ch.queue_declare(name, **options)
    return name


def send(ch, queue, body="m", **options):
    ch.basic_publish(amqp.Message(body), routing_key=queue, **options)


def pump(connection, condition, seconds=10):
    """Handles what arrives until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        true(time.monotonic() < deadline, f"nothing came within {seconds} s")
        with contextlib.suppress(TimeoutError, OSError):
            connection.drain_events(timeout=0.1)


def ready(ch, queue):
    return ch.queue_declare(queue, passive=True).message_count


# Errors. Each row: what is done, the code, class and method id in the close frame, the text, and
# whether the channel or the connection is what closes.


def provoke(action):
    """Does it and waits for the close that answers it. Gives the error and the connection."""
    connection = connect()
    ch, neighbour = connection.channel(), connection.channel()
    try:
        action(ch)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                connection.drain_events(timeout=0.5)
        raise AssertionError("was not refused within 10 s")
    except amqp.exceptions.AMQPError as error:
        return error, connection, ch, neighbour


def row(name, code, ids, text, action, closes="channel"):
    def check():
        error, connection, ch, neighbour = provoke(action)
        with contextlib.closing(connection):
            equal(error.reply_code, code, "reply code")
            filled_in = text.format(q=names.get("q"), x=names.get("x"), user=USER)
            if not error.reply_text.endswith(filled_in):
                equal(error.reply_text, filled_in, "reply text")
            equal(tuple(error.method_sig), ids, "class and method id")
            if closes == "channel":
                true(isinstance(error, amqp.exceptions.ChannelError), f"a channel error, not {type(error)}")
                neighbour.queue_declare("", exclusive=True)
                # py-amqp has opened the channel again by now, with the same number.
                ch.queue_declare("", exclusive=True)
            else:
                true(isinstance(error, amqp.exceptions.ConnectionError), f"a connection error, not {type(error)}")
                true(not connection.connected, "the connection is closed")

    add_test(f"error {name}", check)


names = {}


def with_queue(action, **options):
    def run(ch):
        names["q"] = declared(ch, **options)
        action(ch, names["q"])

    return run


def with_exchange(action, kind="direct", **options):
    def run(ch):
        names["x"] = exchange_name()
        ch.exchange_declare(names["x"], kind, **{"durable": True, "auto_delete": False, **options})
        action(ch, names["x"])

    return run


def with_locked(action):
    """An exclusive queue of a connection that stays open meanwhile."""

    def run(ch):
        with connected() as owner:
            names["q"] = declared(owner.channel(), durable=False, exclusive=True)
            action(ch, names["q"])
            ch.connection.drain_events(timeout=5)

    return run


NO_QUEUE = "NOT_FOUND - no queue 'interop.none' in vhost '/'"
NO_EXCHANGE = "NOT_FOUND - no exchange 'interop.none' in vhost '/'"
LOCKED = (
    "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{q}' in vhost '/'. It could be originally "
    "declared on another connection or the exclusive property value does not match that of the original declaration."
)

row("declare passively a missing queue", 404, (50, 10), NO_QUEUE, lambda ch: ch.queue_declare("interop.none", passive=True))
row("declare passively a missing exchange", 404, (40, 10), NO_EXCHANGE, lambda ch: ch.exchange_declare("interop.none", "direct", passive=True))
row("bind a missing queue", 404, (50, 20), NO_QUEUE, lambda ch: ch.queue_bind("interop.none", "amq.direct"))
row("bind to a missing exchange", 404, (50, 20), NO_EXCHANGE, with_queue(lambda ch, q: ch.queue_bind(q, "interop.none")))
row("bind a missing exchange", 404, (40, 30), NO_EXCHANGE, lambda ch: ch.exchange_bind("interop.none", "amq.direct"))
row("consume from a missing queue", 404, (60, 20), NO_QUEUE, lambda ch: ch.basic_consume("interop.none"))
row("get from a missing queue", 404, (60, 70), NO_QUEUE, lambda ch: ch.basic_get("interop.none"))
row("purge a missing queue", 404, (50, 30), NO_QUEUE, lambda ch: ch.queue_purge("interop.none"))
row("publish to a missing exchange", 404, (60, 40), NO_EXCHANGE, lambda ch: ch.basic_publish(amqp.Message("m"), "interop.none"))
row("empty name without a declare", 404, (60, 20), "NOT_FOUND - no previously declared queue", lambda ch: ch.basic_consume(""))

INEQUIVALENT = "PRECONDITION_FAILED - inequivalent arg '%s' for queue '{q}' in vhost '/': %s"
row(
    "redeclare a durable queue as transient",
    406,
    (50, 10),
    INEQUIVALENT % ("durable", "received 'false' but current is 'true'"),
    with_queue(lambda ch, q: ch.queue_declare(q, durable=False, auto_delete=False)),
)
row(
    "redeclare with auto-delete",
    406,
    (50, 10),
    INEQUIVALENT % ("auto_delete", "received 'true' but current is 'false'"),
    with_queue(lambda ch, q: ch.queue_declare(q, durable=True, auto_delete=True)),
)
row(
    "redeclare an exchange of another type",
    406,
    (40, 10),
    "PRECONDITION_FAILED - inequivalent arg 'type' for exchange '{x}' in vhost '/': received 'topic' but current is 'direct'",
    with_exchange(lambda ch, x: ch.exchange_declare(x, "topic", durable=True, auto_delete=False)),
)

@test
def error_unknown_exchange_type():
    error, connection, _, neighbour = provoke(lambda ch: ch.exchange_declare(exchange_name(), "foo"))
    with contextlib.closing(connection):
        equal((error.reply_code, tuple(error.method_sig)), (406, (40, 10)), "code and ids")
        texts = ("PRECONDITION_FAILED - unknown exchange type 'foo'", "PRECONDITION_FAILED - invalid exchange type 'foo'")
        true(error.reply_text in texts, error.reply_text)
        neighbour.queue_declare("", exclusive=True)


row("reserved queue name", 403, (50, 10), "ACCESS_REFUSED - queue name 'amq.x' contains reserved prefix 'amq.*'", lambda ch: ch.queue_declare("amq.x"))
row(
    "reserved exchange name",
    403,
    (40, 10),
    "ACCESS_REFUSED - exchange name 'amq.x' contains reserved prefix 'amq.*'",
    lambda ch: ch.exchange_declare("amq.x", "direct"),
)
DEFAULT = "ACCESS_REFUSED - operation not permitted on the default exchange"
row("declare the default exchange", 403, (40, 10), DEFAULT, lambda ch: ch.exchange_declare("", "direct"))
row("delete the default exchange", 403, (40, 20), DEFAULT, lambda ch: ch.exchange_delete(""))
row("bind to the default exchange", 403, (50, 20), DEFAULT, with_queue(lambda ch, q: ch.queue_bind(q, "", "k")))
row("unbind from the default exchange", 403, (50, 50), DEFAULT, with_queue(lambda ch, q: ch.queue_unbind(q, "", q)))
row("bind the default exchange", 403, (40, 30), DEFAULT, lambda ch: ch.exchange_bind("amq.direct", ""))

row("locked queue: declare passively", 405, (50, 10), LOCKED, with_locked(lambda ch, q: ch.queue_declare(q, passive=True)))
row("locked queue: consume", 405, (60, 20), LOCKED, with_locked(lambda ch, q: ch.basic_consume(q)))
row("locked queue: get", 405, (60, 70), LOCKED, with_locked(lambda ch, q: ch.basic_get(q)))
row("locked queue: delete", 405, (50, 40), LOCKED, with_locked(lambda ch, q: ch.queue_delete(q)))
row("locked queue: purge", 405, (50, 30), LOCKED, with_locked(lambda ch, q: ch.queue_purge(q)))


def two_consumers(ch, queue):
    ch.basic_consume(queue, exclusive=True)
    ch.basic_consume(queue)


row(
    "consume beside an exclusive consumer",
    403,
    (60, 20),
    "ACCESS_REFUSED - queue '{q}' in vhost '/' in exclusive use",
    with_queue(two_consumers),
)


def same_tag(ch, queue):
    ch.basic_consume(queue, consumer_tag="t")
    ch.basic_consume(queue, consumer_tag="t")


row(
    "consumer tag used twice",
    530,
    (60, 20),
    "NOT_ALLOWED - attempt to reuse consumer tag 't'",
    with_queue(same_tag),
    closes="connection",
)
row("ack of an unknown tag", 406, (60, 80), "PRECONDITION_FAILED - unknown delivery tag 5", lambda ch: ch.basic_ack(5))
row("multiple ack of an unknown tag", 406, (60, 80), "PRECONDITION_FAILED - unknown delivery tag 5", lambda ch: ch.basic_ack(5, multiple=True))
row("reject of an unknown tag", 406, (60, 90), "PRECONDITION_FAILED - unknown delivery tag 7", lambda ch: ch.basic_reject(7, True))


def in_use(ch, queue):
    ch.basic_consume(queue)
    ch.queue_delete(queue, if_unused=True)


def not_empty(ch, queue):
    ch.confirm_select()
    ch.basic_publish_confirm(amqp.Message("m"), routing_key=queue)
    ch.queue_delete(queue, if_empty=True)


def exchange_in_use(ch, exchange):
    ch.queue_bind(declared(ch), exchange)
    ch.exchange_delete(exchange, if_unused=True)


row("delete a queue in use", 406, (50, 40), "PRECONDITION_FAILED - queue '{q}' in vhost '/' in use", with_queue(in_use))
row("delete a queue that is not empty", 406, (50, 40), "PRECONDITION_FAILED - queue '{q}' in vhost '/' not empty", with_queue(not_empty))
row(
    "delete an exchange in use",
    406,
    (40, 20),
    "PRECONDITION_FAILED - exchange '{x}' in vhost '/' in use",
    with_exchange(exchange_in_use),
)
row("delete a system exchange", 403, (40, 20), "ACCESS_REFUSED - deletion of system exchange 'amq.direct' in vhost '/' not allowed", lambda ch: ch.exchange_delete("amq.direct"))
row("immediate", 540, (60, 40), "NOT_IMPLEMENTED - immediate=true", lambda ch: send(ch, "interop.none", immediate=True), closes="connection")
row("prefetch size", 540, (60, 10), "NOT_IMPLEMENTED - prefetch_size!=0 (10)", lambda ch: ch.basic_qos(10, 1, False), closes="connection")
row("flow off", 540, (20, 20), "NOT_IMPLEMENTED - active=false", lambda ch: ch.flow(False), closes="connection")
row("recover without requeue", 540, (60, 110), "NOT_IMPLEMENTED - requeue=false", lambda ch: ch.basic_recover(requeue=False), closes="connection")


@test
def error_publish_to_an_internal_exchange():
    import pika

    from harness import URL

    name = exchange_name()
    side = pika.BlockingConnection(pika.URLParameters(URL))
    side.channel().exchange_declare(name, "fanout", internal=True)
    side.close()
    error, connection, _, _ = provoke(lambda ch: ch.basic_publish(amqp.Message("m"), name))
    with contextlib.closing(connection):
        text = f"ACCESS_REFUSED - cannot publish to internal exchange '{name}' in vhost '/'"
        equal((error.reply_code, tuple(error.method_sig), error.reply_text), (403, (60, 40), text), "error")


@test
def error_unknown_vhost():
    try:
        connect(virtual_host="nowhere")
    except amqp.exceptions.NotAllowed as error:
        equal((error.reply_code, tuple(error.method_sig)), (530, (10, 40)), "code and ids")
        true(error.reply_text.endswith("NOT_ALLOWED - vhost nowhere not found"), error.reply_text)
    else:
        raise AssertionError("was let in")


@test
def error_wrong_password():
    try:
        connect(password=PASSWORD + "x")
    except amqp.exceptions.AccessRefused as error:
        equal(error.reply_code, 403, "code")
        true("Login was refused using authentication mechanism" in error.reply_text, error.reply_text)
    else:
        raise AssertionError("was let in")


# Everything else


@test
def amqplain_logs_in():
    with connected(login_method="AMQPLAIN") as connection:
        declared(connection.channel())


@test
def closing_says_200_ok():
    connection = connect()
    ch = connection.channel()
    ch.close()
    connection.close()
    true(not connection.connected, "closed")


@test
def messages_go_round():
    with connected() as connection:
        ch = connection.channel()
        queue = declared(ch)
        got = []
        ch.basic_consume(queue, callback=got.append)
        for number in range(100):
            send(ch, queue, f"{number}")
        pump(connection, lambda: len(got) == 100)
        equal([message.body for message in got], [f"{number}" for number in range(100)], "order")
        ch.basic_ack(got[-1].delivery_tag, multiple=True)
        equal(ready(ch, queue), 0, "ready")


@test
def a_hundred_publishes_are_confirmed():
    with connected(confirm_publish=True) as connection:
        ch = connection.channel()
        queue = declared(ch)
        for number in range(100):
            send(ch, queue, f"{number}")
        equal(ready(ch, queue), 100, "ready")


@test
def confirms_count_up_and_may_come_together():
    with connected() as connection:
        ch = connection.channel()
        queue = declared(ch)
        ch.confirm_select()
        acks = []
        ch.events["basic_ack"].add(lambda tag, multiple: acks.append((tag, multiple)))
        for number in range(500):
            send(ch, queue, f"{number}")
        pump(connection, lambda: acks and acks[-1][0] == 500)
        covered = set()
        for tag, multiple in acks:
            fresh = set(range(max(covered, default=0) + 1, tag + 1)) if multiple else {tag}
            true(not fresh & covered, f"{tag} confirmed twice")
            covered |= fresh
        equal(covered, set(range(1, 501)), "confirmed")
        equal(ready(ch, queue), 500, "ready")


@test
def a_return_comes_before_its_confirm():
    with connected() as connection:
        ch = connection.channel()
        ch.confirm_select()
        events = []
        ch.events["basic_ack"].add(lambda tag, multiple: events.append("confirm"))
        ch.events["basic_return"].add(lambda *args: events.append(("return", args[0].reply_code)))
        send(ch, "interop.nobody", mandatory=True)
        pump(connection, lambda: "confirm" in events)
        equal(events, [("return", 312), "confirm"], "order")


@test
def nowait_operations_take_effect_in_order():
    with connected() as connection:
        ch = connection.channel()
        queue, exchange = queue_name(), exchange_name()
        ch.queue_declare(queue, durable=True, auto_delete=False, nowait=True)
        ch.exchange_declare(exchange, "direct", durable=True, auto_delete=False, nowait=True)
        ch.queue_bind(queue, exchange, "k", nowait=True)
        ch.basic_publish(amqp.Message("m"), exchange, "k")
        message = ch.basic_get(queue, no_ack=True)
        equal(message.body, "m", "message")
        got = []
        ch.basic_consume(queue, consumer_tag="mine", nowait=True, no_ack=True, callback=got.append)
        ch.basic_publish(amqp.Message("n"), exchange, "k")
        pump(connection, lambda: got)
        ch.basic_cancel("mine", nowait=True)
        ch.queue_purge(queue, nowait=True)
        ch.queue_delete(queue, nowait=True)
        equal(ch.queue_delete(queue), 0, "deleted already")


@test
def line_ends_are_cut_from_names():
    with connected() as connection:
        ch = connection.channel()
        name = queue_name()
        equal(ch.queue_declare(f"\r\n{name}\n", durable=True, auto_delete=False).queue, name, "declared name")
        equal(ready(ch, name), 0, "ready")


@test
def heartbeats_go_both_ways():
    with connected(heartbeat=1) as connection:
        ch = connection.channel()
        end = time.monotonic() + 4
        while time.monotonic() < end:
            connection.heartbeat_tick()
            with contextlib.suppress(TimeoutError):
                connection.drain_events(timeout=0.2)
        declared(ch)
        true(connection.bytes_recv > 0, "bytes came")


@test
def a_queue_named_with_255_bytes():
    with connected() as connection:
        ch = connection.channel()
        name = queue_name()
        name += "ü" * ((255 - len(name)) // 2)
        name += "x" * (255 - len(name.encode()))
        equal(ch.queue_declare(name, durable=True, auto_delete=False).queue, name, "name")
        ch.basic_publish(amqp.Message("m"), routing_key=name)
        equal(ch.basic_get(name, no_ack=True).delivery_info["routing_key"], name, "routing key")
        ch.queue_delete(name)


@test
def global_prefetch_is_accepted():
    with connected() as connection:
        ch = connection.channel()
        queue = declared(ch)
        ch.basic_qos(0, 2, True)
        got = []
        for _ in range(5):
            send(ch, queue)
        ch.basic_consume(queue, callback=got.append)
        ch.basic_consume(queue, callback=got.append)
        pump(connection, lambda: len(got) >= 2)
        with contextlib.suppress(TimeoutError):
            connection.drain_events(timeout=0.3)
        equal(len(got), 2, "unacked on the channel")


main()
