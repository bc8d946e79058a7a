"""The ledger's data is declared once for Lua and once for Python: the two agree, and no other code spells out a key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from celery_orchestration.job.options import LEDGER_OPTIONS
from celery_orchestration.job.reasons import REASONS
from celery_orchestration.ledger.records import (
    ARGUMENTS,
    FIGURES,
    HISTORY,
    KEY,
    KEYS_OF,
    TUPLES,
    argument_names,
    key_of,
)
from celery_orchestration.ledger.scripts import as_block, header, library_text, shared_names, verbs
from support import ledger
from support.servers import RedisServer

LUA = files("celery_orchestration.ledger") / "lua"
DECLARED = """
local names = {}
for kind, declared in pairs(ARGUMENTS) do names[kind] = { unpack(declared()) } end
return cjson.encode({
  run = RUN.fields(), run_of_call = RUN.of_call(), inherited = RUN.inherited, defaults = RUN.defaults,
  job = JOB.fields(), job_of_call = JOB.of_call(), policy = JOB.policy(),
  key = KEY, keys_of = KEYS_OF, arguments = names, history = HISTORY,
})
"""
#: Parts of the contract of a verb, at the head of its file.
PARTS = ("ARGV", "Returns", "Errors", "Called again")


@pytest.fixture
def declared(redis_server: RedisServer) -> dict[str, Any]:
    schema = (LUA / "schema.lua").read_text()
    shared = f"local {', '.join(shared_names(schema))}\n"
    text = "local function on_call(set_up) set_up() end\n" + shared + schema + DECLARED
    found: dict[str, Any] = json.loads(redis_server.client().eval(text, 1, "{schema}:"))
    return found


def test_keys_and_their_types_are_the_same(declared):
    assert (declared["key"], declared["keys_of"]) == (KEY, KEYS_OF)


def test_records_in_arguments_have_the_same_fields_in_the_same_order(declared):
    ours = {name: argument_names(of) for name, of in ARGUMENTS.items()}
    ours |= {name: list(names) for name, names in TUPLES.items()}
    assert declared["arguments"] == ours


def test_a_line_of_the_history_has_the_same_fields(declared):
    assert declared["history"] == list(HISTORY)


def test_figures_that_are_counted_are_declared():
    counted = {name for path in lua_files() for name in re.findall(r"count_figure\(\w+, '(\w+)'\)", path.read_text())}
    assert counted == FIGURES.keys()


def test_a_key_that_is_not_declared_is_refused():
    assert key_of("{shop}:", "lane", "job", "") == "{shop}:lane:job:"
    for name, *parts in (("nonsense",), ("run",), ("waiting", "x")):
        with pytest.raises(KeyError, match=name):
            key_of("{shop}:", name, *parts)


def test_a_field_of_another_version_survives_that_a_run_is_read_and_written(redis_server: RedisServer):
    client = redis_server.client()
    libraries = "\n".join(as_block(library_text(name)) for name in ("schema", "records"))
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


@pytest.mark.parametrize(
    ("variable", "kinds"), [("r", ["run", "run_of_call"]), ("j", ["job", "job_of_call"]), ("policy", ["policy"])]
)
def test_fields_that_lua_uses_are_declared_and_those_declared_are_used(declared, variable: str, kinds: list[str]):
    names = {name for kind in kinds for name in declared[kind]}
    # A policy has the options that are marked as InLedger; a rule keeps what it counts in a field with its own word.
    implied = {"policy": LEDGER_OPTIONS, "j": REASONS}.get(variable, ())
    text = "\n".join(re.sub(r"--.*", "", path.read_text()) for path in lua_files() if path.name != "schema.lua")
    used = set(re.findall(rf"\b{variable}\.(\w+)", text))
    assert used <= {*names, *implied}
    assert {name for name in names if not re.search(rf"\b{name}\b", text)} == set()


def test_every_inherited_name_and_every_default_is_a_field(declared):
    assert {*declared["inherited"], *declared["defaults"]} <= declared["run"].keys()


def test_a_line_that_the_history_keeps_has_only_declared_fields(redis_server: RedisServer):
    case = ledger.Case(redis_server)
    case.install({"one": {"max_running": 1, "key": ""}})
    assert [case.come("a", "one"), case.come("b", "one")] == ["start", "wait"]
    case.end("a", "failed")
    lines = case.redis.lrange(key_of(ledger.PREFIX, "history", "one"), 0, -1)
    case.ledger.close()
    assert len(lines) == 1
    assert all(json.loads(line).keys() <= {*HISTORY, *FIGURES} for line in lines)


def test_a_library_shares_only_what_others_use():
    """Lua allows 200 local variables: a name that only one file uses is local to that file."""
    without_comments = {path: re.sub(r"--.*", "", path.read_text()) for path in lua_files()}
    for path, text in without_comments.items():
        if path.parent.name in ("lua", "lib"):
            elsewhere = "\n".join(other for at, other in without_comments.items() if at != path)
            unused = [name for name in shared_names(text) if not re.search(rf"\b{name}\b", elsewhere)]
            assert unused == [], f"{path.name}: declare these as local"


def test_no_library_uses_nearly_as_many_shared_names_as_lua_allows():
    """Lua allows a function 60 variables of the functions around it; each library is one function."""
    libraries = {path: path.read_text() for path in lua_files() if path.parent.name in ("lua", "lib")}
    shared = {"on_call", "KEYS", "ARGV", "IS_FUNCTION"}.union(*map(shared_names, libraries.values()))
    for path, text in libraries.items():
        words = set(re.findall(r"(?<![\w.:'])[A-Za-z_]\w*", re.sub(r"--.*", "", text)))
        assert len(words & shared) <= 56, f"split {path.name}: it uses {len(words & shared)} names of others"


@pytest.mark.parametrize("verb", verbs())
def test_the_head_of_a_verb_is_its_contract(verb: str):
    head = header(verb)
    assert head.splitlines()[0].startswith(f" {verb}: "), "the first line says what it does"
    assert [part for part in PARTS if not re.search(rf"^ {part}\b", head, re.MULTILINE)] == []
