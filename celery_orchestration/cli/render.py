"""Tables for the terminal. Values come from users (names, keys, errors): they are shown, never interpreted."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import IO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from celery_orchestration.operate.models import (
    Change,
    DeadLetter,
    Ended,
    EntryStatus,
    Letter,
    Progress,
    RunStatus,
    SchedulerStatus,
    Status,
)
from celery_orchestration.policy import printable

_COLOURS = {
    "running": "green",
    "busy": "green",
    "waiting": "yellow",
    "granted": "cyan",
    "queued": "cyan",
    "disabled": "red",
    "draining": "yellow",
    "dead": "red",
    "failed": "red",
    "timed out": "red",
    "crashed": "red",
    "succeeded": "green",
    "fired": "green",
    "sent": "green",
    "skipped": "yellow",
    "missed": "red",
    "paused": "yellow",
}


def print_status(status: Status, file: IO[str]) -> None:
    _print(render(status), file)


def print_history(runs: Sequence[Ended], file: IO[str]) -> None:
    """Two lines each: ids are long, and are needed whole."""
    lines = []
    for run in runs:
        if not run.made_run:
            lines += _no_run(run)
            continue
        took = "" if run.seconds is None else f"  took {run.seconds:.1f} s"
        waited = f"  waited {_seconds(run.waited_seconds)}" + (f" for {run.waited_for}" if run.waited_for else "")
        lines.append(Text.assemble(_plain(f"{run.id}  {_clock(run.ended)}  "), _state(run.outcome)))
        lines.append(_plain(f"    {run.worker or 'not started'}{took}{waited}{_fire(run)}"))
        if run.error:
            lines.append(_plain(f"    {run.error}", "red"))
    _print(Group(*lines) if lines else Text("no run has ended yet"), file)


def _no_run(fires: Ended) -> list[Text]:
    many = f"{fires.fires} fires" if fires.fires > 1 else "a fire"
    of = f" of entry {fires.entry}" if fires.entry not in (None, fires.job) else ""
    return [
        Text.assemble(_plain(f"{'no run':36}  {_clock(fires.ended)}  "), _state(fires.outcome)),
        _plain(f"    {many}{of} {fires.outcome}: {fires.error or 'nobody knows why'}"),
    ]


def _fire(run: Ended) -> str:
    """Where it does not go without saying: the entry, and the due time of a run that came late."""
    entry = f"  fired by {run.entry}" if run.entry not in (None, run.job) else ""
    late = run.due is not None and (run.arrived - run.due).total_seconds() >= 1
    return entry + (f"  due {_clock(run.due)}" if run.due is not None and late else "")


def print_schedule(entries: Sequence[EntryStatus], file: IO[str], now: datetime | None = None) -> None:
    now = now or datetime.now(timezone.utc)
    _print(_schedule(entries, now) if entries else Text("the schedule has no entries"), file)


def _schedule(entries: Sequence[EntryStatus], now: datetime) -> RenderableType:
    rows = [
        (
            _lines(_name(entry.name), _name(f"  {entry.task}") if entry.task != entry.name else None),
            _lines(_plain(entry.every), Text("by people", "dim") if entry.source == "people" else None),
            _lines(_state(entry.last_outcome or ""), Text(_ago(now, entry.last_fire))),
            _next(entry, now),
            _lines(
                Text(str(entry.fires)),
                Text(f"{entry.skips} skipped") if entry.skips else None,
                Text(f"{entry.misses} missed") if entry.misses else None,
            ),
        )
        for entry in entries
    ]
    notes = [
        _plain(f"{entry.name} is paused: {entry.paused.why or 'no reason given'} ({entry.paused.by})", "yellow")
        for entry in entries
        if entry.paused is not None
    ]
    notes += [_plain(f"! {entry.name}: {entry.problem}", "bold red") for entry in entries if entry.problem]
    return Group(_table("schedule", ("entry", "when", "last", "next", "fires"), rows), *notes)


def _next(entry: EntryStatus, now: datetime) -> Text:
    if entry.problem:
        return Text("never", "red")
    if entry.paused is not None:
        return _state("paused")
    if entry.next_fire is None:
        return Text("")
    seconds = (entry.next_fire - now).total_seconds()
    return Text(f"in {_seconds(seconds)}" if seconds >= 0 else f"{_seconds(-seconds)} late")


def _name(name: str) -> Text:
    """Whole, if it is not all too long: it is needed to name the entry to a command."""
    return _plain(name if len(name) <= 120 else f"{name[:120]}…")


def _lines(*lines: Text | None) -> Text:
    """Of one cell."""
    return Text("\n").join(line for line in lines if line is not None)


def print_audit(changes: Sequence[Change], file: IO[str]) -> None:
    lines = [
        _plain(f"{_clock(one.at)}  {one.who}  {one.what} {one.about}" + (f": {one.why}" if one.why else ""))
        for one in changes
    ]
    _print(Group(*lines) if lines else Text("nobody has changed anything"), file)


def _clock(when: datetime) -> str:
    return when.astimezone().strftime("%m-%d %H:%M:%S")


def print_letters(letters: Sequence[DeadLetter], total: int, file: IO[str]) -> None:
    """Two lines each: ids are long, and are needed whole."""
    lines = []
    for letter in letters:
        lines += [
            _plain(f"{letter.id}  {_clock(letter.at)}  {letter.job}"),
            _plain(f"    {letter.error}", "red"),
        ]
    _print(Group(*lines, *_rest(total, len(letters))) if lines else Text("there are no dead letters"), file)


def print_letter(letter: Letter, file: IO[str]) -> None:
    shown = letter.model_dump(mode="json", exclude={"traceback", "headers"})
    lines = [_plain(f"{name:17} {value}") for name, value in shown.items() if value not in (None, "")]
    lines += [_plain(line) for line in letter.traceback.splitlines()]
    _print(Group(*lines), file)


def _print(found: RenderableType, file: IO[str]) -> None:
    Console(file=file, highlight=False).print(found)


def render(status: Status, rows: int = 20) -> Group:
    head = f"{status.namespace}: {status.running} running, {status.waiting} waiting"
    if status.later:
        head += f", {status.later} not due yet"
    if status.dead_letters:
        head += f", {status.dead_letters} dead letters"
    if status.max_running is not None:
        head += f", at most {status.max_running} at once"
    parts: list[RenderableType] = [Text(head, style="bold")]
    parts += [_plain(f"! {problem}", "bold red") for problem in status.problems]
    parts += _scheduler(status.scheduler, status.at)
    parts.append(_jobs(status))
    if status.runs:
        parts.append(_runs(status.runs, rows))
    if status.waits:
        parts.append(_waits(status, rows))
    if status.workers:
        parts.append(_workers(status))
    parts += [
        _plain(f"worker {one.name} died {_ago(status.at, one.at)}, with {one.runs} runs", "red")
        for one in status.died
        if (status.at - one.at).total_seconds() < SHOW_DEATHS
    ]
    return Group(*parts)


def _scheduler(scheduler: SchedulerStatus, now: datetime) -> list[Text]:
    said = []
    if scheduler.leader is not None and scheduler.since is not None:
        said.append(f"{scheduler.leader} has led for {_seconds((now - scheduler.since).total_seconds())}")
    if scheduler.standbys:
        many = len(scheduler.standbys)
        said.append(f"{many} stands by" if many == 1 else f"{many} stand by")
    if scheduler.entries:
        said.append(f"{scheduler.entries} entries" if scheduler.entries != 1 else "1 entry")
    return [_plain(f"scheduler: {', '.join(said)}")] if said else []


#: Seconds that a death is shown.
SHOW_DEATHS = 3600
#: Columns that give way in a narrow terminal: by wrapping, or by being cut.
_WRAPPED, _CUT = ("why", "queues", "progress", "entry", "when"), ("job", "worker")
_NUMBERS = ("running", "waiting", "for", "last ended", "done", "failed", "fires")


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, expand=False)
    for index, column in enumerate(columns):
        cells = (str(row[index]) for row in rows if index < len(row))
        widest = max((len(line) for cell in cells for line in cell.split("\n")), default=0)
        table.add_column(
            column,
            justify="right" if column in _NUMBERS else "left",
            no_wrap=column not in (*_WRAPPED, *_CUT),  # else rich would not narrow it
            overflow="fold" if column in _WRAPPED else "ellipsis",
            min_width=None if column in (*_WRAPPED, *_CUT) else max(widest, len(column)),
        )
    for row in rows:
        table.add_row(*row)
    return table


def _jobs(status: Status) -> RenderableType:
    rows = []
    for job in status.jobs:
        cap = "" if job.max_running is None else f"/{job.max_running}{' per key' if job.keyed else ''}"
        rows.append(
            (
                _plain(job.name),
                _state(job.state),
                f"{job.running}{cap}",
                str(job.waiting),
                _ago(status.at, job.last_end),
                _state(job.last_outcome or ""),
            )
        )
    observed = [
        _plain(f"{job.name} would have waited {count} times for {reason}")
        for job in status.jobs
        for reason, count in sorted(job.would_have_waited.items())
    ]
    observed += [
        _plain(f"{job.name} is disabled: {job.disabled.why} ({job.disabled.by})", "red")
        for job in status.jobs
        if job.disabled is not None
    ]
    return Group(_table("jobs", ("job", "state", "running", "waiting", "last ended", "outcome"), rows), *observed)


def _runs(runs: Sequence[RunStatus], most: int) -> RenderableType:
    rows = [
        (
            _plain(run.id[:8]),
            _plain(run.job),
            _state("timed out" if run.timed_out else run.state),
            _plain(run.worker or f"queue {run.queue}"),
            _seconds(run.seconds),
            _plain(_progress(run.progress)),
        )
        for run in runs[:most]
    ]
    columns = ("run", "job", "state", "worker", "for", "progress")
    shown = len(columns) if any(run.progress for run in runs[:most]) else len(columns) - 1
    return Group(_table("running", columns[:shown], [row[:shown] for row in rows]), *_rest(len(runs), most))


#: Up to so many, "3/10" says more than "30 %"; characters of a note that fit into a table.
_COUNTED, _NOTE = 100, 60


def _progress(progress: Progress | None) -> str:
    if progress is None:
        return ""
    done, total, note = progress.done, progress.total, progress.note
    if total is None:
        far = f"{done:g}" if isinstance(done, float) else str(done)
    elif isinstance(done, int) and isinstance(total, int) and total <= _COUNTED:
        far = f"{done}/{total}"
    else:
        far = f"{100 * done / total:.0f} %" if total else "100 %"
    return f"{far} {note if len(note) <= _NOTE else note[:_NOTE] + '…'}".strip()


def _waits(status: Status, most: int) -> RenderableType:
    rows = [
        (_plain(run.id[:8]), _plain(run.job), _seconds(run.seconds), _plain(run.reason or ""))
        for run in status.waits[:most]
    ]
    return Group(_table("waiting", ("run", "job", "for", "why"), rows), *_rest(status.waiting, most))


def _workers(status: Status) -> RenderableType:
    rows = [
        (
            _plain(worker.name),
            _state(worker.state),
            f"{worker.running}/{worker.slots}",
            str(worker.done),
            str(worker.failed),
            worker.execution_pool,
            _plain(", ".join(worker.queues)),
        )
        for worker in status.workers
    ]
    return _table("workers", ("worker", "state", "running", "done", "failed", "pool", "queues"), rows)


def _rest(total: int, most: int) -> list[Text]:
    return [Text(f" … {total - most} more")] if total > most else []


def _plain(text: str, style: str = "") -> Text:
    """Control characters of any kind are shown as what they are."""
    return Text(printable(text), style=style)


def _state(state: str) -> Text:
    return Text(state, style=_COLOURS.get(state, ""))


def _ago(now: datetime, then: datetime | None) -> str:
    return "" if then is None else f"{_seconds((now - then).total_seconds())} ago"


def _seconds(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 86400 else f"{seconds / 86400:.1f} d"
