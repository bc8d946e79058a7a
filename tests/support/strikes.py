"""Faults at a given step: a process kills or stops itself at the n-th call of a method.

``TEST_STRIKE="celery_orchestration.ledger:Ledger.dispatch after 1 SIGKILL"`` in the environment of a process whose app
calls :func:`install`.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import threading
from typing import Any


def install(what: str) -> None:
    where, when, nth, number = what.split()
    module, _, path = where.partition(":")
    owner_name, _, name = path.partition(".")
    owner = getattr(importlib.import_module(module), owner_name)
    original = getattr(owner, name)
    calls = 0
    lock = threading.Lock()

    def count() -> None:
        nonlocal calls
        with lock:
            calls += 1
            struck = calls == int(nth)
        if struck:
            print(f"struck: {what}", flush=True)
            os.kill(os.getpid(), signal.Signals[number])

    @functools.wraps(original)
    def striking(*args: Any, **kwargs: Any) -> Any:
        if when == "before":
            count()
        result = original(*args, **kwargs)
        # A call that returns nothing is no step.
        if when == "after" and result != []:
            count()
        return result

    setattr(owner, name, striking)
