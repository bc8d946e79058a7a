"""How verbs get into Redis: in libraries of functions, or as scripts where there are no functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from celery_orchestration.ledger import Ledger, scripts
from celery_orchestration.ledger.records import key_of
from celery_orchestration.ledger.scripts import LIBRARY_PREFIX, library, script, verbs
from celery_orchestration.ledger.wire import _MOST_LIBRARIES
from support.servers import RedisServer, redis_binaries

PREFIX = "{verbs}:"


@pytest.fixture
def server(redis_factory: Callable[..., RedisServer]) -> RedisServer:
    found = redis_factory()
    if int(found.client().info("server")["redis_version"].split(".")[0]) < 7:
        pytest.skip("this Redis has no functions")
    return found


def ledger_on(server: RedisServer, **user: str) -> Ledger:
    return Ledger(redis.ConnectionPool.from_url(server.url(), **user), PREFIX)


@pytest.fixture
def ledger(server: RedisServer) -> Iterator[Ledger]:
    found = ledger_on(server)
    yield found
    found.close()


def calls(server: RedisServer) -> dict[str, int]:
    stats = server.client().info("commandstats")
    return {name: stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("fcall", "evalsha", "eval")}


def libraries(server: RedisServer) -> list[str]:
    found: list[Any] = server.client().function_list(f"{LIBRARY_PREFIX}*")
    names = [one if isinstance(one, dict) else dict(zip(one[::2], one[1::2], strict=True)) for one in found]
    return sorted(str(next(v for k, v in one.items() if k in (b"library_name", "library_name"))) for one in names)


def works(ledger: Ledger) -> bool:
    return ledger.list_nodes().nodes == []


def test_functions_are_loaded_once_and_called(server, ledger):
    assert all(works(ledger) for _ in range(3))
    other = ledger_on(server)
    assert works(other)
    other.close()
    assert calls(server) == {"fcall": 5, "evalsha": 0, "eval": 0}, "the first one found nothing"


def test_functions_that_were_flushed_are_loaded_again(server, ledger):
    assert works(ledger)
    server.client().function_flush("SYNC")
    assert works(ledger)
    assert calls(server)["evalsha"] == 0


def test_a_redis_without_functions_runs_scripts(redis_factory):
    old = redis_factory(binary=redis_binaries()["bundled"])
    ledger = ledger_on(old)
    assert all(works(ledger) for _ in range(3))
    ledger.close()
    assert calls(old)["evalsha"] == 3


@pytest.mark.parametrize("forbidden", ["-fcall", "-function|load", "-function"])
def test_a_user_who_may_not_use_functions_runs_scripts(server, forbidden):
    server.client().acl_setuser("limited", enabled=True, passwords=["+secret"], keys=["*"], channels=["*"])
    server.client().execute_command("ACL", "SETUSER", "limited", "+@all", forbidden)
    ledger = ledger_on(server, username="limited", password="secret")
    assert works(ledger)
    assert works(ledger)
    ledger.close()
    assert calls(server)["evalsha"] >= 2


def test_libraries_of_other_releases_do_not_pile_up(server, ledger):
    for number in range(_MOST_LIBRARIES + 5):
        name = f"{LIBRARY_PREFIX}{number:012x}"
        server.client().function_load(f"#!lua name={name}\nredis.register_function('x{number}', function() end)")
    assert works(ledger)
    assert len(libraries(server)) == _MOST_LIBRARIES + 1
    assert any(library("list_nodes").name in name for name in libraries(server))


def test_a_full_redis_is_asked_by_scripts_and_by_functions_again_later(server, ledger):
    """A function would be refused as a whole; a script decides which of its writes it may still make."""
    assert works(ledger)
    server.client().config_set("maxmemory", 1)
    assert works(ledger)
    assert calls(server)["evalsha"] + calls(server)["eval"] > 0
    server.client().config_set("maxmemory", 0)
    before = calls(server)
    assert works(ledger)
    assert calls(server) == {**before, "fcall": before["fcall"] + 1}


def test_a_redis_that_was_full_before_the_functions_were_loaded_runs_scripts(server, ledger):
    server.client().config_set("maxmemory", 1)
    assert works(ledger)
    assert works(ledger)
    server.client().config_set("maxmemory", 0)
    before = calls(server)
    assert works(ledger)
    assert calls(server)["evalsha"] == before["evalsha"]


def test_an_error_within_a_function_is_not_tried_again_as_a_script(server, ledger):
    """It may have written something before the error."""
    server.client().set(key_of(PREFIX, "leases"), "no sorted set")
    with pytest.raises(Exception, match="WRONGTYPE"):
        ledger.list_nodes()
    assert calls(server)["evalsha"] == 0


def test_every_verb_is_in_its_library():
    assert all(f"register_function('{script(verb).function}'" in library(verb).text for verb in verbs())


class TestNamesOfLibraries:
    """Two releases with different libraries work side by side on one Redis, so their libraries have different names."""

    @pytest.fixture
    def changed(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, Any], None]]:
        known = [one for one in vars(scripts).values() if hasattr(one, "cache_clear")]

        def change(name: str, value: Any) -> None:
            monkeypatch.setattr(scripts, name, value)
            for one in known:
                one.cache_clear()

        yield change
        monkeypatch.undo()
        for one in known:
            one.cache_clear()

    @pytest.mark.parametrize("part", ["_LIBRARY", "_VERB"])
    def test_a_library_with_another_frame_has_another_name(self, changed, part):
        before = library("list_nodes").name
        changed(part, getattr(scripts, part) + "-- of the next release\n")
        assert library("list_nodes").name != before

    def test_a_library_with_a_renamed_verb_has_another_name(self, changed):
        before = library("list_nodes")
        texts = dict(scripts._texts())
        beside = next(one for one in sorted(texts) if library(one) == before and one != "list_nodes")
        texts[f"{beside}_"] = texts.pop(beside)  # its place in the order stays
        changed("_texts", lambda: texts)
        assert f"{beside}__" in library("list_nodes").text
        assert library("list_nodes").name != before.name

    def test_a_library_with_the_same_text_has_the_same_name(self, changed):
        before = library("list_nodes")
        changed("_VERB", str(scripts._VERB))
        assert library("list_nodes") == before


def test_every_library_can_be_loaded(server):
    for text in {library(verb).text for verb in verbs()}:
        server.client().function_load(text)
