"""Root causes of a queue that no worker serves, or the wrong workers. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from celery_orchestration.operate.explain.facts import Facts
from celery_orchestration.operate.explain.models import Cause
from celery_orchestration.operate.hints import command, redis_cli, worker_for


class QueueCauses(Facts):
    """Each method returns a cause, or None if it does not apply."""

    def unserved_queue(self, job: str, queue: str | None) -> Cause | None:
        # The slots of dead workers count until somebody sweeps.
        if queue is None or (self.found["live"] and (self.found.get("slots") or {}).get(queue)):
            return None
        return (
            (None if self.found["live"] else self.cycle_of_code(job))
            or self.unknown_worker(job, queue)
            or self.redis_evicts(job)
            or self.supervised_pool(job, queue)
            or self.no_worker(job)
            or Cause(
                code="unserved_queue",
                job=job,
                text=f"no live worker serves queue {queue}, where {job} is sent",
                wrong=True,
                fix=worker_for(queue),
            )
        )

    def supervised_pool(self, job: str, queue: str) -> Cause | None:
        """The cause if a supervisor starts the workers of this queue."""
        pool, wanted = self.around.supervised(queue) or ("", 0)
        if not pool:
            return None
        if not wanted:
            text = f"pool {pool} has no worker now: its supervisor starts one when runs are ready"
            return Cause(code="pool_at_rest", job=job, text=text)
        text = f"pool {pool} has no live worker now, and should have {wanted}: its supervisor starts them"
        fix = command("explain", f"pool:{pool}")
        return Cause(code="unserved_queue", job=job, text=text, wrong=True, fix=fix)

    def redis_evicts(self, job: str) -> Cause | None:
        policy = self.found.get("eviction", "")
        if self.found["live"] or not policy.startswith("allkeys-") or self.around.allow_eviction:
            return None
        text = f"no worker starts while Redis may drop parts of the ledger: its maxmemory-policy is {policy}"
        fix = redis_cli(self.around.address, "CONFIG", "SET", "maxmemory-policy", "noeviction")
        return Cause(code="redis_evicts", job=job, text=text, wrong=True, fix=fix)

    def no_worker(self, job: str) -> Cause | None:
        if self.found["live"]:
            return None
        if found := self.redis_evicts(job):
            return found
        return Cause(code="no_worker", job=job, text="no worker is alive", wrong=True, fix=command(program="worker"))

    def unknown_worker(self, job: str, queue: str | None) -> Cause | None:
        found = self.around.strangers(queue) if queue else ()
        if not found:
            return None
        names = ", ".join(one.name for one in found)
        if found[0].namespace is not None:
            return Cause(
                code="worker_of_another_app",
                job=job,
                text=f"queue {queue} is served by {names} of namespace {found[0].namespace}, too: "
                "messages that it takes are lost to this app",
                wrong=True,
                fix="give each app a broker of its own: another database of Redis, another virtual host of RabbitMQ",
            )
        return Cause(
            code="worker_without_extension",
            job=job,
            text=f"queue {queue} is served by {names} without the extension: messages that "
            "it takes do not pass the gate, and the ledger does not know how they end",
            wrong=True,
            fix="install celery_orchestration there (without orchestration_mode off), or give it other queues: -Q",
        )

    def cycle_of_code(self, job: str) -> Cause | None:
        found = next((one for one in self.around.cycles if job in one), None)
        return None if found is None else cycle(found, of_code=True)


def cycle(jobs: Sequence[str], of_code: bool = False) -> Cause:
    ring = " → ".join([*jobs, jobs[0]])
    text = f"the code has a dependency cycle, so that no worker starts: {ring}"
    fix = "take one of these out of depends_on"
    if not of_code:
        text = f"they wait for each other: {ring}"
        fix += ", and end the workers that still have it: the releases that are live form the cycle together"
    return Cause(code="cycle", job=jobs[0], text=text, wrong=True, fix=fix)
