"""Notices changes of the code, for ``up --reload``. Needs watchfiles."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from celery import Celery

from celery_orchestration.errors import UserError

#: At most this many changed files are named.
NAMED = 3


class ReloadUnavailable(UserError):
    """``--reload`` was requested, but watchfiles is missing."""

    exit_code = 2


def check() -> None:
    if importlib.util.find_spec("watchfiles") is None:
        raise ReloadUnavailable("--reload needs watchfiles: pip install 'celery_orchestration[up]'")


def source_directories(app: Celery) -> list[Path]:
    """The directories of the workers' code: the current one, and that of the app's module."""
    found = [Path.cwd()]
    module = sys.modules.get(app.main or "")
    file = getattr(module, "__file__", None)
    if file is not None:
        found.append(Path(file).resolve().parent)
    outermost = [one for one in found if not any(other in one.parents for other in found)]
    return list(dict.fromkeys(outermost))


class CodeWatcher(threading.Thread):
    """Calls `changed` on its own thread, once for changes that come together, with a text that names the files."""

    def __init__(self, directories: Sequence[Path], changed: Callable[[str], None]) -> None:
        super().__init__(name="code watcher", daemon=True)
        check()
        self._directories = directories
        self._changed = changed
        self._stopped = threading.Event()

    def run(self) -> None:
        import watchfiles  # noqa: PLC0415

        changes = watchfiles.watch(
            *self._directories,
            watch_filter=watchfiles.PythonFilter(),  # ignores .venv, .git, caches and the like
            stop_event=self._stopped,
            debounce=800,
            raise_interrupt=False,
        )
        for found in changes:
            self._changed(describe((path for _, path in found), self._directories))

    def stop(self) -> None:
        self._stopped.set()


def describe(paths: Iterable[str], directories: Sequence[Path]) -> str:
    """The changed files in a few words: ``shop/tasks.py, shop/app.py and 3 more``."""
    names = sorted({_short(Path(path), directories) for path in paths})
    shown, more = names[:NAMED], len(names) - NAMED
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _short(path: Path, directories: Sequence[Path]) -> str:
    for directory in directories:
        if path.is_relative_to(directory):
            return str(path.relative_to(directory))
    return str(path)
