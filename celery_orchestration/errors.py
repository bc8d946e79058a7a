"""Errors that a user or an operator can see. Each message says what to do."""

import click
from celery.exceptions import ImproperlyConfigured


class OrchestrationError(Exception):
    """Base of every error raised by celery_orchestration."""


class ConfigurationError(OrchestrationError, ImproperlyConfigured, click.ClickException):  # type: ignore[misc]
    """A job option, a setting, a name or a URL is wrong.

    It is a :class:`click.ClickException`, so that every ``celery`` command shows only its message, without a traceback.
    """

    def __init__(self, message: str) -> None:
        click.ClickException.__init__(self, message)

    def __str__(self) -> str:
        return self.message


class UserError(OrchestrationError, click.ClickException):
    """An error that is shown to the user by its message alone, without a traceback."""

    def __init__(self, message: str) -> None:
        click.ClickException.__init__(self, message)


class WrongUse(UserError):
    """The request makes no sense. A command then exits with status 2."""

    exit_code = 2


class LedgerError(OrchestrationError):
    """The ledger answered with an error."""


class LedgerUnavailable(LedgerError):
    """Redis did not answer. The call may have taken effect or not."""


class LedgerRefused(LedgerError, UserError):
    """This process must not use the ledger: it has another owner or schema."""


class Superseded(LedgerError, UserError):
    """Another supervisor of pools has taken over this one's name."""

    def __init__(self, name: str) -> None:
        UserError.__init__(
            self,
            f"another supervisor of pools runs under the name {name!r}: it has this one's places now. "
            "Give each its own name with --name",
        )


class UnknownJob(WrongUse):
    """No job of this name is registered."""


class UnknownEntry(WrongUse):
    """The schedule has no entry of this name."""


class UnknownRun(WrongUse):
    """The ledger has no run, or no dead letter, of this id."""


class UnknownWorker(WrongUse):
    """The ledger has no worker of this name."""


class AmbiguousRun(UnknownRun):
    """Several runs have ids that begin with this text."""


class BadCall(WrongUse):
    """The arguments exclude each other, or the job does not accept them."""


class BrokerUnavailable(UserError):
    """The broker did not accept a message."""
