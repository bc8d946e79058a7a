"""The checks of the doctor, one function each: the result, why it matters, and how to fix it.

Each function takes the facts that ``diagnose.py`` has gathered, and asks nobody. Some results are sentences of
``status``: a check claims those with its own beginning, and sentences that no check has claimed are added at the end.
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
    """Runs all checks, and adds the problems of ``status`` that none of them has reported."""
    found = [check for look in CHECKS for check in look(facts)]
    reported = {check.found for check in found}
    about = About("status", "an operator should know")
    rest = [sentence for sentence in facts.status.problems if sentence not in reported]
    return [*found, *(about.problem(sentence, command("status")) for sentence in rest)]
