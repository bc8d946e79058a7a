"""(h) Pools: scaling, isolation, deaths of workers and supervisors, and the cost of an idle supervisor.

- **scale**: jobs of 5 ms arrive all at once at a pool of min 1, max 4; and, in the same run, at four workers that were
  started before. The figure is the time from their arrival until the last one is done.
- **apart**: quick jobs in a pool of their own, first alone, then while another pool has a backlog of jobs that keep all
  processors busy; and the same on one shared worker of stock Celery.
- **kills**: two supervisors under load. A worker is killed every 3 s and a supervisor every 20 s (and started again).
  At the end one supervisor is killed for good, and the other one takes its places.
- **idle**: a supervisor with ten pools of one worker each and nothing to do.

This file is long because its measurements share a stage that takes long to build.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import redis

from bench.stage import PATIENCE, Others, Stage, client, cpu_seconds
from celery_orchestration import Orchestration
from celery_orchestration.job.settings import Settings
from celery_orchestration.worker.supervised import PLACE
from support.servers import RedisServer
from support.workers import CeleryProcess, celery_command

APP = "bench.pool_apps"
MOST, SLOTS = 4, 2
#: Messages that a killed worker may have fetched, and seconds between kills.
BACKLOG, WORKER_EVERY, SUPERVISOR_EVERY, GONE = 2000, 3.0, 20.0, 2.0
QUICK_EVERY = 0.03
IDLE_POOLS = 10
SHORT: dict[str, Any] = {"min": 1, "max": MOST, "concurrency": SLOTS}


def measure(stage: Stage) -> dict[str, Any]:
    return {"scale": _scale(stage), "apart": _apart(stage), "kills": _kills(stage), "idle": _idle(stage)}


class Site:
    """A Redis, the table of pools of its app, supervisors and workers. All of them end with the block."""

    def __init__(self, stage: Stage, server: RedisServer, name: str, table: dict[str, Any]) -> None:
        self.stage, self.server, self.name = stage, server, name
        self.trace = stage.directory / f"pools-{name}.trace"
        self.env = {"BENCH_BROKER": server.url(0), "BENCH_TRACE": str(self.trace), "BENCH_POOLS": json.dumps(table)}
        self.redis = redis.Redis.from_url(server.url(0))
        self._processes: list[CeleryProcess] = []
        self._app: Any = None

    def supervisor(self, name: str = "one") -> CeleryProcess:
        state = str(self.stage.directory / f"state-{self.name}-{name}")
        command = celery_command(APP, "orchestration", "pools", "--name", name, "--state", state, "-l", "WARNING")
        return self._process(f"{self.name}-{name}", command)

    def worker(self, number: int, *options: str) -> CeleryProcess:
        name = f"{self.name}-{number}@bench"
        command = celery_command(APP, "worker", "-n", name, "-P", "prefork", "-l", "INFO", *options)
        process = self._process(f"{self.name}-worker-{number}", command)
        process.ready_prompt = f"{name} ready."
        return process

    def _process(self, name: str, command: list[str]) -> CeleryProcess:
        process = CeleryProcess(name, command, directory=self.stage.directory, env=self.env)
        self._processes.append(process)
        return process

    def orchestration(self) -> Orchestration:
        return Orchestration(self.app)

    @property
    def app(self) -> Any:
        if self._app is None:
            from celery import Celery  # noqa: PLC0415

            self._app = Celery("bench-pools", broker=self.server.url(0), set_as_current=False)
        return self._app

    def live(self, orchestration: Orchestration, pool: str = "") -> int:
        """The workers of a pool, or of all pools, that take runs."""
        workers = orchestration.status(depths=False).workers
        prefix = f"{pool}-" if pool else ""
        return sum(one.name.startswith(prefix) and one.state in ("idle", "busy") for one in workers)

    def counts(self) -> Counter[str]:
        """How often each short job ran to its end."""
        if not self.trace.exists():
            return Counter()
        return Counter(line.split()[1] for line in self.trace.read_text().splitlines() if line.startswith("short "))

    def close(self) -> None:
        for process in self._processes:
            process.cleanup()
        for process in _workers_of(self.server.url(0)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.redis.close()
        if self._app is not None:
            self._app.close()


@contextlib.contextmanager
def site(stage: Stage, name: str, table: dict[str, Any]) -> Iterator[Site]:
    with stage.redis() as server:
        found = Site(stage, server, name, table)
        try:
            yield found
        finally:
            found.close()


def _workers_of(url: str) -> list[psutil.Process]:
    """The main processes of workers on places: a supervisor's workers are in process groups of their own."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environ = process.environ()
            is_main = PLACE in environ and process.pid == os.getpgid(process.pid)
            if is_main and environ.get("BENCH_BROKER") == url and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _until(what: str, condition: Callable[[], Any], seconds: float = PATIENCE, every: float = 0.05) -> float:
    """Returns how long it took."""
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > seconds:
            raise RuntimeError(f"pools: not within {seconds:g} s: {what}")
        time.sleep(every)
    return time.monotonic() - begun


