"""aio-pika: the asyncio client with its connections that come back by themselves."""

import asyncio
import contextlib
import logging

import aio_pika
import aiormq.exceptions

from harness import HOST, PASSWORD, PORT, TEST_SECONDS_MAX, URL, USER, add_test, equal, exchange_name, main, queue_name, true, unique

# The cut connections of these tests are meant: what the clients log about them is noise.
logging.disable()


def test(function):
    """Runs the coroutine on a loop of its own, within the time that a test has."""

    def run():
        asyncio.run(asyncio.wait_for(function(), TEST_SECONDS_MAX - 5))

    add_test(function.__name__.replace("_", " "), run)
    return function


@contextlib.asynccontextmanager
async def connected():
    connection = await aio_pika.connect(URL)
    async with connection:
        yield connection


class Relay:
    """Stands between a client and the broker, so that a test can cut the line."""

    async def __aenter__(self):
        self.writers = []
        self.server = await asyncio.start_server(self.on_client, "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        self.url = f"amqp://{USER}:{PASSWORD}@127.0.0.1:{port}/"
        return self

    async def __aexit__(self, *_):
        self.server.close()
        self.cut()

    async def on_client(self, reader, writer):
        broker_reader, broker_writer = await asyncio.open_connection(HOST, PORT)
        self.writers += [writer, broker_writer]

        async def copy(source, sink):
            with contextlib.suppress(OSError):
                while data := await source.read(65536):
                    sink.write(data)
            sink.transport.abort()

        await asyncio.gather(copy(reader, broker_writer), copy(broker_reader, writer))

    def cut(self):
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()


async def collect(queue, count, **options):
    """The next messages of a queue, unacked unless no_ack is given."""
    got = []
    async with queue.iterator(timeout=15, **options) as messages:
        async for message in messages:
            got.append(message)
            if len(got) == count:
                return got
    return got


@test
async def publishes_and_consumes_with_process_contexts():
    async with connected() as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(queue_name(), durable=True)
        for number in range(20):
            message = aio_pika.Message(str(number).encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            await channel.default_exchange.publish(message, queue.name)
        seen = []
        async with queue.iterator() as messages:
            async for message in messages:
                async with message.process():
                    seen.append(int(message.body))
                if len(seen) == 20:
                    break
        equal(seen, list(range(20)), "order")
        equal((await channel.declare_queue(queue.name, passive=True)).declaration_result.message_count, 0, "ready")


@test
async def a_thousand_concurrent_publishes_are_each_confirmed():
    async with connected() as connection:
        channel = await connection.channel(publisher_confirms=True)
        queue = await channel.declare_queue(queue_name(), durable=True)
        results = await asyncio.gather(
            *(channel.default_exchange.publish(aio_pika.Message(b"%d" % n), queue.name) for n in range(1000))
        )
        true(all(type(result).__name__ == "Ack" for result in results), "every confirm is an ack")
        declared = await channel.declare_queue(queue.name, passive=True)
        equal(declared.declaration_result.message_count, 1000, "ready")


@test
async def a_returned_message_is_matched_with_its_confirm():
    async with connected() as connection:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        try:
            await channel.default_exchange.publish(aio_pika.Message(b"m", message_id="lost"), unique("nobody"), mandatory=True)
        except aio_pika.exceptions.DeliveryError as error:
            equal(error.message.delivery.reply_code, 312, "code")
            equal(error.message.header.properties.message_id, "lost", "message id")
        else:
            raise AssertionError("no return")


@test
async def routed_and_unroutable_messages_can_be_mixed():
    async with connected() as connection:
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        queue = await channel.declare_queue(queue_name(), durable=True)

        async def send(number):
            key = queue.name if number % 2 else unique("nobody")
            return await channel.default_exchange.publish(aio_pika.Message(b"m"), key, mandatory=True)

        results = await asyncio.gather(*(send(n) for n in range(200)), return_exceptions=True)
        for number, result in enumerate(results):
            equal(isinstance(result, aio_pika.exceptions.DeliveryError), number % 2 == 0, f"return of {number}")


@test
async def two_consumers_and_a_poller_compete():
    async with connected() as one, connected() as two, connected() as three:
        channel = await one.channel()
        await channel.set_qos(5)
        queue = await channel.declare_queue(queue_name(), durable=True)
        other_channel = await two.channel()
        await other_channel.set_qos(5)
        other = await other_channel.get_queue(queue.name)
        polled = await (await three.channel()).get_queue(queue.name)
        seen, done = [], asyncio.Event()

        async def settle(message):
            await message.ack()
            seen.append(int(message.body))
            if len(seen) == 300:
                done.set()

        async def poll():
            while not done.is_set():
                message = await polled.get(fail=False)
                if message is not None:
                    await settle(message)

        await queue.consume(settle)
        await other.consume(settle)
        poller = asyncio.create_task(poll())
        for number in range(300):
            await channel.default_exchange.publish(aio_pika.Message(b"%d" % number), queue.name)
        await done.wait()
        await poller
        equal(sorted(seen), list(range(300)), "each message once")


@test
async def nacked_messages_come_again_in_their_place():
    async with connected() as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(queue_name(), durable=True)
        for number in range(5):
            await channel.default_exchange.publish(aio_pika.Message(b"%d" % number), queue.name)
        first = [await queue.get() for _ in range(3)]
        await first[1].nack(requeue=True)
        await first[0].reject(requeue=True)
        await first[2].ack()
        again = [await queue.get() for _ in range(4)]
        equal([(m.body, m.redelivered) for m in again], [(b"0", True), (b"1", True), (b"3", False), (b"4", False)], "order")


@test
async def an_empty_queue_says_so():
    async with connected() as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(queue_name(), durable=True)
        equal(await queue.get(fail=False), None, "message")
        try:
            await queue.get()
        except aio_pika.exceptions.QueueEmpty:
            pass
        else:
            raise AssertionError("the queue is empty")


@test
async def topic_and_exchange_bindings_route():
    async with connected() as connection:
        channel = await connection.channel()
        source = await channel.declare_exchange(exchange_name(), aio_pika.ExchangeType.TOPIC)
        target = await channel.declare_exchange(exchange_name(), aio_pika.ExchangeType.FANOUT)
        await target.bind(source, "logs.#")
        queue = await channel.declare_queue(queue_name(), durable=True)
        await queue.bind(target)
        for key in ("logs", "logs.a.b", "other"):
            await source.publish(aio_pika.Message(key.encode()), key, mandatory=False)
        got = await collect(queue, 2)
        equal([(m.body, m.routing_key, m.exchange) for m in got], [(k, k.decode(), source.name) for k in (b"logs", b"logs.a.b")], "got")
        await target.unbind(source, "logs.#")
        await source.delete()
        await target.delete()


@test
async def headers_of_every_type_come_back():
    headers = {"t": True, "i": -3, "big": 2**50, "f": 1.5, "s": "grün", "n": None, "l": [1, "a", {"x": 1}], "d": {"e": {}}}
    async with connected() as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(queue_name(), durable=True)
        await channel.default_exchange.publish(aio_pika.Message(b"", headers=headers, correlation_id="c"), queue.name)
        message = await queue.get()
        equal((dict(message.headers), message.correlation_id, message.body), (headers, "c", b""), "message")


@test
async def a_channel_error_is_typed_and_the_connection_lives():
    async with connected() as connection:
        channel = await connection.channel()
        try:
            await channel.declare_queue(unique("none"), passive=True)
        except aiormq.exceptions.ChannelNotFoundEntity as error:
            true("NOT_FOUND - no queue" in str(error), str(error))
        else:
            raise AssertionError("was not refused")
        channel = await connection.channel()
        try:
            queue = await channel.declare_queue(queue_name(), durable=True)
            await channel.declare_queue(queue.name, durable=True, auto_delete=True)
        except aiormq.exceptions.ChannelPreconditionFailed as error:
            true("inequivalent arg 'auto_delete'" in str(error), str(error))
        else:
            raise AssertionError("was not refused")
        true(not connection.is_closed, "the connection is open")


@test
async def a_robust_connection_comes_back_with_its_consumer():
    async with Relay() as relay:
        connection = await aio_pika.connect_robust(relay.url, reconnect_interval=0.1)
        async with connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(queue_name(), durable=True)
            arrived = asyncio.Queue()
            await queue.consume(arrived.put)
            await channel.default_exchange.publish(aio_pika.Message(b"before"), queue.name)
            first = await arrived.get()
            equal((first.body, first.redelivered), (b"before", False), "first")
            relay.cut()
            again = await arrived.get()
            equal((again.body, again.redelivered), (b"before", True), "unacked when the line was cut")
            await again.ack()
            async with connected() as other:
                await (await other.channel()).default_exchange.publish(aio_pika.Message(b"after"), queue.name)
            after = await arrived.get()
            equal(after.body, b"after", "after")
            await after.ack()


@test
async def request_and_reply_over_exclusive_queues():
    async with connected() as server, connected() as client:
        channel = await server.channel()
        server_exchange = channel.default_exchange
        requests = await channel.declare_queue(queue_name(), durable=True)

        async def serve(message):
            await server_exchange.publish(
                aio_pika.Message(message.body.upper(), correlation_id=message.correlation_id), message.reply_to
            )
            await message.ack()

        await requests.consume(serve)
        asking = await client.channel()
        replies = await asking.declare_queue(exclusive=True, auto_delete=True)
        for number in range(50):
            question = aio_pika.Message(b"q%d" % number, correlation_id=str(number), reply_to=replies.name)
            await asking.default_exchange.publish(question, requests.name)
        got = await collect(replies, 50, no_ack=True)
        equal({m.correlation_id: m.body for m in got}, {str(n): b"Q%d" % n for n in range(50)}, "replies")


@test
async def the_master_and_worker_pattern():
    async with connected() as connection:
        channel = await connection.channel()
        master = aio_pika.patterns.Master(channel)
        name, results, done = queue_name(), [], asyncio.Event()

        async def work(*, number):
            results.append(number)
            if len(results) == 30:
                done.set()

        worker = await master.create_worker(name, work, durable=True)
        for number in range(30):
            await master.create_task(name, {"number": number})
        await done.wait()
        await worker.close()
        equal(sorted(results), list(range(30)), "tasks")


@test
async def cancelled_iterators_give_back_what_they_prefetched():
    async with connected() as connection:
        channel = await connection.channel()
        await channel.set_qos(10)
        queue = await channel.declare_queue(queue_name(), durable=True)
        for number in range(30):
            await channel.default_exchange.publish(aio_pika.Message(b"%d" % number), queue.name)
        async with queue.iterator() as messages:
            async for message in messages:
                await message.ack()
                break
        await channel.close()
        channel = await connection.channel()
        declared = await channel.declare_queue(queue.name, passive=True)
        equal(declared.declaration_result.message_count, 29, "ready")


@test
async def twenty_connections_at_once():
    async def one(number):
        async with connected() as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(exclusive=True)
            await channel.default_exchange.publish(aio_pika.Message(b"%d" % number), queue.name)
            return int((await queue.get(no_ack=True)).body)

    equal(await asyncio.gather(*(one(n) for n in range(20))), list(range(20)), "answers")


main()
