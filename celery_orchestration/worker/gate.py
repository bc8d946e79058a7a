"""The gate in the worker: every job's request comes here before it is executed.

A request that was given a slot asks the ledger whether its run may start (:class:`~.turns.Turns` carries the question,
in one round trip with the outcomes of the runs that just ended). It starts, or it waits in the ledger: then its message
is acknowledged and its slot goes to the next. Everything here happens in the worker's event loop, but for
:meth:`Gate.settle`, which may be called from any thread.

While the ledger cannot be reached the gate is closed: requests stay here, unacknowledged, and their slots are given
back; what runs goes on, and outcomes are kept until they can be told.
"""

from __future__ import annotations

import heapq
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery.app.task import Context
from celery.exceptions import TaskRevokedError
from celery.utils.functional import noop
from celery.utils.log import get_logger
from celery.worker.request import create_request_cls, task_ready
from celery.worker.state import task_reserved
from celery.worker.strategy import proto1_to_proto2

from celery_orchestration.errors import ConfigurationError
from celery_orchestration.job import queues
from celery_orchestration.job.envelope import HEADER, Envelope
from celery_orchestration.ledger import Arrival, Claim, Discarded, Outcome, Start, TimedOut, Turn, keys
from celery_orchestration.worker import internals
from celery_orchestration.worker.acks import Acks
from celery_orchestration.worker.custom import request_class
from celery_orchestration.worker.deadline import Deadline
from celery_orchestration.worker.limits import Limits
from celery_orchestration.worker.loop import Loop
from celery_orchestration.worker.request import OrchestratedRequest, publication_of
from celery_orchestration.worker.slots import Slots

if TYPE_CHECKING:
    from celery_orchestration.worker.runtime import WorkerRuntime

logger = get_logger(__name__)

Then = Callable[[str], None] | None
#: A request whose run starts, the id of that and its fence.
Starting = tuple[OrchestratedRequest, str, str]

#: Most slots offered to the ledger in one turn.
MOST_OFFERED = 4
#: Seconds that a handed-over run waits for a slot here before other workers may have it too.
SHARE_AFTER = 0.2
#: Seconds until something is tried again that the ledger answered with an error.
LATER = 5.0
#: Most requests put off in one turn.
MOST_PUT_OFF = 32
#: How many times a worker remembers at which runs are due that it put off.
MOST_DUES = 20_000
#: Seconds after which another worker looks at what is due.
LOOK_GRACE = 0.1
#: Seconds between words about a full Redis.
SAY_FULL_EVERY = 30.0
#: Outcomes that are told again should the ledger have forgotten them.
MOST_TAKEN = 1000
#: Seconds between looks at whether a killed process is gone.
GONE_INTERVAL = 0.02

_HANDED_OVER = queues.rank_of(queues.granted_name(queues.DEFAULT_POOL))


@dataclass(slots=True)
class Batch:
    """One turn: what is told and asked, and who is waiting for the answers."""

    outcomes: list[Outcome]
    thens: list[Then]
    arrivals: list[Arrival]
    requests: list[OrchestratedRequest]
    offered: int
    #: Its slots were given back meanwhile, because the ledger does not answer.
    slotless: bool = False
    #: How many of the requests came without a slot.
    without_slot: int = 0
    #: When it was made, by the monotonic clock: what the ledger answers is as old as that.
    asked: float = field(default_factory=time.monotonic)

    @property
    def slots(self) -> int:
        """Slots that stand idle until it is answered."""
        return 0 if self.slotless else self.offered + len(self.requests) - self.without_slot

    def parts(self) -> list[Batch]:
        """Each outcome and each arrival by itself; slots that were only offered are one more."""
        ends = [Batch([o], [then], [], [], 0) for o, then in zip(self.outcomes, self.thens, strict=True)]
        asks = [
            Batch([], [], [a], [r], 0, self.slotless, int(a.eta_ms is not None))
            for a, r in zip(self.arrivals, self.requests, strict=True)
        ]
        return [*ends, *asks, *([Batch([], [], [], [], self.offered, self.slotless)] if self.offered else [])]


