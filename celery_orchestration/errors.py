"""Errors a user or an operator can meet, each with one message that says what to do."""

import click
from celery.exceptions import ImproperlyConfigured


class OrchestrationError(Exception):
    """Base of every error raised by celery_orchestration."""


class ConfigurationError(OrchestrationError, ImproperlyConfigured, click.ClickException):  # type: ignore[misc]
    """A job option, a setting, a name or a URL is wrong.

    It is a :class:`click.ClickException`, so that every ``celery`` command shows its one
    message without a traceback.
    """

    def __init__(self, message: str) -> None:
        click.ClickException.__init__(self, message)

    def __str__(self) -> str:
        return self.message


class Said(OrchestrationError, click.ClickException):
    """Its message is all that a user has to read, in a terminal too."""

    def __init__(self, message: str) -> None:
        click.ClickException.__init__(self, message)


class WrongUse(Said):
    """What was asked for makes no sense; a shell hears 2."""

    exit_code = 2


class LedgerError(OrchestrationError):
    """The ledger answered with an error."""


class LedgerUnavailable(LedgerError):
    """Redis did not answer; nothing is known about what the call did."""


class LedgerRefused(LedgerError, Said):
    """The ledger must not be used by this process: wrong owner or schema."""


class Superseded(LedgerError, Said):
    """Another supervisor of pools has taken this one's name over."""

    def __init__(self, name: str) -> None:
        Said.__init__(
            self,
            f"another supervisor of pools runs under the name {name!r}: it has this one's places now. "
            "Give each its own name with --name",
        )


class UnknownJob(WrongUse):
    """Nobody has brought a job of this name."""

    #: A word of the command line was wrong, not the world.
    exit_code = 2


class UnknownEntry(WrongUse):
    """The schedule has no entry of this name."""


class UnknownRun(WrongUse):
    """The ledger has no run, or no dead letter, of this id."""


class UnknownWorker(WrongUse):
    """The ledger has no worker of this name."""


class AmbiguousRun(UnknownRun):
    """The ids of several runs begin like that."""


class BadCall(WrongUse):
    """What was asked for cannot be done: arguments that exclude each other, or that a job does not take."""


class BrokerUnavailable(Said):
    """The broker did not take a message."""
