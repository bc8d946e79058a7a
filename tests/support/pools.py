"""Supervisors of pools as processes, and their places in the ledger."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil

from celery_orchestration.job.app import read_settings
from celery_orchestration.ledger import Ledger
from celery_orchestration.pools.table import queues_of
from support.processes import ManagedProcess
from support.stage import Stage
from support.wait import until
from support.workers import CeleryProcess, celery_command

MODULE = "support.apps.pools"
#: No mingle and gossip: they cost a second at each start.
QUICK = ["--without-mingle", "--without-gossip"]
#: As small as a pool can be, and quick to change.
SMALL: dict[str, Any] = {"min": 1, "max": 1, "quiet_seconds": 2, "worker_args": QUICK}


class PoolStage(Stage):
    """A :class:`Stage` whose workers are started by supervisors."""

    reported: Callable[[ManagedProcess], None]

    @classmethod
    def table_in(cls, directory: Path, **pools: dict[str, Any]) -> dict[str, str]:
        """The environment of an app with these pools."""
        path = directory / "pools.json"
        path.write_text(json.dumps({name: {**SMALL, **pool} for name, pool in pools.items()}))
        return {"TEST_POOLS": str(path), "TEST_BROKEN": str(directory / "broken")}

    def supervisor(self, name: str, *arguments: str, env: dict[str, str] | None = None) -> CeleryProcess:
        process = CeleryProcess(
            f"supervisor {name}",
            celery_command(self.module, "orchestration", "pools", "--name", name, "-l", "INFO", *arguments),
            directory=self.scratch,
            env={**self.broker.env(), **self.history.env(), **self.env, **(env or {})},
        )
        self.supervisors.append(process)
        self.reported(process)
        process.start()
        return process

    @property
    def supervisors(self) -> list[CeleryProcess]:
        found: list[CeleryProcess] = self.__dict__.setdefault("_supervisors", [])
        return found

    def read_pools(self) -> dict[str, Any]:
        settings = read_settings(self.app)
        with closing(Ledger.of(self.app, settings)) as ledger:
            return ledger.read_pools({name: queues_of(self.app, name) for name in settings.pools}, changes=50)

    def places(self, pool: str = "images") -> dict[int, str]:
        return {one["number"]: one["by"] for one in self.read_pools()["pools"][pool].get("places") or ()}

    def live(self, pool: str = "images") -> list[dict[str, Any]]:
        """The workers of a pool that take runs."""
        found = self.read_pools().get("workers") or ()
        return [one for one in found if one["name"].startswith(f"{pool}-") and not one["draining"] and one["left"] > 0]

    def wait_live(self, count: int, pool: str = "images", timeout: float = 30) -> list[dict[str, Any]]:
        return until(
            lambda: (found := self.live(pool)) is not None and len(found) == count and (found or True),
            timeout,
            f"{count} workers of {pool}: {[one['name'] for one in self.live(pool)]}",
        )

    def names(self, pool: str = "images") -> list[str]:
        return sorted(one["name"].partition("@")[0] for one in self.live(pool))


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
