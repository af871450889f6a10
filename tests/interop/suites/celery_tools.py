"""Celery's worker processes."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

from harness import true

HERE = pathlib.Path(__file__).parent
LIGHT = ["--without-gossip", "--without-mingle", "--without-heartbeat"]


class Workers:
    """Workers of one app. With INTEROP_TRACE in the environment, what they log is printed at the end."""

    def __init__(self, app):
        self.app = app
        self.running = []
        self.log = tempfile.NamedTemporaryFile("w+", prefix="lepus-celery-", suffix=".log")

    def start(self, *options, concurrency=2):
        """A worker that has said it is ready."""
        self.log.seek(0, os.SEEK_END)
        seen = self.log.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", self.app, "worker", "--loglevel=INFO"]
            + [f"--concurrency={concurrency}", f"--hostname=w{len(self.running)}@interop", *options],
            cwd=HERE,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.running.append(process)
        with open(self.log.name) as reader:
            reader.seek(seen)
            text = ""
            while " ready." not in text:
                true(process.poll() is None, f"the worker ended with {process.returncode}: {text[-400:]}")
                text += reader.readline()
        return process

    def kill_last(self):
        """Without a word, and its children too."""
        worker = self.running.pop()
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def stop_all(self):
        """As an operator does."""
        while self.running:
            worker = self.running.pop()
            worker.send_signal(signal.SIGTERM)
            worker.wait(30)

    def kill_all(self):
        """Whatever is left."""
        for worker in self.running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
        if os.environ.get("INTEROP_TRACE"):
            self.log.seek(0)
            print(self.log.read())
