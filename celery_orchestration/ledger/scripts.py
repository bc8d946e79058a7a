"""The verbs of the ledger as Redis scripts.

``lua/<verb>.lua`` names the libraries it uses on its first line; they are put in front of it. Redis 6.2 has no
functions, so each verb is a script of its own, known by its digest.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_LUA = files(__package__) / "lua"


@dataclass(frozen=True)
class Script:
    verb: str
    text: str
    sha: str


@cache
def script(verb: str) -> Script:
    body = (_LUA / f"{verb}.lua").read_text()
    first, _, _ = body.partition("\n")
    marker, _, libraries = first.partition("uses:")
    if marker.strip() != "--":
        raise ValueError(f"{verb}.lua must say which libraries it uses on its first line")
    parts = [(_LUA / "lib" / f"{name}.lua").read_text() for name in libraries.split()]
    text = "\n".join([*parts, body])
    return Script(verb, text, hashlib.sha1(text.encode()).hexdigest())


def verbs() -> list[str]:
    return sorted(p.name.removesuffix(".lua") for p in _LUA.iterdir() if p.name.endswith(".lua"))
