"""The verbs of the ledger as they are loaded into Redis.

Each verb is one file, ``lua/verbs/<caller>/<verb>.lua``. Its first lines name the libraries that it uses: files in
``lua/`` and ``lua/lib/``. A library shares the functions and variables that it does not declare as ``local`` with the
libraries after it and with the verb (:func:`shared_names`).

Both ways to call a verb are made from the same files. For Redis 7 and later, verbs are functions (:func:`library`):
Redis builds them once, and a call runs only the verb. For Redis 6.2, and wherever functions are not allowed, each verb
is a script with its libraries in front (:func:`script`): Redis builds all of that anew in every call, which takes more
than twice as long.

Either way, functions that no verb there can reach are left out (:func:`without_unused`): what Lua does not build takes
neither time nor memory.

The text of a verb must therefore not keep anything from one call to the next. The libraries set what belongs to one
call in functions given to ``on_call``, which run at the beginning of each.

Verbs that use the same libraries, or some of them, share one library of functions. One for all of them would have
nearly as many local variables as Lua allows (200).
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
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

#: A function that begins and ends at the beginning of a line, with its name.
_FUNCTION = re.compile(r"^(?:local )?function (?:\w+\.)?(\w+)\(.*?^end\n", re.MULTILINE | re.DOTALL)
_COMMENT, _WORD = re.compile(r"--.*"), re.compile(r"\w+")
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
    text = as_script(_text(verb))
    return Script(verb, text, hashlib.sha1(text.encode()).hexdigest(), f"{verb}_{_digest(_home(verb))}")


def as_script(text: str) -> str:
    """The script of a verb with this text."""
    # The verb is a function in its script as well: Lua allows 200 local variables in each.
    return "\n".join([_SCRIPT, _libraries_text(_used_by(text), [text]), "return (function()", text, "end)()"])


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
    libraries = _libraries_text(home, [_text(verb) for verb in _inhabitants(home)])
    functions = [_VERB % (f"{verb}_{digest}", _text(verb)) for verb in _inhabitants(home)]
    name = f"{LIBRARY_PREFIX}{digest}"
    return Library(name, "\n".join([f"#!lua name={name}", _LIBRARY, libraries, *functions]))


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
    texts = {verb: _text(verb) for verb in _inhabitants(home)}
    libraries = _libraries_text(home, list(texts.values()))
    parts = [_LIBRARY, _VERB, libraries, *(verb + text for verb, text in texts.items())]
    return hashlib.sha1("\n".join(parts).encode()).hexdigest()[:12]


def _libraries_text(names: tuple[str, ...], callers: Sequence[str]) -> str:
    return "\n".join(map(as_block, without_unused([library_text(name) for name in names], callers)))


@cache
def library_text(name: str) -> str:
    """The text of the file of a Lua library."""
    file = _LUA / f"{name}.lua"
    return (file if file.is_file() else _LUA / "lib" / f"{name}.lua").read_text()


def without_unused(libraries: Sequence[str], callers: Iterable[str]) -> list[str]:
    """The texts of Lua libraries, without the functions that the callers, texts of verbs, cannot reach.

    A function stays if its name occurs, as a word outside comments, in a caller, in a library outside functions, or in
    a function that stays. So functions that are found by name at run time stay, too.
    """
    bodies: dict[str, str] = {}
    for text in libraries:
        for function in _FUNCTION.finditer(text):
            bodies[function[1]] = bodies.get(function[1], "") + function[0]
    words = _words("\n".join([*(_FUNCTION.sub("", text) for text in libraries), *callers]))
    reached: set[str] = set()
    while found := (words & bodies.keys()) - reached:
        reached |= found
        words = set[str]().union(*(_words(bodies[name]) for name in found))
    return [_FUNCTION.sub(lambda function: function[0] if function[1] in reached else "", text) for text in libraries]


def _words(text: str) -> set[str]:
    return set(_WORD.findall(_COMMENT.sub("", text)))


def as_block(text: str) -> str:
    """A Lua library as a part of a script. What it shares is local to the whole script, all else to its own block:
    Lua allows 200 local variables at a time, and each function 60 variables of the functions around it."""
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
    try:
        return _used_by(_text(verb))
    except ValueError as error:
        raise ValueError(f"{verb}.lua {error}") from None


def _used_by(text: str) -> tuple[str, ...]:
    first, _, _ = text.partition("\n--\n")
    marker, _, libraries = first.partition("uses:")
    if marker.strip() != "--":
        raise ValueError("must say at its top which libraries it uses")
    return tuple(libraries.replace("\n--", " ").split())
