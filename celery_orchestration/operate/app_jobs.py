"""The jobs of an app's code. Imports all task modules first, as a worker does."""

from __future__ import annotations

import importlib
import logging
import os
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import celery
from celery import Celery

from celery_orchestration.errors import ConfigurationError
from celery_orchestration.job.policy import Policy
from celery_orchestration.job.task import jobs_of, sound_jobs_of

#: The attribute of an app that keeps the error of loading its tasks, or None.
_PROBLEM = "_orchestration_load_problem"
_lock = threading.RLock()
#: Files whose frames in a traceback are not the user's code.
_NOT_THEIRS = (__file__, os.path.dirname(celery.__file__), os.path.dirname(importlib.__file__), "<frozen importlib")


def load(app: Celery) -> str | None:
    """Imports the modules of ``include`` and ``autodiscover_tasks()`` and finalises the app, once. Returns an error in
    words, or None.

    A worker and a beat import task modules by themselves; a shell or a web server does not.
    """
    with _lock:
        if _PROBLEM not in app.__dict__:
            app.__dict__[_PROBLEM] = None  # a task module may ask for the app's jobs while it is imported
            app.__dict__[_PROBLEM] = _load(app)
        found: str | None = app.__dict__[_PROBLEM]
    return found


def jobs(app: Celery) -> dict[str, Policy]:
    """The policies of the app's jobs, by name."""
    if wrong := load(app):
        raise ConfigurationError(wrong)
    return jobs_of(app)


def valid_jobs(app: Celery) -> tuple[dict[str, Policy], list[str]]:
    """Returns the jobs with valid options, and the errors of other jobs and of modules."""
    wrong = load(app)
    found, mistakes = sound_jobs_of(app)
    return found, [*([wrong] if wrong else []), *mistakes]


def _load(app: Celery) -> str | None:
    try:
        if not app.loader.worker_initialized:  # a worker has imported them already
            with _unlogged():
                app.loader.import_default_modules()
        app.finalize()
    except ConfigurationError as exc:
        return str(exc)
    except Exception as exc:
        return f"the app's tasks cannot be loaded: {type(exc).__name__}: {' '.join(str(exc).split())}{_where(exc)}"
    return None


def _where(exc: Exception) -> str:
    """The line of the user's code that failed."""
    if isinstance(exc, SyntaxError):
        return ""  # its message names the line
    frames = traceback.extract_tb(exc.__traceback__)
    own = [frame for frame in frames if not any(part in frame.filename for part in _NOT_THEIRS)]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


@contextmanager
def _unlogged() -> Iterator[None]:
    """Celery logs an error of an ``import_modules`` receiver with its traceback, and raises it again: one is enough."""
    logger, thread = logging.getLogger("celery.utils.dispatch.signal"), threading.get_ident()

    def is_other(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)
