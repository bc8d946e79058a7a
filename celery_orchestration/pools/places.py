"""Places: they say which supervisor may run which worker of a pool. Two supervisors never hold the same place.

A pool of ``max=4`` has places 1 to 4. A supervisor starts a worker only on a place that it has claimed in the ledger.

**The ledger decides.** A claim, a renewal and a farewell are one script each. A place's record names its holder and a
fence, which rises with every claim. A claim takes only a number without a record, or one whose lease has expired by the
ledger clock. So each place has at most one holder in the ledger at any moment, and a pool never has more places than
the smallest ``max`` of the live supervisors.

**A holder that does not know yet that it lost its place** (it was suspended for longer than a lease, or could not reach
Redis) runs a worker on it beside the new holder's. That ends soon: its next renewal is answered with ``void``, and it
drains that worker. If the supervisor itself is suspended, the worker asks (``worker.supervised``) every third of a
lease, and drains by itself. Until then the pool has one worker too many, which does no harm: the gate limits what runs
at the same time, and each message is fetched once. Places are not needed for safety; they enforce ``max``.

**A supervisor that was killed** leaves workers that drain by themselves, because the kernel signals them (``child``).
If it comes back within a lease, it has the same name, so the ledger gives it its places again. It starts a worker on a
place as soon as the old worker, whose process is in the place's record, is gone. Its name is the host's and a number:
the first ``supervisor-<number>.lock`` in the state directory that no live process holds. ``--name`` replaces it. Two
processes with one name would compete for the same places: the one that started last keeps the name, and the other ends
(``Superseded``).

**Redis was emptied, restarted or failed over.** The first process that notices declares a new epoch, as for workers,
and for one lease nobody can claim. A renewal restores a place that the ledger has lost, unless another supervisor has
it. A supervisor that is new to an emptied ledger cannot know that others were there, and may claim at once: the
previous holders are answered with ``void`` as above.

**Lost replies.** A claim carries a token: repeated, it returns the same place. A repeated renewal or farewell changes
nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from celery_orchestration.errors import LedgerError
from celery_orchestration.job.settings import Settings
from celery_orchestration.ledger import Ledger, Place

#: How many supervisors of one app can share a state directory.
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
    """`name`: given by a person. If it is None, the first free number in the state directory makes the name."""
    if name:
        return Identity(name)
    host = socket.gethostname()
    # Two state directories of one host number independently.
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
        pass  # the directory is not writable
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
        """Returns places whose workers should stop, places that are no longer ours, and places that the ledger has for
        us although we did not name them: the last process of this name had them, or a reply was lost."""
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
        self._tokens.clear()  # the answer lists the places that were claimed with them
        return [place for place, answer in answers if answer == "leaving"], void, found.found

    def claim(self, pool: str) -> Place | None:
        token = self._tokens.setdefault(pool, secrets.token_hex(8))
        found = self._ledger.claim_place(self.name, self._session, token, pool, self._lease_ms)
        del self._tokens[pool]
        if found.place is not None:
            self.held[pool, found.place.number] = found.place
        return found.place

    def leave(self, place: Place) -> None:
        self.held.pop((place.pool, place.number), None)
        self._ledger.leave_place(self.name, place)

    def leave_all(self) -> None:
        """Give up all places. If the ledger cannot be reached, their leases expire."""
        for place in list(self.held.values()):
            try:
                self.leave(place)
            except LedgerError:
                return


def as_document(text: str) -> dict[str, Any]:
    """JSON that a supervisor wrote into the ledger; empty if it cannot be read."""
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
