"""Reads from a message which call it comes from. Pure functions."""

from __future__ import annotations

from typing import Any

from celery.utils import uuid

from celery_orchestration.ledger import keys


def publication_of(message: Any, ours: Any) -> tuple[str, bool]:
    """Returns the id of the call that the message comes from, and whether the message is a redelivery whose call is
    unknown.

    Our own messages and retries carry the id in our header (`ours`). Other messages have the id that their sender set,
    or the one that kombu's virtual transports (Redis) give each message. RabbitMQ gives them none.
    """
    if isinstance(ours, dict) and keys.is_publication(ours.get("publication")):
        return ours["publication"], False
    properties = message.properties or {}
    identity = properties.get("message_id") or properties.get("delivery_tag")
    if identity:
        return keys.publication(str(identity)), False
    return keys.publication(uuid()), bool((message.delivery_info or {}).get("redelivered"))


def header_of(header: Any) -> dict[str, str]:
    """Our header of a message. Empty if it has another form than ours: anybody can send messages."""
    if not isinstance(header, dict) or not all(isinstance(value, str) for value in header.values()):
        return {}
    return header if header.get("grant", "0").isdecimal() and header.get("routing_key") != "" else {}
