"""OrchestratedTask: the base class that makes a task a job.

Binding only checks the options; the gate in the worker acts on them. Direct calls, ``apply()`` and eager mode bypass
the gate.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, get_args

from celery import Celery, Task, chain, chord, group
from celery.app.annotations import resolve_all
from celery.app.autoretry import add_autoretry_behaviour
from celery.exceptions import Ignore, SoftTimeLimitExceeded
from celery.utils.imports import symbol_by_name
from celery.utils.log import get_logger

from celery_orchestration.errors import ConfigurationError
from celery_orchestration.job import progress, tracing
from celery_orchestration.job.app import SCHEDULER, beat_entry, ledger_of, settings_of, signature_of_class
from celery_orchestration.job.current_run import continue_run_of, default_limit, lost_lease, run_of, stop_clock
from celery_orchestration.job.envelope import FENCE, WAITS, new_message_id
from celery_orchestration.job.limits import Run, clocks
from celery_orchestration.job.options import Priority, RecurringDefaults, read_options
from celery_orchestration.job.policy import Policy
from celery_orchestration.job.queues import PRIORITY_HEADER, announce, install_route, queue_name
from celery_orchestration.job.validation import OnCrash

logger = get_logger(__name__)

#: Options of Celery's that a policy depends on.
_CELERY_OPTIONS = (
    "autoretry_for",
    "dont_autoretry_for",
    "max_retries",
    "retry_backoff",
    "retry_backoff_max",
    "retry_jitter",
    "retry_kwargs",
    "default_retry_delay",
    "time_limit",
    "soft_time_limit",
    "reject_on_worker_lost",
    "retry_on_worker_lost",
    "acks_late",
)
_LIMITS = ("time_limit", "soft_time_limit")
#: Celery's own defaults for retries.
_CELERYS_RETRIES = {
    "autoretry_for": (),
    "dont_autoretry_for": (),
    "max_retries": Task.max_retries,
    "retry_backoff": False,
    "retry_jitter": True,
}
#: Options that count as written if the app's configuration sets them.
_CONFIGURED = (*_LIMITS, "reject_on_worker_lost", "retry_on_worker_lost", "acks_late")


class OrchestratedTask(Task):  # type: ignore[misc]
    """A job. ``docs/options.md`` describes its options; inheriting from this class without options changes nothing."""

    abstract = True
    Strategy = "celery_orchestration.worker.custom:strategy"
    Request = "celery_orchestration.worker.request:OrchestratedRequest"

    #: The job's policy, once the task is bound.
    orchestration: ClassVar[Policy | None] = None
    #: Our ``priority``; Celery's attribute of that name is the message priority.
    orchestration_priority: ClassVar[Any] = None
    #: The error in its options, if any.
    mistake: ClassVar[ConfigurationError | None] = None
    #: Attributes of this class that we set because they follow from its options.
    _implied: ClassVar[frozenset[str]] = frozenset()
    _written_by_users: ClassVar[dict[str, Any]]
    #: The inputs and the result of the last resolution.
    _resolved: ClassVar[tuple[dict[str, Any], dict[str, Any], Policy, dict[str, Any]]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._lift_priority()
        # Celery wraps `run` for automatic retries before it binds a class-based task, so this is done here.
        try:
            implied = cls._resolve("?", cls._written(), {}).celery_options()
        except ConfigurationError:
            return  # binding reports it, with the job's name
        undone = {name: value for name, value in _CELERYS_RETRIES.items() if cls._inherits_implied(name)}
        cls._imply({name: value for name, value in {**undone, **implied}.items() if name not in _LIMITS})

    @classmethod
    def _lift_priority(cls) -> None:
        """Take a word as our priority before Celery sees it; a number is Celery's."""
        value = cls.__dict__.get("priority")
        if value is not None and type(value) is not int:
            cls.orchestration_priority = value
            del cls.priority

    @classmethod
    def _imply(cls, options: dict[str, Any]) -> None:
        for name, value in options.items():
            setattr(cls, name, value)
        cls._implied = cls.__dict__.get("_implied", frozenset()) | options.keys()

    @classmethod
    def _inherits_implied(cls, name: str) -> bool:
        owner = next((klass for klass in cls.__mro__ if name in vars(klass)), object)
        return name in vars(owner).get("_implied", ())

    @classmethod
    def _written(cls) -> dict[str, Any]:
        """The attributes that people wrote on the class and its bases; the nearest one counts."""
        written: dict[str, Any] = {}
        for klass in reversed(cls.__mro__):
            if klass not in (OrchestratedTask, Task, object):
                implied = klass.__dict__.get("_implied", ())
                written |= {name: value for name, value in vars(klass).items() if name not in implied}
        if "orchestration_priority" in written:
            written["priority"] = written.pop("orchestration_priority")
        return written

    @classmethod
    def _resolve(cls, name: str, written: dict[str, Any], configured: dict[str, Any]) -> Policy:
        """Celery binds a task several times: the same inputs give the cached result."""
        before = cls.__dict__.get("_resolved")
        if before is not None and before[3] is written and _is_same(configured, before[1]) and before[2].name == name:
            return before[2]  # type: ignore[no-any-return]
        given = {option: value for option, value in written.items() if not option.startswith("_")}
        if before is not None and _is_same(given, before[0]) and _is_same(configured, before[1]):
            policy: Policy = before[2]
            policy = policy if policy.name == name else policy.model_copy(update={"name": name})
        else:
            of_celery = {option: written[option] for option in _CELERY_OPTIONS if option in written}
            policy = Policy.resolve(name, read_options(name, written), {**configured, **of_celery})
        cls._resolved = given, configured, policy, written
        return policy

    @classmethod
    def bind(cls, app: Celery) -> Any:
        # Read before Celery binds, because binding fills the class with values from the configuration.
        written = cls.__dict__.get("_written_by_users")
        if written is None:
            written = cls._written_by_users = cls._written()
        bound = super().bind(app)
        cls._lift_priority()  # an annotation may have set it
        if cls.name and cls.name.startswith("celery."):
            # If the app's task_cls is this class, Celery's own tasks use it, too: they are no jobs.
            cls.Strategy, cls.Request = Task.Strategy, Task.Request
        elif cls.name:
            annotated = {key: value for found in resolve_all(app.annotations, cls) for key, value in found.items()}
            try:
                cls._bind_job(app, {**written, **annotated} if annotated else written)
            except ConfigurationError as exc:
                cls.mistake = exc  # raised when the job is used: during imports it would be hidden in a traceback
        return bound

    @classmethod
    def _bind_job(cls, app: Celery, written: dict[str, Any]) -> None:
        app.steps["worker"].add("celery_orchestration.worker.bootsteps:Boot")
        app.steps["consumer"].add("celery_orchestration.worker.bootsteps:GateStep")
        conf = app.conf
        configured = {name: value for name in _CONFIGURED if (value := conf.get(f"task_{name}"))}
        if conf.get("orchestration_on_crash") in get_args(OnCrash):  # otherwise the starting process reports it
            configured["on_crash"] = conf["orchestration_on_crash"]
        if _is_sound(recurring_defaults := conf.get("orchestration_recurring_defaults")):
            configured["recurring_defaults"] = recurring_defaults
        policy = cls._resolve(cls.name, written, configured)
        if isinstance(policy.key, str) and (signature := signature_of_class(cls)) is not None:
            policy.check_key(signature)
        cls.orchestration = policy
        implied = policy.celery_options()
        if policy.recurring and "recurring_defaults" in configured:
            cls._imply(implied)
            _retry_as_implied(app._tasks.get(cls.name))
        else:
            cls._imply({name: value for name, value in implied.items() if name in _LIMITS})
        install_route(app)
        if policy.mode == "scheduled" and conf.beat_scheduler != SCHEDULER:
            conf.beat_schedule.setdefault(cls.name, beat_entry(app, policy))

    # -- calling ------------------------------------------------------------------------------------

    def apply_async(self, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        """``priority="high"`` gives this one run another queue and rank; a number is Celery's message priority.

        One call is one run, whatever its ``task_id``: the message id tells a copy from another call.
        """
        if self.mistake is not None:
            raise self.mistake
        priority = options.get("priority")
        if priority is not None and type(priority) is not int:
            label = Priority.parse(priority).label
            del options["priority"]
            options["headers"] = {**(options.get("headers") or {}), PRIORITY_HEADER: label}
            self._announce_queue(Priority.parse(label))
        options.setdefault("message_id", new_message_id())
        return super().apply_async(args, kwargs, *rest, **options)

    def signature_from_request(self, request: Any = None, *args: Any, **options: Any) -> Any:
        """The signature of a retry names the run that it continues."""
        request = self.request if request is None else request
        signature = super().signature_from_request(request, *args, **options)
        if (signature.options.get("retries") or 0) > (request.retries or 0):
            continue_run_of(request, signature)
        return signature

    subtask_from_request = signature_from_request

    def _announce_queue(self, priority: Priority) -> None:
        policy = self.orchestration
        if policy is not None and settings_of(self.app).mode != "off" and not self.app.conf.task_always_eager:
            announce(self.app, queue_name(policy.pool, priority), jobs_of(self.app))

    # -- in the worker ------------------------------------------------------------------------------

    def start_strategy(self, app: Celery, consumer: Any, **kwargs: Any) -> Any:
        """Use the gate, whatever ``Strategy`` and ``Request`` the class inherits from its other bases."""
        if self.orchestration is None:
            return super().start_strategy(app, consumer, **kwargs)
        return symbol_by_name(OrchestratedTask.Strategy)(self, app, consumer, **kwargs)

    # -- running ------------------------------------------------------------------------------------

    @property
    def fence(self) -> int | None:
        """A number that rises with every start of a run. A store that remembers the highest one can refuse the writes
        of a run that lost its lease. None outside a worker."""
        fence = (self.request.properties or {}).get(FENCE)
        return int(fence) if fence else None

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Report the progress of this run, for ``status``: `done` of `total` (None: unknown), and a short note.

        Call it as often as you like: the ledger gets the latest report a few times a second, and the call never waits
        for it. Outside a worker it does nothing.
        """
        report = progress.as_json(done, total, note)
        if self.fence is not None:
            app = self.app
            progress.reporter(app, lambda: ledger_of(app)).report(run_of(self.request), report)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        request = self.request  # each access is a lookup
        if request.called_directly or not (request.properties or {}).get(FENCE):
            return super().__call__(*args, **kwargs)
        run = run_of(request)
        self._refuse_if_void(request, run)
        if waits := request.properties.get(WAITS):
            tracing.record_waits(request, self.name, waits)
        try:
            result = super().__call__(*args, **kwargs)
        except Ignore:
            clocks.stop(run)
            raise
        except BaseException as exc:
            self._refuse_if_void(request, run)
            stop_clock(run)
            if isinstance(exc, SoftTimeLimitExceeded) and (found := default_limit(self, request.timelimit)):
                exc.args = (*exc.args, found)
            raise
        self._refuse_if_void(request, run)
        stop_clock(run)
        return result

    def retry(self, *args: Any, **kwargs: Any) -> Any:
        with self._ending_the_run():
            return super().retry(*args, **kwargs)

    def replace(self, sig: Any) -> Any:
        with self._ending_the_run():
            last = sig.tasks[-1] if isinstance(sig, chain) and sig.tasks else sig
            if not isinstance(last, chain | group | chord):  # the body of a chord is a call of its own
                continue_run_of(self.request, last)
            return super().replace(sig)

    def add_to_chord(self, *args: Any, **kwargs: Any) -> Any:
        self._refuse_if_void(self.request, run_of(self.request))
        return super().add_to_chord(*args, **kwargs)

    @contextmanager
    def _ending_the_run(self) -> Iterator[None]:
        """For calls that end the run with an exception. The clock stops, because the time cannot run out once the next
        attempt is sent. If the call returns after all, the clock continues."""
        request = self.request
        run = run_of(request)
        self._refuse_if_void(request, run)
        clock = stop_clock(run)
        yield
        if clock is not None:
            clocks.go_on(run, clock)

    def _refuse_if_void(self, request: Any, run: Run) -> None:
        """Raise ``Ignore`` if the run has lost its lease or its time is over: then it must neither store a result nor
        send callbacks."""
        if clocks.is_over(run):
            raise Ignore(f"the time of run {run[0]} is over, it has failed")
        if lost_lease(self.app, run, request.properties or {}):
            raise Ignore(f"run {run[0]} lost its lease, another one has started since")


def _is_sound(recurring_defaults: Any) -> bool:
    """If not, the starting process reports it."""
    try:
        return bool(recurring_defaults and RecurringDefaults.read(recurring_defaults))
    except ValueError:
        return False


def _retry_as_implied(task: Task | None) -> None:
    """Celery wraps the function of a class-based task for automatic retries before it binds it, with our defaults for
    recurring jobs. If the app has other defaults, wrap it again."""
    if task is not None and "_orig_run" in vars(task):
        task.run = vars(task).pop("_orig_run")
        add_autoretry_behaviour(task)


def _is_same(these: dict[str, Any], those: dict[str, Any]) -> bool:
    """Compare by identity: comparing a lazy task would bind it at once."""
    return these.keys() == those.keys() and all(value is those[name] for name, value in these.items())


def jobs_of(app: Celery) -> dict[str, Policy]:
    """The policies of an app's jobs, by name."""
    jobs, mistakes = sound_jobs_of(app)
    if mistakes:
        raise ConfigurationError("\n".join(mistakes))
    return jobs


def sound_jobs_of(app: Celery) -> tuple[dict[str, Policy], list[str]]:
    """The policies of jobs with correct options, and the errors of the other jobs."""
    tasks = {name: task for name, task in app.tasks.items() if isinstance(task, OrchestratedTask)}
    mistakes = [str(task.mistake) for task in tasks.values() if task.mistake is not None]
    return {name: task.orchestration for name, task in tasks.items() if task.orchestration is not None}, mistakes


def schedule_of(app: Celery) -> dict[str, dict[str, Any]]:
    """The schedule entries that follow from jobs' options, in the form of ``beat_schedule``."""
    return {name: beat_entry(app, policy) for name, policy in jobs_of(app).items() if policy.mode == "scheduled"}
