"""What the suites that drive pika share."""

import contextlib

import pika
import pika.exceptions

from harness import URL, equal, queue_name, true


def parameters(**changes):
    settings = pika.URLParameters(URL)
    for name, value in changes.items():
        setattr(settings, name, value)
    return settings


@contextlib.contextmanager
def connected(**changes):
    connection = pika.BlockingConnection(parameters(**changes))
    try:
        yield connection
    finally:
        if connection.is_open:
            connection.close()


@contextlib.contextmanager
def channel(**changes):
    with connected(**changes) as connection:
        yield connection.channel()


def declared(ch, **options):
    options.setdefault("durable", True)
    name = queue_name()
    ch.queue_declare(name, **options)
    return name


def send(ch, queue, body=b"m", **properties):
    ch.basic_publish("", queue, body, pika.BasicProperties(**properties))


def filled(ch, count, **options):
    """A queue with messages 0, 1, 2 and so on, all of them arrived."""
    queue = declared(ch, **options)
    ch.confirm_delivery()
    for number in range(count):
        send(ch, queue, b"%d" % number)
    return queue


def ready(ch, queue):
    return ch.queue_declare(queue, passive=True).method.message_count


def consumers(ch, queue):
    return ch.queue_declare(queue, passive=True).method.consumer_count


def drain(ch, queue):
    bodies = []
    while True:
        method, _, body = ch.basic_get(queue, auto_ack=True)
        if method is None:
            return bodies
        bodies.append(body)


class Inbox:
    """What a consumer got."""

    def __init__(self, ch, queue, **options):
        self.ch, self.items, self.cancelled = ch, [], []
        self.tag = ch.basic_consume(queue, self.on_message, **options)

    def on_message(self, _channel, method, properties, body):
        self.items.append((method, properties, body))

    def bodies(self):
        return [body for _, _, body in self.items]

    def wait(self, count, seconds=10):
        step = 0.02
        for _ in range(int(seconds / step)):
            if len(self.items) >= count:
                return self
            self.ch.connection.process_data_events(step)
        raise AssertionError(f"{len(self.items)} of {count} messages came within {seconds} s")

    def quiet(self, seconds=0.3):
        """Gives the broker the opportunity to send one too many."""
        self.ch.connection.process_data_events(seconds)
        return len(self.items)


def refused(code, text, action, *args, **kwargs):
    """The action closes its channel with this code and a text that contains this one."""
    try:
        action(*args, **kwargs)
    except pika.exceptions.ChannelClosedByBroker as error:
        equal(error.reply_code, code, "reply code")
        true(text in error.reply_text, f"text {error.reply_text!r} does not contain {text!r}")
    else:
        raise AssertionError(f"was not refused with {code} {text!r}")
