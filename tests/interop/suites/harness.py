"""What the Python suites share: a list of tests, a time limit for each, names that nobody else uses, and
the removal of whatever a test declared."""

import itertools
import os
import signal
import sys
import traceback
import urllib.parse

URL = os.environ["AMQP_URL"]
LEPUS = os.environ.get("INTEROP_LEPUS") == "1"
_parts = urllib.parse.urlsplit(URL)
HOST, PORT = _parts.hostname, _parts.port or 5672
USER, PASSWORD = _parts.username or "guest", _parts.password or "guest"

# A test that takes longer hangs: it fails, and the next one runs.
TEST_SECONDS_MAX = 40

_tests = []
_numbers = itertools.count()
queues, exchanges = [], []


class TooLong(Exception):
    pass


class Skip(Exception):
    pass


def only_lepus(why):
    """For what Lepus does and the peer does not."""
    if not LEPUS:
        raise Skip(why)


def test(function):
    _tests.append((function.__name__.replace("_", " "), function))
    return function


def add_test(name, function):
    _tests.append((name, function))


def unique(kind):
    return f"interop.{kind}.{os.getpid()}.{next(_numbers)}"


def queue_name():
    """A fresh queue name; a queue of that name is deleted when the test ends."""
    queues.append(unique("q"))
    return queues[-1]


def exchange_name():
    exchanges.append(unique("x"))
    return exchanges[-1]


def equal(got, expected, what="value"):
    if got != expected:
        raise AssertionError(f"{what}: got {got!r}, expected {expected!r}")


def true(condition, what):
    if not condition:
        raise AssertionError(what)


def clean_up():
    import pika

    if not queues and not exchanges:
        return
    connection = pika.BlockingConnection(pika.URLParameters(URL))
    channel = connection.channel()
    for queue in queues:
        channel.queue_delete(queue)
    for exchange in exchanges:
        channel.exchange_delete(exchange)
    connection.close()


def _alarm(_signal, _frame):
    raise TooLong(f"did not end within {TEST_SECONDS_MAX} s")


def main(at_end=None):
    signal.signal(signal.SIGALRM, _alarm)
    wanted = sys.argv[1:]
    for name, function in _tests:
        if wanted and not any(word in name for word in wanted):
            continue
        queues.clear()
        exchanges.clear()
        signal.alarm(TEST_SECONDS_MAX)
        try:
            try:
                function()
            finally:
                clean_up()
            signal.alarm(0)
            print(f"ok {name}", flush=True)
        except Skip as why:
            signal.alarm(0)
            print(f"skip {name}: {why}", flush=True)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test has failed
            signal.alarm(0)
            why = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"FAIL {name}: {why[:600]}", flush=True)
            if os.environ.get("INTEROP_TRACE"):
                traceback.print_exc(file=sys.stdout)
    if at_end is not None:
        at_end()
    print("end", flush=True)
