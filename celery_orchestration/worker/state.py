"""Whether the gate is open, and whether the worker stops.

All parts of the gate share one :class:`GateState`. They read it from any thread. The event loop writes it; a signal
handler may set ``draining``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class GateState:
    #: The ledger does not answer, or does not know this worker yet: nothing is admitted.
    closed: bool = True
    #: The worker was asked to stop: nothing more is admitted.
    draining: bool = False
    #: The event loop is down for good: the parts of the gate are called from any thread now.
    stopping: bool = False
