"""(l) The dashboard: 1,000 jobs, 200 workers and many waiting runs, in real Chromium.

Measured are the time until the first page is shown, the browser time of an update, the share of a core that the server
takes with no open page and with ten, the time for a timeline of 10,000 runs and for ``/metrics``, and the longest time
for which any of this keeps Redis busy.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
import urllib.request
from collections.abc import Callable
from statistics import median
from typing import Any

import psutil

from bench.commands import APP, QUEUES, WORKERS, _env
from bench.crowd import ring
from bench.ledger import PAIRS, Book
from bench.stage import Stage
from celery_orchestration.job.task import jobs_of
from celery_orchestration.ledger import Arrival, Outcome
from celery_orchestration.ledger.keys import encode_job
from celery_orchestration.ledger.records import key_of
from support.processes import free_port
from support.servers import RedisServer
from support.workers import CeleryProcess, celery_command

#: The timeline: this many jobs, each with this many ended runs.
LANES, RUNS = 50, 200
PAGES, SECONDS = 10, 10
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]


def measure(stage: Stage) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    from bench.crowd import app  # noqa: PLC0415

    waiting = stage.size.waiting[-1]
    with stage.redis() as server:
        stage.say(f"dashboard: adding {WORKERS} workers and {waiting} waiting runs")
        book = Book.open(server, 0, jobs_of(app))
        for number in range(WORKERS - 1):
            name = f"worker-{number:03}"
            book.ledger.register(
                dataclasses.replace(book.presence, worker=name, name=f"{name}@localhost", slots=4, queues=QUEUES)
            )
        book.ledger.register(dataclasses.replace(book.presence, history=RUNS))
        _end_runs(book, server)
        book.fill(waiting, PAIRS)
        client = server.client()
        client.config_set("slowlog-log-slower-than", 1000)
        client.slowlog_reset()
        port = free_port()
        process = CeleryProcess(
            "dashboard",
            celery_command(APP, "orchestration", "dashboard", "--port", str(port)),
            directory=stage.directory,
            env=_env(server),
            ready_prompt="The dashboard is at",
        )
        try:
            process.start()
            process.wait_ready()
            address = f"http://127.0.0.1:{port}"
            found: dict[str, Any] = {"jobs": 1000, "workers": WORKERS, "waiting": waiting, "runs": LANES * RUNS}
            found["metrics_ms"] = _fetched(f"{address}/metrics", stage)
            found |= _reads(address, client)
            found["idle_share"] = _share(process.pid, SECONDS)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
                found |= _commands(browser, address, process.pid, stage, lambda: _change(book))
                browser.close()
        finally:
            process.cleanup()
            book.close()
    return found


def _reads(address: str, client: Any) -> dict[str, Any]:
    """The longest script of all pages, measured while no browser keeps the machine busy: Redis also counts the time for
    which it waits for a core."""
    client.slowlog_reset()
    for path in ("", "jobs", "timeline", "graph", "runs", "schedule", "letters", "workers", "audit"):
        with urllib.request.urlopen(f"{address}/{path}") as answer:
            answer.read()
    slow = [one for one in client.slowlog_get(1000) if one["command"].startswith((b"FCALL", b"EVAL"))]
    reads = [(one["duration"] / 1000, one["command"].split()[1].decode().partition("_")[0]) for one in slow]
    longest, verb = max(reads, default=(0.0, "none"))
    return {"redis_ms": longest, "redis_verb": verb}


def _end_runs(book: Book, server: RedisServer) -> None:
    """Runs that ended within the last hour: one of each job, recorded by the ledger's verbs, and copies of it."""
    client, now = server.client(), int(time.time() * 1000)
    # The first jobs have lanes in the timeline.
    shown = sorted(ring(3 * pair + side) for side in (0, 1) for pair in range(PAIRS))
    for lane in range(LANES):
        job = shown[lane]
        run = Arrival(**{**_fields(book), "id": f"ended-{lane}", "job": encode_job(job)})
        fence = book.turn(1, [], [run]).answers[0].fence
        book.turn(0, [Outcome(run.id, fence, "succeeded", "", "", 10)], [])
        past = {"attempt": 0, "outcome": "succeeded", "worker": "bench", "fence": "1", "recoveries": 0, "key": ""}
        past["waited_for"] = f"blocked {encode_job(job)}"
        records = [
            {**past, "id": f"e{lane}-{n}", "arrived": at, "started": at + 2000, "ended": at + 9000}
            for n in range(RUNS)
            for at in [now - n * 15_000]
        ]
        client.rpush(key_of(book.ledger.prefix, "history", encode_job(job)), *map(json.dumps, records))


def _fields(book: Book) -> dict[str, Any]:
    from bench.ledger import _arrival  # noqa: PLC0415

    return dataclasses.asdict(_arrival(ring(0)))


def _change(book: Book) -> None:
    """One run ends, and another one starts."""
    pair, run = next(iter(book.running.items()))
    del book.running[pair]
    book.turn(0, [Outcome(run.id, run.fence, "succeeded", "", "", 10)], [])


def _commands(browser: Any, address: str, pid: int, stage: Stage, change: Callable[[], None]) -> dict[str, Any]:
    firsts, updates = [], []
    for _ in range(3):
        page = browser.new_page()
        page.goto(f"{address}/")
        firsts.append(page.evaluate("() => performance.getEntriesByType('navigation')[0].loadEventEnd"))
        for _ in range(3):
            change()
            page.wait_for_timeout(2500)
            updates.append(float(page.evaluate("() => document.body.dataset.updateMs || 0")))
        page.close()
    page = browser.new_page()
    page.goto(f"{address}/timeline?span=1h")
    shapes = page.locator(".lane .span").count()
    timeline = page.evaluate("() => performance.getEntriesByType('navigation')[0].loadEventEnd")
    page.close()
    pages = [browser.new_page() for _ in range(PAGES)]
    for page in pages:
        page.goto(f"{address}/")
        page.wait_for_selector("body[data-updated]")
    share = _share(pid, SECONDS)
    stage.say(f"dashboard: first {median(firsts):.0f} ms, update {max(updates):.1f} ms, ten pages {share:.1%}")
    return {
        "first_ms": median(firsts),
        "update_ms": max(updates),
        "timeline_ms": timeline,
        "shapes": shapes,
        "ten_share": share,
    }


def _fetched(address: str, stage: Stage) -> float:
    taken = []
    for _ in range(5):
        begun = time.perf_counter()
        with urllib.request.urlopen(address) as answer:
            answer.read()
        taken.append(1000 * (time.perf_counter() - begun))
    stage.say(f"dashboard: {address.rpartition('/')[2]} {median(taken):.0f} ms")
    return median(taken)


def _share(pid: int, seconds: float) -> float:
    """The share of a core that the process takes, measured over some time."""
    process = psutil.Process(pid)
    before = sum(process.cpu_times()[:2])
    time.sleep(seconds)
    return (sum(process.cpu_times()[:2]) - before) / seconds
