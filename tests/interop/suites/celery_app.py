"""The tasks of the Celery suite, and its settings; run by a real worker process."""

import os
import time

import celery

PREFIX = os.environ["INTEROP_CELERY_PREFIX"]

app = celery.Celery("interop", broker=os.environ["AMQP_URL"], backend="rpc://")
app.conf.update(
    task_default_queue=PREFIX,
    task_default_exchange=PREFIX,
    task_default_routing_key=PREFIX,
    control_exchange=f"{PREFIX}.control",
    event_exchange=f"{PREFIX}.event",
    task_publish_retry=False,
    broker_connection_retry_on_startup=True,
    broker_connection_timeout=10,
    worker_hijack_root_logger=False,
)


@app.task
def add(x, y):
    return x + y


@app.task
def fail():
    raise ValueError("on purpose")


@app.task(bind=True, max_retries=3)
def third_time_lucky(self):
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return self.request.retries


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True)
def redelivered_after_a_crash(self):
    """Kills its own worker child at first; is redelivered, and says so."""
    if not self.request.delivery_info["redelivered"]:
        os._exit(9)
    return "redelivered"


@app.task(acks_late=True)
def nap(seconds):
    time.sleep(seconds)
    return seconds


@app.task
def echo(value):
    return value


@app.task(ignore_result=True)
def forward(queue, body):
    """Publishes to a queue itself, as tasks without a result do their work elsewhere."""
    with app.producer_pool.acquire(block=True) as producer:
        producer.publish(body, routing_key=queue)
