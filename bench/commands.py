"""(g) Commands of operators, run from the shell, including the start of Python.

1,000 jobs, 200 workers and many waiting runs are added to the ledger by its own verbs, as in (c). Our commands are
compared with Celery's own on the same app, in the same rounds: ``--help``, which does nothing, and ``inspect ping``,
which one stock worker answers (and which waits a second for more answers).
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import time
from statistics import median
from typing import Any

from bench.crowd import JOBS, app, ring
from bench.ledger import PAIRS, Book
from bench.stage import Others, Stage
from celery_orchestration.job.task import jobs_of
from support.servers import RedisServer
from support.workers import celery_command, environment

WORKERS = 200
APP = "bench.crowd"
QUEUES = ("celery", "default.granted", "default.critical", "default.high", "default.normal", "default.low")
COMMANDS = {
    "help": ("--help",),
    "ping": ("inspect", "ping"),
    "status": ("orchestration", "status"),
    "json": ("orchestration", "status", "--json"),
    "filtered": ("orchestration", "status", "--job", ring(7)),
    "graph": ("orchestration", "graph"),
    "history": ("orchestration", "history", ring(0)),
}


def measure(stage: Stage) -> dict[str, Any]:
    waiting = stage.size.waiting[-1]
    with stage.redis() as server, stage.worker("plain", server.url(0)):
        stage.say(f"commands: adding {WORKERS} workers and {waiting} waiting runs")
        book = Book.open(server, 0, jobs_of(app))
        for number in range(WORKERS - 1):
            name = f"worker-{number:03}"
            one = dataclasses.replace(book.presence, worker=name, name=f"{name}@localhost", slots=4, queues=QUEUES)
            book.ledger.register(one)
        book.fill(waiting, PAIRS)
        book.close()
        _check(stage, server, waiting)
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
        others = Others()
        for number in range(stage.size.command_rounds):
            for name, arguments in COMMANDS.items():
                taken[name].append(_run(server, arguments))
            latest = ", ".join(f"{name} {runs[-1][0]:.2f}" for name, runs in taken.items())
            stage.say(f"commands {number + 1}/{stage.size.command_rounds}: s: {latest}")
    found = {name: _summary(COMMANDS[name], runs) for name, runs in taken.items()}
    return {"commands": found, "jobs": JOBS, "workers": WORKERS, "waiting": waiting, "others": others.share()}


def _check(stage: Stage, server: RedisServer, waiting: int) -> None:
    """Checks that the ledger is as it is to be measured."""
    text = subprocess.run(
        celery_command(APP, *COMMANDS["status"]), env=_env(server), capture_output=True, text=True, check=False
    ).stdout
    if not re.search(rf"^bench: {PAIRS} running, {waiting} waiting", text) or f"{WORKERS - 1} idle" not in text:
        stage.problem(f"not the status that is to be measured: {text[:500]}")


def _run(server: RedisServer, arguments: tuple[str, ...]) -> tuple[float, float]:
    """Seconds by the clock, and of processor time."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        celery_command(APP, *arguments), env=_env(server), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, _, used = os.wait4(process.pid, 0)
    process.returncode = 0  # it is over, and must not be waited for again
    return time.perf_counter() - begun, used.ru_utime + used.ru_stime


def _env(server: RedisServer) -> dict[str, str]:
    return {**environment(), "BENCH_BROKER": server.url(0), "COLUMNS": "80"}


def _summary(arguments: tuple[str, ...], runs: list[tuple[float, float]]) -> dict[str, Any]:
    walls, cpu = zip(*runs, strict=True)
    return {
        "title": "celery -A app " + " ".join(arguments),
        "seconds": median(walls),
        "worst": max(walls),
        "best": min(walls),
        "cpu": median(cpu),
    }
