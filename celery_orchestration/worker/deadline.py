"""`on_lease_lost="stop"`: the process of a run ends before the worker's lease can expire in the ledger.

A worker that is cut off from Redis, or whose main process is suspended, cannot renew its lease. When the lease has
expired, another worker may start a second copy of its runs. Runs of jobs that say ``stop`` are gone by then.

Each time a heartbeat got through, the main process writes a deadline into memory that it shares with the processes of
its execution pool. A process that begins such a run sets a timer of the kernel to the deadline. The timer kills the
process with SIGKILL. A thread moves the timer whenever the deadline has moved. The timer fires even if the main process
or the event loop hangs, and even if the process itself is suspended.

Why no second copy starts while the first one executes
------------------------------------------------------
1. Another copy starts only after a sweep has found that the ledger clock is past the end of this worker's lease. A
   heartbeat sets that end to the ledger clock + ``lease_seconds``.
2. Only sweeps advance the ledger clock. Each adds the time since the sweep before it, and at most two sweep intervals.
   The first sweep after a heartbeat may add time from before that heartbeat, so up to two intervals too much. Later
   sweeps add no more than has passed. So the lease lasts at least ``lease_seconds`` - two sweep intervals of real time
   after Redis has taken the heartbeat.
3. The deadline counts from the moment *before* the heartbeat was sent, and is earlier by a margin, a tenth of a lease.
   The margin covers the drift between two clocks within a lease, and the time that the kernel takes to end a process.
4. The deadline uses a clock that nobody can set (CLOCK_BOOTTIME, which also counts while the machine sleeps).
5. A run that begins after the deadline sets the timer into the past, and is killed before its code is called. The timer
   is cleared when Celery is done with the run in that process: result, callbacks and handlers are covered as well.

With the defaults (a lease of 30 s, a sweep every 5 s, a heartbeat every 10 s) the process ends 17 s after the last
heartbeat that got through was sent: Redis has to be away for 7 to 17 s.

This assumes: all nodes of a ledger have the same lease and sweep settings; Redis's clock is not set forward during
the same lease (each jump adds up to two intervals); Redis does not fail over to a replica that lacks the heartbeat; the
kernel runs (a virtual machine that is paused executes nothing, and may go on for a moment when it is resumed); and the
run's work is done by its own process: processes that it has started are not ended.

A task that does not release the interpreter (the GIL) keeps the thread from moving the timer. If it holds the GIL until
the deadline, the process is killed although the lease holds. That is safe, but counts as a crash of the run. On systems
without such timers (macOS) the thread itself kills the process, so there such a task can outlive its lease.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import threading
import time
from typing import Any

from celery.signals import task_postrun, task_prerun
from celery.utils.log import get_logger

from celery_orchestration.job.settings import Settings

logger = get_logger(__name__)

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
#: How many times during a lease a process checks whether its deadline has moved.
LOOKS = 30


def now() -> float:
    return time.clock_gettime(_CLOCK)


def seconds_after_heartbeat(settings: Settings) -> float:
    """Points 2 and 3 above."""
    lease = settings.lease_seconds
    return lease - 2 * settings.sweep_interval_seconds - lease / 10


class Deadline:
    """Made in the main process before the execution pool is forked. The pool's processes use it through signals of
    Celery."""

    def __init__(self, settings: Settings) -> None:
        self._seconds = seconds_after_heartbeat(settings)
        self._look_seconds = settings.lease_seconds / LOOKS
        self._pid = os.getpid()
        # One aligned number, so nobody reads it half-written.
        self._shared = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("d")
        self._missed_at = float("-inf")
        self._guard: Guard | None = None
        #: The task id of the run that is guarded in this process.
        self._run = ""
        task_prerun.connect(self._begins, weak=False)
        task_postrun.connect(self._ended, weak=False)

    # -- in the main process ------------------------------------------------------------------------

    def heartbeat(self, sent: float) -> None:
        """A heartbeat got through. `sent`: when it was sent, by :func:`now`."""
        if self.has_passed():
            self._missed_at = now()
        # Two threads may be here at once, if a heartbeat hung and was replaced (see watchdog.py).
        self._shared[0] = max(self._shared[0], sent + self._seconds)

    def has_passed(self) -> bool:
        return now() >= self._shared[0]

    def has_passed_since(self, began: float) -> bool:
        """Whether the deadline has ended a run that began at that time."""
        return self.has_passed() or self._missed_at >= began

    # -- in a process of the execution pool -----------------------------------------------------------

    def _begins(self, sender: Any, task_id: str, **_: Any) -> None:
        policy = getattr(sender, "orchestration", None)
        if self._run or policy is None or policy.on_lease_lost != "stop" or os.getpid() == self._pid:
            return  # a run that is guarded may call apply() of other tasks
        self._run = task_id
        if self._guard is None:
            self._guard = Guard(self._shared, self._look_seconds)
        self._guard.on()

    def _ended(self, task_id: str, **_: Any) -> None:
        if self._guard is not None and self._run == task_id:
            self._run = ""
            self._guard.off()


class Guard:
    """Ends this process at the shared deadline, while it is on."""

    def __init__(self, shared: memoryview[float], look_seconds: float) -> None:
        self._shared = shared
        self._look_seconds = look_seconds
        self._lock = threading.Lock()
        self._is_on = threading.Event()
        self._timer = KillTimer.create()
        threading.Thread(target=self._watch, name="orchestration-deadline", daemon=True).start()

    def on(self) -> None:
        self._is_on.set()
        self._set_timer()

    def off(self) -> None:
        with self._lock:
            self._is_on.clear()
            if self._timer is not None:
                self._timer.set(0)

    def _set_timer(self) -> None:
        with self._lock:
            if not self._is_on.is_set():
                return
            deadline = self._shared[0]
            if self._timer is not None:
                self._timer.set(deadline or now())  # 0 would clear it
            elif now() >= deadline:
                os.kill(os.getpid(), signal.SIGKILL)

    def _watch(self) -> None:
        while self._is_on.wait():
            self._set_timer()
            time.sleep(self._look_seconds)


class KillTimer:
    """A POSIX timer that sends SIGKILL to its process; Python has no call for one."""

    class _Event(ctypes.Structure):
        _fields_ = (
            ("value", ctypes.c_void_p),
            ("signal", ctypes.c_int),
            ("notify", ctypes.c_int),
            ("rest", ctypes.c_char * 48),
        )

    class _Times(ctypes.Structure):
        _fields_ = (("repeat", ctypes.c_long * 2), ("first", ctypes.c_long * 2))

    _ABSOLUTE = 1

    def __init__(self, library: Any, timer: Any) -> None:
        self._library = library
        self._timer = timer

    @classmethod
    def create(cls) -> KillTimer | None:
        """None if the system has no such timers."""
        if not sys.platform.startswith("linux"):
            return None
        for name in (None, "librt.so.1"):  # before glibc 2.34, these calls are in a library of their own
            try:
                library = ctypes.CDLL(name)
                create = library.timer_create
            except (OSError, AttributeError):
                continue
            timer = ctypes.c_void_p()
            event = cls._Event(signal=signal.SIGKILL)
            if create(_CLOCK, ctypes.byref(event), ctypes.byref(timer)) == 0:
                return cls(library, timer)
        logger.warning("This system has no timers: a thread ends runs whose lease is lost, if their code lets it")
        return None

    def set(self, at: float) -> None:
        """Sets it to fire at this time of :func:`now`, at once if that has passed. 0 clears it."""
        times = self._Times(first=(int(at), int(at % 1 * 1e9)))
        self._library.timer_settime(self._timer, self._ABSOLUTE, ctypes.byref(times), None)
