"""Tasks of the suite of Celery with RabbitMQ's extensions: a queue with priorities, and a quorum queue, for which
Celery delays tasks by queues and dead letters instead of holding them in the worker."""

import os
import time

import celery
import kombu

PREFIX = os.environ["INTEROP_CELERY_PREFIX"]
PRIORITIES = f"{PREFIX}.priorities"
QUORUM = f"{PREFIX}.quorum"

app = celery.Celery("interop", broker=os.environ["AMQP_URL"], backend="rpc://")
app.conf.update(
    task_queues=[
        kombu.Queue(
            PRIORITIES,
            kombu.Exchange(PRIORITIES, type="direct"),
            PRIORITIES,
            queue_arguments={"x-max-priority": 10},
        ),
        kombu.Queue(
            QUORUM, kombu.Exchange(QUORUM, type="topic"), QUORUM, queue_arguments={"x-queue-type": "quorum"}
        ),
    ],
    task_default_queue=PRIORITIES,
    task_default_exchange=PRIORITIES,
    task_default_routing_key=PRIORITIES,
    control_exchange=f"{PREFIX}.control",
    event_exchange=f"{PREFIX}.event",
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


@app.task
def order(path, name):
    """Writes down when its turn has come."""
    with open(path, "a") as file:
        file.write(f"{name}\n")


@app.task
def now():
    return time.time()
