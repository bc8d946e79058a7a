"""Sends jobs to the image service, shows their progress, and says at the end how many were lost or ran twice.

    python -m examples.image_service.load --jobs 50000

It plays the world that the jobs talk to (``world.py``), too. It ends with 1 if a job was lost.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from celery_orchestration import Orchestration
from examples.image_service.app import app
from examples.image_service.jobs import counts_of, export, invoice, mail, store, thumbnail, webhook

#: How many of a hundred jobs are of each kind.
MIX = {thumbnail: 30, webhook: 35, mail: 25, invoice: 9, export: 1}
#: How many messages are sent between two updates of the bar.
CHUNK = 100
LOOK_SECONDS = 0.5

console = Console()


@dataclass
class Load:
    """Jobs that were sent together: how many of each kind, and how many have ended."""

    id: str
    sent: Counter[str] = field(default_factory=Counter)

    def done(self) -> int:
        return int(store().hlen(counts_of(self.id)))  # type: ignore[arg-type]

    def counts(self) -> dict[str, int]:
        """How often each job ended."""
        found: Any = store().hgetall(counts_of(self.id))
        return {name.decode(): int(times) for name, times in found.items()}


@dataclass(frozen=True)
class Account:
    """The result of a load."""

    sent: int
    lost: int
    twice: int
    seconds: float

    def __str__(self) -> str:
        drained = self.sent - self.lost
        rate = drained / self.seconds if self.seconds else 0.0
        ended = f"{drained:,} of {self.sent:,} jobs drained in {self.seconds:.0f} s ({rate:.0f}/s)"
        return f"{ended}, {self.lost:,} lost, {self.twice:,} twice"


def planned(jobs: int, seed: int) -> Iterator[Any]:
    """The kind of each job, in the same order for the same seed."""
    kinds, weights = list(MIX), list(MIX.values())
    yield from random.Random(seed).choices(kinds, weights, k=jobs)


def account(sent: Mapping[str, int], counts: Mapping[str, int], seconds: float) -> Account:
    expected = {f"{kind} {number}" for kind, many in sent.items() for number in range(many)}
    lost = sum(name not in counts for name in expected)
    return Account(len(expected), lost, sum(times > 1 for times in counts.values()), seconds)


def send(load: Load, jobs: int, seed: int, progress: Progress) -> None:
    bar = progress.add_task("sent", total=jobs)
    with app.producer_or_acquire() as producer:
        for index, job in enumerate(planned(jobs, seed), 1):
            kind = job.name.rpartition(".")[2]
            job.apply_async((load.id, load.sent[kind]), producer=producer)
            load.sent[kind] += 1
            if index % CHUNK == 0 or index == jobs:
                progress.update(bar, completed=index)


def watch(load: Load, jobs: int, progress: Progress, patience: float) -> None:
    """Waits until all jobs are done, or until none has ended for a while."""
    bar, orchestration = progress.add_task("done", total=jobs), Orchestration(app)
    done, since = 0, time.monotonic()
    try:
        while done < jobs and time.monotonic() - since < patience:
            if (now := load.done()) != done:
                done, since = now, time.monotonic()
            workers = workers_by_pool(orchestration)
            progress.update(bar, completed=done, description=f"done (workers: {workers or 'none'})")
            time.sleep(LOOK_SECONDS)
    finally:
        orchestration.close()


def workers_by_pool(orchestration: Orchestration) -> str:
    queues = [queue for worker in orchestration.status(depths=False).workers for queue in worker.queues]
    pools = Counter(queue.removesuffix(".granted") for queue in queues if queue.endswith(".granted"))
    return ", ".join(f"{pool} {many}" for pool, many in sorted(pools.items()))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.image_service.load", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--patience", type=float, default=60, help="give up after this many seconds without progress")
    given = parser.parse_args()
    load = Load(uuid.uuid4().hex[:8])
    world = [sys.executable, "-m", "examples.image_service.world"]
    with subprocess.Popen(world, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as outside:
        assert outside.stdout is not None
        if outside.stdout.readline() != "ready\n":
            console.print("The mail server or the web server could not be started: see above.")
            return 1
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TaskProgressColumn())
        begun = time.monotonic()
        with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
            send(load, given.jobs, given.seed, progress)
            watch(load, given.jobs, progress, given.patience)
        seconds = time.monotonic() - begun
        received = json.loads(outside.communicate("")[0])
    found = account(load.sent, load.counts(), seconds)
    store().delete(counts_of(load.id))
    console.print(str(found))
    for kind, each in sorted(received.get(load.id, {}).items()):
        console.print(f"the world outside got {each['came']:,} times {kind}, {each['different']:,} different ones")
    return 1 if found.lost else 0


if __name__ == "__main__":
    sys.exit(main())
