"""Makes the records that the ledger gets about entries: adoptions and fires."""

from __future__ import annotations

from datetime import datetime

from celery.utils.log import get_logger

from celery_orchestration.errors import ConfigurationError
from celery_orchestration.job import queues
from celery_orchestration.ledger import Adoption, Fire, keys
from celery_orchestration.node.presence import Node
from celery_orchestration.scheduler.apply_entry import NOT_SENT, Applier
from celery_orchestration.scheduler.entries import Entry, Template
from celery_orchestration.scheduler.message import (
    MARK,
    CapturingProducer,
    Message,
    Unroutable,
    is_constant,
    make,
    make_for_all,
)
from celery_orchestration.scheduler.times import Due

logger = get_logger(__name__)


class FireFactory:
    def __init__(self, node: Node, applier: Applier) -> None:
        self._node = node
        self._applier = applier

    def adoption(self, entry: Entry, last_ms: int | None) -> Adoption:
        """`last_ms`: the due time from which it continues if the ledger has lost the entry."""
        name, task, every = (keys.text(one) for one in (entry.name, entry.call.task, entry.every))
        adoption = Adoption(entry.id, name, task, self._job(entry), every, entry.source, last_ms)
        if entry.gap_ms is not None:
            template = self._template(entry, make_for_all(self._node.app, entry.call))
            adoption.gap_ms, adoption.message = entry.gap_ms, template.message(MARK)
            adoption.queue, adoption.granted_queue, adoption.key, adoption.priority = template.place
        return adoption

    def fire(self, entry: Entry, due: Due) -> Fire:
        """The fire has no message yet if each fire of the entry needs its own: first the ledger decides whether it
        becomes a run. It has no job if the ledger cannot hand over its run: then it is sent as a plain task."""
        fire = Fire(entry.id, entry.generation, due.at, due.next, due.missed, "", entry.run_id(due.at), entry.late_ms)
        job = self._job(entry)
        if entry.policy is None or not job or entry.is_unroutable:
            return fire
        fire.job, fire.overlap, fire.priority = job, entry.policy.overlap, int(entry.policy.priority)
        try:
            self.prepare(entry)
        except Unroutable as exc:
            self._send_as_plain(entry, fire, exc)
        if entry.template is not None:
            _fill_in(fire, entry.template)
        return fire

    def make(self, entry: Entry, fire: Fire) -> None:
        """Fill in the message of this one fire, made as Celery's beat would make it, or the reason for having none."""
        try:
            message = self._captured(entry, fire.id) if self._applier.is_needed else self._make_message(entry, fire.id)
        except Unroutable as exc:
            return self._send_as_plain(entry, fire, exc)
        if message is None:
            fire.refused = NOT_SENT
            return None
        headers = message.envelope.headers
        fire.expires_ms, fire.eta_ms = _ms(headers.get("expires")), _ms(headers.get("eta"))
        return _fill_in(fire, self._template(entry, message))

    def prepare(self, entry: Entry) -> None:
        """Make the message before the entry is due, if all its fires share one."""
        if not self._job(entry) or self._applier.is_needed or not is_constant(self._node.app, entry.call):
            entry.template = None
        elif entry.template is None:
            entry.template = self._template(entry, make(self._node.app, entry.call, MARK))

    def _job(self, entry: Entry) -> str:
        """The job's name if the ledger makes the run of this entry, otherwise ''. In observe mode the worker asks the
        gate, so the fire is sent like a plain task; but the ledger fires continuous jobs in every mode."""
        ours = self._node.settings.mode == "enforce" or entry.gap_ms is not None
        return self._node.encoded[entry.call.task] if ours and entry.policy is not None else ""

    def _make_message(self, entry: Entry, id: str) -> Message:
        logger.info("Scheduler: Sending due task %s (%s)", entry.shown, entry.call.task)
        return make(self._node.app, entry.call, id)

    def _captured(self, entry: Entry, id: str) -> Message | None:
        producer = CapturingProducer()
        self._applier.apply(entry, id, producer)
        return producer.message

    def _send_as_plain(self, entry: Entry, fire: Fire, exc: Unroutable) -> None:
        logger.warning("Entry %s is sent as a plain task, at least once and without overlap: %s", entry.shown, exc)
        entry.is_unroutable, fire.job = True, ""

    def _template(self, entry: Entry, message: Message) -> Template:
        node, policy = self._node, entry.policy
        if policy is None:
            raise ConfigurationError(f"entry {entry.name!r} fires no job")
        packed = message.envelope.pack()
        head = len(packed) - len(message.envelope.body)
        key, _ = node.room_key(entry.call.task, message.args, message.kwargs)  # on an error, the run fails later
        return Template(
            packed[:head],
            packed[head:],
            (
                keys.text(message.queue),
                queues.granted_queue_for(message.queue, node.default_queue),
                key,
                node.priority_of(message.envelope.headers, policy),
            ),
        )


def _fill_in(fire: Fire, template: Template) -> None:
    fire.message = template.message(fire.id)
    fire.queue, fire.granted_queue, fire.key, fire.priority = template.place


def _ms(text: str | None) -> int | None:
    return round(datetime.fromisoformat(text).timestamp() * 1000) if text else None
