"""(k) What is lost when workers are killed.

The queue is never empty, while workers are started and, after a random time, killed (SIGKILL, all their processes),
several at a time; two workers are left alone. Prefork, threads and solo are measured at default settings: a lease of 30
s, a sweep every 5 s, a ``visibility_timeout`` of an hour. With this package every second message is a job's, and the
others are plain tasks'; stock Celery gets plain tasks only. All tasks acknowledge late, which at-least-once delivery
needs.

Lost: the task had not run to its end when nothing had happened for a while; with this package, that while is longer
than a message takes to come back. Stuck (stock Celery): lost, but recorded in Redis, so that it comes back after the
``visibility_timeout``. Late: the task began more than a lease, a sweep and a second after it was sent, or after the
last kill of a worker that had it (in its store, or as a run in the ledger).
"""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from celery import Celery
from celery.utils import uuid

from bench.stage import Stage, client
from celery_orchestration.job.settings import Settings
from celery_orchestration.ledger.records import key_of
from celery_orchestration.node.stores import Names, Stores
from support.servers import RedisServer
from support.workers import WorkerProcess

VARIANTS = (("plain", "plain Celery"), ("killed", "with this package"))
POOLS = ("prefork", "threads", "solo")
#: Messages in the queue, workers that are killed at a time, and workers that are left alone, with their slots.
BACKLOG, AT_ONCE, SPARED = 20, 3, (2, 2)
#: The prefix of the stores: the namespace is the app's name.
NAMES = Names.of("bench")
#: The longest life of a worker after it is ready, in seconds.
LIFE = 1.5


@dataclass
class Message:
    sent: float
    begun: list[float] = field(default_factory=list)
    #: When workers that had it were killed.
    killed: list[float] = field(default_factory=list)
    ended: int = 0


def measure(stage: Stage) -> dict[str, Any]:
    results = {}
    for name, title in VARIANTS:
        results[name] = {"title": title, "pools": {pool: _kill(stage, name, pool) for pool in POOLS}}
    return results


def _kill(stage: Stage, name: str, pool: str) -> dict[str, Any]:
    kills = stage.size.kills
    trace = stage.directory / f"kills-{name}-{pool}.trace"
    with stage.redis() as server, client(server.url(0)) as app, redis.Redis.from_url(server.url(0)) as looking:
        spared = [_worker(stage, name, server, trace, slots=slots) for slots in SPARED]
        try:
            for worker in spared:
                worker.start()
            for worker in spared:
                worker.wait_ready(60)
            held: list[tuple[float, list[str]]] = []

            def life() -> None:
                hostname = _one_life(stage, name, server, trace, pool)
                held.append((time.monotonic(), _held_by(looking, hostname)))

            sent = _send_meanwhile(app, looking, name, life, kills)
            _wait(trace, looking, len(sent), back_after() + 30 if name == "killed" else 15)
        finally:
            for worker in spared:
                worker.cleanup()
        found = _summary(sent, held, trace, kills, int(looking.hlen("unacked")))
    stage.say(
        f"kills: {name:6} {pool:7} {kills} kills, {found['sent']} messages: {found['lost']} not run "
        f"({found['stuck']} of them for an hour), {found['late']} late; the latest after {found['latest']:.1f} s"
    )
    return found


def back_after() -> float:
    """Within this many seconds after a kill, every message is back."""
    settings = Settings()
    return settings.lease_seconds + settings.sweep_seconds + 1


def _worker(
    stage: Stage, name: str, server: RedisServer, trace: Path, pool: str = "prefork", slots: int = 4
) -> WorkerProcess:
    url = server.url(0)
    return WorkerProcess(
        "bench.apps",
        broker_url=url,
        backend_url="",
        directory=stage.directory,
        name=name,
        pool=pool,
        concurrency=slots,
        loglevel="INFO",
        env={"BENCH_APP": name, "BENCH_BROKER": url, "BENCH_TRACE": str(trace)},
    )


def _one_life(stage: Stage, name: str, server: RedisServer, trace: Path, pool: str) -> str:
    worker = _worker(stage, name, server, trace, pool)
    try:
        worker.start()
        worker.wait_ready(120)
        time.sleep(random.uniform(0, LIFE))
        worker.kill()
    finally:
        worker.cleanup()
    return worker.hostname


def _held_by(looking: redis.Redis, hostname: str) -> list[str]:
    """The task ids of the messages and runs that a dead worker still has; empty for stock Celery."""
    stores = Stores(looking, NAMES)
    messages = [
        message for store in stores.all() if store.name == hostname for message in looking.hvals(NAMES.store(store.id))
    ]
    worker = looking.hget(key_of("{bench}:", "worker_names"), hostname)
    runs = looking.smembers(key_of("{bench}:", "worker_runs", worker.decode())) if worker else set()
    return [*(json.loads(message)["headers"]["id"] for message in messages), *(run.decode() for run in runs)]


def _send_meanwhile(app: Celery, looking: redis.Redis, name: str, life: Any, kills: int) -> dict[str, float]:
    """Sends messages until all kills are done. Returns when each was sent, by its task id, in the order of indices."""
    tasks = ("bench.late", "bench.late_job") if name == "killed" else ("bench.late",)
    sent: dict[str, float] = {}
    with ThreadPoolExecutor(AT_ONCE) as lives, app.producer_or_acquire() as producer:
        going = [lives.submit(life) for _ in range(kills)]
        while not all(one.done() for one in going):
            for _ in range(BACKLOG - int(looking.llen("celery"))):
                index, id = len(sent), uuid()
                sent[id] = time.monotonic()
                app.send_task(tasks[index % len(tasks)], (index,), task_id=id, producer=producer, ignore_result=True)
            time.sleep(0.01)
        for one in going:
            one.result()
    return sent


def _wait(trace: Path, looking: redis.Redis, count: int, quiet: float) -> None:
    """Waits until all have run, or until nothing has happened for this many seconds."""
    ended, since = -1, time.monotonic()
    while time.monotonic() - since < quiet and ended < count:
        found = sum(message.ended > 0 for message in _read(trace, []).values())
        if found != ended or looking.llen("celery"):
            ended, since = found, time.monotonic()
        time.sleep(0.5)


def _read(trace: Path, sent: Iterable[float]) -> dict[int, Message]:
    found: dict[int, Message] = defaultdict(lambda: Message(0.0), {index: Message(at) for index, at in enumerate(sent)})
    for line in trace.read_text().splitlines() if trace.exists() else ():
        what, index, at = line.split()
        if what == "began":
            found[int(index)].begun.append(int(at) / 1e9)
        else:
            found[int(index)].ended += 1
    return found


def _summary(
    sent: dict[str, float], held: list[tuple[float, list[str]]], trace: Path, kills: int, unacked: int
) -> dict[str, Any]:
    by_index = _read(trace, sent.values())
    index_of = {id: index for index, id in enumerate(sent)}
    for at, ids in held:
        for id in ids:
            by_index[index_of[id]].killed.append(at)
    messages = list(by_index.values())
    lost = [one for one in messages if not one.ended]
    waits = [_wait_of(one) for one in messages if one.ended]
    return {
        "kills": kills,
        "sent": len(sent),
        "lost": len(lost),
        "stuck": min(unacked, len(lost)),
        "late": sum(seconds > back_after() for seconds in waits),
        "latest": max(waits, default=0.0),
    }


def _wait_of(message: Message) -> float:
    """The time until its last begin, since it was sent or since the last kill of a worker that had it."""
    began = message.begun[-1]
    return began - max([message.sent, *(at for at in message.killed if at < began)])
