"""(b) Runs of 10 ms that must not overlap, on two workers with two slots each.

Each run records when it began and ended, by the machine's monotonic clock and inside the protected section. The figure
is the time from the first begin to the last end, divided by the number of runs; the floor is 10 ms. All messages are
put into the queue at once, while both workers are ready and warm. In a separate pass plain tasks are sent at the same
time: the time until they begin shows whether waiting runs occupy slots.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import redis
from celery import Celery

from bench.apps import PROBE, RUN_SECONDS
from bench.stage import PATIENCE, Depth, Others, Stage, client
from support.servers import RedisServer

#: Seconds between two plain tasks that are sent.
IDLE_PROBES = 100
PROBE_EVERY = 0.05
STAGING_DB = 15


@dataclass(frozen=True)
class Variant:
    name: str
    app: str
    task: str
    db: int
    title: str


VARIANTS = (
    Variant("ours", "exclusive", "bench.alone", 0, "job with max_running=1"),
    Variant("blocking", "recipes", "bench.blocking", 1, "recipe: block on a Redis lock in the slot"),
    Variant("retrying", "recipes", "bench.retrying", 1, "recipe: Redis lock, else retry(countdown=1)"),
)


@dataclass
class Site:
    """Two workers of one app, and the file that their runs write."""

    app: str
    db: int
    url: str
    trace: Path
    depth: Depth
    hosts: list[str]

    def lines(self, batch: str) -> list[tuple[int, ...]]:
        """Begin, end and index of each run; for probes, when each was sent and when it began."""
        if not self.trace.exists():
            return []
        found = (line.split() for line in self.trace.read_text().splitlines())
        return [tuple(map(int, parts[1:])) for parts in found if parts[0] == batch]

    def wait_for(self, batch: str, count: int, doing: Any = None) -> list[tuple[int, ...]]:
        seen, progress = 0, time.monotonic()
        while len(lines := self.lines(batch)) < count:
            if len(lines) > seen:
                seen, progress = len(lines), time.monotonic()
            if time.monotonic() - progress > PATIENCE:
                raise RuntimeError(f"{batch}: only {len(lines)} of {count} runs within {PATIENCE:.0f} s")
            if doing:
                doing()
            else:
                time.sleep(0.1)
        return lines


def measure(stage: Stage) -> dict[str, Any]:
    results: dict[str, Any] = {v.name: {"title": v.title, "rounds": []} for v in VARIANTS}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(stage.redis())
        stage.say("exclusive: starting two workers with the extension, two without")
        sites = {app: _open(stack, stage, server, app, db) for app, db in (("exclusive", 0), ("recipes", 1))}
        staging = stack.enter_context(client(server.url(STAGING_DB)))
        for site in sites.values():
            _wait_ready(site)
        idle = {app: _probes_on_idle(site) for app, site in sites.items()}
        others = Others()
        for number in range(stage.size.rounds):
            order = VARIANTS if number % 2 == 0 else tuple(reversed(VARIANTS))
            for variant in order:
                batch = f"{variant.name}-{number}"
                runs = _one(server, staging, sites[variant.app], variant, batch, stage.size.exclusive_runs)
                figures = _figures(runs)
                if figures["overlaps"]:
                    stage.problem(f"{batch}: {figures['overlaps']} runs began while another one ran")
                if figures["again"]:
                    stage.problem(f"{batch}: {figures['again']} runs were run more than once")
                results[variant.name]["rounds"].append(figures)
                stage.say(f"exclusive {number + 1}/{stage.size.rounds}: {variant.name:9} {figures['ms']:6.2f} ms a run")
        busy = others.share()
        for variant in VARIANTS:
            latencies = _with_probes(server, staging, sites[variant.app], variant, stage.size.exclusive_runs)
            results[variant.name] |= {
                "probe_ms": median(latencies),
                "probe_worst_ms": max(latencies),
                "probes": len(latencies),
                "probe_idle_ms": idle[variant.app],
                "others": busy,
            }
            stage.say(
                f"exclusive: plain tasks beside {variant.name:9} begin after {median(latencies):.1f} ms "
                f"(idle workers: {idle[variant.app]:.1f} ms)"
            )
    return _summary(results)


def _open(stack: contextlib.ExitStack, stage: Stage, server: RedisServer, app: str, db: int) -> Site:
    trace = stage.directory / f"{app}.trace"
    url = server.url(db)
    hosts = [stack.enter_context(stage.worker(app, url, BENCH_TRACE=str(trace))).hostname for _ in range(2)]
    depth = stack.enter_context(contextlib.closing(Depth(server.port, db)))
    return Site(app, db, url, trace, depth, hosts)


def _wait_ready(site: Site) -> None:
    """Both workers answer, and every slot has run something."""
    deadline = time.monotonic() + PATIENCE
    with client(site.url) as app:
        while len(app.control.inspect(destination=site.hosts, timeout=2).ping() or {}) < 2:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the workers of {site.app} are not ready")
        for _ in range(40):
            app.send_task(PROBE, ("warm", 0))
    site.wait_for("warm", 40)


def _one(
    server: RedisServer, staging: Celery, site: Site, variant: Variant, batch: str, count: int
) -> list[tuple[int, ...]]:
    _send(server, staging, site, variant, batch, count)
    site.wait_for(batch, count)
    _wait_quiet(site)
    return site.lines(batch)


def _send(server: RedisServer, staging: Celery, site: Site, variant: Variant, batch: str, count: int) -> None:
    """All messages at once: they are made in another database, and then pushed by one command."""
    with (
        redis.Redis.from_url(server.url(STAGING_DB)) as made,
        redis.Redis.from_url(site.url) as queue,
        staging.producer_or_acquire() as producer,
    ):
        made.delete("celery")
        for index in range(count):
            staging.send_task(variant.task, (batch, index), producer=producer, ignore_result=True)
        queue.rpush("celery", *made.lrange("celery", 0, -1))


def _wait_quiet(site: Site) -> None:
    """No run is under way any more, not even a run that should not exist."""
    while site.depth.read():
        time.sleep(0.02)
    time.sleep(10 * RUN_SECONDS)


def _figures(runs: list[tuple[int, ...]]) -> dict[str, Any]:
    runs = sorted(runs)
    overlaps, last = 0, runs[0][0]
    for start, end, _ in runs:
        overlaps += start < last
        last = max(last, end)
    span = last - runs[0][0]
    return {
        "ms": span / len(runs) / 1e6,
        "runs": len(runs),
        "overlaps": overlaps,
        "again": len(runs) - len({index for _, _, index in runs}),
        "longest_gap_ms": max((b[0] - a[1] for a, b in pairwise(runs)), default=0) / 1e6,
        "run_ms": median(end - start for start, end, _ in runs) / 1e6,
    }


def _probes_on_idle(site: Site) -> float:
    with client(site.url) as app:
        for _ in range(IDLE_PROBES):
            _probe(app, "idle")
    return median(_latencies(site, "idle", IDLE_PROBES))


def _with_probes(server: RedisServer, staging: Celery, site: Site, variant: Variant, count: int) -> list[float]:
    batch, beside, sent = f"{variant.name}-probed", f"{variant.name}-beside", 0
    _send(server, staging, site, variant, batch, count)
    with client(site.url) as app:

        def doing() -> None:
            nonlocal sent
            sent += 1
            _probe(app, beside)

        site.wait_for(batch, count, doing)
    latencies = _latencies(site, beside, sent)
    _wait_quiet(site)
    return latencies


def _probe(app: Celery, batch: str) -> None:
    app.send_task(PROBE, (batch, time.monotonic_ns()), ignore_result=True)
    time.sleep(PROBE_EVERY)


def _latencies(site: Site, batch: str, count: int) -> list[float]:
    return [(start - sent) / 1e6 for sent, start in site.wait_for(batch, count)]


def _summary(results: dict[str, Any]) -> dict[str, Any]:
    blocking = [one["ms"] for one in results["blocking"]["rounds"]]
    for result in results.values():
        own = [one["ms"] for one in result["rounds"]]
        result["ms"], result["ms_low"], result["ms_high"] = median(own), min(own), max(own)
        result["of_floor"] = median(own) / (RUN_SECONDS * 1000)
        result["of_blocking"] = median(mine / other for mine, other in zip(own, blocking, strict=True))
        result["overlaps"] = sum(one["overlaps"] for one in result["rounds"])
        result["again"] = sum(one["again"] for one in result["rounds"])
    return results
