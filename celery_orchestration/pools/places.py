"""Places: which supervisor may run which worker of a pool, and why two never hold the same place.

A pool of ``max=4`` has places 1 to 4. A supervisor starts a worker only on a place that it has claimed in the ledger.

**The ledger decides.** A claim, a renewal and a farewell are one script each. A place's record names its holder and a
fence, which rises with every claim. A claim takes only a number without a record, or one whose lease has run out by the
ledger clock; so at every moment each place has at most one holder in the ledger, and a pool never has more places than
the smallest ``max`` of the supervisors that live.

**A holder that does not know yet that it lost its place** (it stood still for longer than a lease, or could not reach
Redis) runs a worker on it beside the new holder's. That ends soon: its next renewal says ``void``, and it drains that
worker. Should the supervisor itself stand still, the worker asks (``worker.supervised``), every third of a lease, and
drains by itself. Until then the pool has a worker too many, which does no harm: what may run at once is up to the gate,
and each message is fetched once. Nothing here is needed to be right; it is needed to keep to ``max``.

**A supervisor that was killed** leaves workers that drain by themselves, because the kernel tells them (``child``). If
it comes back within a lease it has the same name, so that the ledger gives it its places again; it starts a worker on
one as soon as the old one, whose process is written down in the place's record, is gone. Its name is the host's and a
number: the first ``supervisor-<number>.lock`` in the state directory that no live process holds. With ``--name`` it is
what was given. Two processes of one name would fight for the same places: the one that started last has the name, and
the other ends (``Superseded``).

**Redis was emptied, restarted or failed over.** Whoever notices declares a new epoch, as for workers, and for one lease
nobody can claim. A renewal puts a place back that the ledger has forgotten, unless another has it. A supervisor that is
new to an emptied ledger cannot know that others were there, and may claim at once: those that had the place before are
told ``void`` as above.

**Lost replies.** A claim carries a token: asked again, the ledger gives the same place. A renewal and a farewell change
nothing when they are repeated.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from celery_orchestration.errors import LedgerError
from celery_orchestration.job.policy import Settings
from celery_orchestration.ledger import Ledger, Place

#: How many supervisors of one app one directory has names for.
MOST_NAMES = 100


@dataclass(slots=True)
class Identity:
    """The name of a supervisor, and the lock that keeps it while the process lives."""

    name: str
    #: Whether the name is the same after a restart.
    lasting: bool = True
    lock: int | None = None

    def release(self) -> None:
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None


def identity(name: str | None, directory: Path, namespace: str) -> Identity:
    """`name`: given by a person. Otherwise the first number that is free in the state directory."""
    if name:
        return Identity(name)
    host = socket.gethostname()
    # Two directories of one host have numbers of their own.
    where = hashlib.sha256(f"{directory.resolve()} {namespace}".encode()).hexdigest()[:6]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for number in range(1, MOST_NAMES + 1):
            lock = os.open(directory / f"supervisor-{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            return Identity(f"{host}-{number}-{where}", lock=lock)
    except OSError:
        pass  # a directory that cannot be written to
    return Identity(f"{host}-{secrets.token_hex(4)}", lasting=False)


class Places:
    """The places of one supervisor. All calls may raise :class:`LedgerError`."""

    def __init__(self, ledger: Ledger, settings: Settings, name: str) -> None:
        self._ledger = ledger
        self._lease_ms = int(settings.lease_seconds * 1000)
        self._interval_ms = int(settings.sweep_interval_seconds * 1000)
        self.name = name
        self._session = secrets.token_hex(8)
        self._epoch = ""
        self._known = False
        self.held: dict[tuple[str, int], Place] = {}
        #: Claims whose reply may have been lost.
        self._tokens: dict[str, str] = {}

    def renew(
        self, about: Mapping[str, Any], info: Mapping[tuple[str, int], str]
    ) -> tuple[list[Place], list[Place], list[Place]]:
        """Places whose workers are to stop; places that are no longer ours; and those that the ledger has for us and
        we did not name: the last process of this name had them, or a reply was lost."""
        mine = [replace(place, info=info.get(key, "")) for key, place in self.held.items()]
        found = self._ledger.renew_places(
            self.name, self._session, not self._known, self._lease_ms, self._interval_ms, self._epoch, about, mine
        )
        self._known, self._epoch = True, found.epoch
        answers = list(zip(mine, found.answers, strict=True))
        void = [place for place, answer in answers if answer == "void"]
        for place in void:
            self.held.pop((place.pool, place.number), None)
        for place in found.found:
            self.held[place.pool, place.number] = place
        self._tokens.clear()  # what they claimed was found
        return [place for place, answer in answers if answer == "leaving"], void, found.found

    def claim(self, pool: str) -> Place | None:
        token = self._tokens.setdefault(pool, secrets.token_hex(8))
        found = self._ledger.claim_place(self.name, self._session, token, pool, self._lease_ms)
        del self._tokens[pool]
        if found.place is not None:
            self.held[pool, found.place.number] = found.place
        return found.place

    def leave(self, place: Place) -> None:
        """The ledger hears of it if it can; otherwise the lease ends it."""
        self.held.pop((place.pool, place.number), None)
        self._ledger.leave_place(self.name, place)

    def leave_all(self) -> None:
        for place in list(self.held.values()):
            try:
                self.leave(place)
            except LedgerError:
                return
