"""OrchestratedScheduler, the class for the setting ``beat_scheduler``."""

from __future__ import annotations

import signal
import threading
from typing import Any

from celery import Celery
from celery.beat import PersistentScheduler, Scheduler, SchedulingError
from celery.utils.log import get_logger

from celery_orchestration.errors import ConfigurationError, LedgerRefused
from celery_orchestration.job.app import settings_of
from celery_orchestration.job.task import jobs_of, schedule_of
from celery_orchestration.scheduler.apply_entry import Applier, under_way
from celery_orchestration.scheduler.entries import from_code
from celery_orchestration.scheduler.runtime import SchedulerRuntime

logger = get_logger(__name__)

#: Seconds between two ticks of Celery's loop. A tick only checks that the threads are alive.
TICK = 1.0


class OrchestratedScheduler(Scheduler):  # type: ignore[misc]
    """Any number of ``celery beat`` processes can use it: one leads, the others are standbys.

    Threads do the work, so that a signal never interrupts a dispatch. They start with the first tick, after the
    handlers of ``beat_init`` have run. With ``orchestration_mode = "off"`` this is Celery's own scheduler.
    """

    #: RedBeat, once imported, reads this from every scheduler; sentry-sdk imports RedBeat where it is installed.
    lock_key = None
    _runtime: SchedulerRuntime | None = None
    _is_started = False

    def __new__(cls, app: Celery, *args: Any, **kwargs: Any) -> Any:
        if settings_of(app).mode != "off":
            return super().__new__(cls)
        for name, entry in schedule_of(app).items():
            app.conf.beat_schedule.setdefault(name, entry)
        return PersistentScheduler(app, *args, **kwargs)

    def setup_schedule(self) -> None:
        self.install_default_entries(self.data)
        defaults = {
            name: {"task": entry.task, "schedule": entry.schedule, "options": entry.options}
            for name, entry in self.data.items()
        }
        try:
            entries, problems = from_code(self.app, jobs_of(self.app), defaults)
            runtime = SchedulerRuntime(self.app, entries, Applier(self))
            runtime.check_ledger()
            runtime.log_defaults()
        except (ConfigurationError, LedgerRefused) as exc:
            logger.critical("%s", exc)
            raise SystemExit(1) from None  # Celery would show a traceback of any other error
        for problem in problems:
            logger.error("%s: it is not fired", problem)
        _end_on_sigterm()
        self._runtime = runtime

    def tick(self, *args: Any, **kwargs: Any) -> float:
        runtime = self._runtime
        if runtime is not None and not self._is_started:
            self._is_started = True
            runtime.start()
        if runtime is not None and runtime.problem:
            raise LedgerRefused(runtime.problem)
        if runtime is not None and not runtime.dispatcher.is_alive():
            raise RuntimeError("the dispatcher of this scheduler died")
        return TICK

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:
        """Called by ``apply_entry``: see :mod:`~celery_orchestration.scheduler.apply_entry`."""
        fire = under_way()
        if fire is None:
            return super().apply_async(entry, producer=producer, advance=advance, **kwargs)
        entry.options = {**entry.options, "task_id": fire.id}
        try:
            result = super().apply_async(entry, producer=fire.producer, advance=False, **kwargs)
        except Exception as exc:
            cause = exc.__context__ if isinstance(exc, SchedulingError) else exc
            fire.error = cause if isinstance(cause, Exception) else exc
            raise
        fire.is_sent = True
        return result

    def should_sync(self) -> bool:
        return False

    def close(self) -> None:
        """Resign. Celery calls this in a signal handler, and again when its loop ends."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None and self._is_started:
            runtime.stop()
        super().close()

    @property
    def info(self) -> str:
        settings = settings_of(self.app)
        return f"    . ledger -> {settings.namespace}, term of {settings.term_seconds:g} s"


def _end_on_sigterm() -> None:
    """Resigns on SIGTERM in an embedded beat (``worker -B``), which has no signal handler of its own."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)


def _exit(*_: Any) -> None:
    raise SystemExit
