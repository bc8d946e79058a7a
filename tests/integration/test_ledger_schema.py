"""The ledger's data is declared once for Lua and once for Python: the two agree, and nothing spells out a key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from celery_orchestration.ledger.records import ARGUMENTS, KEY, KEYS_OF, TUPLES, HistoryLine, argument_names, key_of
from celery_orchestration.ledger.scripts import header, library_text, verbs
from support.servers import RedisServer

LUA = files("celery_orchestration.ledger") / "lua"
DECLARED = """
local names = {}
for kind, declared in pairs(ARGUMENTS) do names[kind] = { unpack(declared) } end
return cjson.encode({ key = KEY, keys_of = KEYS_OF, arguments = names, history = HISTORY })
"""
#: Parts of the contract of a verb, at the head of its file.
PARTS = ("ARGV", "Returns", "Errors", "Called again")


@pytest.fixture
def declared(redis_server: RedisServer) -> dict[str, Any]:
    text = "local function on_call(set_up) set_up() end\n" + library_text("schema") + DECLARED
    found: dict[str, Any] = json.loads(redis_server.client().eval(text, 1, "{schema}:"))
    return found


def test_keys_and_their_types_are_the_same(declared):
    assert (declared["key"], declared["keys_of"]) == (KEY, KEYS_OF)


def test_records_in_arguments_have_the_same_fields_in_the_same_order(declared):
    ours = {name: argument_names(of) for name, of in ARGUMENTS.items()}
    ours |= {name: list(names) for name, names in TUPLES.items()}
    assert declared["arguments"] == ours


def test_a_line_of_the_history_has_the_same_fields(declared):
    assert declared["history"] == [one.name for one in fields(HistoryLine)]


def test_a_key_that_is_not_declared_is_refused():
    assert key_of("{shop}:", "lane", "job", "") == "{shop}:lane:job:"
    for name, *parts in (("nonsense",), ("run",), ("waiting", "x")):
        with pytest.raises(KeyError, match=name):
            key_of("{shop}:", name, *parts)


def test_a_field_of_another_version_survives_that_a_run_is_read_and_written(redis_server: RedisServer):
    client = redis_server.client()
    libraries = "\n".join(library_text(name) for name in ("schema", "records"))
    text = f"""
    local function on_call(set_up) set_up() end
    {libraries}
    redis.call('HSET', K.run('a'), 'record', cmsgpack.pack({{ job = 'j', queue = 'q', state = 'queued', since = 0, colour = 'red' }}))
    local r = load_run('a')
    r.attempt = 3
    save_run(r)
    local stored = cmsgpack.unpack(redis.call('HGET', K.run('a'), 'record'))
    return {{ stored.colour, stored.attempt, stored.id or 'no id', stored.was or 'no was' }}
    """  # noqa: E501
    assert client.eval(text, 1, "{schema}:") == ["red", 3, "no id", "no was"]


def lua_files() -> Iterator[Path]:
    yield from Path(str(LUA)).rglob("*.lua")


def test_no_lua_file_but_the_schema_puts_a_key_together():
    spelled = re.compile(r"\bP \.\. |KEYS\[1\] \.\.")
    assert [path.name for path in lua_files() if path.name != "schema.lua" and spelled.search(path.read_text())] == []


def test_every_key_that_lua_uses_is_declared():
    used = {name for path in lua_files() for name in re.findall(r"\bK\.(\w+)", path.read_text())}
    assert used - {"name"} <= {*KEY, *KEYS_OF}
    assert {*KEY, *KEYS_OF} - used == set()


@pytest.mark.parametrize("verb", verbs())
def test_the_head_of_a_verb_is_its_contract(verb: str):
    head = header(verb)
    assert head.splitlines()[1].startswith(f" {verb}: "), "the first line says what it does"
    assert [part for part in PARTS if not re.search(rf"^ {part}\b", head, re.MULTILINE)] == []
