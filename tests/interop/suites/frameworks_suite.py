"""Topologies as Spring AMQP, MassTransit and NServiceBus declare them, with a message through each of their paths.

The frameworks run elsewhere (on the JVM and .NET); what is here are their declarations and the properties of their
messages, taken from their documentation and sources, sent by pika."""

import pika

from harness import equal, exchange_name, exchanges, main, queue_name, queues, test, true
from pika_tools import Inbox, channel, connected, ready


def publish(ch, exchange, key, body, **properties):
    properties.setdefault("delivery_mode", 2)
    ch.basic_publish(exchange, key, body, pika.BasicProperties(**properties), mandatory=True)


def fanout(ch, name):
    exchanges.append(name)
    ch.exchange_declare(name, "fanout", durable=True)
    return name


@test
def spring_a_listener_retries_by_dead_letters_and_parks_what_fails():
    # RabbitAdmin's declarations of a queue with a retry queue beside it; the listener counts in x-death.
    with channel() as ch:
        exchange, queue, retry, parking = exchange_name(), queue_name(), queue_name(), queue_name()
        ch.exchange_declare(exchange, "topic", durable=True)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": retry}
        ch.queue_declare(queue, durable=True, arguments=arguments)
        arguments = {"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": "order.new", "x-message-ttl": 50}
        ch.queue_declare(retry, durable=True, arguments=arguments)
        ch.queue_declare(parking, durable=True)
        ch.queue_bind(queue, exchange, "order.#")
        ch.basic_qos(prefetch_count=250)
        ch.confirm_delivery()
        headers = {"__TypeId__": "com.example.Order", "spring_listener_return_correlation": "a1"}
        publish(ch, exchange, "order.new", b"{}", content_type="application/json", headers=headers, priority=0)
        inbox, attempts = Inbox(ch, queue), 0
        while True:
            attempts += 1
            method, properties, body = inbox.wait(attempts).items[-1]
            deaths = [death for death in properties.headers.get("x-death", []) if death["queue"] == queue]
            if deaths and deaths[0]["count"] >= 2:
                publish(ch, "", parking, body, headers=properties.headers)
                ch.basic_ack(method.delivery_tag)
                break
            ch.basic_reject(method.delivery_tag, requeue=False)
        equal((attempts, ready(ch, parking), ready(ch, queue), ready(ch, retry)), (3, 1, 0, 0), "attempts and queues")
        _, properties, _ = ch.basic_get(parking, auto_ack=True)
        equal(properties.headers["__TypeId__"], "com.example.Order", "header")


@test
def spring_a_template_sends_and_receives_over_direct_reply_to():
    with connected() as client, connected() as server:
        asking, answering = client.channel(), server.channel()
        # AnonymousQueue
        queue = f"spring.gen-{queue_name()}"
        queues.append(queue)
        arguments = {"x-queue-leader-locator": "client-local"}
        answering.queue_declare(queue, exclusive=True, auto_delete=True, arguments=arguments)
        requests = Inbox(answering, queue)
        replies = Inbox(asking, "amq.rabbitmq.reply-to", auto_ack=True)
        publish(asking, "", queue, b"2 + 2", reply_to="amq.rabbitmq.reply-to", correlation_id="1", delivery_mode=1)
        method, properties, _ = requests.wait(1).items[0]
        publish(answering, "", properties.reply_to, b"4", correlation_id=properties.correlation_id)
        answering.basic_ack(method.delivery_tag)
        _, properties, body = replies.wait(1).items[0]
        equal((body, properties.correlation_id), (b"4", "1"), "reply")


