"""Eviction: a full Redis must not delete parts of the ledger to make room for other keys."""

from __future__ import annotations

from celery.utils.log import get_logger

from celery_orchestration.errors import LedgerRefused
from celery_orchestration.ledger import Ledger

logger = get_logger(__name__)


def check(ledger: Ledger, allowed: bool) -> None:
    """Raises :class:`LedgerRefused` if any key could be evicted, unless that is `allowed`; logs lesser problems."""
    policy = ledger.eviction()
    what = f"the Redis at {ledger.address} has maxmemory-policy {policy}"
    if policy.startswith("allkeys-"):
        if not allowed:
            raise LedgerRefused(
                f"{what}: when it is full it would drop parts of the ledger, and jobs with them. Set it to noeviction, "
                "or give the ledger a Redis of its own (app.conf.orchestration_redis_url); "
                "app.conf.orchestration_allow_eviction = True takes the risk"
            )
        logger.warning("%s: when it is full it drops parts of the ledger, and jobs with them", what)
    elif policy.startswith("volatile-"):
        logger.warning(
            "%s: when it is full, runs that ended are forgotten early, and a message that the broker delivers again "
            "may run again; noeviction is safe",
            what,
        )
    elif not policy:
        logger.warning(
            "The Redis at %s does not show its maxmemory-policy (INFO is not allowed): set it to noeviction, "
            "or it may drop parts of the ledger when it is full",
            ledger.address,
        )
