"""A node: a worker or a scheduler, which takes part in the ledger with the jobs of its code.

:class:`Node` knows the app, its jobs and settings, and its own id in the ledger. ``worker/runtime.py`` and
``scheduler/runtime.py`` add the parts that make it a worker or a scheduler. What is set here does not change; any
thread may read it.
"""

from __future__ import annotations

import os
import secrets
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from celery import Celery
from celery.utils.log import get_logger
from kombu.serialization import prepare_accept_content

from celery_orchestration.errors import LedgerError, LedgerRefused
from celery_orchestration.job import queues
from celery_orchestration.job.app import owner_of, settings_of, signature_of
from celery_orchestration.job.graph import Graph
from celery_orchestration.job.options import Priority
from celery_orchestration.job.policy import Policy
from celery_orchestration.job.task import jobs_of
from celery_orchestration.job.text import printable
from celery_orchestration.ledger import Disabled, Ledger, Presence, keys
from celery_orchestration.node import eviction, releases
from celery_orchestration.node.decisions import RememberedDecisions
from celery_orchestration.node.stores import Names
from celery_orchestration.signals import job_disabled

logger = get_logger(__name__)


#: For how many jobs the defaults are logged.
MOST_LOGGED = 20


class Node(ABC):
    def __init__(self, app: Celery) -> None:
        self.app = app
        self.settings = settings_of(app)
        self.ledger = Ledger.of(app, self.settings)
        self.jobs = jobs_of(app)
        self.graph = Graph.build(self.jobs, plain=[name for name in app.tasks if name not in self.jobs])
        self.encoded = {name: keys.encode_job(name) for name in self.jobs}
        keyed = [name for name, job in self.jobs.items() if job.key is not None]
        self.signatures = {name: signature_of(app.tasks[name]) for name in keyed}
        self.release = releases.release(self.jobs, self.settings.max_running)
        #: The id of this node in the ledger, be it a worker or a scheduler.
        self.worker = secrets.token_hex(6)
        self.eviction_is_checked = False
        self.decisions = RememberedDecisions()
        self.default_queue: str = app.conf.task_default_queue
        self.accept = prepare_accept_content(app.conf.accept_content)
        queues.check(app, self.jobs)
        self.destinations = queues.destinations(app, self.jobs)
        self.store_names = Names.in_app(app, self.settings.namespace)

    @abstractmethod
    def presence(self) -> Presence: ...

    @abstractmethod
    def give_up(self, why: str) -> None:
        """This process must not use the ledger, which turned out only now."""

    @abstractmethod
    def send_event(self, type: str, id: str, **fields: Any) -> None: ...

    def as_present(self, name: str, kind: str, slots: int, served: tuple[str, ...]) -> Presence:
        visibility = (self.app.conf.broker_transport_options or {}).get("visibility_timeout", 3600)
        return Presence(
            worker=self.worker,
            name=name,
            host=socket.gethostname(),
            pid=os.getpid(),
            slots=slots,
            kind=kind,
            queues=served,
            release=self.release.name,
            mode=self.settings.mode,
            lease_ms=int(self.settings.lease_seconds * 1000),
            owner=owner_of(self.app),
            done_ms=int(max(2 * visibility, 3600) * 1000),
            history=self.settings.history,
            dead_letters=self.settings.dead_letters,
            dead_letter_ms=int(self.settings.dead_letter_seconds * 1000),
            policies=self.release.document,
            jobs=tuple(self.encoded.values()),
        )

    def check_ledger(self) -> None:
        """Raises if the ledger belongs to others, or its Redis evicts keys. If it cannot be reached now, the heartbeat
        tries again."""
        try:
            self.ledger.check(owner_of(self.app))
            self.check_eviction(self.ledger)
        except LedgerRefused:
            raise
        except LedgerError as exc:
            logger.error("The ledger at %s does not answer yet: %s", self.ledger.address, exc)

    def log_defaults(self) -> None:
        """Logs one line for each recurring job about its defaults: limits and retries that nobody has written."""
        found = {name: defaults for name, job in sorted(self.jobs.items()) if (defaults := job.defaults_in_force())}
        for name, defaults in list(found.items())[:MOST_LOGGED]:
            logger.info("Job %s has the defaults of recurring jobs: %s", printable(name), _in_words(defaults))
        if len(found) > MOST_LOGGED:
            logger.info("%d more jobs have defaults: see `explain JOB`", len(found) - MOST_LOGGED)
        if found:
            logger.info("Write these options on a job to change them, or orchestration_recurring_defaults for all")

    def check_eviction(self, ledger: Ledger) -> None:
        eviction.check(ledger, self.settings.allow_eviction)
        self.eviction_is_checked = True

    def room_key(self, job: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, ValueError | None]:
        """The key under which a call's room is counted. If it cannot be computed, the run fails with the error when it
        starts."""
        try:
            return keys.room_key(self.jobs[job].room_key(args, kwargs, self.signatures.get(job))), None
        except ValueError as exc:
            return "", exc

    def priority_of(self, headers: Mapping[str, Any], policy: Policy) -> int:
        if headers.get(queues.FORCE_HEADER):
            return queues.FORCED
        moved = headers.get(queues.PRIORITY_HEADER)
        return int(Priority.parse(moved)) if moved else int(policy.priority)

    def jobs_disabled(self, jobs: Sequence[Disabled]) -> None:
        for job in jobs:
            logger.error("Job %s is disabled: %s", job.job, job.why)
            job_disabled.send(sender=job.job, why=job.why)


def _in_words(defaults: Mapping[str, Any]) -> str:
    def shown(value: Any) -> str:
        if isinstance(value, tuple):
            return " or ".join(one.__name__ for one in value) or "nothing"
        return str(value) if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else repr(value)

    return ", ".join(f"{name}={shown(value)}" for name, value in defaults.items())
