"""The ledger: the state of all jobs and runs in Redis, and the only code that talks to it.

A :class:`Ledger` is one connection and belongs to one thread: :meth:`Ledger.new_connection` makes another. It has one
method per verb, with the name of the verb, in a module for each caller (``client/``). The head of
``lua/verbs/<caller>/<verb>.lua`` is the contract of a verb. ``records.py`` and ``replies.py`` declare what verbs take
and return, ``lua/schema.lua`` how it is stored.
"""

from celery_orchestration.ledger import keys
from celery_orchestration.ledger.client.base import NewEpoch, NotRegistered
from celery_orchestration.ledger.client.operator import OperatorVerbs
from celery_orchestration.ledger.client.schedule import ScheduleVerbs
from celery_orchestration.ledger.client.supervisor import SupervisorVerbs
from celery_orchestration.ledger.client.worker import WorkerVerbs
from celery_orchestration.ledger.records import (
    Adoption,
    Arrival,
    Claim,
    Discarded,
    Fire,
    Grant,
    HistoryLine,
    Outcome,
    Place,
    Presence,
    Stray,
    TimedOut,
)
from celery_orchestration.ledger.replies import (
    Adopted,
    Answer,
    Changes,
    Claimed,
    ClaimedPlace,
    Decisions,
    Disabled,
    Dispatched,
    Ending,
    Lead,
    ListedNode,
    Nodes,
    Registered,
    RenewedPlaces,
    Start,
    Sweep,
    Turn,
    Waiting,
)

#: The kind of a member that is a scheduler.
BEAT = "beat"
#: What may have been lost when a new epoch began, for people.
FORGOTTEN = {
    "emptied": "was emptied: waiting runs, history, dead letters and audit are lost",
    "moved": "was restarted or failed over: its last writes may be lost",
}


class Ledger(WorkerVerbs, ScheduleVerbs, OperatorVerbs, SupervisorVerbs):
    """All verbs, over one connection."""


__all__ = [
    "BEAT",
    "FORGOTTEN",
    "Adopted",
    "Adoption",
    "Answer",
    "Arrival",
    "Changes",
    "Claim",
    "Claimed",
    "ClaimedPlace",
    "Decisions",
    "Disabled",
    "Discarded",
    "Dispatched",
    "Ending",
    "Fire",
    "Grant",
    "HistoryLine",
    "Lead",
    "Ledger",
    "ListedNode",
    "NewEpoch",
    "Nodes",
    "NotRegistered",
    "Outcome",
    "Place",
    "Presence",
    "Registered",
    "RenewedPlaces",
    "Start",
    "Stray",
    "Sweep",
    "TimedOut",
    "Turn",
    "Waiting",
    "keys",
]
