"""Text for people: values made safe to print, and "did you mean".

Nothing here evaluates a lazy task: asking one of Celery's task proxies for anything, even its class, would bind it at
once, before all modules are imported.
"""

import reprlib
from collections.abc import Collection
from difflib import get_close_matches

from celery.local import Proxy

_shortened = reprlib.Repr()
_shortened.maxstring = _shortened.maxother = 120


def show(value: object) -> str:
    """Make a value safe to print: escaped, shortened, and without evaluating a lazy task."""
    return "a task" if is_lazy_task(value) else _shortened.repr(value)


def printable(text: str) -> str:
    """Make a text safe for one line of a log or terminal: control characters are escaped."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def suggest(word: str, candidates: Collection[str], cutoff: float = 0.6) -> str:
    """Return ``", did you mean 'X'?"``, or ''. The last part of a name finds the full name."""
    if len(word) > 200:
        return ""
    names = sorted(candidates)
    forms = {name.rpartition(".")[2].casefold(): name for name in reversed(names)}
    forms |= {name.casefold(): name for name in names}
    found = get_close_matches(word.casefold(), forms, n=1, cutoff=cutoff)
    return f", did you mean {show(forms[found[0]])}?" if found else ""


def is_lazy_task(value: object) -> bool:
    """Recognise a task proxy by its type: ``isinstance`` reads ``__class__``, which would evaluate it."""
    return issubclass(type(value), Proxy)
