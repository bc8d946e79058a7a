"""Checks of pools: do they have the workers that they should have?"""

from __future__ import annotations

from collections.abc import Iterator

from celery_orchestration.operate.doctor.checks.facts import About, Facts, many
from celery_orchestration.operate.doctor.models import Check
from celery_orchestration.operate.hints import command


def pools(facts: Facts) -> Iterator[Check]:
    about = About("pools", "runs of a pool with too few workers wait longer than target_wait_seconds")
    if not facts.settings.pools:
        yield about.fine("orchestration_pools is not used: workers are started by hand")
        return
    for problem in facts.pool_problems:
        yield about.problem(problem, "app.conf.orchestration_pools = {…}  # the pools that jobs name")
    found = [(pool, problem) for pool in facts.status.pools for problem in pool.problems]
    for pool, problem in found:
        yield about.problem(problem, command("explain", f"pool:{pool.name}"))
    without = [pool for pool in facts.status.pools if not pool.live and (pool.ready or pool.min)]
    for pool in without:
        runs = f", and {many(pool.ready, 'run is', 'runs are')} ready" if pool.ready else ""
        yield about.problem(f"pool {pool.name!r} has no live worker{runs}", command("pools"))
    if not (found or without or facts.pool_problems):
        live, count = sum(pool.live for pool in facts.status.pools), len(facts.status.pools)
        yield about.fine(f"{many(count, 'pool has', 'pools have')} {many(live, 'live worker')}")
