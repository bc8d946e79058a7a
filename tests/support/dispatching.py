"""A ledger with a scheduler that leads: its terms, entries and fires, verb by verb."""

from __future__ import annotations

from typing import Any

from celery_orchestration.job.envelope import Envelope
from celery_orchestration.ledger import Adopted, Adoption, Dispatched, Fire, Grant, HistoryLine
from celery_orchestration.ledger.records import key_of
from celery_orchestration.scheduler.message import MARK
from support.invariants import CONFIGURATION, CONFIGURATION_OF
from support.ledger import PREFIX, Case, arrival
from support.servers import RedisServer

TERM_MS, EVER_MS = 600_000, 10**12
#: KEYS: the pattern of all keys of runs. Its last character, the asterisk, is where a run's id begins.
RUNS = """
local found = {}
for _, key in ipairs(redis.call('KEYS', KEYS[1])) do
  found[#found + 1] = { string.sub(key, #KEYS[1]), cmsgpack.unpack(redis.call('HGET', key, 'record')).state }
end
return found
"""


class Beat(Case):
    """A ledger with a worker and a scheduler that leads; its entries were added an hour ago."""

    def __init__(self, server: RedisServer) -> None:
        super().__init__(server)
        self.raw = server.client(decode_responses=False)
        self.term = ""
        self.adopted: dict[str, Adopted] = {}
        self.due: dict[str, int] = {}

    def begin(self, jobs: dict[str, dict[str, Any]], **more: Any) -> None:
        self.install(jobs, **more)
        self.term = self.lead()

    # -- terms

    def lead(self, scheduler: str = "s1", term: str = "", length_ms: int = TERM_MS) -> str:
        return self.ledger.lead(scheduler, f"{scheduler}@host", length_ms, term).term

    def set_clock_back(self, ms: int) -> None:
        """Moves Redis's clock back, as far as the term is concerned."""
        self.redis.hincrby(key_of(PREFIX, "leader"), "until", ms)

    def time_passes(self, ms: int) -> None:
        self.redis.hincrby(key_of(PREFIX, "leader"), "until", -ms)

    # -- entries

    def adopt(
        self, entry: str = "e", job: str = "one", ago_ms: int = 3_600_000, source: str = "code", **more: Any
    ) -> Adopted:
        adoption = Adoption(entry, entry, job or "plain", job, "every second", source, None, **more)
        found = self.ledger.adopt_entries(self.term, self.now() - ago_ms, [adoption])
        assert found is not None
        if not found[0].problem:
            self.adopted[entry], self.due[entry] = found[0], found[0].last_ms
        return found[0]

    def adopt_continuous(self, entry: str = "e", job: str = "one", gap_ms: int = 0, **more: Any) -> Adopted:
        return self.adopt(
            entry, job, gap_ms=gap_ms, message=message_of(MARK), queue="q", granted_queue="", priority=1, **more
        )

    def entry(self, entry: str = "e") -> dict[str, str]:
        found = self.raw.hgetall(key_of(PREFIX, "entry", entry))
        return {name.decode(): value.decode(errors="replace") for name, value in found.items()}

    # -- fires

    def fire(self, entry: str = "e", job: str = "one", due_ms: int | None = None, **more: Any) -> Fire:
        """The next fire of an entry, a second after the last one, unless a time is given."""
        if due_ms is None:
            due_ms = self.due[entry] = self.due[entry] + 1000
        given = {"generation": self.adopted[entry].generation, "next_ms": due_ms + 1000, "missed": 0}
        id = f"{entry}{due_ms}"
        given |= {"id": id, "late_ms": EVER_MS, "priority": 1, "queue": "q", "message": id.encode()}
        return Fire(entry=entry, due_ms=due_ms, job=job, **{**given, **more})

    def dispatch(self, *fires: Fire) -> Dispatched:
        found = self.ledger.dispatch(self.term, fires)
        assert found.what == "ok"
        return found

    def fires(self, entry: str = "e", job: str = "one", **more: Any) -> tuple[str, ...]:
        """Dispatches one fire, and returns the answer."""
        return self.dispatch(self.fire(entry, job, **more)).answers[0]

    def run(self, grant: Grant, job: str = "one", worker: str = "w1") -> None:
        """The run was published, and starts."""
        assert self.ledger.confirm_published([grant]) == 1
        [answer] = self.turn(come=[arrival(grant.id, job, grant=grant.number)], worker=worker).answers
        assert answer.what == "start"

    def starts(self, entry: str = "e", job: str = "one", **more: Any) -> str:
        """A fire whose run is running; returns its id."""
        found = self.dispatch(self.fire(entry, job, **more))
        assert found.answers == [("fired",)]
        self.run(found.grants[-1], job)
        return found.grants[-1].id

    # -- looking

    def past(self, job: str = "one") -> list[tuple[str, Any, int]]:
        """Each record in the history, the latest first: its outcome, its reason, and the number of fires that it stands
        for."""
        found = [HistoryLine.read(one) for one in self.ledger.read_history(job, 100) or ()]
        return [(one.outcome, one.error, one.fires or 1) for one in found]

    def runs(self) -> dict[str, str]:
        """All runs that have not ended, with their states."""
        found = dict(self.redis.eval(RUNS, 1, key_of(PREFIX, "run", "*")))
        return {id: state for id, state in found.items() if state != "ending"}

    def everything(self) -> dict[bytes, bytes]:
        return {key: self.raw.dump(key) for key in self.raw.keys("*")}

    def leftovers(self) -> set[str]:
        """I5: the keys that are neither configuration nor history."""
        parts = [key.removeprefix(PREFIX).partition(":") for key in self.redis.keys("*")]
        return {
            f"{kind}:{rest}" for kind, _, rest in parts if kind not in (CONFIGURATION_OF if rest else CONFIGURATION)
        }


def message_of(id: str, body: bytes = b"[[], {}, {}] " + MARK.encode()) -> bytes:
    """The body may contain anything."""
    headers = {"id": id, "root_id": id}
    return Envelope(headers, {"correlation_id": id}, "application/json", "utf-8", "", "q", body).pack()
