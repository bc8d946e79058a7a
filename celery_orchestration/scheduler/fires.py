"""What the ledger is told of an entry: that there is one, and that it fires."""

from __future__ import annotations

from datetime import datetime

from celery.utils.log import get_logger

from celery_orchestration import queues
from celery_orchestration.errors import ConfigurationError
from celery_orchestration.ledger import Adoption, Fire, keys
from celery_orchestration.scheduler.entries import Entry, Template
from celery_orchestration.scheduler.message import MARK, Message, Unroutable, is_constant, make
from celery_orchestration.scheduler.times import Due
from celery_orchestration.worker.member import Member

logger = get_logger(__name__)


class Fires:
    def __init__(self, member: Member) -> None:
        self._member = member
        self._unroutable: set[str] = set()

    def adoption(self, entry: Entry, last_ms: int | None) -> Adoption:
        """`last_ms`: where it goes on should the ledger have forgotten it."""
        name, task, every = (keys.text(one) for one in (entry.name, entry.call.task, entry.every))
        found = Adoption(entry.id, name, task, self._job(entry), every, entry.source, last_ms)
        if entry.gap_ms is not None:
            one = self._template(entry)
            found.gap_ms, found.message = entry.gap_ms, one.message(MARK)
            found.queue, found.granted_queue, found.key, found.priority = one.place
        return found

    def fire(self, entry: Entry, due: Due) -> Fire:
        """Without a job, if the ledger cannot hand its run over: then it is sent as any task is."""
        fire = Fire(entry.id, entry.generation, due.at, due.next, due.missed, "", entry.run_id(due.at), entry.late_ms)
        job = self._job(entry)
        if entry.policy is None or not job:
            return fire
        try:
            template = self._fill_in(fire, entry)
        except Unroutable as exc:
            if entry.id not in self._unroutable:
                self._unroutable.add(entry.id)
                logger.warning(
                    "Entry %s is sent as a plain task, at least once and without overlap: %s", entry.shown, exc
                )
            return fire
        fire.job, fire.overlap = job, entry.policy.overlap
        fire.queue, fire.granted_queue, fire.key, fire.priority = template.place
        return fire

    def prepare(self, entry: Entry) -> None:
        """What can be made of its fires before it is due."""
        if entry.template is None and self._job(entry) and is_constant(self._member.app, entry.call):
            entry.template = self._template(entry)

    def _job(self, entry: Entry) -> str:
        """In observe mode the gate is asked by the worker. Continuous jobs are the ledger's in any case."""
        ours = self._member.settings.mode == "enforce" or entry.gap_ms is not None
        return self._member.encoded[entry.call.task] if ours and entry.policy is not None else ""

    def _fill_in(self, fire: Fire, entry: Entry) -> Template:
        if is_constant(self._member.app, entry.call):
            entry.template = template = entry.template or self._template(entry)
        else:
            made = make(self._member.app, entry.call, fire.id)
            template, headers = self._placed(entry, made), made.envelope.headers
            fire.expires_ms, fire.eta_ms = _ms(headers.get("expires")), _ms(headers.get("eta"))
        fire.message = template.message(fire.id)
        return template

    def _template(self, entry: Entry) -> Template:
        return self._placed(entry, make(self._member.app, entry.call, MARK))

    def _placed(self, entry: Entry, message: Message) -> Template:
        member, policy = self._member, entry.policy
        if policy is None:
            raise ConfigurationError(f"entry {entry.name!r} fires no job")
        packed = message.envelope.pack()
        head = len(packed) - len(message.envelope.body)
        key, _ = member.room_key(entry.call.task, message.args, message.kwargs)  # without one it fails when it starts
        return Template(
            packed[:head],
            packed[head:],
            (
                keys.text(message.queue),
                queues.granted_queue_for(message.queue, member.default_queue),
                key,
                member.priority_of(message.envelope.headers, policy),
            ),
        )


def _ms(text: str | None) -> int | None:
    return round(datetime.fromisoformat(text).timestamp() * 1000) if text else None