@test
def masstransit_a_message_goes_through_the_exchanges_of_its_types_to_an_endpoint():
    with channel() as ch:
        # A published type has an exchange, and one for each type that it implements; an endpoint has both.
        submit, command = fanout(ch, exchange_name() + ":SubmitOrder"), fanout(ch, exchange_name() + ":ICommand")
        ch.exchange_bind(command, submit)
        endpoint = queue_name()
        fanout(ch, endpoint)
        ch.queue_declare(endpoint, durable=True)
        ch.queue_bind(endpoint, endpoint)
        ch.exchange_bind(endpoint, command)
        for suffix in ("_error", "_skipped"):
            name = endpoint + suffix
            queues.append(name)
            fanout(ch, name)
            ch.queue_declare(name, durable=True)
            ch.queue_bind(name, name)
        # The bus's own endpoint.
        bus = fanout(ch, exchange_name() + "_bus")
        queues.append(bus)
        ch.exchange_delete(bus)
        ch.exchange_declare(bus, "fanout", auto_delete=True)
        ch.queue_declare(bus, auto_delete=True, arguments={"x-expires": 60000})
        ch.queue_bind(bus, bus)
        ch.basic_qos(prefetch_count=16)
        ch.confirm_delivery()
        publish(ch, submit, "", b"{}", message_id="m1", content_type="application/vnd.masstransit+json",
                headers={"MT-Activity-Id": "00-1", "Content-Type": "application/vnd.masstransit+json"})
        inbox = Inbox(ch, endpoint)
        method, properties, _ = inbox.wait(1).items[0]
        equal((method.exchange, properties.message_id), (submit, "m1"), "delivery")
        # A consumer that fails: to the error exchange, then the ack.
        publish(ch, endpoint + "_error", "", b"{}", headers={"MT-Reason": "fault", "MT-Fault-RetryCount": 0})
        ch.basic_ack(method.delivery_tag)
        equal((ready(ch, endpoint + "_error"), ready(ch, endpoint)), (1, 0), "error queue and endpoint")


LEVELS = 6


def delay_topology(ch, prefix):
    """NServiceBus's delays: a bit of the delay in each word of the routing key. A level with a one keeps the message
    for its time and gives it to the next one; a level with a zero passes it on at once."""
    delivery = f"{prefix}.delay-delivery"
    names = [f"{prefix}.delay-level-{level:02}" for level in range(LEVELS)]
    for name in [*names, delivery]:
        exchanges.append(name)
        ch.exchange_declare(name, "topic", durable=True)
    for level in reversed(range(LEVELS)):
        name, following = names[level], names[level - 1] if level else delivery
        queues.append(name)
        arguments = {
            "x-queue-type": "quorum",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
            "x-message-ttl": 2**level * 20,
            "x-dead-letter-exchange": following,
        }
        ch.queue_declare(name, durable=True, arguments=arguments)
        skipped = LEVELS - 1 - level
        ch.queue_bind(name, name, "*." * skipped + "1.#")
        ch.exchange_bind(following, name, "*." * skipped + "0.#")
    return names[-1], delivery


@test
def nservicebus_a_delayed_message_goes_down_the_levels_of_its_delay():
    with channel() as ch:
        first, delivery = delay_topology(ch, exchange_name())
        endpoint = queue_name()
        fanout(ch, endpoint)
        ch.queue_declare(endpoint, durable=True, arguments={"x-queue-type": "quorum"})
        ch.queue_bind(endpoint, endpoint)
        ch.exchange_bind(endpoint, delivery, f"#.{endpoint}")
        ch.confirm_delivery()
        for delay in (0, 5, 37):
            bits = ".".join(f"{delay:0{LEVELS}b}")
            publish(ch, first, f"{bits}.{endpoint}", b"%d" % delay, headers={"NServiceBus.Transport.RabbitMQ.Delay": delay})
        inbox = Inbox(ch, endpoint).wait(3)
        equal(inbox.bodies(), [b"0", b"5", b"37"], "in the order of their delays")
        for (_, properties, _), levels in zip(inbox.items, (0, 2, 3)):
            equal(len((properties.headers or {}).get("x-death", [])), levels, "levels that kept it")


@test
def nservicebus_an_event_reaches_the_endpoints_that_subscribe_to_what_it_is():
    with channel() as ch:
        placed, event = fanout(ch, exchange_name() + ":OrderPlaced"), fanout(ch, exchange_name() + ":IEvent")
        ch.exchange_bind(event, placed)
        endpoints = [queue_name(), queue_name()]
        for endpoint, subscribed in zip(endpoints, (placed, event)):
            fanout(ch, endpoint)
            ch.queue_declare(endpoint, durable=True, arguments={"x-queue-type": "quorum"})
            ch.queue_bind(endpoint, endpoint)
            ch.exchange_bind(endpoint, subscribed)
        ch.confirm_delivery()
        publish(ch, placed, "", b"event", type="OrderPlaced", headers={"NServiceBus.MessageIntent": "Publish"})
        equal([ready(ch, endpoint) for endpoint in endpoints], [1, 1], "ready messages")
        # A message that fails is sent on by hand, with where it came from.
        method, _, body = ch.basic_get(endpoints[0])
        error = queue_name()
        ch.queue_declare(error, durable=True, arguments={"x-queue-type": "quorum"})
        publish(ch, "", error, body, headers={"NServiceBus.FailedQ": endpoints[0]})
        ch.basic_ack(method.delivery_tag)
        true(ready(ch, error) == 1 and ready(ch, endpoints[0]) == 0, "it has moved")


main()
