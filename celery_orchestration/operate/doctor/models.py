"""The results of ``doctor`` and ``health`` as pydantic models."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from celery_orchestration.operate.base_model import Model

CheckState = Literal["fine", "problem", "unknown"]


class Check(Model):
    """The result of one check."""

    name: str = Field(description="the subject; several checks may have the same")
    state: CheckState = Field(description="'unknown': it could not be found out")
    found: str = Field(description="the result, in words")
    why: str = Field(description="why it matters")
    fix: str | None = Field(
        default=None, description="a command or a setting that fixes it; if the check passed: an optional improvement"
    )


class Diagnosis(Model):
    """The results of all checks."""

    at: datetime = Field(description="Redis's time; this machine's, if Redis does not answer")
    checks: list[Check] = Field(description="the result of each check")
    ok: bool = Field(description="no check found a problem")


class Health(Model):
    """For probes. The ledger is asked once."""

    ok: bool = Field(description="nothing is wrong")
    problem: str | None = Field(description="what is wrong")
    ledger: str = Field(description="its address")
    namespace: str = Field(description="of the ledger")
    at: datetime | None = Field(default=None, description="Redis's time; None, like all below: Redis does not answer")
    workers: int | None = Field(default=None, description="how many are alive")
    leader: str | None = Field(default=None, description="the scheduler that leads")
    opens_in_seconds: float | None = Field(default=None, description="how long the gate stays closed; else 0")
    worker: str | None = Field(default=None, description="the worker that was asked about")
    lease_seconds: float | None = Field(default=None, description="how long its lease still holds")
