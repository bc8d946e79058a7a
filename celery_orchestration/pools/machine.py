"""The processors and memory of this machine, within the limits of this process's control groups."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
PROC = Path("/proc")
_MB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Machine:
    cpus: float
    #: None: unknown.
    memory_mb: float | None

    def lacks(self, cpus: float | None, memory_mb: float | None, used_cpus: float = 0, used_mb: float = 0) -> str:
        """A sentence about what is missing for one more worker; '' if there is enough."""
        if cpus is not None and used_cpus + cpus > self.cpus + 1e-9:
            left = max(0.0, self.cpus - used_cpus)
            return f"a worker takes {cpus:g} {'cpu' if cpus == 1 else 'cpus'}, and {left:g} of {self.cpus:g} are left"
        if memory_mb is not None and self.memory_mb is not None and used_mb + memory_mb > self.memory_mb:
            left = max(0.0, self.memory_mb - used_mb)
            return f"a worker takes {memory_mb:g} MB of memory, and {left:.0f} of {self.memory_mb:.0f} MB are left"
        return ""


def machine(cgroup: Path = CGROUP, proc: Path = PROC) -> Machine:
    cpus = float(_affinity())
    memory = _total_memory(proc)
    for directory in _own_groups(cgroup, proc):
        limit = _cpu_limit(directory)
        cpus = min(cpus, limit) if limit else cpus
        most = _memory_limit(directory)
        memory = min(memory or most, most) if most else memory
    return Machine(cpus, None if memory is None else memory / _MB)


def _affinity() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _own_groups(cgroup: Path, proc: Path) -> list[Path]:
    """The control groups of this process and their parents: all their limits apply."""
    found = [cgroup, cgroup / "cpu", cgroup / "memory"]
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        root = cgroup if not controllers else cgroup / controllers.split(",")[0]
        parts = [part for part in path.split("/") if part and part != ".."]
        found += [root.joinpath(*parts[: index + 1]) for index in range(len(parts))]
    return list(dict.fromkeys(found))


def _cpu_limit(directory: Path) -> float | None:
    quota, period = (*_read(directory / "cpu.max").split(), "", "")[:2]
    if not quota:
        quota, period = _read(directory / "cpu.cfs_quota_us"), _read(directory / "cpu.cfs_period_us")
    try:
        return int(quota) / int(period) if int(quota) > 0 else None
    except (ValueError, ZeroDivisionError):
        return None  # 'max'


def _memory_limit(directory: Path) -> float | None:
    text = _read(directory / "memory.max") or _read(directory / "memory.limit_in_bytes")
    try:
        return float(int(text)) or None
    except ValueError:
        return None


def _total_memory(proc: Path) -> float | None:
    for line in _read(proc / "meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return float(line.split()[1]) * 1024
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def resident_mb(pid: int, proc: Path = PROC) -> float | None:
    """Memory of a process and its children; None: unknown. Pages that they share are counted in each."""
    parts = [_resident(one, proc) for one in [pid, *_children(pid, proc)]]
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _resident(pid: int, proc: Path) -> float | None:
    fields = _read(proc / str(pid) / "statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / _MB if len(fields) > 1 else None


def _children(pid: int, proc: Path) -> list[int]:
    return [int(word) for word in _read(proc / str(pid) / "task" / str(pid) / "children").split()]


def started_at(pid: int, proc: Path = PROC) -> str:
    """When a process started, in kernel ticks. This distinguishes it from a later process with the same id. '':
    unknown."""
    _, _, rest = _read(proc / str(pid) / "stat").rpartition(")")
    fields = rest.split()
    return fields[19] if len(fields) > 19 and fields[0] != "Z" else ""
