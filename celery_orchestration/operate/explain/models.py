"""An explanation as pydantic models."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from celery_orchestration.job.policy import Source
from celery_orchestration.job.reasons import RootCause
from celery_orchestration.operate.base_model import Model
from celery_orchestration.operate.models import Ended, QueueStatus, RunStatus


class Link(Model):
    """One link of the chain from the job or run in question to the root cause."""

    job: str = Field(description="its full name")
    run: RunStatus | None = Field(description="None: no run of that job was asked for")
    text: str = Field(description="why it waits, or what it is doing")


class Cause(Model):
    """The root cause, and how to fix it."""

    code: RootCause = Field(description="the kind of cause, for scripts")
    job: str = Field(description="the job that causes it")
    text: str = Field(description="the cause in words")
    wrong: bool = Field(default=False, description="somebody should do something; else it is normal")
    fix: str | None = Field(default=None, description="a command, or what to do")


class OptionValue(Model):
    """An option of a job, and where its value comes from."""

    name: str = Field(description="of the option")
    value: str = Field(description="as this app's code has it")
    source: Literal[Source, "Celery's"] = Field(
        description="where the value comes from; the name of an option or setting: it follows from that"
    )
    in_force: str | None = Field(
        default=None, description="the value that holds instead: the strictest of the releases that are live"
    )


class Explanation(Model):
    """Why a job or a run does not run; or what it does now, did last and when it runs next."""

    about: str = Field(description="the job or run, as given")
    job: str = Field(description="that job, or the job of that run")
    run: str | None = Field(description="id of the run, if a run was given")
    at: datetime = Field(description="Redis's time")
    summary: str = Field(description="the whole explanation in one sentence")
    root: Cause = Field(description="the root cause")
    chain: list[Link] = Field(description="from the job or run to the root cause")
    last: Ended | None = Field(description="the last run of the job that ended, or the run itself")
    next_fire: datetime | None = Field(description="its next due time")
    queue: QueueStatus | None = Field(description="its queue; None: this app's code does not have the job")
    options: list[OptionValue] = Field(description="as in this app's code; empty if it has no such job")
