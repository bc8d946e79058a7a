"""A place's worker is restarted when it dies: soon if it had started well, once a minute if it cannot start."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from celery_orchestration.ledger import Place
from celery_orchestration.pools import machine
from celery_orchestration.pools.place_worker import CRASH_LOOP, STALL_SHOWN_SECONDS, Launch, PlaceWorker
from support.wait import until

COMMAND = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def place_worker() -> Iterator[PlaceWorker]:
    found = PlaceWorker(Place("images", 1, "7"), lambda _: Launch(COMMAND, dict(os.environ), 0), lambda *_: None)
    yield found
    found.kill()


def die(place_worker: PlaceWorker, now: float, *, registered: bool) -> tuple[str, float]:
    """Its worker starts and is killed. Returns the first message, and the seconds until another one starts."""
    place_worker.step(now)
    assert place_worker.worker is not None
    if registered:
        place_worker.note_alive({("images-1", place_worker.worker.pid), ("images-2", 1)})
    place_worker.worker.kill()
    said = until(lambda: place_worker.step(now), 10)
    seconds = 0.0
    while place_worker.worker is None:
        place_worker.step(now + seconds)
        seconds += 0.5
    return said[0], seconds - 0.5


def test_a_worker_that_had_started_well_is_soon_restarted_however_often_it_is_killed(place_worker: PlaceWorker) -> None:
    found = [die(place_worker, 1000.0 * number, registered=True) for number in range(6)]
    assert [seconds for _, seconds in found] == [1, 2, 4, 8, 8, 8]
    assert "was killed by signal 9" in found[0][0]
    assert not any("KEEPS DYING" in said for said, _ in found)
    assert place_worker.problems() == []


def test_a_worker_that_never_starts_is_reported_and_tried_once_a_minute(place_worker: PlaceWorker) -> None:
    found = [die(place_worker, 1000.0 * number, registered=False) for number in range(CRASH_LOOP + 1)]
    assert [seconds for _, seconds in found] == [1, 2, 60, 60]
    assert found[CRASH_LOOP - 1][0].startswith(
        "WORKER images-1 KEEPS DYING: it was killed by signal 9, 3 times in a row, the last time 0 s after its start"
    )
    assert "worker images-1 keeps dying" in place_worker.problems()[0]


def test_a_worker_of_another_place_or_process_does_not_count(place_worker: PlaceWorker) -> None:
    place_worker.step(0.0)
    assert place_worker.worker is not None
    pid = place_worker.worker.pid
    place_worker.note_alive({("images-2", pid), ("images-1", pid + 1)})
    for number in range(CRASH_LOOP - 1):
        die(place_worker, 1000.0 * number, registered=False)
    said, _ = die(place_worker, 9000.0, registered=False)
    assert "KEEPS DYING" in said


def last_worker(pid: int, started_at: str) -> Place:
    info = json.dumps({"host": socket.gethostname(), "pid": pid, "started_at": started_at})
    return Place("images", 1, "7", info)


def test_a_worker_starts_when_the_last_one_is_gone_and_not_before(place_worker: PlaceWorker) -> None:
    last = subprocess.Popen(COMMAND)
    try:
        place_worker.wait_for_last(last_worker(last.pid, machine.started_at(last.pid)))
        place_worker.step(0.0)
        assert place_worker.worker is None
    finally:
        last.kill()
        last.wait()
    place_worker.step(0.0)
    assert place_worker.worker is not None


def test_a_place_that_is_to_go_is_given_up_when_the_last_worker_is_gone_and_not_before(
    place_worker: PlaceWorker,
) -> None:
    last = subprocess.Popen(COMMAND)
    try:
        place_worker.wait_for_last(last_worker(last.pid, machine.started_at(last.pid)))
        place_worker.leave("the pool shrinks", None)
        place_worker.step(0.0)
        assert not place_worker.is_over
    finally:
        last.kill()
        last.wait()
    place_worker.step(0.0)
    assert place_worker.is_over
    assert place_worker.worker is None


def test_an_earlier_worker_without_a_known_start_time_is_not_waited_for(place_worker: PlaceWorker) -> None:
    """It had died before its start was recorded, or there is no /proc."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    place_worker.wait_for_last(last_worker(gone.pid, ""))
    place_worker.step(0.0)
    assert place_worker.worker is not None


def test_a_stall_is_reported_for_a_while_and_not_again_when_a_worker_starts(
    place_worker: PlaceWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    place_worker.step(0.0)
    place_worker.note_stall("it has received no message for 60 s")
    assert place_worker.problems() == [
        "worker images-1 was stalled (it has received no message for 60 s), and is replaced"
    ]
    later = time.monotonic() + STALL_SHOWN_SECONDS
    monkeypatch.setattr("celery_orchestration.pools.place_worker.monotonic", lambda: later)
    assert place_worker.problems() == []


def test_changed_code_is_tried_at_once(place_worker: PlaceWorker) -> None:
    for number in range(CRASH_LOOP):
        place_worker.step(1000.0 * number)
        assert place_worker.worker is not None
        os.kill(place_worker.worker.pid, signal.SIGKILL)
        until(lambda number=number: place_worker.step(1000.0 * number), 10)
    now = 1000.0 * CRASH_LOOP
    place_worker.replace("the code has changed", 30)
    place_worker.step(now - 999)
    assert place_worker.worker is not None
    assert place_worker.problems() == []
