"""OpenTelemetry spans (extra ``otel``) that show why a run was late, inside its caller's trace.

When a run that has waited starts, each of its waits becomes a span with its own begin and end, beside the span that
opentelemetry-instrumentation-celery makes of the run itself. Both are children of the call. The span of a wait at the
gate names its reason, and links to the call of the run that it waited for.

The header ``traceparent`` of a message tells the ledger that its call is traced. Only then does it keep the waits of
the run. The spans are made in the process that runs the code, where OpenTelemetry is set up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from celery.utils.log import get_logger

from celery_orchestration.job import reasons
from celery_orchestration.ledger import keys

try:
    from opentelemetry import propagate, trace
except ImportError:  # without the extra
    propagate = None

logger = get_logger(__name__)

#: The names of the spans, in the words of ``docs/metrics.md``.
NAMES = {"gate": "wait", "delay": "delay", "hand_over": "hand over"}


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait that is over."""

    kind: str
    from_ms: int
    to_ms: int
    #: Its reason, in the words of ``lua/rules.lua``.
    why: tuple[str, ...] = ()
    run: str = ""
    fence: str = ""
    #: ``traceparent`` of the call of the run that it waited for.
    traceparent: str = ""

    @property
    def blocking_job(self) -> str | None:
        job = reasons.job_of(self.why) if self.why else None
        return None if job is None else keys.decode_job(job)

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
    """Read the waits of one run as ``turn.lua`` returns them."""
    return [_wait(one) for one in json.loads(document)]


def _wait(found: Mapping[str, Any]) -> Wait:
    by = found.get("by") or {}
    why = tuple((found.get("why") or "").split())
    texts = (by.get("id") or "", str(by.get("fence") or ""), by.get("trace") or "")
    return Wait(found["kind"], int(found["from"]), int(found["to"]), why, *texts)


def record_waits(request: Any, job: str, document: str) -> None:
    """Make the spans of a run that starts. An error here must not keep it from running."""
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
