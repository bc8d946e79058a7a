"""What ``doctor`` and ``health`` say, as pydantic models."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from celery_orchestration.operate.base_model import Model

CheckState = Literal["fine", "problem", "unknown"]


class Check(Model):
    """One thing that was looked at."""

    name: str = Field(description="what was looked at; several checks may be about the same")
    state: CheckState = Field(description="'unknown': it could not be asked")
    found: str = Field(description="what it is like")
    why: str = Field(description="why it matters")
    fix: str | None = Field(
        default=None, description="a command or a line of configuration that fixes it; of what is fine: that betters it"
    )


class Diagnosis(Model):
    """What bites, or could."""

    at: datetime = Field(description="Redis's time; this machine's, if Redis does not answer")
    checks: list[Check] = Field(description="all that were made")
    ok: bool = Field(description="nothing is a problem")


class Health(Model):
    """For probes: from one question to the ledger."""

    ok: bool = Field(description="nothing is wrong")
    problem: str | None = Field(description="what is wrong")
    ledger: str = Field(description="where it is")
    namespace: str = Field(description="of the ledger")
    at: datetime | None = Field(default=None, description="by Redis's clock; None, as the rest: it does not answer")
    workers: int | None = Field(default=None, description="how many live")
    leader: str | None = Field(default=None, description="the scheduler that leads")
    opens_in_seconds: float | None = Field(default=None, description="in a new epoch, until runs may start; else 0")
    worker: str | None = Field(default=None, description="the one that was asked about")
    lease_seconds: float | None = Field(default=None, description="for how long its lease holds on")
