"""Celery with RabbitMQ's extensions: priorities, quorum queues, and delays that the broker keeps."""

import contextlib
import os
import tempfile
import time

from harness import URL, add_test, equal, main, true, unique

PREFIX = unique("celery")
os.environ["INTEROP_CELERY_PREFIX"] = PREFIX

import pika  # noqa: E402

import celery_extensions_app as tasks  # noqa: E402
from celery_tools import LIGHT, Workers  # noqa: E402

RESULT_SECONDS_MAX = 30
workers = Workers("celery_extensions_app")


def test(function):
    add_test(function.__name__.replace("_", " "), function)
    return function


def waiting(queue):
    """Ready messages."""
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(URL))) as connection:
        return connection.channel().queue_declare(queue, passive=True).method.message_count


@test
def tasks_of_higher_priority_go_first():
    with tempfile.NamedTemporaryFile("r") as file:
        # Declared before anything is sent: the worker comes later.
        with tasks.app.connection_for_write() as connection:
            for queue in tasks.app.amqp.queues.values():
                queue(connection.default_channel).declare()
        answers = [
            tasks.order.apply_async((file.name, f"{priority}.{number}"), priority=priority, queue=tasks.PRIORITIES)
            for number in range(3)
            for priority in (0, 9, 5)
        ]
        equal(waiting(tasks.PRIORITIES), len(answers), "waiting tasks")
        workers.start(*LIGHT, "-Q", tasks.PRIORITIES, concurrency=1)
        for answer in answers:
            answer.get(timeout=RESULT_SECONDS_MAX)
        expected = [f"{priority}.{number}" for priority in (9, 5, 0) for number in range(3)]
        equal(file.read().split(), expected, "order")
        workers.stop_all()


@test
def a_quorum_queue_has_tasks_that_the_broker_delays():
    workers.start(*LIGHT, "-Q", tasks.QUORUM)
    sent = time.time()
    later = tasks.now.apply_async(countdown=3, queue=tasks.QUORUM)
    at_once = tasks.now.apply_async(queue=tasks.QUORUM)
    true(at_once.get(timeout=RESULT_SECONDS_MAX) < sent + 3, "what is not delayed does not wait")
    # The delay is kept in whole seconds, and may begin within one.
    true(later.get(timeout=RESULT_SECONDS_MAX) >= sent + 2, "what is delayed waits")


@test
def a_delayed_task_survives_the_worker():
    sent = time.time()
    later = tasks.now.apply_async(countdown=4, queue=tasks.QUORUM)
    levels = sum(waiting(f"celery_delayed_{level}") for level in range(28))
    equal(levels, 1, "tasks that the broker delays")
    workers.kill_last()
    workers.start(*LIGHT, "-Q", tasks.QUORUM)
    true(later.get(timeout=RESULT_SECONDS_MAX) >= sent + 3, "it comes from the broker, in its time")


def clean_up():
    workers.kill_all()
    with contextlib.suppress(Exception):
        connection = pika.BlockingConnection(pika.URLParameters(URL))
        channel = connection.channel()
        for queue in (tasks.PRIORITIES, tasks.QUORUM):
            channel.queue_delete(queue)
            channel.exchange_delete(queue)
        for level in range(28):
            channel.queue_delete(f"celery_delayed_{level}")
            channel.exchange_delete(f"celery_delayed_{level}")
        for exchange in ("celery_delayed_delivery", f"{PREFIX}.event", f"{PREFIX}.control.pidbox"):
            channel.exchange_delete(exchange)
        connection.close()


main(at_end=clean_up)
