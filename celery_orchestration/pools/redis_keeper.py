"""Keeps a private Redis while it is needed: the process between ``up`` and redis-server.

``python -I -S redis_keeper.py``, with one line of JSON on its standard input: see :func:`main`. It uses nothing but the
standard library, so that it starts fast.

Its standard input is a pipe that only ``up`` holds open. When ``up`` ends normally, it sends SIGTERM and Redis stops.
When ``up`` is killed, the pipe closes. The workers then drain by themselves, and need Redis to hand back their runs. So
Redis stays until the last client has left, for at most ``grace_seconds``. If this process is killed, the kernel sends
redis-server a SIGTERM. So no process is ever left behind.

The lock file says that a directory is in use, and whether its Redis is about to end: a new ``up`` waits for that end
instead of using a Redis that will go away.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from typing import Any

#: Exit status: another keeper has the directory.
LOCKED = 75
#: Contents of the lock file.
SERVES, ENDS = b"serves", b"ends"
#: Seconds: between two checks; that Redis gets to save its file; without any client until Redis is stopped.
CHECK, STOPPING, UNUSED = 0.2, 30.0, 1.0
_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Reads ``{"command", "lock", "host", "port", "password", "grace_seconds"}``."""
    options = json.loads(sys.stdin.buffer.readline())
    lock = os.open(options["lock"], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return LOCKED
    _write(lock, SERVES)
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: stopping.append(number))
    end_with_me = partial(_end_with, os.getpid())
    redis = subprocess.Popen(options["command"], stdin=subprocess.DEVNULL, preexec_fn=end_with_me)  # noqa: PLW1509
    while redis.poll() is None and not stopping and not _owner_is_gone():
        pass
    if redis.poll() is None and not stopping:
        _write(lock, ENDS)
        _wait_for_clients(redis, options, stopping)
    if redis.poll() is None:
        redis.terminate()
        with suppress(subprocess.TimeoutExpired):
            redis.wait(STOPPING)
        redis.kill()
        redis.wait()
        return 0
    return redis.returncode if redis.returncode >= 0 else 128 - redis.returncode


def _end_with(parent: int) -> None:
    """Called in the child before it becomes redis-server: the kernel sends it SIGTERM when its parent dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # the parent died before
        os._exit(0)


def _owner_is_gone() -> bool:
    """Whether the pipe has ended, after a short wait."""
    readable = select.select([0], [], [], CHECK)[0]
    return bool(readable) and not os.read(0, 1024)


def _wait_for_clients(redis: subprocess.Popen[bytes], options: dict[str, Any], stopping: list[int]) -> None:
    deadline = time.monotonic() + options["grace_seconds"]
    used = time.monotonic()
    while redis.poll() is None and not stopping and time.monotonic() < deadline:
        if _clients(options) != 0:
            used = time.monotonic()
        elif time.monotonic() - used > UNUSED:
            return
        time.sleep(CHECK)


def _clients(options: dict[str, Any]) -> int | None:
    """The number of other connected clients. None: Redis did not answer."""
    commands = [["CLIENT", "LIST"]]
    if options.get("password"):
        commands.insert(0, ["AUTH", options["password"]])
    try:
        with socket.create_connection((options["host"], options["port"]), timeout=2) as connection:
            answers = connection.makefile("rb")
            for command in commands:
                parts = [word.encode() for word in command]
                connection.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts))
                answer = answers.readline()
            if not answer.startswith(b"$"):
                return None
            return answers.read(int(answer[1:])).count(b"\n") - 1
    except (OSError, ValueError):
        return None


def _write(lock: int, text: bytes) -> None:
    os.ftruncate(lock, 0)
    os.pwrite(lock, text, 0)


if __name__ == "__main__":
    sys.exit(main())
