"""How the worker reads the messages of its child processes: Celery's own result handler and kombu's own hub, on a
pipe."""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.pool import READY
from celery.concurrency.asynpool import ResultHandler
from kombu.asynchronous.hub import Hub

from celery_orchestration.worker.internals.pool import keep_partial_reads


class Reading:
    """The main process's end of a child's pipe, and the messages that it received."""

    def __init__(self) -> None:
        self.hub = Hub()
        self._loop: Any = None
        self.heard: list[int] = []
        self.read, self.write = os.pipe()
        os.set_blocking(self.read, False)
        self.child_of_pipe: dict[int, Any] = {self.read: object()}
        self.handler = ResultHandler(
            None, None, {}, None, None, None, None, None, lambda job, *_: self.heard.append(job),
            fileno_to_outq=self.child_of_pipe, on_process_alive=None,
        )  # fmt: skip
        keep_partial_reads(SimpleNamespace(_pool=SimpleNamespace(_result_handler=self.handler)))
        self.connect()

    def connect(self) -> None:
        """As Celery does with each connection to the broker."""
        self.handler.register_with_event_loop(self.hub)
        self.hub.add_reader(self.read, self.handler.handle_event, self.read)
        self._loop = self.hub.create_loop()

    def lose_connection(self) -> None:
        self.hub.reset()
        self.connect()

    def comes(self, part: bytes) -> None:
        os.write(self.write, part)
        next(self._loop)

    def close(self) -> None:
        self.hub.close()
        os.close(self.read)
        os.close(self.write)


@pytest.fixture
def reading() -> Iterator[Reading]:
    found = Reading()
    yield found
    found.close()


def result_of(job: int) -> bytes:
    """As a child writes it."""
    body = pickle.dumps((READY, (job, 0, (True, "x" * 20_000), 0)))
    return struct.pack("!i", len(body)) + body


@pytest.mark.parametrize("size", [2, 4, 100, 10_000])
def test_a_result_that_was_read_in_part_when_the_connection_was_lost_is_read_on(reading, size):
    result = result_of(1)
    reading.comes(result[:size])
    reading.lose_connection()
    assert reading.heard == []
    reading.comes(result[size:])
    reading.comes(result_of(2))
    assert reading.heard == [1, 2]


def test_a_connection_that_is_lost_twice_while_a_result_is_read(reading):
    result = result_of(1)
    for part in (result[:2], result[2:5_000], result[5_000:]):
        reading.comes(part)
        reading.lose_connection()
    reading.comes(result_of(2))
    assert reading.heard == [1, 2]


def test_results_that_come_in_parts_while_the_connection_holds(reading):
    for job in (1, 2):
        result = result_of(job)
        for part in (result[:4], result[4:9_000], result[9_000:]):
            reading.comes(part)
    assert reading.heard == [1, 2]


def test_a_new_child_does_not_continue_what_a_dead_one_had_begun_to_write(reading):
    reading.comes(result_of(1)[:100])
    reading.child_of_pipe[reading.read] = object()  # with a new pipe that got the same number
    reading.lose_connection()
    reading.comes(result_of(2))
    assert reading.heard == [2]
