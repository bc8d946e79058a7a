"""``celery -A app inspect orchestration``: a worker describes itself, through Celery's own remote control.

Loaded by the worker and by the command line: Celery looks for the command in both. It answers from memory, in the
worker's event loop, so it answers even if Redis does not. The heartbeat compares the clocks.
"""

from __future__ import annotations

from datetime import datetime, timezone
from importlib import import_module
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery.worker.control import control_command, inspect_command

from celery_orchestration import commands

if TYPE_CHECKING:
    from celery_orchestration.worker.request import OrchestratedRequest
    from celery_orchestration.worker.runtime import WorkerRuntime

#: At most this many runs that a rate limit holds back are listed, and as many that wait for a slot.
MOST_LISTED = 1000


@inspect_command(name=commands.INSPECT)  # type: ignore[untyped-decorator]
def orchestration(state: Any) -> dict[str, Any]:
    """Orchestration: mode, ledger, lease, clock and runs of a worker."""
    controller = state.consumer.controller
    # Imported late: imports go one way, and the package itself is on top.
    version: dict[str, Any] = {"version": import_module("celery_orchestration").__version__}
    if not hasattr(controller, "orchestration"):
        return {**version, "mode": None, "problem": "this worker has no jobs: no task has base=OrchestratedTask"}
    if controller.orchestration is None:
        return {**version, "mode": "off", "problem": "orchestration is off: jobs run as plain tasks"}
    if not hasattr(controller.orchestration, "drain"):  # the last of its parts
        return {**version, "mode": controller.orchestration.settings.mode, "problem": "it is just starting"}
    return {**version, **_described(controller.orchestration)}


@control_command(name=commands.SERVE, args=[("queue", str)])  # type: ignore[untyped-decorator]
def orchestration_serve(state: Any, queue: str) -> None:
    """A queue of the default pool comes into use: serve it, unless -Q or remote control excludes it."""
    runtime: Any = getattr(state.consumer.controller, "orchestration", None)
    if hasattr(runtime, "consuming"):
        runtime.consuming.begin([queue])


@control_command(name=commands.SWEEP)  # type: ignore[untyped-decorator]
def orchestration_sweep(state: Any) -> dict[str, str]:
    """Orchestration: sweep now, and not only when it is time."""
    runtime: Any = getattr(state.consumer.controller, "orchestration", None)
    if hasattr(runtime, "heartbeat"):
        runtime.heartbeat.sweep_soon()
    return {"ok": "it sweeps"}


def _described(runtime: WorkerRuntime) -> dict[str, Any]:
    presence, gate, heartbeat = runtime.presence(), runtime.gate, runtime.heartbeat
    problem = heartbeat.problem or ("it does not answer" if runtime.carrier.down else "")
    return {
        "mode": presence.mode,
        "problem": f"the ledger at {runtime.ledger.address}: {problem}" if problem else None,
        "ledger": str(runtime.ledger.address),
        "namespace": runtime.settings.namespace,
        "worker_id": presence.worker,
        "release": presence.release,
        "execution_pool": presence.kind,
        "slots": presence.slots,
        "free_slots": gate.admission.free_slots(),
        "received": runtime.received,
        "runs": [_run(run) for run in list(gate.settlement.runs.values())],
        #: Celery's ``rate_limit`` holds them back. The ledger has not been asked about them, or counts them as running.
        "rate_limited": [
            {"id": run.run_id, "job": run.name} for run in islice(gate.admission.rate_limited(), MOST_LISTED)
        ],
        #: They wait for a slot here. The ledger has not been asked about them.
        "fetched": [{"id": run.id, "job": run.name} for run in islice(gate.admission.fetched(), MOST_LISTED)],
        "queues": list(presence.queues),
        "lease_seconds": runtime.settings.lease_seconds,
        #: None: no heartbeat has reached the ledger yet.
        "last_heartbeat_seconds": _seconds_since(heartbeat.renewed_at),
        #: How far this machine's clock is ahead of Redis's.
        "clock_ahead_seconds": None if heartbeat.clock_ahead is None else round(heartbeat.clock_ahead, 3) + 0.0,
        "draining": gate.state.draining or gate.state.stopping,
        #: How it takes messages from a Redis broker, and why it has to poll for them.
        "fetch": "celery" if runtime.fetcher is None else "reliable",
        "fetch_polls_because": None if runtime.fetcher is None else runtime.fetcher.refusal or None,
        #: Why this worker cannot tell RabbitMQ how many messages to send.
        "prefetches_because": runtime.consuming.prefetch_refused or None,
    }


def _seconds_since(then: float | None) -> float | None:
    """By the monotonic clock."""
    return None if then is None else round(monotonic() - then, 3)


def _run(run: OrchestratedRequest) -> dict[str, Any]:
    # A fence is Redis's time at the start, in microseconds.
    fence = int(run.fence) if run.fence else None
    since = None if fence is None else datetime.fromtimestamp(fence / 1e6, timezone.utc).isoformat()
    return {"id": run.run_id, "job": run.name, "fence": fence, "since": since}
