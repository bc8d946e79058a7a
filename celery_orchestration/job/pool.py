"""A pool: a group of workers with its own queues, declared in ``orchestration_pools``. Pure."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from typing_extensions import Self

from celery_orchestration.errors import ConfigurationError
from celery_orchestration.job.policy import Policy
from celery_orchestration.job.text import show, suggest
from celery_orchestration.job.validation import Count, Seconds, configuration_error, error_lines, pool_name

#: Arguments of a worker that the supervisor sets, and where their values come from.
_SET_BY_POOL = {
    **dict.fromkeys(("-n", "--hostname"), "the supervisor, from the pool's name and its place"),
    **dict.fromkeys(("-Q", "--queues"), "the pool's name"),
    **dict.fromkeys(("-c", "--concurrency"), "concurrency"),
    **dict.fromkeys(("-P", "--pool"), "kind"),
    **dict.fromkeys(("-D", "--detach"), "nobody: the supervisor needs its workers in the foreground"),
    **dict.fromkeys(("-B", "--beat"), "nobody: start a scheduler with celery beat"),
}


def _worker_args(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) for one in value):
        raise ValueError(f"should be a list of texts such as ['--max-tasks-per-child', '100'], not {show(value)}")
    for one in value:
        name = one.partition("=")[0] if one.startswith("--") else one[:2]
        if name in _SET_BY_POOL:
            raise ValueError(f"holds {show(one)}, which is set by {_SET_BY_POOL[name]}")
    return tuple(value)


class Pool(BaseModel):
    """A group of workers with its own queues: one entry of ``orchestration_pools``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min: Annotated[int, Field(strict=True, ge=0, le=10_000)] = Field(
        default=1, description="workers that it always has, over all machines; 0: none while there is nothing to do"
    )
    max: Annotated[int, Field(strict=True, ge=1, le=10_000)] = Field(
        default=4, description="workers that it has at most, over all machines"
    )
    concurrency: Annotated[int, Field(strict=True, ge=1, le=10_000)] = Field(
        default=1, description="runs that one worker can have at once (Celery's -c); a solo worker has one"
    )
    kind: Literal["prefork", "threads", "gevent", "solo"] = Field(
        default="prefork", description="execution pool of its workers (Celery's -P)"
    )
    target_wait_seconds: Seconds = Field(
        default=10, description="how long work that may start should wait at most; more workers start to keep to it"
    )
    scale_up_at: Count | None = Field(
        default=None, description="scale by queue depth instead: one worker for this many ready messages"
    )
    scale_down_at: Annotated[int, Field(strict=True, ge=0)] | None = Field(
        default=None,
        description="with scale_up_at: fewer workers only while no more than this many messages are ready for each; "
        "half of scale_up_at if not given",
    )
    quiet_seconds: Seconds = Field(default=60, description="a worker is stopped when it was not needed for this long")
    stall_seconds: Seconds = Field(
        default=60,
        description="a worker that takes nothing for this long, although its queues have messages and it has free "
        "slots, is replaced",
    )
    cpus: Annotated[float, Field(strict=True, gt=0, le=10_000)] | None = Field(
        default=None, description="processors that one worker takes from its machine; None: they are not counted"
    )
    memory_mb: Annotated[float, Field(strict=True, gt=0)] | None = Field(
        default=None, description="memory that one worker takes from its machine, in MB; None: it is not counted"
    )
    nice: Annotated[int, Field(strict=True, ge=0, le=19)] = Field(
        default=0, description="how far its workers give way to other processes of the machine: 0 to 19"
    )
    worker_args: Annotated[tuple[str, ...], BeforeValidator(_worker_args)] = Field(
        default=(), description='more arguments of `celery worker`, such as ["--max-tasks-per-child", "100"]'
    )

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as error:
            raise configuration_error("Pool(...)", error_lines(error, type(self))) from None

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min={self.min} is more than max={self.max}: both count workers over all machines")
        if self.kind == "solo" and self.concurrency != 1:
            raise ValueError(f"a solo worker has one slot: drop concurrency={self.concurrency}, or write another kind")
        if self.scale_down_at is not None and self.scale_up_at is None:
            raise ValueError("scale_down_at needs scale_up_at")
        if self.scale_up_at is not None and (self.scale_down_at or 0) >= self.scale_up_at:
            raise ValueError(
                f"scale_down_at={self.scale_down_at} should be less than scale_up_at={self.scale_up_at}, "
                "or workers would start and stop in turn"
            )
        return self

    @property
    def slots(self) -> int:
        """The slots of one worker."""
        return self.concurrency


def read_pools(value: Any) -> dict[str, Pool]:
    """Read the table of pools: for each name a Pool, or its options as a mapping."""
    if not isinstance(value, Mapping):
        raise ValueError(f"should be a table such as {{'images': Pool(min=1, max=4)}}, not {show(value)}")  # noqa: TRY004
    table, problems = {}, []
    for name, options in value.items():
        try:
            table[pool_name(name)] = options if isinstance(options, Pool) else _read_pool(options)
        except ValueError as error:
            problems.append(f"of pool {show(name)}: {error}")
        except ConfigurationError as error:
            problems += [f"of pool {show(name)}: {line.partition(': ')[2]}" for line in str(error).splitlines()]
    if problems:
        raise ValueError("; ".join(problems))
    return table


def _read_pool(options: Any) -> Pool:
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise ValueError(f"should be a Pool(...) or its options as a mapping, not {show(options)}")
    return Pool(**options)


def pool_problems(table: Mapping[str, Pool], jobs: Mapping[str, Policy]) -> list[str]:
    """Mismatches between the table of pools and the jobs, one sentence each.

    Without a table nobody manages pools, and nothing is missing. Jobs without a written pool need no entry: they are
    sent to the same queues as before.
    """
    if not table:
        return []
    by_pool: dict[str, list[str]] = {}
    for name, job in sorted(jobs.items()):
        by_pool.setdefault(job.pool, []).append(name)
    problems = []
    for pool, names in sorted(by_pool.items()):
        written = [name for name in names if jobs[name].sources.get("pool") == "written"]
        if pool not in table and written:
            few = ", ".join(written[:3]) + (f" and {len(written) - 3} more" if len(written) > 3 else "")
            problems.append(
                f"pool {show(pool)} of {few} is not in orchestration_pools, and no worker is started for it"
                f"{suggest(pool, table)}"
            )
    unused = sorted(table.keys() - by_pool.keys() - {"default"})
    return [
        *problems,
        *(f"pool {show(one)} is in orchestration_pools, and no job uses it{suggest(one, by_pool)}" for one in unused),
    ]
