"""The drain: a worker that stops lets its runs end, within `drain_seconds` if that is set.

It begins with the signal, because Celery may close much later: a solo worker finishes its task first, and a soft
shutdown sleeps. The ledger learns of it (it shows the worker as draining, and hands nothing more over to it), no more
runs are admitted, and running ones may end. Without `drain_seconds` that is all: Celery waits, or kills in a cold
shutdown. A worker of a pool has no limit of its own while its supervisor lives: in a pool that shrinks it may finish
its runs.

Runs that go on when the time is up are killed. Each waits again when its process is gone (unless the job's `on_crash`
is "fail": then it has failed). The pool reports the death like any other, but the run is marked `drained`. If code
cannot be killed alone (threads, gevent, solo), the whole process ends. It cannot report to the ledger afterwards, so it
announces its end: it will be gone within two seconds. Until then the ledger keeps its runs; then another worker's sweep
takes them. A cold shutdown of such a worker ends in the same way, at once.

A thread does all that. :meth:`Drain.begin`, :meth:`Drain.hurry` and :meth:`Drain.over` may be called from any thread
and from signal handlers.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from celery.platforms import EX_FAILURE, EX_OK
from celery.signals import worker_shutting_down
from celery.utils.log import get_logger
from celery.worker import state
from celery.worker.request import task_ready

from celery_orchestration.errors import LedgerError
from celery_orchestration.ledger import Ledger
from celery_orchestration.worker import internals, supervised
from celery_orchestration.worker.job_request import gates
from celery_orchestration.worker.notices import Notices
from celery_orchestration.worker.settlement import Settlement

logger = get_logger(__name__)

#: Seconds that cancelled plain tasks get to end, before their processes are killed as well.
CANCELLED_SECONDS = 2.0
#: Seconds that Celery's pool listens to each of its processes while it stops.
LISTENING_SECONDS = 0.5
#: Seconds that Celery gets to close down when everything is killed, before the process is ended.
CLOSING_SECONDS = 10.0
#: Seconds that closing the broker connection may take when the process is about to end.
CLOSE_BROKER_SECONDS = 3.0
#: Seconds that functions registered with atexit may take; milliseconds until the ledger considers this worker gone.
EXITING_SECONDS, GONE_MS = 1.0, 2000


@worker_shutting_down.connect(dispatch_uid="celery_orchestration.drain")  # type: ignore[untyped-decorator]
def _shutting_down(sender: str, **_: Any) -> None:
    if sender in gates:
        gates[sender].begin_drain()


class Drain(threading.Thread):
    def __init__(
        self,
        ledger: Ledger,
        worker: str,
        controller: Any,
        drain_seconds: float | None,
        settlement: Settlement,
        notices: Notices,
        *,
        wait_until_reported: Callable[[float], bool],
        close_broker: Callable[[], None],
        stop_heartbeat: Callable[[float], None],
    ) -> None:
        """`worker`: its id. `controller`: Celery's worker. `wait_until_reported(deadline)` waits until the ledger has
        taken all outcomes. `stop_heartbeat(seconds)` waits at most this long for the end of the heartbeat's thread."""
        super().__init__(name="orchestration-drain", daemon=True)
        self._ledger = ledger.new_connection()
        self._worker = worker
        self._controller = controller
        self._drain_seconds = drain_seconds
        self._settlement = settlement
        self._notices = notices
        self._wait_until_reported = wait_until_reported
        self._close_broker = close_broker
        self._stop_heartbeat = stop_heartbeat
        # "begin", "hurry" or "over". A signal handler may call its put() at any moment.
        self._events: SimpleQueue[str] = SimpleQueue()

    # -- from any thread, and from signal handlers ----------------------------------------------------

    def begin(self) -> None:
        """The worker was asked to stop."""
        self._events.put("begin")

    def hurry(self) -> None:
        """The time to drain is up: end the runs now."""
        self._events.put("hurry")

    def hurry_at(self, at: float) -> None:
        """:meth:`hurry` at this time, by the monotonic clock."""
        left = at - monotonic()
        if left <= 0:
            return self.hurry()
        timer = threading.Timer(left, self.hurry)
        timer.daemon = True
        return timer.start()

    def over(self) -> None:
        """The execution pool is down."""
        self._events.put("over")

    # -- the thread ---------------------------------------------------------------------------------

    def run(self) -> None:
        event = self._events.get()
        self._notices.drain()
        if event == "begin":
            event = self._while_supervised() or self._next_event(self._drain_seconds)
        if event != "over":
            self._end_tasks()
        self._ledger.close()

    def _while_supervised(self) -> str:
        """While a supervisor of pools lives, it decides when the time is up. Returns the event, or '' if there is no
        supervisor any more."""
        while supervised.has_supervisor():
            if event := self._next_event(supervised.LOOK_EVERY):
                return event
        return ""

    def _next_event(self, seconds: float | None) -> str:
        """Waits for "over" or "hurry", for `seconds` at most; '': the time is up."""
        deadline = None if seconds is None else monotonic() + seconds
        while True:
            try:
                event = self._events.get(timeout=None if deadline is None else max(0.0, deadline - monotonic()))
            except Empty:
                return ""
            if event != "begin":
                return event

    def _is_over(self, seconds: float) -> bool:
        return self._next_event(seconds) == "over"

    def _end_tasks(self) -> None:
        runs = [run for run in list(self._settlement.runs.values()) if not run.settled]
        plain = [request for request in internals.consumer.given_to_pool() if request not in runs]
        if runs:
            logger.warning(
                "The time to drain is up. Runs that are ended: %d; they run again, or have failed (on_crash)", len(runs)
            )
        pool = self._controller.pool
        if not internals.pool.can_kill(pool) and (runs or plain):
            return self.end_process()
        for run in runs:
            run.drained = True
            task_ready(run)  # requests that are active after this are plain tasks
        ours = {run.worker_pid for run in runs}
        for child in internals.pool.children(pool):
            if not plain or child.pid in ours:
                internals.pool.kill(child)
        if plain:
            logger.warning("%d plain tasks are cancelled", len(plain))
            if self._cancel_plain(pool):
                return None
            for child in internals.pool.children(pool):
                internals.pool.kill(child)
        return None if self._is_over(CLOSING_SECONDS) else self.end_process()

    def _cancel_plain(self, pool: Any) -> bool:
        """As Celery's cold shutdown does it. Returns whether the pool is down."""
        state.should_terminate = EX_FAILURE
        # While it stops, Celery listens to one process after the other: it learns late of tasks that have just begun.
        deadline = monotonic() + CANCELLED_SECONDS + LISTENING_SECONDS * len(internals.pool.children(pool))
        while monotonic() < deadline:
            try:
                internals.consumer.cancel_active(self._controller.consumer)
            except Exception as exc:
                logger.warning("Plain tasks could not be cancelled: %r", exc)
            if self._is_over(LISTENING_SECONDS / 2):
                return True
        return False

    # -- code that cannot be killed -----------------------------------------------------------------

    def end_process(self) -> None:
        """Ends the process, and with it the code of our runs. Other workers take the runs when it is gone."""
        if not internals.consumer.owns_process(self._controller):
            logger.error(
                "%d runs continue in a process that we may not end: another worker recovers them when the lease "
                "expires",
                len(self._settlement.runs),
            )
            return
        logger.warning("The runs here can only be stopped with this process: it ends now")
        for child in internals.pool.children(self._controller.pool):
            internals.pool.kill(child)
        self._within(CLOSE_BROKER_SECONDS, self._close_broker)
        self._wait_until_reported(monotonic() + 1)
        self._stop_heartbeat(1.0)
        try:
            self._ledger.drain(self._worker, GONE_MS)
        except LedgerError as exc:
            logger.error("Cannot report this worker's end: its runs wait until its lease expires: %s", exc)
        self._within(EXITING_SECONDS, atexit._run_exitfuncs)
        os._exit(self._controller.exitcode or (EX_FAILURE if state.should_terminate else EX_OK))

    @staticmethod
    def _within(seconds: float, function: Callable[[], None]) -> None:
        def guarded() -> None:
            with suppress(Exception):
                function()

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        thread.join(seconds)
