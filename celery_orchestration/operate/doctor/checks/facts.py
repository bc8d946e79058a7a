"""What the checks look at, and what they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from celery_orchestration.job.limits import Limit
from celery_orchestration.job.policy import Policy, Settings
from celery_orchestration.ledger import Members
from celery_orchestration.operate.broker import Answers, Kept, Stranger
from celery_orchestration.operate.doctor.models import Check, CheckState
from celery_orchestration.operate.hints import command
from celery_orchestration.operate.models import EntryStatus, Status

#: How many of a kind are told one by one.
MOST = 10


@dataclass(frozen=True)
class Facts:
    """Everything that the checks look at."""

    status: Status
    settings: Settings
    address: str
    members: Members
    #: What Redis tells of itself; nothing: it may not be asked. save: None, likewise.
    info: Mapping[str, str] = field(default_factory=dict)
    save: str | None = None
    #: Seconds by which this machine's clock is ahead of Redis's.
    ahead: float = 0.0
    #: Of the code: jobs that can be read, what is wrong with others, with names, and cycles.
    jobs: Mapping[str, Policy] = field(default_factory=dict)
    mistakes: Sequence[str] = ()
    misnamed: Sequence[str] = ()
    cycles: Sequence[str] = ()
    #: Releases of the live members, oldest first, with their policies (JSON).
    releases: Mapping[str, str] = field(default_factory=dict)
    entries: Sequence[EntryStatus] = ()
    #: Whether this app's beat is our scheduler.
    beat_is_ours: bool = True
    #: What the broker tells.
    broker_problem: str | None = None
    broker_is_redis: bool = True
    broker_is_amqp: bool = False
    strangers: Sequence[Stranger] = ()
    #: What the live workers answer to ``inspect orchestration``.
    replies: Answers = field(default_factory=Answers)
    #: What workers have fetched from a Redis broker.
    kept: Kept = field(default_factory=Kept)
    prefetch: int = 1
    visibility: float = 3600.0
    #: Time limits of jobs and of other tasks that live workers serve, by the kind of execution pool.
    limits: Mapping[str, Mapping[str, Limit]] = field(default_factory=dict)
    plain_limits: Mapping[str, Mapping[str, Limit]] = field(default_factory=dict)
    #: Jobs that are acknowledged when they end, and their hard limits.
    late: Mapping[str, float | None] = field(default_factory=dict)
    #: What does not fit between orchestration_pools and the jobs.
    pool_problems: Sequence[str] = ()


@dataclass(frozen=True)
class About:
    """A thing to check."""

    name: str
    why: str

    def fine(self, found: str, fix: str | None = None) -> Check:
        return self._check("fine", found, fix)

    def problem(self, found: str, fix: str | None) -> Check:
        return self._check("problem", found, fix)

    def unknown(self, found: str, fix: str | None = None) -> Check:
        return self._check("unknown", found, fix)

    def more(self, count: int, what: str, fix: str) -> list[Check]:
        """Beyond those that were told one by one."""
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
    """Celery says that nobody replied: those who shut down do not."""
    return f"{command('shutdown', '-d', workers, program='control')}  # they end without a reply"


def redis_url(where: str) -> str:
    return f"app.conf.orchestration_redis_url = 'redis://…'  # {where}"