# -- scale


def _scale(stage: Stage) -> dict[str, Any]:
    jobs, quiet = stage.size.pool_jobs, stage.size.pool_quiet_seconds
    table = {"short": {**SHORT, "quiet_seconds": quiet}}
    with site(stage, "scale", table) as where:
        queue = "short.normal"
        with client(where.server.url(1)) as app, app.producer_or_acquire() as producer:
            for index in range(jobs):
                app.send_task("bench.short", (index,), producer=producer, ignore_result=True, queue=queue)
        others = Others()
        fixed = _fixed(where, jobs, queue)
        stage.say(f"pools: scale: {MOST} fixed workers: {jobs / fixed:.0f} jobs/s")
        where.trace.unlink()
        where.redis.flushdb()  # the ledger knows these messages, and would drop them as copies
        found = _scaled(where, jobs, queue)
        stage.say(
            f"pools: scale: min 1, max {MOST}: {jobs / found['seconds']:.0f} jobs/s, at max after "
            f"{found['at_max']:.1f} s, at min {found['at_min']:.1f} s after the end"
        )
        ran = where.counts()
        return {
            **found,
            "jobs": jobs,
            "quiet_seconds": quiet,
            "fixed_seconds": fixed,
            "ratio": fixed / found["seconds"],
            "lost": jobs - len(ran),
            "twice": sum(times > 1 for times in ran.values()),
            "others": others.share(),
        }


def _arrive(where: Site, queue: str) -> None:
    """Queues all messages at once: they were made in another database."""
    with redis.Redis.from_url(where.server.url(1)) as source:
        source.copy(queue, queue, destination_db=0)


def _drained(where: Site, jobs: int, queue: str) -> float:
    begun = time.monotonic()
    _until("the queue is empty", lambda: not where.redis.llen(queue), PATIENCE + jobs / 50, 0.02)
    _until("all jobs are done", lambda: len(where.counts()) >= jobs, PATIENCE, 0.1)
    return time.monotonic() - begun


