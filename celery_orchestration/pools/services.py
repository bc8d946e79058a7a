"""The services that ``up`` runs, each of one or more processes. ``up`` starts them in order and ends them in reverse.

A new service is a class with these methods, and a line in ``up.services_of``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from time import monotonic

from celery_orchestration.pools import child, run
from celery_orchestration.pools.merged_log import MergedLog
from celery_orchestration.pools.private_redis import PrivateRedis, PrivateRedisError, is_redis
from celery_orchestration.pools.supervisor import Supervisor

#: Seconds until a process that died is restarted: the first delay, and the longest. If the process had lived longer
#: than the longest delay, the first delay applies again.
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
#: Seconds that a process gets to end normally.
ENDING_SECONDS = 15.0


class Service:
    """``step()`` is called several times a second until ``ended``, also after ``drain()`` and ``stop()``."""

    name: str
    #: Whether the other services need it until they have ended.
    is_needed_to_drain = False

    def start(self) -> None:
        raise NotImplementedError

    def step(self) -> None:
        """Restart processes that died, and log it."""

    def reload(self) -> None:
        """The code has changed."""

    def drain(self) -> None:
        """Take no new work, finish the current work, end."""
        raise NotImplementedError

    def stop(self) -> None:
        """End now."""
        raise NotImplementedError

    @property
    def ended(self) -> bool:
        raise NotImplementedError


class RedisService(Service):
    """A private Redis, if one is needed."""

    is_needed_to_drain = True

    def __init__(self, redis: PrivateRedis, log: MergedLog) -> None:
        self.name = "redis"
        self._redis, self._log = redis, log
        self._started = False
        #: When to check it again, and the current delay between attempts to restart it.
        self._due, self._wait = 0.0, 0.0

    def start(self) -> None:
        process = self._redis.start(lambda text: self._log.line("up", text))
        self._started = process is not None
        if process is not None and process.stdout is not None:
            self._log.follow(self.name, process.stdout)

    def step(self) -> None:
        if not self._started or self._redis.alive or monotonic() < self._due:
            return
        try:
            if is_redis(self._redis.address):
                return  # its keeper died, and Redis is about to end
            self._log.line("up", "the private Redis has died and is restarted; its data is on disk", alarm=True)
            self.start()
            self._wait = 0.0
        except PrivateRedisError as exc:
            self._try_later(exc)

    def _try_later(self, reason: PrivateRedisError) -> None:
        """The other services continue meanwhile. A Redis that is about to end may not answer, so the first failed
        restart is not an alarm."""
        if self._wait:
            self._log.line("up", f"{reason}; the next try is in {self._wait:.0f} s", alarm=True)
        self._due = monotonic() + (self._wait or FIRST_WAIT)
        self._wait = min(LONGEST_WAIT, self._wait * 2 or FIRST_WAIT)

    def drain(self) -> None:
        self._started = False
        self._redis.stop()

    stop = drain

    @property
    def ended(self) -> bool:
        return not self._redis.alive


class PoolsService(Service):
    """A supervisor in this process; its workers end with it."""

    name = "pools"

    def __init__(self, supervisor: Supervisor, read_again: Sequence[str] = ()) -> None:
        """`read_again`: the command that prints the app's table of pools, if it has one."""
        self._supervisor, self._read_again = supervisor, read_again
        self._over = False

    def start(self) -> None:
        self._supervisor.start()

    def step(self) -> None:
        if not self._over:
            self._supervisor.step()
            if self._supervisor.is_over:
                self._end()

    def reload(self) -> None:
        if self._read_again:
            run.reload(self._supervisor, self._read_again)
        self._supervisor.restart_workers("the code has changed")

    def drain(self) -> None:
        if not self._over:
            self._supervisor.drain()

    def stop(self) -> None:
        """Running tasks go back to their queues, which takes a moment. A worker that hangs is killed."""
        if not self._over:
            self._supervisor.stop_now()

    @property
    def ended(self) -> bool:
        return self._over

    def _end(self) -> None:
        self._over = True
        self._supervisor.stop()


class CommandService(Service):
    """A process that is restarted if it dies, with a growing delay if it keeps dying."""

    def __init__(self, name: str, command: Sequence[str], log: MergedLog) -> None:
        self.name = name
        self._command, self._log = command, log
        self._process: subprocess.Popen[bytes] | None = None
        self._born = self._kill_at = 0.0
        self._wait = FIRST_WAIT
        #: When to start it; None: it runs, or should not run any more.
        self._due: float | None = None
        self._ending = self._reloading = False

    def start(self) -> None:
        self._due, self._born, self._kill_at = None, monotonic(), 0.0
        self._process = subprocess.Popen(
            # It ends with this process, and does not get the terminal's Ctrl-C.
            [sys.executable, child.__file__, str(os.getpid()), "0", *self._command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert self._process.stdout is not None
        self._log.follow(self.name, self._process.stdout)

    def step(self) -> None:
        now = monotonic()
        if self._process is not None and self._process.poll() is not None:
            self._note_end(now)
        if self._process is not None and self._kill_at and now > self._kill_at:
            self._process.kill()
        if self._due is not None and now >= self._due and not self._ending:
            self.start()

    def reload(self) -> None:
        self._wait = FIRST_WAIT
        if self._process is None:
            self._due = monotonic()
        else:
            self._reloading = True
            self._terminate()

    def drain(self) -> None:
        self._ending = True
        self._terminate()

    def _terminate(self) -> None:
        """Ask the process to end; kill it if it does not."""
        if self._process is not None:
            self._process.terminate()
            self._kill_at = monotonic() + ENDING_SECONDS

    def stop(self) -> None:
        self._ending = True
        if self._process is not None:
            self._process.kill()

    @property
    def ended(self) -> bool:
        return self._process is None

    def _note_end(self, now: float) -> None:
        assert self._process is not None
        status, self._process = self._process.returncode, None
        if self._ending:
            return
        if self._reloading:
            self._reloading, self._due = False, now
            return
        if now - self._born > LONGEST_WAIT:
            self._wait = FIRST_WAIT
        self._due = now + self._wait
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with {status}"
        self._log.line("up", f"{self.name} {how}; it is restarted in {self._wait:.0f} s", alarm=True)
        self._wait = min(LONGEST_WAIT, self._wait * 2)
