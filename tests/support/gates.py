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
from celery_orchestration.worker.gate import Batch, Gate
from celery_orchestration.worker.request import OrchestratedRequest, gates
from celery_orchestration.worker.slots import CountedSlots

HOST = "w1@host"


class Loop:
    """What is to be called soon or later is called when a test says so."""

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
    """An execution pool that only remembers what it was given."""

    def __init__(self) -> None:
        self.given: list[str] = []

    def apply_async(self, target: Any, args: Any, **options: Any) -> Any:
        self.given.append(args[1])
        return type("Result", (), {})()

    def terminate_job(self, pid: int) -> None:
        raise NotImplementedError


class GateStage:
    """One worker with some slots. `turns`: what it told and asked, one batch for each round trip."""

    def __init__(self, app: Celery, slots: int = 2, **settings: Any) -> None:
        self.app = app
        self.acknowledged: list[str] = []
        self.turns: list[Batch] = []
        self.called: list[str] = []
        self.loop, self.pool = Loop(), Pool()
        self.slots = CountedSlots(lambda: slots)
        self.task = app.task(base=OrchestratedTask, name="job", max_running=9, shared=False)(_nothing)
        app.finalize()

        def noting(name: str) -> Callable[..., None]:
            return lambda *_: self.called.append(name)

        runtime = SimpleNamespace(
            app=app,
            accept={"application/json"},
            settings=SimpleNamespace(strict_priority=False, **settings),
            ledger=SimpleNamespace(address="there"),
            turns=SimpleNamespace(carry=self.turns.append),
            consuming=SimpleNamespace(consumers=[], granted=(), take_granted=noting("take_granted")),
            publisher=SimpleNamespace(publish=noting("publish"), end=noting("end")),
            heartbeat=SimpleNamespace(**{name: noting(name) for name in ("register_soon", "fail", "finish")}),
            epoch=SimpleNamespace(fence=""),
            drain=SimpleNamespace(begin=noting("drain")),
            deadline=None,
            default_queue="celery",
            encoded={"job": "job"},
            priority_of=lambda headers, policy: 1,
            in_loop=lambda function: function(),
            disabled=noting("disabled"),
        )
        self.consumer = SimpleNamespace(
            pool=self.pool, hostname=HOST, event_dispatcher=None, connection_errors=(), task_buckets={"job": None},
            on_task_request=self.comes,
        )  # fmt: skip
        self.gate = gates[HOST] = Gate(runtime, self.consumer, self.loop, self.slots)  # type: ignore[arg-type]
        self.gate.open()
        self.loop.drain()
        self.answer()  # every worker begins with a turn that offers its slots

    def close(self) -> None:
        del gates[HOST]

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
        self, *answers: Answer, outcomes: str = "ok", starts: list[Start] | None = None, waiting: int = 0
    ) -> Batch:
        """The ledger answers the oldest turn."""
        batch = self.turns.pop(0)
        told = [outcomes] * len(batch.outcomes)
        self.gate.answered(batch, Turn(waiting, False, told, list(answers), [], starts or [], [], [], None, {}))
        self.loop.drain()
        return batch

    def started(self, id: str, fence: str = "7") -> OrchestratedRequest:
        """A run that the execution pool has."""
        [request] = self.come(id)
        self.answer(starts_with(fence, id))
        return request

    def told(self) -> list[Outcome]:
        """The outcomes of all turns since."""
        return [outcome for batch in self.turns for outcome in batch.outcomes]


def starts_with(fence: str, run: str) -> Answer:
    return Answer("start", fence, run)


def _nothing() -> None: ...
