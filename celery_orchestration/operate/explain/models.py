"""Why something does not run, as pydantic models."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from celery_orchestration.job.policy import Source
from celery_orchestration.job.reasons import RootCause
from celery_orchestration.operate.base_model import Model
from celery_orchestration.operate.models import Ended, QueueStatus, RunStatus


class Link(Model):
    """One step from what was asked about to the root."""

    job: str = Field(description="which one")
    run: RunStatus | None = Field(description="None: nobody has asked for a run of that job")
    text: str = Field(description="what it waits for, or is doing")


class Cause(Model):
    """The root: what to change so that it runs."""

    code: RootCause = Field(description="what it is, for scripts")
    job: str = Field(description="the job that it is about")
    text: str = Field(description="the same for people")
    wrong: bool = Field(default=False, description="somebody should see to it; else it is as it should be")
    fix: str | None = Field(default=None, description="a command, or what to do")


class OptionValue(Model):
    """An option of a job, and where its value comes from."""

    name: str = Field(description="of the option")
    value: str = Field(description="as this app's code has it")
    source: Literal[Source, "Celery's"] = Field(
        description="where that comes from; the name of an option or a setting: that implies it"
    )
    in_force: str | None = Field(
        default=None, description="what holds instead, because workers of several releases are live: the stricter one"
    )


class Explanation(Model):
    """Why a job or a run does not run; or what it is doing, did last, and when it runs next."""

    about: str = Field(description="as it was asked")
    job: str = Field(description="that, or the job of that run")
    run: str | None = Field(description="id of the run, if a run was asked about")
    at: datetime = Field(description="Redis's time")
    summary: str = Field(description="all of it in one sentence")
    root: Cause = Field(description="why, in the end")
    chain: list[Link] = Field(description="from what was asked about to the root")
    last: Ended | None = Field(description="the last run of the job that ended, or the run itself")
    next_fire: datetime | None = Field(description="when the schedule asks for it next")
    queue: QueueStatus | None = Field(description="where it is sent; None: this app's code does not say")
    options: list[OptionValue] = Field(description="of this app's code; none if it has no such job")
