"""The dispatcher: while this scheduler leads, it looks which entries are due and dispatches them.

A heap holds each entry at its next due time, so that a look costs nothing for entries that are not due. What is due
goes to the ledger in parts; its answer says what to publish. A part whose answer was lost is sent again as it was, and
answered the same way.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, TypeVar

from celery.result import denied_join_result
from celery.utils.log import get_logger

from celery_orchestration import queues
from celery_orchestration.errors import ConfigurationError, LedgerError
from celery_orchestration.graph import Graph
from celery_orchestration.ledger import Adopted, Adoption, Fire, keys
from celery_orchestration.scheduler.entries import Entry, from_document
from celery_orchestration.scheduler.message import MARK, Message, Unroutable, is_constant, make
from celery_orchestration.scheduler.times import Due
from celery_orchestration.worker.line import Patience
from celery_orchestration.worker.publisher import UNREACHABLE

if TYPE_CHECKING:
    from celery_orchestration.scheduler.side import SchedulerSide

T = TypeVar("T")
logger = get_logger(__name__)

#: How many fires, or entries, are told to the ledger at a time.
MOST_FIRES, MOST_ENTRIES = 64, 200
#: Seconds: of a look at nothing; between two looks whether continuous jobs go on; until the ledger has seen all entries
#: again, those that vanished with them; until an entry that cannot be fired is tried again.
IDLE, CONTINUE_EVERY, ADOPT_EVERY, AGAIN = 1.0, 1.0, 3600.0, 30.0


@dataclass(frozen=True, slots=True)
class Template:
    """The messages of an entry: head and body, with a mark for the id in the head."""

    head: bytes
    body: bytes
    queue: str
    granted_queue: str
    key: str
    priority: int

    def message(self, id: str) -> bytes:
        return self.head.replace(MARK.encode(), id.encode()) + self.body


class Dispatcher(threading.Thread):
    def __init__(self, side: SchedulerSide, code: Mapping[str, Entry]) -> None:
        super().__init__(name="orchestration-dispatcher", daemon=True)
        self._side = side
        self._ledger = side.ledger.line()
        self._code = {entry.key: entry for entry in code.values()}
        self._levels = levels(side.graph)
        self._entries: dict[str, Entry] = {}
        #: Those of continuous jobs.
        self._continuous: dict[str, Entry] = {}
        self._heap: list[tuple[int, int, Entry]] = []
        self._numbers = itertools.count()
        self._places: dict[str, int] = {}
        #: The part that was sent and not answered.
        self._unanswered: list[tuple[Entry, Fire]] = []
        #: What is due and was not sent yet.
        self._due: deque[tuple[Entry, Due]] = deque()
        self._term = ""
        self._changes = 0
        self._adopt_at = self._continue_at = 0.0
        self._reported: dict[str, str] = {}
        self._wake = threading.Event()
        self._stopped = False
        self._patience = Patience(self._wake.wait, 1.0)
        self._producer: Any = None
        self._broker_at, self._broker_wait = 0.0, 0.0

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        """When the part at hand is done."""
        self._stopped = True
        self._wake.set()

    # -- the thread ---------------------------------------------------------------------------------

    def run(self) -> None:
        while not self._stopped:
            self._wake.clear()
            try:
                wait = self._round()
            except LedgerError as exc:
                self._patience.trouble(lambda _, exc=exc: logger.error("Cannot dispatch: %s", exc))  # type: ignore[misc]
                continue
            except Exception:
                logger.exception("The dispatcher met an unexpected error and begins anew")
                self._term = ""
                self._wake.wait(1.0)
                continue
            self._patience.over()
            self._wake.wait(wait)
        self._disconnect()
        self._ledger.close()

    def _round(self) -> float:
        """Returns how many seconds nothing is to be done."""
        term = self._side.term.number
        if not term:
            self._term = ""
            return IDLE
        if term != self._term or monotonic() >= self._adopt_at:
            self._take_over(term)
        if self._changes != self._side.term.changes:
            self._follow_changes()
        if monotonic() >= self._continue_at:
            self._continue()
        self._dispatch()
        if self._due or not self._term:
            return 0.0
        until = self._heap[0][0] - self._side.term.now() if self._heap else IDLE * 1000
        return max(0.0, min(until / 1000, IDLE))

    # -- entries ------------------------------------------------------------------------------------

    def _take_over(self, term: str) -> None:
        now = self._side.term.now()
        found = self._ledger.changes(None)
        entries = dict(self._code)
        for key, there, text in found.entries:
            entry = self._read(key, text) if there else None
            if entry is not None:
                entries[key] = entry
        self._entries, self._continuous, self._heap, self._places, self._unanswered = {}, {}, [], {}, []
        self._due.clear()
        # What it knows of last fires counts only if nobody else led since.
        if self._adopt(term, entries.values(), now, known=bool(self._term)) and self._ledger.retire(term):
            self._term, self._changes = term, found.number
            self._adopt_at = monotonic() + ADOPT_EVERY
            self._continue_at = 0.0
            self._tell(now)

    def _tell(self, now: int) -> None:
        logger.info("Scheduler: %d entries", len(self._entries))
        if self._heap:
            at_ms, _, entry = self._heap[0]
            logger.info("Scheduler: %s is due first, in %.1f s", entry.shown, (at_ms - now) / 1000)

    def _follow_changes(self) -> None:
        found = self._ledger.changes(self._changes)
        if not found.complete:
            return self._take_over(self._term)
        changed = []
        for key, there, text in found.entries:
            self._forget(key)
            entry = self._code.get(key) or (self._read(key, text) if there else None)
            if entry is not None:
                changed.append(entry)
        self._adopt(self._term, changed, self._side.term.now())
        self._changes = found.number
        self._continue_at = 0.0
        return None

    def _read(self, key: str, text: str) -> Entry | None:
        """What people wrote."""
        if key in self._code:
            self._report(key, f"entry {self._code[key].name!r} is in the code now: what people had added is not used")
            return None
        try:
            return from_document(self._side.app, key, text, self._side.jobs)
        except ConfigurationError as exc:
            self._report(key, f"{exc}: it is not fired")
            return None

    def _report(self, key: str, problem: str) -> None:
        if self._reported.get(key) != problem:
            self._reported[key] = problem
            logger.error("%s", problem)

    def _forget(self, key: str) -> None:
        self._entries.pop(key, None)
        self._continuous.pop(key, None)
        self._places.pop(key, None)
        self._reported.pop(key, None)

    def _adopt(self, term: str, entries: Iterable[Entry], now: int, known: bool = False) -> bool:
        """`now`: when those begin that are new. All that came together begin together, so that they stay in step.
        `known`: those that vanished go on from the last fire that we know of. False if another one leads."""
        for part in _parts(list(entries), MOST_ENTRIES):
            adoptions = [(entry, adoption) for entry in part if (adoption := self._adoption(entry, known)) is not None]
            answers = self._ledger.adopt(term, now, [adoption for _, adoption in adoptions])
            if answers is None:
                self._no_longer(term)
                return False
            times = []
            for (entry, _), answer in zip(adoptions, answers, strict=True):
                due = self._adopted(entry, answer)
                if due is not None:
                    times.append((entry.key, due))
            self._ledger.plan(term, times)
        return True

    def _adoption(self, entry: Entry, known: bool) -> Adoption | None:
        last = entry.last_ms if known and entry.last_ms else None
        found = Adoption(
            entry.key, entry.name, entry.call.task, self._job(entry), entry.every, entry.source, last_ms=last
        )
        if entry.pause_ms is not None:
            try:
                one = self._template(entry)
            except Exception as exc:
                self._report(entry.key, f"entry {entry.name!r} cannot be fired: {exc!r}")
                return None
            found.pause_ms, found.message = entry.pause_ms, one.head + one.body
            found.queue, found.granted_queue, found.key, found.priority = (
                one.queue,
                one.granted_queue,
                one.key,
                one.priority,
            )
        return found

    def _adopted(self, entry: Entry, answer: Adopted) -> int | None:
        """Returns when it is due next."""
        self._places.pop(entry.key, None)
        if answer.problem:
            if answer.problem != "gone":
                self._report(entry.key, f"entry {entry.name!r} is not fired, its record is {answer.problem}")
            return None
        entry.generation, entry.last_ms = answer.generation, answer.last_ms
        self._entries[entry.key] = entry
        if entry.pause_ms is not None:
            self._continuous[entry.key] = entry
        if answer.paused or entry.times is None:
            return None
        try:
            due = entry.times.next(entry.last_ms, self._side.term.now())
        except Exception as exc:
            self._report(entry.key, f"entry {entry.name!r} is not fired, its schedule fails: {exc!r}")
            return None
        self._look(entry, due)
        return due

    def _look(self, entry: Entry, at_ms: int) -> None:
        """Its place in the heap; an older one is void."""
        number = next(self._numbers)
        self._places[entry.key] = number
        heapq.heappush(self._heap, (at_ms, number, entry))

    def _no_longer(self, term: str = "") -> None:
        """Another one leads."""
        self._side.term.lost(term or self._term)
        self._term = ""

    # -- fires --------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        if self._unanswered:
            self._send()
        if not self._due:
            self._look_what_is_due()
        while self._due and not self._stopped and self._leads():
            part = [self._due.popleft() for _ in range(min(len(self._due), MOST_FIRES))]
            self._unanswered = [(entry, fire) for entry, due in part if (fire := self._fire(entry, due)) is not None]
            if self._unanswered:
                self._send()
            while self._side.publisher.is_behind and not self._stopped:
                sleep(0.005)

    def _leads(self) -> bool:
        return bool(self._term) and self._side.term.number == self._term

    def _look_what_is_due(self) -> None:
        """In the order in which it goes out: dependencies first, then by priority."""
        now, found = self._side.term.now(), []
        while self._heap and self._heap[0][0] <= now:
            _, number, entry = heapq.heappop(self._heap)
            if self._places.get(entry.key) != number or entry.times is None:
                continue
            try:
                due = entry.times.due(entry.last_ms, now)
                if due is None:
                    self._look(entry, max(now + 1, entry.times.next(entry.last_ms, now)))
                else:
                    found.append((entry, due))
            except Exception as exc:
                self._cannot(entry, exc)
        self._due.extend(sorted(found, key=lambda one: self._order(*one)))

    def _order(self, entry: Entry, due: Due) -> tuple[int, int, int]:
        priority = 0 if entry.policy is None else int(entry.policy.priority)
        return self._levels.get(entry.call.task, 0), -priority, due.at

    def _cannot(self, entry: Entry, exc: Exception) -> None:
        self._report(entry.key, f"entry {entry.name!r} cannot be fired: {exc!r}")
        self._again(entry, AGAIN)

    def _job(self, entry: Entry) -> str:
        """In observe mode the gate is asked by the worker. Continuous jobs are the ledger's in any case."""
        ours = self._side.settings.mode == "enforce" or entry.pause_ms is not None
        return self._side.encoded[entry.call.task] if ours and entry.policy is not None else ""

    def _fire(self, entry: Entry, due: Due) -> Fire | None:
        id = entry.run_id(due.at)
        fire = Fire(
            entry.key, entry.generation, due.at, due.next, due.missed, self._job(entry), id, late_ms=entry.late_ms
        )
        if fire.job:
            try:
                self._fill_in(fire, entry)
            except Unroutable:
                fire.job = ""
            except Exception as exc:
                self._cannot(entry, exc)
                return None
        return fire

    def _fill_in(self, fire: Fire, entry: Entry) -> None:
        if is_constant(self._side.app, entry.call):
            template = entry.template = entry.template or self._template(entry)
            fire.message = template.message(fire.id)
        else:
            made = make(self._side.app, entry.call, fire.id)
            template = self._placed(entry, made)
            fire.message = template.head + template.body
            headers = made.envelope.headers
            fire.expires_ms, fire.eta_ms = _ms(headers.get("expires")), _ms(headers.get("eta"))
        fire.queue, fire.granted_queue = template.queue, template.granted_queue
        fire.key, fire.priority = template.key, template.priority
        fire.overlap = "allow" if entry.policy is None else entry.policy.overlap

    def _template(self, entry: Entry) -> Template:
        return self._placed(entry, make(self._side.app, entry.call, MARK))

    def _placed(self, entry: Entry, message: Message) -> Template:
        side, policy = self._side, entry.policy
        if policy is None:
            raise ConfigurationError(f"entry {entry.name!r} fires no job")
        if keys.text(message.queue) != message.queue:
            raise ConfigurationError("its queue's name must be a text that UTF-8 can encode")
        packed = message.envelope.pack()
        head = len(packed) - len(message.envelope.body)
        room = policy.room_key(message.args, message.kwargs, side.signatures.get(entry.call.task))
        return Template(
            packed[:head],
            packed[head:],
            message.queue,
            queues.granted_queue_for(message.queue, side.default_queue),
            keys.room_key(room),
            side.priority_of(message.envelope.headers, policy),
        )

    def _send(self) -> None:
        part = self._unanswered
        found = self._ledger.dispatch(self._term, [fire for _, fire in part])
        self._unanswered = []
        if found.what == "term":
            return self._no_longer()
        if found.what == "full":
            logger.error("The Redis of the ledger is full: %d fires are delayed", len(part))
            for entry, _ in part:
                self._again(entry, 1.0)
            return None
        self._side.publisher.publish(found.grants)
        sending, stale = [], []
        for (entry, fire), (what, *detail) in zip(part, found.answers, strict=True):
            if what == "send":
                sending.append((entry, fire))
            elif what == "stale":
                stale.append(entry)
                self._again(entry, 1.0)  # unless it is adopted now
            else:
                self._answered(entry, fire, what, " ".join(detail))
        self._publish(sending)
        if stale:
            self._adopt(self._term, stale, self._side.term.now(), known=True)
        return None

    def _answered(self, entry: Entry, fire: Fire, what: str, detail: str) -> None:
        if what in ("fired", "skipped", "missed", "known"):
            self._is_fired(entry, fire, what, detail)
        elif what == "unknown":
            self._side.keeper.register_soon()
            self._again(entry, 0.3)
        elif what == "early":
            self._again(entry, 0.1)
        elif what == "corrupt":
            self._report(entry.key, f"entry {entry.name!r} is not fired, a record in the ledger is corrupt: {detail}")
            self._again(entry, AGAIN)
        # paused: it comes back with the change that ends that

    def _is_fired(self, entry: Entry, fire: Fire, what: str, detail: str) -> None:
        entry.last_ms = max(entry.last_ms, fire.due_ms)
        self._look(entry, fire.next_ms or fire.due_ms + 1)
        if what == "fired":
            logger.info("Scheduler: Sending due task %s (%s)", entry.shown, entry.call.task)
        elif what != "known":
            logger.info("Scheduler: %s (%s) is %s: %s", entry.shown, entry.call.task, what, detail or "too late")

    def _again(self, entry: Entry, seconds: float) -> None:
        self._look(entry, self._side.term.now() + round(seconds * 1000))

    def _continue(self) -> None:
        """Continuous jobs go on by themselves, in the ledger; this begins them, and goes on where a chain broke."""
        self._continue_at = monotonic() + CONTINUE_EVERY
        for part in _parts(list(self._continuous), MOST_FIRES):
            what, made, grants = self._ledger.continue_(self._term, part)
            if what == "term":
                return self._no_longer()
            self._side.publisher.publish(grants)
            lost = [self._continuous[key] for key, one in zip(part, made, strict=False) if one < 0]
            if lost:
                self._adopt(self._term, lost, self._side.term.now(), known=True)
        return None

    # -- tasks that are no jobs of ours -------------------------------------------------------------

    def _publish(self, part: Sequence[tuple[Entry, Fire]]) -> None:
        """First the broker, then the ledger: what is lost between the two is sent again, under the same id."""
        sent = []
        for entry, fire in part:
            if not self._leads() or monotonic() < self._broker_at:
                self._again(entry, 0.5)
                continue
            logger.info("Scheduler: Sending due task %s (%s)", entry.shown, entry.call.task)
            try:
                self._put(entry, fire.id)
            except UNREACHABLE as exc:
                self._disconnect()
                self._broker_wait = min(30.0, 2 * self._broker_wait or 1.0)
                self._broker_at = monotonic() + self._broker_wait
                logger.error("The broker does not take %s, again in %.0f s: %s", entry.shown, self._broker_wait, exc)
                self._again(entry, self._broker_wait)
            except Exception as exc:
                self._cannot(entry, exc)
            else:
                self._broker_wait = 0.0
                sent.append(fire)
                self._is_fired(entry, fire, "known", "")
        if sent:
            self._ledger.fired(sent)

    def _put(self, entry: Entry, id: str) -> None:
        app, call = self._side.app, entry.call
        if self._producer is None:
            self._producer = app.amqp.Producer(app.connection_for_write(), auto_declare=False)
        args, kwargs = call.evaluated()
        task = app.tasks.get(call.task)
        options = {**call.options_of(id), "producer": self._producer}
        with denied_join_result():
            if task is not None:
                task.apply_async(args, kwargs, **options)
            else:
                app.send_task(call.task, args, kwargs, **options)

    def _disconnect(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                producer.connection.close()
            except Exception as exc:
                logger.debug("Closing the dispatcher's connection: %r", exc)


def levels(graph: Graph) -> dict[str, int]:
    """Of each job, how many others have to go before it, one after the other."""
    found: dict[str, int] = {}
    for job in graph.order():
        found[job] = 1 + max((found.get(other, 0) for other in graph.dependencies[job]), default=-1)
    return found


def _parts(things: list[T], most: int) -> Iterable[list[T]]:
    return (things[i : i + most] for i in range(0, len(things), most))


def _ms(text: str | None) -> int | None:
    return round(datetime.fromisoformat(text).timestamp() * 1000) if text else None
