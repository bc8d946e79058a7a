"""The verbs of people. The head of ``lua/verbs/operator/<verb>.lua`` is the contract of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from celery_orchestration.ledger import keys, packed
from celery_orchestration.ledger.client.base import Connection, grants_of, legible, text
from celery_orchestration.ledger.records import Grant
from celery_orchestration.ledger.replies import ListedNode, Nodes

#: How many jobs, and entries of the schedule, one call returns: Redis serves nobody else meanwhile.
JOBS_AT_ONCE, ENTRIES_AT_ONCE = 100, 200
#: How many minutes or hours of statistics one call returns.
POINTS_AT_ONCE = 8_000


class OperatorVerbs(Connection):
    def read_health(self, owner: str, worker: str = "") -> dict[str, Any]:
        """One round trip. Raises :class:`LedgerRefused` as :meth:`check` does."""
        found: dict[str, Any] = self._quick(partial(self._read_json, "read_health", (worker, self.service)))
        self._refuse(found.get("owner") or None, found.get("schema"), owner)
        return found

    def list_nodes(self) -> Nodes:
        releases, done_ms, found = self._call("list_nodes", ())
        texts = [[text(part) for part in one] for one in found]
        nodes = [ListedNode(name, kind, release, mode, int(since or 0)) for name, kind, release, mode, since in texts]
        return Nodes(text(releases), int(done_ms), nodes)

    def read_status(self, most_running: int, most_waiting: int) -> dict[str, Any]:
        """The status with all jobs; `fires` has the entries of each job that has some."""
        found = self._read_json(
            "read_status", (most_running, most_waiting, JOBS_AT_ONCE, ENTRIES_AT_ONCE, self.service)
        )
        more = found.pop("more") or []
        rest = [self.read_jobs(more[at : at + JOBS_AT_ONCE]) for at in range(0, len(more), JOBS_AT_ONCE)]
        found["jobs"] = [*(found["jobs"] or ()), *(job for part in rest for job in part)]
        return self._with_entries(found)

    def read_jobs(self, encoded: Sequence[str]) -> list[dict[str, Any]]:
        """The jobs of these that exist, as in a status."""
        return self._read_json("read_jobs", encoded) or []

    def job_names(self) -> list[str]:
        """The encoded names of all jobs, in order."""
        return sorted(text(one) for one in self._call("list_installed", ())[::2])

    def read_statistics(
        self, what: str, encoded: Sequence[str], not_before_ms: int = 0, points: int = 1
    ) -> dict[str, Any]:
        """`what`: all, minutes or hours. `points`: how many minutes or hours at most of each job.

        Returns now, limits (ms) and jobs: name, and sums in order of time, as :meth:`packed.Names.named` returns them.
        """
        at_once = max(1, min(JOBS_AT_ONCE, POINTS_AT_ONCE // max(1, points)))
        found: dict[str, Any] = {"now": 0, "limits": [], "jobs": []}
        for at in range(0, len(encoded), at_once):
            part = encoded[at : at + at_once]
            now, head, jobs = self._call("read_statistics", (what, not_before_ms, *part))
            declared = json.loads(text(head))
            names = packed.Names(declared)
            found |= {"now": now, "limits": declared["limits"]}
            unit = {"all": 0, "minutes": 60_000, "hours": 3_600_000}[what]
            for name, job in zip(part, jobs, strict=True):
                sums = _sums(job, unit)
                named = [names.named(begun, sums[begun]) for begun in sorted(sums) if begun >= not_before_ms]
                found["jobs"].append({"name": name, "sums": named})
        return found

    def list_entries(self, skip: int, count: int) -> list[dict[str, Any]]:
        """Entries of the schedule that fire jobs, as in a status."""
        return self._read_json("list_entries", (skip, count)) or []

    def explain(self, kind: str, name: str, exists: bool = False, priority: int = 1) -> dict[str, Any] | None:
        """`kind`: job or run. Returns also all entries, as in a status. None if there is no such job, or no such run
        that has not ended."""
        about = keys.encode_job(name) if kind == "job" else name
        found = self._call("explain", (kind, about, int(exists), priority, ENTRIES_AT_ONCE, self.service))
        return None if found is None else self._with_entries(json.loads(text(found)))

    def _with_entries(self, found: dict[str, Any]) -> dict[str, Any]:
        entries = {entry["id"]: entry for entry in found["fires"] or ()}
        for skip in range(ENTRIES_AT_ONCE, found["entries"], ENTRIES_AT_ONCE):
            entries |= {entry["id"]: entry for entry in self.list_entries(skip, ENTRIES_AT_ONCE)}
        by_job: dict[str, list[dict[str, Any]]] = {}
        for entry in entries.values():
            by_job.setdefault(entry["job"], []).append(entry)
        return {**found, "fires": by_job}

    def find_ids(self, word: str, dead: bool, least: int, most_running: int, most: int) -> list[str]:
        """The ids of runs or of dead letters that `word` may mean: this id, or those that begin with it, if it has at
        least `least` characters."""
        return [text(one) for one in self._call("find_ids", (word, int(dead), least, most_running, most))]

    def read_graph(self) -> dict[str, Any]:
        """What each job depends on and conflicts with, and its state."""
        found = part = self._read_json("read_graph", (JOBS_AT_ONCE,))
        jobs, more = list(part["jobs"] or ()), part["more"] or []
        for at in range(0, len(more), JOBS_AT_ONCE):
            part = self._read_json("read_graph", (JOBS_AT_ONCE, *more[at : at + JOBS_AT_ONCE]))
            jobs += part["jobs"] or ()
        return {**found, "jobs": jobs}

    def enable_or_disable(self, job: str, on: bool, who: str, why: str) -> list[Grant] | None:
        """None if the ledger does not know the job."""
        found, grants = self._call(
            "enable_or_disable", (keys.encode_job(job), "on" if on else "off", who, keys.note(why))
        )
        return grants_of(grants) if text(found) == "ok" else None

    def pause_or_resume(self, paused: bool, who: str, why: str) -> list[Grant]:
        return grants_of(self._call("pause_or_resume", (int(paused), who, keys.note(why))))

    def list_unstarted(self, job: str, where: str, skip: int, count: int) -> tuple[int, list[str]]:
        """Returns how many runs were read, and the ids of this job's runs among them."""
        looked, found = self._call("list_unstarted", (keys.encode_job(job), where, skip, count))
        return looked, [text(one) for one in found]

    def cancel_all_by_hand(self, who: str, ids: Sequence[str]) -> tuple[int, list[Grant]]:
        """Returns how many runs were cancelled."""
        endings, grants, _ = self._call("cancel", (who, "", "revoked", *ids))
        return len(endings), grants_of(grants)

    def cancel_by_hand(self, who: str, id: str) -> tuple[str, list[Grant]]:
        """Returns the state that the run was in, or '' if there is no such run."""
        _, grants, found = self._call("cancel", (who, "", "revoked", id))
        return text(found[0]), grants_of(grants)

    def read_history(self, job: str, count: int) -> list[str] | None:
        """None if the ledger does not know the job."""
        found = self._call("read_history", (keys.encode_job(job), count))
        return None if found is None else [text(one) for one in found]

    def list_dead_letters(self, job: str | None, skip: int, count: int) -> list[tuple[str, bool]] | None:
        """The dead letters of a job, or of all jobs if `job` is None. None if the ledger does not know the job."""
        found = self._call(
            "list_dead_letters", (int(job is None), "" if job is None else keys.encode_job(job), skip, count)
        )
        return None if found is None else [(text(info), bool(revoked)) for info, revoked in found]

    def read_dead_letter(self, id: str, or_run: bool = False) -> tuple[str, bool, bytes] | None:
        """`or_run`: also find a run that waits. Then the first value is '{}'."""
        found = self._call("read_dead_letter", (id, int(or_run)))
        return (text(found[0]), bool(found[1]), found[2]) if found else None

    def requeue(
        self, who: str, id: str, new_id: str, attempt: int, message: bytes, other: tuple[str, str, str] | None = None
    ) -> tuple[str, list[Grant]]:
        """`other`: another job, its own queue and its granted queue; it becomes a run of that job."""
        other_args = (keys.encode_job(other[0]), *other[1:]) if other else ()
        what, grants = self._call("requeue", (who, id, new_id, attempt, message, *other_args))
        return text(what), grants_of(grants)

    def purge_dead_letters(self, who: str, ids: Sequence[str]) -> int:
        count: int = self._call("purge_dead_letters", (who, *ids))
        return count

    def change_schedule(self, who: str, what: str, name: str, why: str, written: Sequence[str] = ()) -> str:
        """Returns ok, exists, none, code, changed or corrupt. `written`, for add and update: task, job, when, what
        was written (JSON), and for an update the generation that it changes."""
        args = (who, what, self.entry_id(name), keys.note(name), keys.note(why), *written)
        return text(self._call("change_schedule", args))

    def read_entries(self, skip: int, count: int) -> list[tuple[str, dict[str, str]]]:
        """Entries of the schedule: key and fields. A corrupt entry has no fields."""
        return [_fields(one) for one in self._call("read_entries", (skip, count))]

    def entry_id(self, name: str) -> str:
        """The id of an entry of this service."""
        return keys.entry(name, self.service)

    def read_entry(self, name: str) -> dict[str, str] | None:
        """An entry by its name; None if there is none."""
        found = self._call("read_entries", ("", "", self.entry_id(name)))
        return _fields(found[0])[1] if found else None

    def release_waiting(self, who: str, most: int, which: str = "") -> tuple[str, list[tuple[str, str, bytes]]]:
        """Returns what to pass as `which` in the next call, and id, queue and message of each run."""
        which, found = self._call("release_waiting", (who, most, which))
        return text(which), [(text(id), text(queue), message) for id, queue, message in found]

    def confirm_released(self, ids: Sequence[str]) -> int:
        count: int = self._call("confirm_released", ids)
        return count

    def record_audit(self, who: str, what: str, about: str, why: str) -> None:
        self._call("record_audit", (who, what, about, why))

    def read_audit(self, count: int) -> list[str]:
        return [text(one) for one in self._call("read_audit", (count,))]

    def read_pools(
        self, queues: Mapping[str, Sequence[str]], jobs: Sequence[str] = (), changes: int = 0
    ) -> dict[str, Any]:
        """`queues`: by pool. `jobs`: encoded names of the jobs whose duration is asked for."""
        asked: dict[str, Any] = {"pools": {pool: list(names) for pool, names in queues.items()}, "changes": changes}
        if jobs:
            asked["jobs"] = list(jobs)
        found: dict[str, Any] = json.loads(text(self._call("read_pools", (json.dumps(asked),))))
        return found


def _fields(parts: list[Any]) -> tuple[str, dict[str, str]]:
    """The key and the fields of an entry."""
    key, *rest = (legible(part) for part in parts)
    return key, dict(zip(rest[::2], rest[1::2], strict=True))


def _sums(job: list[Any], unit: int) -> dict[int, packed.Sum]:
    """A job's sums by the time at which they began. `unit`: ms of one minute or hour; 0: one sum for all time."""
    open_minute, *rest = job
    sums: dict[int, packed.Sum] = {} if unit else {0: {}}
    for begun, data in zip(rest[::2], rest[1::2], strict=True):
        packed.add(sums, int(begun), packed.unpack_sum(data))
    if (current := packed.unpack_open(open_minute)) is not None:
        packed.add(sums, current[0] * 60_000 // unit * unit if unit else 0, current[1])
    return sums
