"""The facts that the checks look at, and what the checks share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from celery_orchestration.job.limits import Limit
from celery_orchestration.job.policy import Policy
from celery_orchestration.job.settings import Settings
from celery_orchestration.ledger import Nodes
from celery_orchestration.operate.broker import Answers, Kept, Stranger
from celery_orchestration.operate.doctor.models import Check, CheckState
from celery_orchestration.operate.hints import command
from celery_orchestration.operate.models import EntryStatus, Status

#: How many results of a kind are listed one by one.
MOST = 10


@dataclass(frozen=True)
class Facts:
    """Everything that the checks look at, gathered before they run."""

    status: Status
    settings: Settings
    address: str
    nodes: Nodes
    #: Redis's INFO, empty if that is not allowed; and its setting ``save``, None if that is not allowed.
    info: Mapping[str, str] = field(default_factory=dict)
    save: str | None = None
    #: Seconds by which this machine's clock is ahead of Redis's.
    ahead: float = 0.0
    #: The code's valid jobs; errors of the others; wrong names; cycles.
    jobs: Mapping[str, Policy] = field(default_factory=dict)
    mistakes: Sequence[str] = ()
    misnamed: Sequence[str] = ()
    cycles: Sequence[str] = ()
    #: Releases of the live nodes, oldest first, with their policies (JSON).
    releases: Mapping[str, str] = field(default_factory=dict)
    entries: Sequence[EntryStatus] = ()
    #: Whether this app's beat is this extension's scheduler.
    beat_is_ours: bool = True
    #: About the broker.
    broker_problem: str | None = None
    broker_is_redis: bool = True
    broker_is_amqp: bool = False
    strangers: Sequence[Stranger] = ()
    #: The live workers' replies to ``inspect orchestration``.
    replies: Answers = field(default_factory=Answers)
    #: The messages that workers have fetched from a Redis broker.
    kept: Kept = field(default_factory=Kept)
    prefetch: int = 1
    visibility: float = 3600.0
    #: Time limits of jobs and of other tasks that live workers serve, by the kind of execution pool.
    limits: Mapping[str, Mapping[str, Limit]] = field(default_factory=dict)
    plain_limits: Mapping[str, Mapping[str, Limit]] = field(default_factory=dict)
    #: Jobs that are acknowledged when they end, and their hard limits.
    late: Mapping[str, float | None] = field(default_factory=dict)
    #: Mismatches between orchestration_pools and the jobs.
    pool_problems: Sequence[str] = ()


@dataclass(frozen=True)
class About:
    """The subject of a check, and why it matters."""

    name: str
    why: str

    def fine(self, found: str, fix: str | None = None) -> Check:
        return self._check("fine", found, fix)

    def problem(self, found: str, fix: str | None) -> Check:
        return self._check("problem", found, fix)

    def unknown(self, found: str, fix: str | None = None) -> Check:
        return self._check("unknown", found, fix)

    def more(self, count: int, what: str, fix: str) -> list[Check]:
        """Counts the results beyond those that were listed one by one."""
        return [self.problem(f"{count - MOST} more {what}", fix)] if count > MOST else []

    def _check(self, state: CheckState, found: str, fix: str | None) -> Check:
        return Check(name=self.name, state=state, found=found, why=self.why, fix=fix)


def claim(facts: Facts, *beginnings: str) -> list[str]:
    return [sentence for sentence in facts.status.problems if sentence.startswith(beginnings)]


def listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def many(count: int, one: str, many: str | None = None) -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def end(workers: str) -> str:
    """A command that stops these workers. Celery then says that nobody replied: stopping workers do not reply."""
    return f"{command('shutdown', '-d', workers, program='control')}  # they stop without a reply"


def redis_url(where: str) -> str:
    return f"app.conf.orchestration_redis_url = 'redis://…'  # {where}"