@dataclass(order=True, slots=True)
class Reserved:
    """A request that has not asked yet; the lowest goes first."""

    rank: int
    number: int
    request: OrchestratedRequest = field(compare=False)


def _guarded(function: Callable[..., None], *args: Any) -> None:
    """One request's trouble (a lost broker connection, say) must not keep the others' answers from being heard."""
    try:
        function(*args)
    except Exception:
        logger.exception("%s failed", getattr(function, "__qualname__", function))


class Gate:
    def __init__(self, runtime: WorkerRuntime, consumer: Any, loop: Loop, slots: Slots) -> None:
        self._runtime = runtime
        self._loop = loop
        self._slots = slots
        self._reserved: list[Reserved] = []
        self._count = 0
        self._asking: list[OrchestratedRequest] = []
        self._putting_off: list[OrchestratedRequest] = []
        #: When we look at what is due, and when runs are that we put off ourselves; by the monotonic clock.
        self._look_at = math.inf
        self._own_dues: list[float] = []
        self._told: deque[tuple[Outcome, Then]] = deque()
        self._in_flight: Batch | None = None
        #: Parts of a turn that the ledger answered with an error, to be tried one by one.
        self._suspects: deque[Batch] = deque()
        self._lock = threading.RLock()  # contended only while the worker stops
        self._flush_is_due = False
        self._more = False
        self._stalled: list[OrchestratedRequest] = []
        #: Requests that had not asked when the worker stopped.
        self._unbegun: list[OrchestratedRequest] = []
        self._acks = Acks(loop)
        #: Handed-over runs that wait for Celery's rate limit.
        self._limited: set[OrchestratedRequest] = set()
        #: Whether handed-over runs are shared, because there was no slot for them here.
        self._sharing = False
        #: Where the execution pool has no time limits.
        self.limits: Limits | None = None
        self.closed = True
        #: The worker was told to stop: nothing more is admitted. Then its event loop is down: stopping.
        self.draining = self.stopping = False
        #: Runs that wait in the ledger, as of the last turn.
        self.waiting = 0
        #: Runs of this worker, by id.
        self.runs: dict[str, OrchestratedRequest] = {}
        #: Runs that are over, by fence, whose outcome is not taken yet; outcomes that were, the latest last.
        self._untold: dict[str, OrchestratedRequest] = {}
        self.taken: deque[Outcome] = deque(maxlen=MOST_TAKEN)
        self._said_full = -SAY_FULL_EVERY
        self.connected(consumer)

    def connected(self, consumer: Any) -> None:
        """On every connection to the broker."""
        self._consumer = consumer
        self._request_classes: dict[str, type[OrchestratedRequest]] = {}
        self._sharing = False
        limited, self._limited = self._limited, set()  # Celery forgets them with the connection
        self.returned(limited)
        if not self.closed:
            self._ask_for_slots()

    # -- requests come in ---------------------------------------------------------------------------

    def reserved(self, request: Any) -> None:
        """Celery took in a message. Known early, it can go before requests that came first but rank lower."""
        if isinstance(request, OrchestratedRequest) and request.gate is self and request.stage is None:
            self._reserve(request)
            if request.grant:
                self._loop.later(SHARE_AFTER, lambda: self._share(request))

    def _share(self, request: OrchestratedRequest) -> None:
        """All slots are busy. The run keeps its place in line here, and a copy of its message goes to whoever has a
        slot sooner: the first to start it wins, the ledger drops the other. Until then we take no more of them."""
        if request.stage != "reserved" or self.closed or self.stopping:
            return
        queue = internals.queue_of(request.message, self._runtime.consuming.consumers)
        if queue in self._runtime.consuming.granted:  # in the user's own queues messages are prefetched as ever
            if not self._sharing:
                self._sharing = True
                self._runtime.consuming.take_granted(False)
            self._runtime.publisher.copy(request.envelope(), queue, request.grant)

    def _reserve(self, request: OrchestratedRequest) -> None:
        request.stage = "reserved"
        self._count += 1
        heapq.heappush(self._reserved, Reserved(self._rank(request), self._count, request))

    def _rank(self, request: OrchestratedRequest) -> int:
        if request.fence is not None or request.grant:
            return _HANDED_OVER
        return queues.rank_of(self._queue_of(request)) if self._runtime.settings.strict_priority else 0

    def slot(self, request: OrchestratedRequest) -> None:
        """Celery wants a request executed: its slot goes to the first in rank, which need not be this one."""
        if request.stage is None:
            self._reserve(request)
        if self.stopping:
            return  # by a timer that was still due
        self._slots.arrived()
        if self.closed:
            self._stalled.append(request)
        self._serve()

    def _serve(self) -> None:
        while self._reserved and not self.closed and not self.draining and self._slots.take():
            request = heapq.heappop(self._reserved).request
            request.stage = "asked"
            if request.fence is not None:
                self._execute(request)
            else:
                self._asking.append(request)
        if self._asking:
            self._flush_soon()
        self._slots.rest()
        if self._sharing and not (self._reserved and self._reserved[0].rank == _HANDED_OVER):
            self._sharing = False
            self._runtime.consuming.take_granted(True)

    def rate_limited(self) -> Iterator[OrchestratedRequest]:
        """Runs that Celery's rate limit holds back here, those first that it lets go first."""
        found = internals.rate_limited(self._consumer)
        return (request for request in found if isinstance(request, OrchestratedRequest))

    def fetched(self) -> Iterator[OrchestratedRequest]:
        """Runs whose message is here and that wait for a slot: the ledger has not heard of them."""
        return (entry.request for entry in sorted(self._reserved) if entry.request.fence is None)

    def has_set_aside(self, request: Any) -> bool:
        """Whether a request is kept here without waiting for a slot: the ledger cannot take it in for now."""
        if not isinstance(request, OrchestratedRequest) or request.fence is not None:
            return False
        return self.closed or request.stage is None

    def free_slots(self) -> int:
        return self._slots.free()

    def drop_reserved(self) -> None:
        """The broker connection is lost, and with it all claims to slots: what was not admitted is delivered again,
        what was admitted asks for a slot again."""
        for entry in self._reserved:
            if entry.request.fence is None:
                entry.request.stage = "dropped"
        self._reserved = [entry for entry in self._reserved if entry.request.stage != "dropped"]
        heapq.heapify(self._reserved)
        self._stalled = [entry.request for entry in self._reserved]
        self._putting_off.clear()

    def put_off(self, request: OrchestratedRequest, eta: float) -> None:
        """A request that is not to start before a time waits in the ledger, not here. It needs no slot for that."""
        request.stage, request.not_before = "asked", eta
        self._putting_off.append(request)
        self._flush_soon()

    def look_again_in(self, seconds: float | None) -> None:
        """Something is due then. Whoever put it off looks in time; the others, should that one be gone, a moment later,
        and not all at once."""
        if seconds is not None:
            self._look_again_at(time.monotonic() + seconds + LOOK_GRACE * random.uniform(1, 3))

    def _remember_due(self, request: OrchestratedRequest) -> None:
        if request.not_before is not None and len(self._own_dues) < MOST_DUES:
            # A millisecond more: the ledger goes by whole ones.
            heapq.heappush(self._own_dues, time.monotonic() + request.not_before - time.time() + 0.001)
            self._look_again_at(self._own_dues[0])

    def _look_again_at(self, at: float) -> None:
        if at < self._look_at and not self.stopping:
            self._look_at = at
            self._loop.later(max(0.0, at - time.monotonic()), lambda: self._look(at))

    def _look(self, at: float) -> None:
        if self._look_at != at:
            return  # an earlier one has taken its place
        self._look_at = math.inf
        while self._own_dues and self._own_dues[0] <= time.monotonic():
            heapq.heappop(self._own_dues)
        if self._own_dues:
            self._look_again_at(self._own_dues[0])
        if not self.closed:
            self._more = True
            self.waiting = max(self.waiting, 1)  # so that idle slots are offered
            self._flush_soon()

    # -- turns --------------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        """When the events at hand are dealt with: the pool frees a slot before it reports the outcome of its last run,
        and both belong into one turn."""
        if self.stopping:
            self._flush()
        elif not self._flush_is_due:
            self._flush_is_due = True
            self._loop.soon(self._flush)

    def _flush(self) -> None:
        with self._lock:
            self._send_turn()

    def _send_turn(self) -> None:
        self._flush_is_due = False
        if self._in_flight is None and (self._has_work() or self._suspects):
            self._in_flight = self._suspects.popleft() if self._suspects else self._next_batch()
            self._runtime.turns.carry(self._in_flight)

    def _has_work(self) -> bool:
        coming = self._asking or (self._putting_off and not self.closed)
        return bool(self._told or self._more or (coming and not self.draining))

    def _next_batch(self) -> Batch:
        batch = Batch([], [], [], [], 0)
        while self._told:
            outcome, then = self._told.popleft()
            batch.outcomes.append(outcome)
            batch.thens.append(then)
        if not self.draining:
            asking, self._asking = self._asking, []
            for request in asking:
                arrival = self._arrival(request)
                if arrival is None:
                    self._slots.back()
                else:
                    batch.arrivals.append(arrival)
                    batch.requests.append(request)
            most = 0 if self.closed else MOST_PUT_OFF
            putting_off, self._putting_off = self._putting_off[:most], self._putting_off[most:]
            for request in putting_off:
                arrival = self._arrival(request)
                if arrival is not None:
                    batch.arrivals.append(arrival)
                    batch.requests.append(request)
                    batch.without_slot += 1
            while self.waiting and batch.offered < MOST_OFFERED and self._slots.offer():
                batch.offered += 1
        self._more = False
        return batch

    def _arrival(self, request: OrchestratedRequest) -> Arrival | None:
        try:
            return self._ask_for(request)
        except Exception as exc:
            logger.error("Run %r of job %s fails: the gate cannot be asked: %s", request.id, request.task.name, exc)
            _guarded(self._fail, request, exc)
            return None

    def _ask_for(self, request: OrchestratedRequest) -> Arrival:
        policy, job = request.task.orchestration, request.task.name
        if policy.on_lease_lost == "stop" and not internals.can_kill(self._consumer.pool):
            raise ConfigurationError("on_lease_lost='stop' needs a worker with -P prefork; it came to another one")
        queue = self._queue_of(request)
        for text in (request.id, queue):
            text.encode()  # JSON may bring what Redis does not take
        key = ""
        if policy.key is not None:
            key, request.problem = self._runtime.room_key(job, request.args, request.kwargs)
        return Arrival(
            id=request.id,
            attempt=request.attempt,
            job=self._runtime.encoded[job],
            key=key,
            priority=self._runtime.priority_of(request.request_dict, policy),
            grant=request.grant,
            expires_ms=int(request.expires.timestamp() * 1000) if request.expires else None,
            queue=queue,
            granted_queue=queues.granted_queue_for(queue, self._runtime.default_queue),
            message=request.envelope().pack(),
            eta_ms=None if request.not_before is None else int(request.not_before * 1000),
            publication=request.publication,
            anonymous=request.anonymous,
            queued_ms=request.queued_ms(),
        )

    def _queue_of(self, request: OrchestratedRequest) -> str:
        if request.origin is not None and not request.origin.get("exchange"):
            return request.origin.get("routing_key") or ""
        return internals.queue_of(request.message, self._runtime.consuming.consumers)

    def answered(self, batch: Batch, turn: Turn) -> None:
        """The ledger's answers to a turn."""
        with self._lock:
            starting, slots = self._answered(batch, turn)
        self._begin(starting, slots, batch.asked)  # gevent: may wait for a greenlet, whose end wants the lock
        if self._has_work() or self._suspects:
            self._flush_soon()

    def refused(self, batch: Batch, exc: Exception) -> None:
        """The ledger answers this turn with an error, again and again. Each of its parts is tried alone, and the one
        that the error is about some time later: it must not keep all others waiting."""
        parts = batch.parts()
        with self._lock:
            self._in_flight = None
            if len(parts) > 1:
                self._suspects.extend(parts)
            else:
                self._set_aside(batch, exc)
        if len(parts) == 1:
            self._begin([], batch.slots, batch.asked)
        self._flush_soon()

    def _set_aside(self, batch: Batch, exc: Exception) -> None:
        for told in zip(batch.outcomes, batch.thens, strict=True):
            logger.error("The ledger cannot be told that run %s %s: %s", told[0].id, told[0].outcome, exc)
            if not self.stopping:
                self._loop.later(LATER, lambda told=told: self._tell_again(told))  # type: ignore[misc]
        for request in batch.requests:
            logger.error("The ledger cannot be asked for run %s of job %s: %s", request.id, request.task.name, exc)
            self._ask_again(request, LATER)

    def _tell_again(self, told: tuple[Outcome, Then]) -> None:
        self._told.append(told)
        self._flush_soon()

    def _answered(self, batch: Batch, turn: Turn) -> tuple[list[Starting], int]:
        self._in_flight = None
        self.waiting = turn.waiting
        self._more = turn.more
        for outcome, then, accepted in zip(batch.outcomes, batch.thens, turn.outcomes, strict=True):
            self._untold.pop(outcome.fence, None)
            self.taken.append(outcome)
            if accepted == "refused":
                logger.warning("Run %s %s, but that is refused: its lease was lost", outcome.id, outcome.outcome)
            if then is not None:
                _guarded(then, accepted)
        slots = batch.slots
        starting = []
        for request, answer in zip(batch.requests, turn.answers, strict=True):
            if answer.what == "start":
                if answer.detail:
                    logger.info(
                        "Run %s of job %s would have waited: %s", answer.run, request.task.name, " ".join(answer.detail)
                    )
                starting.append((request, answer.run, answer.fence))
            elif answer.what in ("unknown", "full", "kept"):
                self._not_now(request, answer.what)
            else:
                self._remember_due(request)
                _guarded(self._let_go, request, answer.what, answer.detail)
        for start in turn.starts:
            handed_over = self._request_of(start)
            if handed_over is not None:
                starting.append((handed_over, start.id, start.fence))
        for request, run_id, _ in starting if turn.waits else ():
            request.waits = turn.waits.get(run_id, "")
        self._runtime.publisher.publish(turn.grants)
        self._runtime.publisher.end(turn.endings)
        self.look_again_in(turn.due)
        if turn.disabled:
            self._runtime.disabled(turn.disabled)
        return starting, slots

    def _not_now(self, request: OrchestratedRequest, why: str) -> None:
        """The ledger cannot take it in: it stays here, unacknowledged."""
        if why == "full":
            self._say_full()
            return self._ask_again(request, LATER)
        if why == "unknown":
            self._runtime.heartbeat.register_soon()
        return self._ask_again(request, 1.0)

    def _say_full(self) -> None:
        now = time.monotonic()
        if now - self._said_full >= SAY_FULL_EVERY:
            self._said_full = now
            logger.error(
                "The Redis at %s is full: no new run is taken in, jobs stay in their queues; what runs and waits goes "
                "on. Give it more memory (maxmemory), or free some",
                self._runtime.ledger.address,
            )

    def _begin(self, starting: list[Starting], slots: int, admitted: float) -> None:
        for request, run_id, fence in starting:
            request.start(run_id, fence, admitted)
            self.voided([run_id])  # an earlier start of it, if that was here
            self._runtime.epoch.fence = fence  # they rise
            self.runs[run_id] = request
            if self.draining:
                request.settle("returned")
            elif self._is_limited(request):
                continue
            elif slots > 0:
                slots -= 1
                self._execute(request)
            else:
                self._reserve(request)
                self._stalled.append(request)
        for _ in range(slots):
            self._slots.back()
        if not self.closed and self._stalled:
            self._ask_for_slots()
        self._serve()

    def _is_limited(self, request: OrchestratedRequest) -> bool:
        """A run that was handed over has not come through Celery's rate limit yet: then it goes there first."""
        bucket = self._consumer.task_buckets[request.task.name] if request.message.channel is None else None
        if bucket:
            self._limited.add(request)
            self._consumer._limit_task(request, bucket, 1)
        return bool(bucket)

    def _let_go(self, request: OrchestratedRequest, what: str, detail: Iterable[str]) -> None:
        """The ledger has it, or somebody else: the broker's copy is not needed any more."""
        if what == "drop" and not request.grant:
            logger.warning(
                "A copy of a message of job %s was dropped: the ledger knows this call of task id %s already (%s)",
                request.task.name,
                request.id,
                " ".join(detail),
            )
        task_ready(request)
        request.acknowledge()

    def acknowledge(self, request: OrchestratedRequest) -> bool:
        """Acknowledges its message together with others, if that is possible and can be done from here."""
        restored = getattr(self._consumer, "_maximum_prefetch_restored", True)  # else Celery counts acknowledgements
        if self.stopping or not restored or not self._loop.inside() or not self._acks.take(request.message):
            return False
        request.acknowledged = True
        return True

    def _ask_again(self, request: OrchestratedRequest, seconds: float) -> None:
        request.stage = None
        eta = request.not_before
        if eta is not None:
            self._loop.later(seconds, lambda: self.put_off(request, eta))
        else:
            self._loop.later(seconds, lambda: self._consumer.on_task_request(request))

    # -- starting -----------------------------------------------------------------------------------

    @property
    def deadline(self) -> Deadline | None:
        return self._runtime.deadline

    def _execute(self, request: OrchestratedRequest) -> None:
        self._limited.discard(request)
        if self.deadline is not None and request.stops_with_lease() and self.deadline.has_passed():
            # Its process would be ended at once. Not right away: it may come back here.
            self._slots.unused()
            return self._loop.later(1.0, lambda: request.settle("returned"))
        if request.problem is not None:
            self._slots.unused()
            return _guarded(request.fail, request.problem)
        try:
            result = request.execute_now(self._consumer.pool)
        except Exception as exc:
            self._slots.unused()
            return _guarded(self._not_taken, request, exc)
        if result is None and request.time_start is None and not request.settled:
            self._slots.unused()  # the pool is closing
            return request.settle("returned")
        # Threads and gevent may drop what they accepted without a callback.
        if hasattr(result, "f"):
            request.pool_result = result
            result.f.add_done_callback(lambda _: self._left_the_pool(request))
        elif hasattr(result, "link"):
            request.pool_result = result
            result.link(lambda _: self._left_the_pool(request))
        return None

    @staticmethod
    def _not_taken(request: OrchestratedRequest, exc: Exception) -> None:
        if isinstance(exc, TaskRevokedError):
            request.settle("revoked")
        elif isinstance(exc, RuntimeError | OSError):
            logger.error("Run %s of job %s could not be given to the pool: %r", request.run_id, request.task.name, exc)
            request.settle("returned")
        else:  # there is something about it that no pool would take
            request.fail(exc)

    @staticmethod
    def _left_the_pool(request: OrchestratedRequest) -> None:
        if not request.settled:
            request.settle("crashed" if request.time_start else "returned")

    def _request_of(self, start: Start) -> OrchestratedRequest | None:
        """A request for a run that was handed over to this worker."""
        consumer = self._consumer
        try:
            message = Envelope.unpack(start.message).as_message(self._runtime.accept)
            headers, body, decoded, utc = message.headers, message.body, False, self._runtime.app.uses_utc_timezone()
            if "task" not in headers:
                body, headers, decoded, utc = proto1_to_proto2(message, message.payload)
            task = self._runtime.app.tasks[headers["task"]]
            if task.name not in self._request_classes:
                self._request_classes[task.name] = create_request_cls(
                    request_class(task),
                    task,
                    consumer.pool,
                    consumer.hostname,
                    consumer.event_dispatcher,
                    app=self._runtime.app,
                )
            request: OrchestratedRequest = self._request_classes[task.name](
                message,
                on_ack=noop,
                on_reject=noop,
                app=self._runtime.app,
                hostname=consumer.hostname,
                eventer=consumer.event_dispatcher,
                task=task,
                connection_errors=consumer.connection_errors,
                body=body,
                headers=headers,
                decoded=decoded,
                utc=utc,
            )
            if task.orchestration.key is not None:
                _, request.problem = self._runtime.room_key(task.name, request.args, request.kwargs)
        except Exception:
            logger.exception("Run %s was handed over, but its message cannot be read", start.id)
            self._runtime.heartbeat.fail(start.id, start.fence)
            return None
        task_reserved(request)
        if not request.received:  # a fire that waited has never been a message
            request.send_received()
        return request

    # -- runs end -----------------------------------------------------------------------------------

    def settle(self, request: OrchestratedRequest, outcome: str, then: Then = None) -> None:
        """A run is over and its code gone. From any thread."""
        if self.runs.get(request.run_id) is request:
            del self.runs[request.run_id]
        self._untold[request.fence or ""] = request
        trace = request.traceback if outcome in ("failed", "crashed") else ""
        now = time.monotonic()
        told = Outcome(request.run_id, request.fence or "", outcome, request.note, trace, request.ran_ms(now), now)
        self._told.append((told, then))
        self._runtime.in_loop(self._ended)

    def tell(self, outcome: Outcome) -> None:
        """An outcome of a run that was never in a slot. From any thread."""
        self._told.append((outcome, None))
        self._runtime.in_loop(self._flush_soon)

    def _ended(self) -> None:
        if not self.stopping:
            self._slots.ended()
        self._flush_soon()
        if self._reserved and not self.stopping:
            self._serve()

    def claims(self) -> list[Claim]:
        """What this worker has, for a ledger that may have forgotten it. From any thread."""
        found = []
        for request in (*self.runs.copy().values(), *self._untold.copy().values()):
            try:
                if not request.void:
                    found.append(Claim(self._ask_for(request), request.fence or "", request.run_id))
            except Exception:
                logger.exception("Run %s of job %s cannot be claimed", request.run_id, request.task.name)
        return found

    def take_a_turn(self) -> None:
        """Even if there is nothing to tell or to ask."""
        self._more = True
        self._flush_soon()

    def process_of(self, request: OrchestratedRequest) -> Any:
        return internals.process_of(self._consumer.pool, request.worker_pid)

    def when_gone(self, process: Any, then: Callable[[], None]) -> None:
        """Room is freed only when the code is gone: a time limit is announced before the child is killed."""
        if process is None or internals.is_gone(process) or self.stopping:
            return then()
        return self._loop.later(GONE_INTERVAL, lambda: self.when_gone(process, then))

    def over(self, request: OrchestratedRequest) -> None:
        """Its time is over, and Celery was told; its code goes on."""
        told = TimedOut(request.run_id, request.fence or "", request.note, request.afterwards is None)
        self._runtime.heartbeat.over(told)

    def ended_unstarted(self, request: OrchestratedRequest) -> None:
        """Celery found a message revoked or expired, and told everybody: the ledger must not keep its run."""
        self._runtime.heartbeat.finish(Discarded(request.id, request.attempt, request.publication, request.anonymous))

    def refused_message(self, message: Any) -> None:
        """Celery refused a run that was handed over, or a retry: it must not be read here."""
        headers = message.headers or {}
        if HEADER in headers and headers.get("id"):
            attempt = keys.attempt(headers.get("replaced_task_nesting") or 0, headers.get("retries") or 0)
            self._runtime.heartbeat.finish(Discarded(headers["id"], attempt, *publication_of(message, headers[HEADER])))

    def voided(self, ids: Iterable[str]) -> None:
        """The lease of these was lost. Their outcomes will be refused; what can be stopped is stopped."""
        for id in ids:
            request = self.runs.get(id)
            if request is None or request.void:
                continue
            request.void = True
            logger.error("Run %s of job %s lost its lease: its outcome will be refused", id, request.task.name)
            try:
                if request.time_start:
                    self._consumer.pool.terminate_job(request.worker_pid)
            except NotImplementedError:
                pass

    def revoked(self, ids: list[str], terminate: bool, signal: Any) -> None:
        """Of tasks, or of runs that have an id of their own. Celery knows one request for each task id, and has seen to
        that one."""
        self._runtime.heartbeat.revoke(ids)
        for request in list(self.runs.values()) if terminate else ():
            if not {request.id, request.run_id}.isdisjoint(ids) and not request._already_revoked:
                _guarded(request.terminate, self._consumer.pool, signal)

    def returned(self, requests: Iterable[OrchestratedRequest]) -> None:
        """No code of these runs, or none any more: they go back."""
        for request in requests:
            request.settle("returned")

    def in_pool(self) -> list[OrchestratedRequest]:
        return [request for request in self.runs.values() if request.stage != "reserved"]

    def _fail(self, request: OrchestratedRequest, exc: Exception) -> None:
        task_ready(request)
        try:
            request.task.backend.mark_as_failure(
                request.id, exc, request=Context(request.request_dict), store_result=request.store_errors
            )
        finally:
            request.acknowledge()

    # -- the ledger comes and goes ------------------------------------------------------------------

    def close(self) -> None:
        """The ledger does not answer: slots are given back, requests stay."""
        self.closed = True
        batch = self._in_flight
        if batch is not None and not batch.slotless:
            for _ in range(batch.slots):
                self._slots.back()
            batch.slotless = True
        for request in self._asking:
            request.stage = None
            self._reserve(request)
            self._stalled.append(request)
            self._slots.back()
        self._asking = []
        self._slots.rest()

    def open(self) -> None:
        if self.closed:
            self.closed = False
            self._ask_for_slots()
            self._serve()
            self.waiting = 1  # not known yet: the slots of a new worker are offered at once
            self._more = True
            self._flush_soon()

    def _ask_for_slots(self) -> None:
        stalled, self._stalled = self._stalled, []
        for request in stalled:
            self._consumer.on_task_request(request)

    # -- the worker stops ---------------------------------------------------------------------------

    def begin_drain(self) -> None:
        """The worker was told to stop. Also in a signal handler."""
        self.draining = True
        self._runtime.drain.begin()

    def hurry_drain(self) -> None:
        self._runtime.drain.hurry()

    def stop(self) -> None:
        """The event loop is down. What the ledger still grants us goes back, and what was not begun."""
        self.stopping = True
        self._loop.drain()
        self._acks.flush()
        reserved = [entry.request for entry in self._reserved]
        waiting = [request for request in reserved if request.fence is not None]
        unasked = [request for request in reserved if request.fence is None]
        self._unbegun = [*unasked, *self._asking, *self._putting_off]
        self._reserved.clear()
        self._asking.clear()
        self._putting_off.clear()
        self._stalled.clear()
        self.returned([*waiting, *self._limited])
        for request in self.in_pool():
            internals.take_back(request.pool_result)
        self._flush()

    def hand_back(self) -> None:
        """No more messages come: those that were fetched and not begun go back to their queues now, and not only when
        what runs here has ended."""
        unbegun, self._unbegun = self._unbegun, []
        for request in reversed(unbegun):  # Redis puts each before the others
            if not request.acknowledged and request.message.channel is not None:
                task_ready(request)
                _guarded(request.message.requeue)
                request.acknowledged = True

    def code_is_gone(self) -> bool:
        """Whether nothing of our runs is executed any more: the pool is down, and not only left alone."""
        alive = any(not internals.is_gone(child) for child in internals.children(self._consumer.pool))
        return not alive and all(internals.is_over(run.pool_result) for run in list(self.runs.values()))

    def return_all(self) -> None:
        """The execution pool is down: no code of ours runs any more. What had not begun was given back before."""
        for request in list(self.runs.values()):
            request.interrupted()

    def wait_told(self, deadline: float) -> bool:
        """Waits until every outcome was told to the ledger."""
        while True:
            with self._lock:  # whoever holds it may be telling Celery what the ledger has answered
                if not (self._told or self._suspects or self._in_flight is not None):
                    return True
            if time.monotonic() > deadline:
                return False
            self._loop.drain()  # an answer may have come just after the loop went down
            self._flush()
            time.sleep(0.01)
