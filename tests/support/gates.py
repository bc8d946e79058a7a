"""A worker's gate without a worker: Celery's own requests, and stand-ins for pool, event loop and ledger."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from celery import Celery
from celery.worker.request import create_request_cls

from celery_orchestration import OrchestratedTask
from celery_orchestration.job.envelope import HEADER, Envelope
from celery_orchestration.ledger import Answer, Outcome, Start, Turn
from celery_orchestration.worker.custom import request_class
from celery_orchestration.worker.gate import Gate
from celery_orchestration.worker.job_request import gates
from celery_orchestration.worker.notices import Notices
from celery_orchestration.worker.request import OrchestratedRequest
from celery_orchestration.worker.slots import CountedSlots
from celery_orchestration.worker.state import GateState
from celery_orchestration.worker.turns import Batch

HOST = "w1@host"


class Loop:
    """Calls that are due soon or later are made when a test says so."""

    def __init__(self) -> None:
        self._soon: list[Callable[[], None]] = []
        self.delayed: list[tuple[float, Callable[[], None]]] = []

    def inside(self) -> bool:
        return False

    def soon(self, function: Callable[[], None]) -> None:
        self._soon.append(function)

    def later(self, seconds: float, function: Callable[[], None]) -> None:
        self.delayed.append((seconds, function))

    def drain(self) -> None:
        while self._soon:
            self._soon.pop(0)()

    def time_passes(self, seconds: float) -> None:
        due = [function for after, function in self.delayed if after <= seconds]
        self.delayed = [one for one in self.delayed if one[0] > seconds]
        for function in due:
            function()
        self.drain()


class Pool:
    """An execution pool that only records what it was given."""

    def __init__(self) -> None:
        self.given: list[str] = []

    def apply_async(self, target: Any, args: Any, **options: Any) -> Any:
        self.given.append(args[1])
        return type("Result", (), {})()

    def terminate_job(self, pid: int) -> None:
        raise NotImplementedError


class GateStage:
    """One worker with some slots. `turns`: what it reported and asked, one batch for each round trip."""

    def __init__(
        self, app: Celery, slots: int = 2, *, granted: tuple[str, ...] = (), strict_priority: bool = False, **job: Any
    ) -> None:
        self.app = app
        self.acknowledged: list[str] = []
        self.turns: list[Batch] = []
        self.called: list[str] = []
        #: Whether it takes messages from the granted queues, each time that this changed.
        self.take_granted: list[bool] = []
        #: Runs whose message was copied to their queue.
        self.copied: list[str] = []
        self.loop, self.pool = Loop(), Pool()
        self.slots = CountedSlots(lambda: slots)
        self.task = app.task(base=OrchestratedTask, name="job", shared=False, **{"max_running": 9, **job})(_nothing)
        app.finalize()

        def noting(name: str) -> Callable[..., None]:
            return lambda *_: self.called.append(name)

        self.consumer = SimpleNamespace(
            pool=self.pool, hostname=HOST, event_dispatcher=None, connection_errors=(), task_buckets={"job": None},
            on_task_request=self.comes,
        )  # fmt: skip
        self.state = GateState()
        self.notices = Notices(noting("wake"))
        jobs = SimpleNamespace(encoded={"job": "job"}, default_queue="celery", priority_of=lambda headers, policy: 1)
        granted_queues = SimpleNamespace(consumers=[], granted=granted, take_granted=self.take_granted.append)
        publisher = SimpleNamespace(publish=noting("publish"), end=noting("end"), copy=self._copied)
        self.gate = gates[HOST] = Gate(
            state=self.state, loop=self.loop, in_loop=lambda function: function(), slots=self.slots,
            consumer=self.consumer, app=app, accept={"application/json"}, jobs=jobs, strict_priority=strict_priority,
            granted_queues=granted_queues, publisher=publisher, notices=self.notices, deadline=None, limits=None,
            ledger_address="there", carry=self.turns.append, register_again=noting("register_again"),
            jobs_disabled=noting("disabled"), begin_drain=noting("drain"), hurry_drain=noting("hurry"),
        )  # type: ignore[arg-type]  # fmt: skip
        self.admission, self.settlement = self.gate.admission, self.gate.settlement
        self.gate.open()
        self.loop.drain()
        self.answer()  # every worker begins with a turn that offers its slots

    def close(self) -> None:
        del gates[HOST]

    def _copied(self, envelope: Envelope, queue: str, grant: str) -> None:
        self.copied.append(envelope.headers["id"])

    def message(self, id: str, **headers: Any) -> bytes:
        made = self.app.amqp.as_task_v2(id, "job", args=(), kwargs={})
        properties = {"correlation_id": id, "message_id": id}
        body = json.dumps(made.body).encode()
        return Envelope(
            {**made.headers, **headers}, properties, "application/json", "utf-8", "", "celery", body
        ).pack()  # fmt: skip

    def request(self, id: str, grant: str = "", **headers: Any) -> OrchestratedRequest:
        """As if its message had come from the broker."""
        if grant:
            headers[HEADER] = {"publication": "", "grant": grant, "exchange": "", "routing_key": "celery"}
        message = Envelope.unpack(self.message(id, **headers)).as_message({"application/json"})
        made = create_request_cls(request_class(self.task), self.task, self.pool, HOST, None, app=self.app)
        request: OrchestratedRequest = made(
            message, on_ack=lambda *_: self.acknowledged.append(id), on_reject=lambda *_: None, app=self.app,
            hostname=HOST, eventer=None, task=self.task, connection_errors=(), body=message.body,
            headers=message.headers, decoded=False, utc=True,
        )  # fmt: skip
        return request

    def comes(self, request: OrchestratedRequest) -> None:
        request.execute_using_pool(self.pool)

    def come(self, *ids: str, **more: Any) -> list[OrchestratedRequest]:
        requests = [self.request(id, **more) for id in ids]
        for request in requests:
            self.comes(request)
        self.loop.drain()
        return requests

    def answer(
        self,
        *answers: Answer,
        outcomes: str = "ok",
        starts: list[Start] | None = None,
        waiting: int = 0,
        due: float | None = None,
    ) -> Batch:
        """The ledger answers the oldest turn."""
        batch = self.turns.pop(0)
        taken = [outcomes] * len(batch.outcomes)
        turn = Turn(waiting, False, taken, list(answers), [], starts or [], [], [], due, {})
        self.gate.turns.answered(batch, turn)
        self.loop.drain()
        return batch

    def started(self, id: str, fence: str = "7") -> OrchestratedRequest:
        """A run that the execution pool has."""
        [request] = self.come(id)
        self.answer(starts_with(fence, id))
        return request

    def reported(self) -> list[Outcome]:
        """The outcomes of all turns so far."""
        return [outcome for batch in self.turns for outcome in batch.outcomes]


def starts_with(fence: str, run: str) -> Answer:
    return Answer("start", fence, run)


def _nothing() -> None: ...
