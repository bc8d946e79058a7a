"""Marks the options of a job that the ledger reads. Pure.

``max_running: Annotated[Count | None, InLedger(smaller)]`` is all that an option needs: the document of a policy, the
policy that the ledger installs, the merge of releases and ``explain`` follow from the mark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel


def newer(older: Any, newer: Any) -> Any:
    """The newer release decides."""
    return newer


def smaller(older: Any, newer: Any) -> Any:
    """The smaller limit; None is no limit."""
    return min((limit for limit in (older, newer) if limit is not None), default=None)


def fail_first(older: Any, newer: Any) -> Any:
    """A run that one release would not repeat is not repeated."""
    return "fail" if "fail" in (older, newer) else newer


@dataclass(frozen=True)
class InLedger:
    """The option is a field of the job's policy in the ledger, under its own name.

    ``merge(older, newer)`` is the value that applies while releases with different values are live.
    """

    merge: Callable[[Any, Any], Any] = newer


def ledger_options(model: type[BaseModel]) -> Mapping[str, InLedger]:
    """The options of a model that carry the mark."""
    return {
        name: mark
        for name, field in model.model_fields.items()
        for mark in field.metadata
        if isinstance(mark, InLedger)
    }
