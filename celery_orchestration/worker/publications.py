"""What a message says about the call it comes from. Pure functions."""

from __future__ import annotations

from typing import Any

from celery.utils import uuid

from celery_orchestration.ledger import keys


def publication_of(message: Any, ours: Any) -> tuple[str, bool]:
    """Which call a message comes from; and whether that is unknown, although the message was delivered before.

    Our own messages and retries say it in our header (`ours`). Other messages have the id that their sender gave them,
    or that kombu's virtual transports (Redis) give each message; RabbitMQ gives them none.
    """
    if isinstance(ours, dict) and keys.is_publication(ours.get("publication")):
        return ours["publication"], False
    properties = message.properties or {}
    identity = properties.get("message_id") or properties.get("delivery_tag")
    if identity:
        return keys.publication(str(identity)), False
    return keys.publication(uuid()), bool((message.delivery_info or {}).get("redelivered"))


def header_of(header: Any) -> dict[str, str]:
    """Our header of a message; empty if we would not have written it like that, because anybody can send messages."""
    if not isinstance(header, dict) or not all(isinstance(value, str) for value in header.values()):
        return {}
    return header if header.get("grant", "0").isdecimal() and header.get("routing_key") != "" else {}
