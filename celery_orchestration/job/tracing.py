"""OpenTelemetry (extra ``otel``): why a run was late, inside its caller's trace.

When a run starts that has waited, there is one span for each of its waits, with the time at which the wait began and
ended, beside the span that opentelemetry-instrumentation-celery makes of the run itself. Both are children of the call.
A wait at the gate says what it was for, and is linked to the call of the run that it waited for.

The ledger notices by the header ``traceparent`` of a message that somebody traces its call, and only then keeps what a
run waits for. The spans are made in the process that runs the code: that is where OpenTelemetry is set up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from celery.utils.log import get_logger

from celery_orchestration.ledger import keys

try:
    from opentelemetry import propagate, trace
except ImportError:  # without the extra
    propagate = None

logger = get_logger(__name__)

#: The names of the spans, and what each wait is, in the words of ``docs/metrics.md``.
NAMES = {"gate": "wait", "delay": "delay", "hand_over": "hand over"}


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait that is over."""

    kind: str
    from_ms: int
    to_ms: int
    #: What it was for, in the words of ``lua/rules.lua``.
    why: tuple[str, ...] = ()
    run: str = ""
    fence: str = ""
    #: ``traceparent`` of the call of that run.
    traceparent: str = ""

    @property
    def blocking_job(self) -> str | None:
        named = len(self.why) > 1 and self.why[0] in ("room", "blocked", "depends", "behind")
        return keys.decode_job(self.why[1]) if named else None

    def attributes(self, job: str) -> dict[str, str | int]:
        found: dict[str, str | int] = {
            "celery_orchestration.job": job,
            "celery_orchestration.wait.kind": self.kind,
        }
        if self.why:
            found["celery_orchestration.wait.reason"] = self.why[0]
        if self.blocking_job is not None:
            found["celery_orchestration.wait.blocking_job"] = self.blocking_job
        if self.run:
            found["celery_orchestration.wait.blocking_run"] = self.run
        if self.fence:
            found["celery_orchestration.wait.blocking_fence"] = int(self.fence)
        return found


def read(document: str) -> list[Wait]:
    """What ``lua/verbs/worker/turn.lua`` tells of the waits of one run."""
    return [_wait(one) for one in json.loads(document)]


def _wait(found: Mapping[str, Any]) -> Wait:
    by = found.get("by") or {}
    why = tuple((found.get("why") or "").split())
    texts = (by.get("id") or "", str(by.get("fence") or ""), by.get("trace") or "")
    return Wait(found["kind"], int(found["from"]), int(found["to"]), why, *texts)


def tell(request: Any, job: str, document: str) -> None:
    """Makes the spans of a run that starts. Whatever goes wrong with that must not keep it from running."""
    if propagate is None:
        return
    try:
        _make_spans(request, job, read(document))
    except Exception:
        logger.warning("The waits of run %s cannot be traced", request.id, exc_info=True)


def _make_spans(request: Any, job: str, waits: Iterable[Wait]) -> None:
    tracer = trace.get_tracer("celery_orchestration")
    caller = propagate.extract(request, getter=_OfRequest())
    fence = (request.properties or {}).get("orchestration_fence")
    for wait in waits:
        span = tracer.start_span(
            f"{NAMES[wait.kind]}/{job}",
            context=caller,
            kind=trace.SpanKind.INTERNAL,
            attributes={
                **wait.attributes(job),
                "messaging.message.id": request.id,
                **({"celery_orchestration.fence": int(fence)} if fence else {}),
            },
            links=_links(wait),
            start_time=wait.from_ms * 1_000_000,
        )
        span.end(wait.to_ms * 1_000_000)


def _links(wait: Wait) -> list[Any]:
    if not wait.traceparent:
        return []
    blocking = propagate.extract({"traceparent": wait.traceparent})
    context = trace.get_current_span(blocking).get_span_context()
    if not context.is_valid:
        return []
    return [trace.Link(context, {"celery_orchestration.run": wait.run})]


class _OfRequest:
    """The headers of a message, where Celery puts them."""

    def get(self, carrier: Any, key: str) -> list[str] | None:
        value = getattr(carrier, key, None)
        return None if value is None else [str(value)]

    def keys(self, carrier: Any) -> list[str]:
        return []
