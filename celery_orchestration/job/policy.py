"""A job's policy: its options with every default filled in, and where each value comes from. Pure."""

import inspect
import string
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from celery.exceptions import Reject, SoftTimeLimitExceeded
from pydantic import ValidationError

from celery_orchestration.job.options import (
    LEDGER_OPTIONS,
    OPTIONS,
    External,
    JobOptions,
    RecurringDefaults,
    job_name,
    ordered,
    time_limits,
)
from celery_orchestration.job.text import show, suggest
from celery_orchestration.job.validation import (
    OnCrash,
    configuration_error,
    error_lines,
)

HARD_LIMIT_AFTER_SECONDS = 10
Source = Literal[
    "written",
    "recurring default",
    "exclusive",
    "default",
    "default with options",
    "acks_late",
    "reject_on_worker_lost",
    "retry_on_worker_lost",
    "orchestration_on_crash",
    "orchestration_recurring_defaults",
]


class Policy(JobOptions):
    """One job's options with every default filled in, and the source of each value."""

    name: str
    sources: dict[str, Source]
    celery: dict[str, Any]

    @classmethod
    def resolve(cls, name: str, options: JobOptions, written: Mapping[str, Any] = MappingProxyType({})) -> "Policy":
        """Fill in the defaults. ``written`` holds Celery's own options of the task, and the app's settings for all
        jobs."""
        recurring = RecurringDefaults.read(written.get("recurring_defaults") or {})
        defaults = recurring.job_options() if options.recurring else {}
        if time_limits(written):
            defaults.pop("timeout_seconds", None)
        if options.exclusive is not None:
            defaults.setdefault("max_running", 1)
        ours = {option: getattr(options, option) for option in options.model_fields_set}
        implied: Source = "recurring default" if options.recurring else "exclusive"
        on_crash = _on_crash(options, written)
        sources: dict[str, Source] = {
            option: "written" if option in ours else implied if option in defaults else "default" for option in OPTIONS
        }
        if options.recurring:
            by_app = recurring.model_fields_set & defaults.keys() - ours.keys()
            sources |= dict.fromkeys(by_app, "orchestration_recurring_defaults")
        if on_crash is not None:
            ours["on_crash"], sources["on_crash"] = on_crash
        values = {**defaults, **ours, "name": name, "sources": sources, "celery": dict(written)}
        try:
            return cls.model_validate(values)
        except ValidationError as error:  # the app's defaults contradict the job's options
            raise configuration_error(f"job {show(name)}", error_lines(error, cls)) from None

    @property
    def routed(self) -> bool:
        """Whether the job has a queue of its own: only if its priority or pool was written."""
        return "written" in (self.sources["priority"], self.sources["pool"])

    @property
    def blocked(self) -> tuple[str, ...]:
        """The full names in ``blocks``. This evaluates lazy tasks, as ``Dependency.name`` does."""
        return tuple(sorted({job_name(job) for job in self.blocks}))

    @property
    def external(self) -> set[str]:
        """The full names of the external jobs that it names."""
        blocked = {job.name for job in self.blocks if type(job) is External}
        return blocked | {dependency.name for dependency in self.depends_on if dependency.external}

    @property
    def _recurring_defaults(self) -> RecurringDefaults:
        return RecurringDefaults.read(self.celery.get("recurring_defaults") or {})

    def source_of_celery_option(self, name: str) -> Source | None:
        """The source of the value of one of Celery's options; None: Celery's own default."""
        if name in self.celery:
            return "written"
        if name not in self.celery_options():
            return None
        if name in ("soft_time_limit", "time_limit"):
            return self.sources["timeout_seconds"]
        by_app = name in self._recurring_defaults.model_fields_set
        return "orchestration_recurring_defaults" if by_app else "recurring default"

    def defaults_in_force(self) -> dict[str, Any]:
        """The recurring defaults in use that neither the job nor the app has written."""
        if not self.recurring:
            return {}
        ours = {name: getattr(self, name) for name, source in self.sources.items() if source == "recurring default"}
        ours.pop("mode", None)
        celerys = {
            name: value
            for name, value in self.celery_options().items()
            if name in RecurringDefaults.model_fields and self.source_of_celery_option(name) == "recurring default"
        }
        return ours | celerys

    def celery_options(self) -> dict[str, Any]:
        """The attributes that the task class needs for Celery to act on this policy."""
        options: dict[str, Any] = {}
        if self.recurring:
            implied = self._recurring_defaults.celery_options()
            options |= {name: value for name, value in implied.items() if name not in self.celery}
            if self._writes_its_retry_delay():
                options.pop("retry_backoff", None)
        if self.timeout_seconds is not None:
            soft = self.timeout_seconds
            soft = int(soft) if soft.is_integer() else soft
            options |= {"soft_time_limit": soft, "time_limit": soft + HARD_LIMIT_AFTER_SECONDS}
        options |= self._not_retried({**self.celery, **options}.get("autoretry_for", ()))
        return options

    def _writes_its_retry_delay(self) -> bool:
        """Celery's backoff replaces any other delay, so a job with a written delay gets no default backoff."""
        return "default_retry_delay" in self.celery or bool(
            {"countdown", "eta"} & (self.celery.get("retry_kwargs") or {}).keys()
        )

    def _not_retried(self, autoretry_for: Sequence[type[BaseException]]) -> dict[str, Any]:
        """Do not retry ``Reject`` or a timeout, which a broad ``autoretry_for`` would do.

        This applies only to retries or timeouts that we added: a job that is not recurring keeps Celery's retries,
        except for its ``timeout_seconds``.
        """
        exempt = []
        if self.recurring and any(issubclass(Reject, caught) for caught in autoretry_for):
            exempt.append(Reject)
        if (
            (self.recurring or self.timeout_seconds is not None)
            and any(issubclass(SoftTimeLimitExceeded, caught) for caught in autoretry_for)
            and not any(issubclass(caught, SoftTimeLimitExceeded) for caught in autoretry_for)
        ):
            exempt.append(SoftTimeLimitExceeded)
        written = tuple(self.celery.get("dont_autoretry_for", ()))
        missing = tuple(error for error in exempt if error not in written)
        return {"dont_autoretry_for": written + missing} if missing else {}

    def check_key(self, signature: inspect.Signature) -> None:
        """Raise if the template names an argument that no call of the task can have."""
        fields = [field for _, field, _, _ in string.Formatter().parse(self.key)] if isinstance(self.key, str) else []
        wrong = [field for field in fields if field is not None and not _is_argument(field, signature)]
        if wrong:
            names = list(signature.parameters)
            hint = suggest(wrong[0], names) or f"; it takes {', '.join(names) or 'none'}"
            problem = f"key {show(self.key)} names {show(wrong[0])}, which is no argument of the task{hint}"
            raise configuration_error(f"job {show(self.name)}", [problem])

    def room_key(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], signature: inspect.Signature | None = None
    ) -> str:
        """The key under which a call's room is counted; '' without ``key``.

        With the task's signature, an argument gives the same key by position, by name or by default.
        """
        if self.key is None:
            return ""
        try:
            if not isinstance(self.key, str):
                return self._called_key(self.key(*args, **kwargs))
            positional, named = tuple(args), dict(kwargs)
            if signature is not None:
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                positional, named = bound.args, {**bound.arguments, **kwargs}
            return string.Formatter().vformat(self.key, positional, named)
        except Exception as error:
            raise ValueError(
                f"job {show(self.name)}: key {show(self.key)} does not fit the call: {show(error)}"
            ) from error

    @staticmethod
    def _called_key(value: object) -> str:
        if value is None:
            raise ValueError("it returned None")
        return str(value)

    def document(self) -> dict[str, Any]:
        """The policy for the ledger. Equal policies have equal documents, whatever the order of their lists.

        Options without a value are left out: a release with a new option has the same documents for jobs that do not
        use it.
        """
        return {
            **{option: value for option in LEDGER_OPTIONS if (value := getattr(self, option)) is not None},
            "keyed": self.key is not None,
            "depends_on": ordered(dependency.document() for dependency in self.depends_on),
            "blocks": list(self.blocked),
            "exclusive": [] if self.exclusive is None else [self.exclusive],
            "priority": int(self.priority),
            "pool": self.pool,
            "recurring": self.recurring,
        }


