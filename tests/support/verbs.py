"""The ledger's verbs as commands that reach Redis: functions on Redis 7, scripts on 6.2."""

from __future__ import annotations

import redis

from celery_orchestration.ledger.scripts import library, script


def asked(verb: str) -> str:
    """A pattern for proxies: a call of this verb."""
    found = script(verb)
    return f"(FCALL {found.function}|EVALSHA {found.sha}) "


#: A call of any verb.
ANY = "(FCALL|EVALSHA) "


def make_known(client: redis.Redis, *verbs: str) -> None:
    """Loads all verbs. Otherwise an error answers the first call of each, and the caller loads it."""
    for verb in verbs:
        client.script_load(script(verb).text)
        if has_functions(client):
            client.function_load(library(verb).text, replace=True)


def make_unknown(client: redis.Redis) -> None:
    """As SCRIPT FLUSH and FUNCTION FLUSH do, and a restart without persistence."""
    client.script_flush("SYNC")
    if has_functions(client):
        client.function_flush("SYNC")


def has_functions(client: redis.Redis) -> bool:
    return int(client.info("server")["redis_version"].split(".")[0]) >= 7
