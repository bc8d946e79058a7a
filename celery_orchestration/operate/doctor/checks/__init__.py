"""What bites, one check each: what was found, why that matters, and the line that fixes it.

Each takes the facts, which were gathered before (``doctor``), and gives its checks; none asks anybody. Sentences that
``status`` has are taken from there: a check claims those that begin like its own, and what none has claimed is told
as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from celery_orchestration.operate.doctor.checks import code, events, fetch, pools, redis, workers
from celery_orchestration.operate.doctor.checks.facts import About, Facts
from celery_orchestration.operate.doctor.models import Check
from celery_orchestration.operate.hints import command

CHECKS: tuple[Callable[[Facts], Iterator[Check]], ...] = (
    *(redis.redis, redis.eviction, redis.persistence, redis.memory),
    *(code.code, code.external, code.cycles, code.releases, code.modes),
    *(workers.broker, workers.queues, workers.jobs, workers.strangers),
    *(fetch.fetch, fetch.stores, fetch.prefetch, fetch.visibility),
    *(workers.limits, workers.clocks, pools.pools),
    *(events.scheduler, events.entries, events.records, events.epoch, events.deaths, events.disabled, events.pause),
)


def examine(facts: Facts) -> list[Check]:
    """All checks, and what ``status`` says that none of them has told."""
    found = [check for look in CHECKS for check in look(facts)]
    told = {check.found for check in found}
    about = About("status", "an operator should know")
    rest = [sentence for sentence in facts.status.problems if sentence not in told]
    return [*found, *(about.problem(sentence, command("status")) for sentence in rest)]