def _is_argument(field: str, signature: inspect.Signature) -> bool:
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    if not field.isdecimal():
        return field in signature.parameters or inspect.Parameter.VAR_KEYWORD in kinds
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    count = sum(parameter.kind in positional for parameter in signature.parameters.values())
    return int(field) < count or inspect.Parameter.VAR_POSITIONAL in kinds


def _on_crash(options: JobOptions, written: Mapping[str, Any]) -> tuple[OnCrash, Source] | None:
    """What happens to a started run whose process or worker died, and the source of that; None: the defaults decide.

    Celery runs a task only once by default. A job with ``acks_late`` or an option of ours accepts to run again.
    """
    names: tuple[Source, ...] = ("reject_on_worker_lost", "retry_on_worker_lost")
    for name in sorted((name for name in names if name in written), key=lambda name: not written[name]):
        return "requeue" if written[name] else "fail", name
    of_recurring = (written.get("recurring_defaults") or {}) if options.recurring else {}
    if "on_crash" in options.model_fields_set or "on_crash" in of_recurring:
        return None
    if written.get("on_crash") is not None:
        return written["on_crash"], "orchestration_on_crash"
    if options.recurring:
        return None
    if any(getattr(options, option) is not None for option in options.model_fields_set):
        return "requeue", "default with options"
    return ("requeue", "acks_late") if written.get("acks_late") else None
