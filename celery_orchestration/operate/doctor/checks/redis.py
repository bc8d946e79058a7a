"""Checks of Redis: does it keep the ledger?"""

from __future__ import annotations

from collections.abc import Iterator

from celery_orchestration.operate.doctor.checks.facts import About, Facts, claim, redis_url
from celery_orchestration.operate.doctor.models import Check
from celery_orchestration.operate.hints import redis_cli
from celery_orchestration.operate.status.redis_problems import FULL

#: The share of maxmemory that may be used.
MOST_MEMORY = 0.9
#: The share of a machine's memory that one Redis may be given.
MOST_OF_MACHINE = 0.7
#: A note to settings that are changed while Redis runs.
KEPT = "also in its configuration file, or a restart undoes it"
OLDEST_REDIS = (6, 2)

REDIS = About("redis", "the ledger is there: without it no run starts")


def redis(facts: Facts) -> Iterator[Check]:
    if not facts.info:
        yield REDIS.unknown(
            f"the ledger at {facts.address} answers, but its version is unknown (INFO is not allowed)",
            "allow it: ACL SETUSER <user> +info",
        )
        return
    text = facts.info.get("redis_version", "")
    kind = f"Valkey {facts.info['valkey_version']}" if "valkey_version" in facts.info else f"Redis {text}".strip()
    found = f"the ledger at {facts.address} answers: {kind}"
    if text and _version(text) < OLDEST_REDIS:
        yield REDIS.problem(f"{found}, which is too old", "upgrade it to Redis 6.2 or later, or Valkey")
    elif facts.info.get("role") == "slave":
        yield REDIS.problem(f"{found}, but it is a replica, and accepts no writes", redis_url("the primary"))
    else:
        yield REDIS.fine(found)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())


def eviction(facts: Facts) -> Iterator[Check]:
    about = About("eviction", "a full Redis may drop keys to make room: waiting runs, leases, done-markers")
    policy = facts.info.get("maxmemory_policy", "")
    claimed = claim(facts, "Redis may drop parts of the ledger")
    fix = f"{redis_cli(facts.address, 'CONFIG', 'SET', 'maxmemory-policy', 'noeviction')}  # {KEPT}"
    if policy.startswith("allkeys-"):
        yield about.problem(claimed[0] if claimed else f"its maxmemory-policy is {policy}", fix)
    elif policy.startswith("volatile-"):
        yield about.fine(
            f"its maxmemory-policy is {policy}: when it is full, runs that ended are forgotten early, and a message "
            "that the broker delivers again may run again",
            fix,
        )
    elif policy:
        yield about.fine(f"its maxmemory-policy is {policy}")
    else:
        yield about.unknown("Redis does not report its maxmemory-policy (INFO is not allowed)", fix)


def persistence(facts: Facts) -> Iterator[Check]:
    about = About("persistence", "a waiting run is in Redis alone: its message in the broker is acknowledged")
    fix = f"{redis_cli(facts.address, 'CONFIG', 'SET', 'appendonly', 'yes')}  # {KEPT}"
    failed = [
        name
        for name in ("rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status")
        if facts.info.get(name) == "err"
    ]
    if not facts.info:
        yield about.unknown("Redis does not report whether it writes to disk (INFO is not allowed)", fix)
    elif failed:
        yield about.problem(f"Redis could not write to disk: {', '.join(failed)} err", "see Redis's log, and its disk")
    elif facts.info.get("aof_enabled") == "1":
        yield about.fine("Redis appends every change to a file")
    elif facts.save:
        found = f"Redis saves to disk now and then ({_often(facts.save)}): a crash loses what came after that"
        yield about.fine(found, fix)
    elif facts.save is None:
        yield about.unknown(
            "Redis keeps no append-only file, and does not report whether it saves to disk (CONFIG is not allowed)",
            fix,
        )
    else:
        yield about.problem("Redis writes nothing to disk: when it is restarted, runs that wait are lost", fix)


def _often(save: str) -> str:
    """Puts Redis's setting into words. '3600 1 300 100': after 3600 s if 1 key changed, after 300 s if 100 keys did."""
    words = save.split()
    pairs = zip(words[::2], words[1::2], strict=False)
    return ", ".join(f"after {seconds} s if {keys} key{'s' * (keys != '1')} changed" for seconds, keys in pairs)


def memory(facts: Facts) -> Iterator[Check]:
    about = About("memory", "a full Redis accepts no more runs")
    claimed = claim(facts, FULL)
    used, most = (int(facts.info.get(name) or 0) for name in ("used_memory", "maxmemory"))
    if claimed:
        yield about.problem(claimed[0], _more_memory(facts, used, most))
    elif not facts.info:
        yield about.unknown("Redis does not report its memory (INFO is not allowed)")
    elif not most:
        yield about.fine(f"Redis uses {_bytes(used)}, without a limit of its own")
    elif used >= most * MOST_MEMORY:
        yield about.problem(f"Redis uses {_bytes(used)} of {_bytes(most)}", _more_memory(facts, used, most))
    else:
        yield about.fine(f"Redis uses {_bytes(used)} of {_bytes(most)}")


def _more_memory(facts: Facts, used: int, most: int) -> str:
    there, wanted = int(facts.info.get("total_system_memory") or 0), 2 * max(used, most)
    if wanted < there * MOST_OF_MACHINE:
        return f"{redis_cli(facts.address, 'CONFIG', 'SET', 'maxmemory', str(wanted))}  # {KEPT}"
    return redis_url("with more memory, if that machine has none to give")


def _bytes(count: int) -> str:
    return f"{count / 2**30:.1f} GB" if count >= 2**30 else f"{count / 2**20:.1f} MB"
