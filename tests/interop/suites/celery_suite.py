"""Celery: real worker processes, results over rpc://, retries, late acks, remote control."""

import contextlib
import os
import signal

from harness import URL, add_test, equal, main, queue_name, true, unique

PREFIX = unique("celery")
os.environ["INTEROP_CELERY_PREFIX"] = PREFIX

import celery  # noqa: E402
import pika  # noqa: E402

import celery_app  # noqa: E402
from celery_tools import LIGHT, Workers  # noqa: E402

RESULT_SECONDS_MAX = 30
workers = Workers("celery_app")


def result(answer):
    return answer.get(timeout=RESULT_SECONDS_MAX)


def test(function):
    add_test(function.__name__.replace("_", " "), function)
    return function


@test
def a_worker_starts_and_answers_a_task():
    workers.start(*LIGHT)
    equal(result(celery_app.add.delay(2, 3)), 5, "result")


@test
def two_hundred_tasks_are_each_answered():
    answers = [celery_app.add.delay(n, n) for n in range(200)]
    equal([result(answer) for answer in answers], [2 * n for n in range(200)], "results")


@test
def an_exception_reaches_the_caller():
    try:
        result(celery_app.fail.delay())
    except ValueError as error:
        equal(str(error), "on purpose", "text")
    else:
        raise AssertionError("no exception")


@test
def a_task_is_retried():
    equal(result(celery_app.third_time_lucky.delay()), 2, "retries")


@test
def a_group_gathers_its_results():
    group = celery.group(celery_app.add.s(n, 1) for n in range(20))
    equal(group.apply_async().get(timeout=RESULT_SECONDS_MAX), [n + 1 for n in range(20)], "results")


@test
def a_chain_passes_its_results_on():
    chain = celery.chain(celery_app.add.s(1, 2), celery_app.add.s(10), celery_app.add.s(100))
    equal(result(chain.apply_async()), 113, "result")


@test
def a_large_argument_comes_back():
    value = {"text": "grün" * 100_000, "numbers": list(range(1000)), "nothing": None}
    equal(result(celery_app.echo.delay(value)), value, "value")


@test
def a_task_with_a_countdown_runs_later():
    equal(result(celery_app.add.apply_async((1, 1), countdown=1)), 2, "result")


@test
def a_task_sent_to_another_queue_waits_there():
    queue = queue_name()
    celery_app.add.apply_async((1, 1), queue=queue)
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(URL))) as connection:
        channel = connection.channel()
        method, properties, _ = channel.basic_get(queue, auto_ack=True)
        equal(properties.headers["task"], "celery_app.add", "task header")
        equal(method.routing_key, queue, "routing key")
        channel.exchange_delete(queue)


@test
def a_task_publishes_by_itself():
    queue = queue_name()
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(URL))) as connection:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True)
        celery_app.forward.delay(queue, "by hand")
        for _, _, body in channel.consume(queue, auto_ack=True, inactivity_timeout=RESULT_SECONDS_MAX):
            equal(body, b"by hand", "body")
            break


@test
def a_late_ack_survives_a_crashed_worker_child():
    equal(result(celery_app.redelivered_after_a_crash.delay()), "redelivered", "result")


@test
def a_killed_worker_gives_its_tasks_to_the_next():
    answers = [celery_app.nap.delay(0.5) for _ in range(6)]
    result(answers[0])
    workers.kill_last()
    workers.start(*LIGHT)
    equal([result(answer) for answer in answers], [0.5] * 6, "results")


@test
def a_warm_shutdown_leaves_nothing_unacked():
    worker = workers.running.pop()
    worker.send_signal(signal.SIGTERM)
    equal(worker.wait(30), 0, "exit code")
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(URL))) as connection:
        declared = connection.channel().queue_declare(PREFIX, passive=True).method
        equal((declared.message_count, declared.consumer_count), (0, 0), "ready and consumers")


@test
def a_worker_with_gossip_and_remote_control_answers():
    workers.start()
    replies = celery_app.app.control.ping(timeout=5, limit=1)
    true(replies and all(list(reply.values()) == [{"ok": "pong"}] for reply in replies), repr(replies))
    equal(result(celery_app.add.delay(4, 4)), 8, "result")


@test
def two_workers_share_the_tasks():
    workers.start(*LIGHT)
    answers = [celery_app.nap.delay(0.05) for _ in range(40)]
    for answer in answers:
        result(answer)


@test
def a_purge_counts_what_waits():
    workers.stop_all()
    for number in range(7):
        celery_app.add.delay(number, 1)
    equal(celery_app.app.control.purge(), 7, "purged")


def clean_up():
    workers.kill_all()
    with contextlib.suppress(Exception):
        connection = pika.BlockingConnection(pika.URLParameters(URL))
        channel = connection.channel()
        channel.queue_delete(PREFIX)
        for exchange in (PREFIX, f"{PREFIX}.event", f"{PREFIX}.control.pidbox", f"reply.{PREFIX}.control.pidbox"):
            channel.exchange_delete(exchange)
        connection.close()


main(at_end=clean_up)
