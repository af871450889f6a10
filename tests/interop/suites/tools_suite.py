"""Debian's amqp-tools, written in C: shell pipelines against the broker."""

import os
import subprocess
import tempfile
import time

from harness import HOST, PASSWORD, PORT, USER, equal, exchange_name, main, queue_name, test, true

SERVER = ["--server", HOST, "--port", str(PORT), "--username", USER, "--password", PASSWORD]


def run(tool, *arguments, stdin=b"", code=0):
    done = subprocess.run([f"amqp-{tool}", *SERVER, *arguments], input=stdin, capture_output=True, timeout=30)
    if done.returncode != code:
        raise AssertionError(f"amqp-{tool} ended with {done.returncode}: {done.stderr.decode(errors='replace')}")
    return done.stdout if code == 0 else done.stderr


def declared():
    name = queue_name()
    equal(run("declare-queue", "--durable", "--queue", name).strip(), name.encode(), "declared name")
    return name


@test
def declare_and_delete_a_queue():
    name = declared()
    run("publish", "--routing-key", name, "--body", "one")
    equal(run("delete-queue", "--queue", name).strip(), b"1", "messages deleted")


@test
def publish_and_get():
    name = declared()
    run("publish", "--routing-key", name, "--body", "hello")
    equal(run("get", "--queue", name), b"hello", "body")
    run("get", "--queue", name, code=2)


@test
def publish_from_standard_input():
    name = declared()
    body = os.urandom(300_000)
    run("publish", "--routing-key", name, stdin=body)
    true(run("get", "--queue", name) == body, "the body came back")


@test
def publish_line_by_line_and_consume_a_number():
    name = declared()
    run("publish", "--routing-key", name, "--line-buffered", stdin=b"a\nb\nc\n")
    out = run("consume", "--queue", name, "--count", "3", "--prefetch-count", "1", "cat")
    equal(out.replace(b"\n", b""), b"abc", "bodies")
    run("get", "--queue", name, code=2)


@test
def consume_without_acknowledging():
    name = declared()
    for body in ("x", "y"):
        run("publish", "--routing-key", name, "--body", body)
    equal(run("consume", "--queue", name, "--no-ack", "--count", "2", "cat"), b"xy", "bodies")
    run("get", "--queue", name, code=2)


@test
def consume_from_an_exchange_through_a_queue_of_its_own():
    with tempfile.TemporaryFile() as out:
        consumer = subprocess.Popen(
            ["amqp-consume", *SERVER, "--exchange", "amq.topic", "--routing-key", "tools.#", "--count", "1", "cat"],
            stdout=out,
            stderr=subprocess.PIPE,
        )
        # The queue is anonymous: publish until the consumer has one message.
        deadline = time.monotonic() + 15
        while consumer.poll() is None:
            true(time.monotonic() < deadline, "the consumer got nothing")
            run("publish", "--exchange", "amq.topic", "--routing-key", "tools.a.b", "--body", "found")
        equal(consumer.returncode, 0, consumer.stderr.read().decode())
        out.seek(0)
        equal(out.read(), b"found", "body")


@test
def persistent_messages_with_properties():
    name = declared()
    run("publish", "--routing-key", name, "--persistent", "--content-type", "text/plain", "--reply-to", "r", "--body", "p")
    equal(run("get", "--queue", name), b"p", "body")


@test
def errors_are_shown_with_the_brokers_words():
    said = run("get", "--queue", "interop.none", code=1)
    true(b"404" in said and b"no queue 'interop.none' in vhost '/'" in said, said.decode())


main()
