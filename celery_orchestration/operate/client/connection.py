"""The part that all others of the client use: the app, its ledger and its broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from celery import Celery
from celery.utils.log import get_logger
from kombu.exceptions import KombuError

from celery_orchestration.errors import (
    ConfigurationError,
    LedgerError,
    LedgerUnavailable,
)
from celery_orchestration.job import queues
from celery_orchestration.job.app import owner_of, read_settings
from celery_orchestration.job.envelope import Envelope
from celery_orchestration.ledger import BEAT, Grant, Ledger

if TYPE_CHECKING:  # imported where they are used: a status needs none of them
    from celery_orchestration.node.stores import Names
    from celery_orchestration.operate.schedule import Schedule

T = TypeVar("T")

logger = get_logger(__name__)
#: How many runs or dead letters one call to the ledger deals with.
PART = 100
#: The broker does not accept a message, or the ledger does not answer.
UNREACHABLE = (KombuError, OSError, LedgerError)


class Connection:
    """The app, its ledger and its broker, with their errors in words."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._settings = read_settings(app)
        self._ledger = Ledger.of(app, self._settings)

    @property
    def app(self) -> Celery:
        return self._app

    def close(self) -> None:
        self._ledger.close()

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule: lists its entries, and adds, changes, pauses and removes them."""
        from celery_orchestration.operate.schedule import Schedule  # noqa: PLC0415

        return Schedule(self._app, self._settings, self._ledger, self._ask)

    def _store_names(self) -> Names:
        from celery_orchestration.node.stores import Names  # noqa: PLC0415

        return Names.in_app(self._app, self._settings.namespace)

    def _fetched(self) -> dict[str, tuple[str, str]]:
        """Runs that a worker has fetched and that wait for a slot there: the ledger does not know them yet."""
        from celery_orchestration.operate import broker  # noqa: PLC0415

        workers = [one.name for one in self._ask(self._ledger.list_nodes).nodes if one.kind != BEAT]
        return broker.held(self._app, "fetched", workers)

    def _broker(self) -> str:
        """The address of the broker, without secrets."""
        return f"the broker at {self._app.connection_for_write().as_uri()}"

    def _ask(self, call: Callable[[], T]) -> T:
        try:
            self._ledger.check(owner_of(self._app))
            return call()
        except LedgerUnavailable as exc:
            raise LedgerUnavailable(f"the ledger at {self._ledger.address} does not answer: {exc}") from exc

    def _ask_about(self, call: Callable[[], T | None]) -> T | None:
        """As :meth:`_ask`; None if the ledger does not know the job, or no job can have such a name."""
        try:
            return self._ask(call)
        except ConfigurationError:
            return None

    def _hand_over(self, grants: Sequence[Grant]) -> None:
        """Publishes these runs. If that fails, the next sweep of a worker publishes them."""
        if not grants:
            return
        try:
            found = zip(self._ledger.read_all_granted(grants), grants, strict=True)
            self._publish([(one[0], Envelope.unpack(one[1]), grant.number) for one, grant in found if one is not None])
            self._ledger.confirm_published(grants)
        except UNREACHABLE as exc:
            logger.warning("%d runs could not be published; a worker does so with its next sweep: %s", len(grants), exc)

    def _publish(self, messages: Sequence[tuple[str, Envelope, str]]) -> None:
        with self._app.producer_or_acquire() as producer:
            for queue, envelope, grant in messages:
                envelope.publish(producer, queues.declared(self._app, queue), grant)
