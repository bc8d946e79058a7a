"""Names in Redis: the one place that turns users' names into parts of keys.

The keys themselves are described at the head of ``lua/schema.lua``. Scripts put them together from the
prefix (one hash tag, so one slot of a cluster), a job's encoded name and a room key or run id as the last part.
"""

import hashlib
import re
from urllib.parse import quote, unquote

from celery_orchestration.errors import ConfigurationError
from celery_orchestration.job.settings import default_namespace

SCHEMA = 1
#: The oldest version of the data layout that this version works beside.
OLDEST_SCHEMA = 1

LONGEST_NAME = 200
LONGEST_ROOM_KEY = 120
#: Bytes. ``record_progress.lua`` has the same number.
LONGEST_PROGRESS = 2000
LONGEST_NOTE = 1000
#: For entries that people add. The schedule in the code may have longer names.
LONGEST_ENTRY_NAME = LONGEST_NOTE


def prefix(namespace: str, global_keyprefix: str = "") -> str:
    return f"{global_keyprefix}{{{namespace}}}:"


def encode_job(name: str) -> str:
    """A job's name without ``:`` and other characters that have a meaning in keys; ordinary names stay as they are."""
    try:
        encoded = quote(name, safe="")
    except UnicodeEncodeError:
        raise ConfigurationError(f"job {name[:60]!r}: a job's name must be a text that UTF-8 can encode") from None
    if len(encoded) > LONGEST_NAME:
        raise ConfigurationError(f"job {name[:60]!r}…: a job's name may have at most {LONGEST_NAME} characters")
    return encoded


def decode_job(encoded: str) -> str:
    return unquote(encoded)


def named_group(name: str) -> str:
    """A group that ``exclusive`` names. Groups without a name (jobs that all block each other) begin with ``-``."""
    return f"={name}"


def name_of_group(group: str) -> str | None:
    return group[1:] if group.startswith("=") else None


def service(main: str | None, namespace: str) -> str:
    """The service of an app, among those that share a ledger; '' for the one that the ledger is named after."""
    return "" if namespace == default_namespace(main) else entry(main or "__main__")


def decode_service(encoded: str) -> str:
    return decode_entry(encoded)


def entry(name: str, service: str = "") -> str:
    """An entry of a service's schedule. If an entry has no name, Celery makes one of its call, which may be long."""
    if service:
        return f"{service}:{entry(name)}"
    raw = name.encode("utf-8", "surrogatepass")
    encoded = quote(raw, safe="")
    if len(encoded) <= LONGEST_NAME:
        return encoded
    return f"{encoded[: LONGEST_NAME - 33]}~{hashlib.sha256(raw).hexdigest()[:32]}"


#: A name that was cut: its beginning (an escape that was cut in two is dropped), and a digest.
_CUT_ENTRY = re.compile(rf"(?=.{{{LONGEST_NAME}}}$)(.*?)(?:%[0-9A-F]?)?~[0-9a-f]{{32}}", re.DOTALL)


def decode_entry(encoded: str) -> str:
    """The name of an entry, from its key. The key of a long name has only its beginning."""
    encoded = encoded.rpartition(":")[2]
    cut = _CUT_ENTRY.fullmatch(encoded)
    if cut is None:
        return unquote(encoded)
    return unquote(cut[1]).rstrip("\N{REPLACEMENT CHARACTER}") + "…"


def service_of_entry(encoded: str) -> str:
    return encoded.rpartition(":")[0]


def room_key(value: str) -> str:
    """A room key of bounded length. A long one is cut: its beginning (for people), and its digest."""
    raw = value.encode("utf-8", "surrogatepass")
    shown = value.encode("utf-8", "ignore").decode()  # JSON may contain half a surrogate pair, which Redis refuses
    if shown == value and len(value) <= LONGEST_ROOM_KEY:
        return value
    return f"{shown[: LONGEST_ROOM_KEY - 33]}~{hashlib.sha256(raw).hexdigest()[:32]}"


def text(value: str) -> str:
    """A text that Redis accepts: JSON and people may write half a surrogate pair."""
    return value.encode("utf-8", "replace").decode()


def note(value: str) -> str:
    """A person's note, of bounded length."""
    return text(value if len(value) <= LONGEST_NOTE else f"{value[: LONGEST_NOTE - 1]}…")


def attempt(nesting: int, retries: int) -> int:
    """The order of the attempts of one run: replacements first, then retries."""
    return (nesting << 20) + min(retries, (1 << 20) - 1)


def publication(identity: str) -> str:
    """A short name of a publication. It is part of the id of a run whose id is not the task id."""
    return hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


_PUBLICATION = re.compile("[0-9a-f]{12}|")


def is_publication(value: object) -> bool:
    return isinstance(value, str) and _PUBLICATION.fullmatch(value) is not None


def retries(attempt: int) -> int:
    return attempt & ((1 << 20) - 1)
