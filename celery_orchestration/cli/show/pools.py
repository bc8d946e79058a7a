"""Pools: how many workers each has and why, and what these do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import IO

from rich.console import Group
from rich.text import Text

from celery_orchestration.cli.show.base import ago, console_to, hanging, many, plain, print_to, state
from celery_orchestration.cli.show.grid import Column, grid, short, wrapped
from celery_orchestration.operate.clock import lasting
from celery_orchestration.operate.pools.models import PoolsStatus, PoolStatus, PoolWorker, ScalingChange

COLUMNS = (
    Column("pool"),
    Column("workers"),
    Column("min-max", goes=6),
    Column("slots", goes=5, right=True),
    Column("ready", right=True),
    Column("oldest", goes=1, right=True),
    Column("drained in", goes=2, right=True),
    Column("done", goes=3, right=True),
    Column("failed", goes=7, right=True),
    Column("dead letters", goes=8, right=True),
    Column("backlog", goes=4),
)
_WORKER_COLUMNS = (
    Column("worker", cut="right"),
    Column("state"),
    Column("runs", right=True),
    Column("done", goes=2, right=True),
    Column("failed", goes=3, right=True),
    Column("memory", goes=4, right=True),
    Column("up for", goes=5, right=True),
    Column("restarts", goes=6, right=True),
    Column("supervisor", goes=7, cut="right"),
)
#: Width of a bar; number of changes that are shown.
BAR, MOST_CHANGES = 16, 10


def print_pool(pool: PoolStatus, at: datetime, file: IO[str]) -> None:
    """Explains the number of workers of a pool."""
    width = console_to(file).width
    print_to(Group(*pool_lines(pool, at, width)), file)


def pool_lines(pool: PoolStatus, at: datetime, width: int) -> list[Text]:
    summary = f"pool {pool.name} should have {many(pool.wanted, 'worker')} and has {pool.live}: {pool.reason}"
    lines = hanging(plain(summary, "bold"), width, 0)
    lines += [line for one in pool.problems for line in hanging(plain(f"! {one}", "bold red"), width, 2)]
    lines += [Text(), *pool_grid([pool], width)]
    if pool.workers:
        lines += [Text(), *worker_grid(pool.workers, width)]
    if pool.changes:
        lines += [Text(), *changes_lines(pool.changes[:MOST_CHANGES], at, width)]
    return lines


def pool_grid(pools: Sequence[PoolStatus], width: int, peaks: dict[str, int] | None = None) -> list[Text]:
    return grid(COLUMNS, [pool_row(pool, peaks or {}) for pool in pools], width)


def pool_row(pool: PoolStatus, peaks: dict[str, int]) -> Sequence[Text]:
    style = "" if pool.live == pool.wanted else "yellow"
    drained = "" if not pool.ready or pool.drain_seconds is None else lasting(pool.drain_seconds)
    return (
        plain(pool.name),
        Text(f"{pool.live}/{pool.wanted}", style),
        Text(f"{pool.min}-{pool.max}"),
        Text(f"{pool.busy_slots}/{pool.slots}"),
        Text("?" if pool.ready is None else str(pool.ready)),
        Text(lasting(pool.oldest_wait_seconds) if pool.ready else ""),
        Text(drained),
        Text(str(pool.done)),
        Text(str(pool.failed or ""), "red"),
        Text(str(pool.dead_letters or ""), "red"),
        Text(_bar(pool.ready or 0, peaks.get(pool.name, 0)), "green"),
    )


def _bar(ready: int, peak: int) -> str:
    """The share of a backlog that is done."""
    if not peak or ready >= peak:
        return ""
    share = 1 - ready / peak
    full = int(share * BAR)
    return f"{100 * share:3.0f} % {'█' * full}{'░' * (BAR - full)}"


def worker_grid(workers: Sequence[PoolWorker], width: int) -> list[Text]:
    return grid(_WORKER_COLUMNS, [_worker_row(worker) for worker in workers], width)


def _worker_row(worker: PoolWorker) -> Sequence[Text]:
    return (
        plain(worker.name),
        state(worker.state),
        Text(f"{worker.running}/{worker.slots}" if worker.slots else ""),
        Text(str(worker.done)),
        Text(str(worker.failed or ""), "red"),
        Text("" if worker.memory_mb is None else f"{worker.memory_mb:.0f} MB"),
        Text("" if worker.uptime_seconds is None else lasting(worker.uptime_seconds)),
        Text(str(worker.restarts or "")),
        plain(worker.supervisor or "by hand"),
    )


def changes_lines(changes: Sequence[ScalingChange], at: datetime, width: int) -> list[Text]:
    lines = []
    for one in changes:
        before = "" if one.before is None else f"{one.before} → "
        lines += hanging(plain(f"{ago(at, one.at):>10}  {before}{one.wanted}: {one.reason}"), width, 12)
    return lines


@dataclass(frozen=True)
class Backlogs:
    """The peak of each pool's backlog, for a bar that shows how it drains."""

    peaks: dict[str, int] = field(default_factory=dict)

    def seen(self, pools: Sequence[PoolStatus]) -> None:
        for pool in pools:
            peak = max(self.peaks.get(pool.name, 0), pool.ready or 0)
            self.peaks[pool.name] = peak if pool.ready else 0

    def draw(self, found: PoolsStatus, rows: int | None, height: int | None, note: str) -> PoolsView:
        self.seen(found.pools)
        return PoolsView(found, self.peaks, note)


@dataclass(frozen=True)
class PoolsView:
    found: PoolsStatus
    peaks: dict[str, int]
    note: str = ""

    def lines(self, width: int) -> list[Text]:
        found = self.found
        live, wanted = sum(pool.live for pool in found.pools), sum(pool.wanted for pool in found.pools)
        head = plain(f"{many(len(found.pools), 'pool')}: {live} of {many(wanted, 'worker')} live", "bold")
        lines = [Text(": ").join([head, plain(self.note, "bold red")]) if self.note else head]
        lines += [line for one in found.problems[:10] for line in wrapped(plain(f"! {one}", "bold red"), width, 2, 3)]
        lines += [Text(), *pool_grid(found.pools, width, self.peaks)]
        workers = [worker for pool in found.pools for worker in pool.workers]
        if workers:
            lines += [Text(), *worker_grid(workers, width)]
        latest = [(pool.changes[0], pool.name) for pool in found.pools if pool.changes]
        latest.sort(key=lambda one: one[0].at)
        if latest:
            lines.append(Text())
        for change, name in reversed(latest[-5:]):
            text = f"{ago(found.at, change.at):>10}  {name}: {change.wanted} wanted, {change.reason}"
            lines += hanging(plain(text, "dim"), width, 12)
        return [short(line, width) for line in lines]
