"""Turns a request into the question that the ledger is asked: may its run start?

:meth:`Arrivals.of` is called in the event loop for a request that asks, and in the carrier's thread for a run that is
claimed in a new epoch. It changes nothing but ``request.problem``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from celery_orchestration.errors import ConfigurationError
from celery_orchestration.job import queues
from celery_orchestration.job.policy import Policy
from celery_orchestration.ledger import Arrival
from celery_orchestration.worker import internals
from celery_orchestration.worker.request import OrchestratedRequest

#: The rank of runs that hold room already: they go first.
HANDED_OVER = queues.rank_of(queues.granted_name(queues.DEFAULT_POOL))


class Jobs(Protocol):
    """The facts about the jobs in this worker's code that an arrival needs."""

    #: Names of jobs, as the ledger writes them.
    encoded: dict[str, str]
    default_queue: str

    def room_key(self, job: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ValueError | None]: ...

    def priority_of(self, headers: Mapping[str, Any], policy: Policy) -> int: ...


class Arrivals:
    def __init__(self, jobs: Jobs, pool: Any, consumers: Callable[[], list[Any]], strict_priority: bool) -> None:
        """`pool`: the execution pool. `consumers()`: kombu's consumers of the present connection."""
        self._jobs = jobs
        self._pool = pool
        self._consumers = consumers
        self._strict_priority = strict_priority

    def of(self, request: OrchestratedRequest) -> Arrival:
        """Raises if the ledger cannot be asked for this run."""
        policy, job = request.task.orchestration, request.task.name
        if policy.on_lease_lost == "stop" and not internals.pool.can_kill(self._pool):
            raise ConfigurationError("on_lease_lost='stop' needs a worker with -P prefork, not this execution pool")
        queue = self.queue_of(request)
        for text in (request.id, queue):
            text.encode()  # JSON may contain text that Redis cannot store
        key = ""
        if policy.key is not None:
            key, request.problem = self._jobs.room_key(job, request.args, request.kwargs)
        return Arrival(
            id=request.id,
            attempt=request.attempt,
            job=self._jobs.encoded[job],
            key=key,
            priority=self._jobs.priority_of(request.request_dict, policy),
            grant=request.grant,
            expires_ms=int(request.expires.timestamp() * 1000) if request.expires else None,
            queue=queue,
            granted_queue=queues.granted_queue_for(queue, self._jobs.default_queue),
            message=request.envelope().pack(),
            eta_ms=None if request.not_before is None else int(request.not_before * 1000),
            publication=request.publication,
            anonymous=request.anonymous,
            queued_ms=request.queued_ms(),
        )

    def queue_of(self, request: OrchestratedRequest) -> str:
        """The queue that the run's message was first sent to, even if the run was handed over since."""
        if request.origin is not None and not request.origin.get("exchange"):
            return request.origin.get("routing_key") or ""
        return internals.consumer.queue_of(request.message, self._consumers())

    def rank_of(self, request: OrchestratedRequest) -> int:
        """The lowest rank gets the next slot."""
        if request.fence is not None or request.grant:
            return HANDED_OVER
        return queues.rank_of(self.queue_of(request)) if self._strict_priority else 0