def _fixed(where: Site, jobs: int, queue: str) -> float:
    workers = [where.worker(number, "-c", str(SLOTS), "-Q", queue) for number in range(MOST)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.wait_ready()
    _arrive(where, queue)
    seconds = _drained(where, jobs, queue)
    for worker in workers:
        worker.stop()
    return seconds


def _scaled(where: Site, jobs: int, queue: str) -> dict[str, float]:
    orchestration = where.orchestration()
    where.supervisor().start()
    _until("one worker is there", lambda: where.live(orchestration, "short") == 1)
    times: dict[str, float] = {}

    def wait_for_max() -> None:
        times["at_max"] = _until("it is at max", lambda: where.live(orchestration, "short") == MOST, every=0.1)

    _arrive(where, queue)
    watcher = threading.Thread(target=wait_for_max, daemon=True)
    watcher.start()
    seconds = _drained(where, jobs, queue)
    watcher.join(1)
    quiet = where.stage.size.pool_quiet_seconds
    at_min = _until("it is at min", lambda: where.live(orchestration, "short") == 1, quiet + PATIENCE, 0.2)
    orchestration.close()
    return {"seconds": seconds, "at_max": times.get("at_max", float("inf")), "at_min": at_min}


# -- apart


def _apart(stage: Stage) -> dict[str, Any]:
    table = {
        "quick": {"min": 1, "max": 1, "kind": "threads", "concurrency": 4},
        "heavy": {"min": 2, "max": MOST, "nice": 19},
    }
    with site(stage, "apart", table) as where:
        where.supervisor().start()
        orchestration = where.orchestration()
        _until("workers are there", lambda: where.live(orchestration, "quick") and where.live(orchestration, "heavy"))
        alone = _waits(where, "alone", "quick.normal")
        _send_heavy(where, "heavy.normal")
        _until("it is at max", lambda: where.live(orchestration, "heavy") == MOST)
        orchestration.close()
        others = Others()
        beside = _waits(where, "beside", "quick.normal")
        share = others.share()
        left = int(where.redis.llen("heavy.normal"))
    with site(stage, "shared", {}) as where:
        worker = where.worker(1, "-c", str(MOST + 1))
        worker.start()
        worker.wait_ready()
        _waits(where, "alone", "celery")
        _send_heavy(where, "celery")
        shared = _waits(where, "beside", "celery")
    stage.say(
        f"pools: apart: p99 wait of a quick job {alone['p99']:.1f} ms alone, {beside['p99']:.1f} ms beside heavy ones; "
        f"on one shared worker {'over ' if shared['unfinished'] else ''}{shared['p99']:.0f} ms"
    )
    if not left:
        stage.problem("pools: apart: the heavy jobs were over before the quick ones")
    return {"alone": alone, "beside": beside, "shared": shared, "heavy": stage.size.pool_heavy, "others": share}


def _send_heavy(where: Site, queue: str) -> None:
    with client(where.server.url(0)) as app, app.producer_or_acquire() as producer:
        for index in range(where.stage.size.pool_heavy):
            app.send_task("bench.heavy", (index,), producer=producer, ignore_result=True, queue=queue)


def _waits(where: Site, batch: str, queue: str) -> dict[str, Any]:
    """How long quick jobs wait, in ms. A job that has not begun after the time limit counts as that long."""
    count, patience = where.stage.size.pool_quick, where.stage.size.pool_patience
    with client(where.server.url(0)) as app, app.producer_or_acquire() as producer:
        for _ in range(count):
            arguments = (batch, time.monotonic_ns())
            app.send_task("bench.quick", arguments, producer=producer, ignore_result=True, queue=queue)
            time.sleep(QUICK_EVERY)
    deadline = time.monotonic() + patience
    while len(found := _read_waits(where.trace, batch)) < count and time.monotonic() < deadline:
        time.sleep(0.1)
    waits = sorted([*found, *[patience * 1000] * (count - len(found))])
    return {"median": median(waits), "p99": waits[int(0.99 * len(waits))], "unfinished": count - len(found)}


def _read_waits(trace: Path, batch: str) -> list[float]:
    lines = [line.split() for line in trace.read_text().splitlines()] if trace.exists() else []
    return [(int(began) - int(sent)) / 1e6 for name, sent, began in (one for one in lines if one[0] == batch)]


# -- kills


def _kills(stage: Stage) -> dict[str, Any]:
    seconds, lease = stage.size.pool_kill_seconds, Settings().lease_seconds
    table = {"short": {**SHORT, "min": MOST}}
    killed: Counter[str] = Counter()
    with site(stage, "kills", table) as where:
        supervisors = [where.supervisor(name) for name in ("one", "two")]
        for one in supervisors:
            one.start()
        orchestration = where.orchestration()
        _until("full strength", lambda: where.live(orchestration, "short") == MOST)
        ended, sent, twice_held = threading.Event(), [0], [0]
        sender = threading.Thread(target=_keep_sending, args=(where, ended, sent), daemon=True)
        watcher = threading.Thread(target=_look_for_twice, args=(where, ended, twice_held), daemon=True)
        sender.start()
        watcher.start()
        _break(where, supervisors, seconds, killed)
        again = _until("full strength", lambda: _is_full(where, orchestration), lease + PATIENCE)
        held = Counter(process.ppid() for process in _workers_of(where.server.url(0)))
        max(supervisors, key=lambda one: held[one.pid]).kill(whole=False)
        killed["supervisors"] += 1
        over = _until("its workers are gone", lambda: not _is_full(where, orchestration), lease)
        over += _until("the other one has all places", lambda: _is_full(where, orchestration), lease + PATIENCE)
        ended.set()
        sender.join()
        watcher.join()
        _until("all jobs are done", lambda: len(where.counts()) >= sent[0], lease + PATIENCE, 1.0)
        ran = where.counts()
        dead = len(orchestration.dead_letters())
        orchestration.close()
    stage.say(
        f"pools: kills: {killed['workers']} workers and {killed['supervisors']} supervisors killed, {sent[0]} jobs: "
        f"{sent[0] - len(ran)} lost; full strength {again:.1f} s after the last kill, {over:.1f} s after one was gone"
    )
    return {
        "seconds": seconds,
        "workers": killed["workers"],
        "supervisors": killed["supervisors"],
        "sent": sent[0],
        "lost": sent[0] - len(ran) - dead,
        "again": sum(times > 1 for times in ran.values()),
        "dead": dead,
        "twice_held": twice_held[0],
        "full_after": again,
        "taken_over_after": over,
        "lease": lease,
    }


def _is_full(where: Site, orchestration: Orchestration) -> bool:
    return where.live(orchestration, "short") == MOST and len(_workers_of(where.server.url(0))) == MOST


def _keep_sending(where: Site, ended: threading.Event, sent: list[int]) -> None:
    with client(where.server.url(0)) as app, app.producer_or_acquire() as producer:
        while not ended.wait(0.05):
            for _ in range(max(0, BACKLOG - int(where.redis.llen("short.normal")))):
                app.send_task("bench.short", (sent[0],), producer=producer, ignore_result=True, queue="short.normal")
                sent[0] += 1
                if ended.is_set():
                    return


def _look_for_twice(where: Site, ended: threading.Event, found: list[int]) -> None:
    """Places that the ledger has given to two workers, by the environments of the workers: the fences differ, and both
    workers are there for longer than a worker takes to drain."""
    seen: dict[str, float] = {}
    while not ended.wait(0.5):
        places = Counter()
        for process in _workers_of(where.server.url(0)):
            with contextlib.suppress(psutil.Error):
                places[process.environ()[PLACE].rpartition(":")[0]] += 1
        now = time.monotonic()
        seen = {place: seen.get(place, now) for place, many in places.items() if many > 1}
        for place in [place for place, since in seen.items() if now - since > 10]:
            found[0] += 1
            seen[place] = now


def _break(where: Site, supervisors: list[CeleryProcess], seconds: float, killed: Counter[str]) -> None:
    chance = random.Random(7)
    begun = time.monotonic()
    worker_at, supervisor_at = begun + WORKER_EVERY, begun + SUPERVISOR_EVERY / 2
    back: list[tuple[float, CeleryProcess]] = []
    while (now := time.monotonic()) < begun + seconds:
        if now >= worker_at:
            worker_at += WORKER_EVERY
            if workers := _workers_of(where.server.url(0)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(workers).pid, signal.SIGKILL)
                    killed["workers"] += 1
        if now >= supervisor_at:
            supervisor_at += SUPERVISOR_EVERY
            victim = chance.choice(supervisors)
            victim.kill(whole=False)
            killed["supervisors"] += 1
            back.append((now + GONE, victim))
        for at, one in list(back):
            if now >= at:
                back.remove((at, one))
                one.start()
        time.sleep(0.05)
    for _, one in back:
        one.start()


# -- idle


def _idle(stage: Stage) -> dict[str, Any]:
    table = {f"pool{number}": {"min": 1, "max": 1, "kind": "solo"} for number in range(IDLE_POOLS)}
    with site(stage, "idle", table) as where:
        supervisor = where.supervisor()
        supervisor.start()
        orchestration = where.orchestration()
        _until("workers are there", lambda: where.live(orchestration) == IDLE_POOLS, every=0.5)
        orchestration.close()
        time.sleep(3)
        seconds = stage.size.idle_seconds * 2
        used = cpu_seconds(supervisor.pid)
        time.sleep(seconds)
        share = (cpu_seconds(supervisor.pid) - used) / seconds
    stage.say(f"pools: idle: a supervisor with {IDLE_POOLS} pools takes {share:.2%} of a core")
    return {"pools": IDLE_POOLS, "share": share}
