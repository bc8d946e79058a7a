"""Hides secrets in arguments that the dashboard shows. Pure.

The setting ``orchestration_dashboard_arguments`` chooses how: ``redacted`` (values of keys that look like secrets are
left out), ``hidden`` (nothing is shown), or ``module:function``, which gets the text and returns the text to show.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

from celery_orchestration.errors import ConfigurationError
from celery_orchestration.job.text import show

Redact = Callable[[str], str]

LEFT_OUT = "•••"
HIDDEN = "hidden"
_WORDS = (
    "pass(?:word|wd|phrase)?|pwd|secret|token|api[_-]?key|auth|credential|cookie|session|private|signature"
    "|card|cvv|iban|ssn"
)
_SECRET = rf"[\w.-]*(?:{_WORDS})[\w.-]*"
#: A secret key in a dict (as Python or JSON writes it) or in a call, with the characters before its value.
_KEY = re.compile(rf"""(?P<quote>\\?['"]){_SECRET}(?P=quote)\s*:\s*|(?<![\w.-]){_SECRET}\s*=\s*""", re.IGNORECASE)
#: A quoted text, even if its end is cut off.
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'?|"(?:[^"\\]|\\.)*"?|\\"[^"]*"?""", re.DOTALL)
_OPENING, _CLOSING = "([{<", ")]}>"
_IS_SECRET = re.compile(_SECRET, re.IGNORECASE)


def redacted(text: str) -> str:
    """Redact a text that contains dicts or calls, such as Celery's ``kwargsrepr``. Its end may be cut off."""
    parts, at = [], 0
    while found := _KEY.search(text, at):
        parts += [text[at : found.end()], LEFT_OUT]
        at = _end_of_value(text, found.end())
    return "".join([*parts, text[at:]])


def _end_of_value(text: str, at: int) -> int:
    """The end of the value that begins here: a whole dict, list or call, however deep."""
    depth = 0
    while at < len(text):
        one = text[at]
        if quoted := _QUOTED.match(text, at):
            at = quoted.end()
            continue
        if one in _OPENING:
            depth += 1
        elif depth and one in _CLOSING:
            depth -= 1
        elif not depth and (one in _CLOSING or one == "," or one.isspace()):
            break
        at += 1
    return at


def hidden(_: str) -> str:
    return HIDDEN


def function_of(setting: str) -> Redact:
    if setting in ("redacted", "hidden"):
        return {"redacted": redacted, "hidden": hidden}[setting]
    module, _, name = setting.partition(":")
    try:
        found: Any = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as exc:
        raise ConfigurationError(
            f"orchestration_dashboard_arguments names {show(setting)}, which cannot be loaded: {exc}"
        ) from exc
    if not callable(found):
        raise ConfigurationError(f"orchestration_dashboard_arguments names {show(setting)}, which is no function")
    return _careful(found)


def _careful(function: Callable[[str], Any]) -> Redact:
    """A function that fails shows nothing."""

    def redact(text: str) -> str:
        try:
            return str(function(text))
        except Exception:
            return HIDDEN

    return redact


def values(found: Any) -> Any:
    """JSON without the values of secret keys."""
    if isinstance(found, dict):
        return {key: LEFT_OUT if _IS_SECRET.fullmatch(str(key)) else values(value) for key, value in found.items()}
    return [values(one) for one in found] if isinstance(found, list) else found


def as_text(redact: Redact, found: Any) -> str:
    """A JSON value as redacted text."""
    return redact(json.dumps(values(found), ensure_ascii=False))
