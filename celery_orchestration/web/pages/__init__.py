"""The pages, one module each: they turn the ledger's data into values to show, without HTTP or HTML."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery_orchestration.operate import Orchestration
from celery_orchestration.operate.forecast.report import Forecast
from celery_orchestration.operate.models import Ended, JobStatus, Status
from celery_orchestration.web.formatting import common_prefix
from celery_orchestration.web.live import Histories, Snapshot
from celery_orchestration.web.redaction import Redact


@dataclass(frozen=True)
class PageData:
    """The data that a page is made from."""

    client: Orchestration
    snapshot: Snapshot
    histories: Histories
    redact: Redact

    @property
    def status(self) -> Status:
        return self.snapshot.status

    @property
    def now(self) -> datetime:
        return self.status.at

    @property
    def prefix(self) -> str:
        return common_prefix([job.name for job in self.status.jobs])

    def job(self, name: str) -> JobStatus | None:
        return next((one for one in self.status.jobs if one.name == name), None)

    def history(self, job: JobStatus, count: int) -> list[Ended]:
        return self.histories.of(self.client, job, count)

    def forecast(self, hours: float) -> Forecast:
        return self.histories.forecast(self.client, hours)


Query = Mapping[str, str]
View = Callable[[PageData, Query], dict[str, Any]]


@dataclass(frozen=True)
class Page:
    """A page, served at /`name`; the overview at /."""

    name: str
    title: str
    view: View
    #: Whether it is in the menu.
    listed: bool = True
    #: Values that are too slow to read every second: only when the page is loaded.
    extra: View = lambda data, asked: {}

    @property
    def template(self) -> str:
        return f"{self.name}.html"

    @property
    def path(self) -> str:
        return "" if self.name == "overview" else self.name


def whole(text: str | None, otherwise: int, most: int) -> int:
    """A whole number from an address's query."""
    return min(most, int(text)) if text and text.isascii() and text.isdigit() and len(text) < 10 else otherwise
