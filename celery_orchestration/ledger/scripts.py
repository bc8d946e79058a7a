"""The verbs of the ledger as they are loaded into Redis.

Each verb is one file, ``lua/verbs/<caller>/<verb>.lua``. Its first lines name the libraries that it uses: files in
``lua/`` and ``lua/lib/``. A library shares the functions and variables that it does not declare as ``local`` with the
libraries after it and with the verb (:func:`shared_names`).

Both ways to call a verb are made from the same files. For Redis 7 and later, verbs are functions (:func:`library`):
Redis builds them once, and a call runs only the verb. For Redis 6.2, and wherever functions are not allowed, each verb
is a script with its libraries in front (:func:`script`): Redis builds all of that anew in every call, which takes more
than twice as long.

The text of a verb must therefore not keep anything from one call to the next. The libraries set what belongs to one
call in functions given to ``on_call``, which run at the beginning of each.

Verbs that use the same libraries, or some of them, share one library of functions. One for all of them would have
nearly as many local variables as Lua allows (200).
"""

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import takewhile

_LUA = files(__package__) / "lua"
LIBRARY_PREFIX = "celery_orchestration_"

_SCRIPT = """\
local IS_FUNCTION = false
local function on_call(set_up) set_up() end
"""
_LIBRARY = """\
local IS_FUNCTION = true
local KEYS, ARGV
local SET_UPS = {}
local function on_call(set_up) SET_UPS[#SET_UPS + 1] = set_up end
"""
_VERB = """\
redis.register_function('%s', function(keys, args)
KEYS, ARGV = keys, args
for i = 1, #SET_UPS do SET_UPS[i]() end
%s
end)
"""

#: At the beginning of a line: "function name(", "NAME = ..." or "ONE, TWO = ...".
_SHARED = re.compile(r"^(?:function (\w+)\(|(\w+(?:, \w+)*) = )", re.MULTILINE)


@dataclass(frozen=True)
class Script:
    verb: str
    text: str
    sha: str
    #: Its name in the library. Releases with other texts have other names: they work side by side.
    function: str = ""


@dataclass(frozen=True)
class Library:
    name: str
    text: str


@cache
def script(verb: str) -> Script:
    # The verb is a function in its script as well: Lua allows 200 local variables in each.
    text = "\n".join([_SCRIPT, _libraries_text(_uses(verb)), "return (function()", _text(verb), "end)()"])
    return Script(verb, text, hashlib.sha1(text.encode()).hexdigest(), f"{verb}_{_digest(_home(verb))}")


def library(verb: str) -> Library:
    """The library of functions that has this verb."""
    return _library(_home(verb))


def verbs() -> list[str]:
    return sorted(_texts())


def header(verb: str) -> str:
    """The contract of a verb: the comment at the head of its file, without the part that names its libraries."""
    lines = _text(verb).partition("\n--\n")[2].splitlines()
    return "\n".join(line.removeprefix("--") for line in takewhile(lambda line: line.startswith("--"), lines))


@cache
def _texts() -> dict[str, str]:
    """The text of each verb."""
    found = (file for folder in (_LUA / "verbs").iterdir() if folder.is_dir() for file in folder.iterdir())
    return {file.name.removesuffix(".lua"): file.read_text() for file in found if file.name.endswith(".lua")}


@cache
def _library(home: tuple[str, ...]) -> Library:
    digest = _digest(home)
    functions = [_VERB % (f"{verb}_{digest}", _text(verb)) for verb in _inhabitants(home)]
    name = f"{LIBRARY_PREFIX}{digest}"
    return Library(name, "\n".join([f"#!lua name={name}", _LIBRARY, _libraries_text(home), *functions]))


@cache
def _home(verb: str) -> tuple[str, ...]:
    """Names the library of functions that has this verb by the Lua libraries in it: those that the verb uses, and maybe
    more."""
    able = (uses for uses in map(_uses, verbs()) if set(uses) >= set(_uses(verb)))
    return max(able, key=lambda uses: (len(uses), uses))


def _inhabitants(home: tuple[str, ...]) -> list[str]:
    return [verb for verb in verbs() if _home(verb) == home]


@cache
def _digest(home: tuple[str, ...]) -> str:
    # All that the text of the library is made of: a library with another text must have another name.
    texts = [_LIBRARY, _VERB, _libraries_text(home), *(verb + _text(verb) for verb in _inhabitants(home))]
    return hashlib.sha1("\n".join(texts).encode()).hexdigest()[:12]


def _libraries_text(names: tuple[str, ...]) -> str:
    return "\n".join(map(library_text, names))


@cache
def library_text(name: str) -> str:
    """The text of a Lua library in a script. What it shares is local to the whole script, all else to its own block:
    Lua allows 200 local variables at a time, and each function 60 variables of the functions around it."""
    file = _LUA / f"{name}.lua"
    text = (file if file.is_file() else _LUA / "lib" / f"{name}.lua").read_text()
    shared = shared_names(text)
    declared = f"local {', '.join(shared)}\n" if shared else ""
    return f"{declared}do (function()\n{text}\nend)() end"


def shared_names(text: str) -> list[str]:
    """The names that the text of a library shares."""
    found = (name.strip() for function, names in _SHARED.findall(text) for name in (function or names).split(","))
    return list(dict.fromkeys(found))


def _text(verb: str) -> str:
    return _texts()[verb]


@cache
def _uses(verb: str) -> tuple[str, ...]:
    first, _, _ = _text(verb).partition("\n--\n")
    marker, _, libraries = first.partition("uses:")
    if marker.strip() != "--":
        raise ValueError(f"{verb}.lua must say at its top which libraries it uses")
    return tuple(libraries.replace("\n--", " ").split())
