"""Shared by the models of options, pools and settings: types of values, and error messages."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from celery_orchestration.errors import ConfigurationError
from celery_orchestration.job.text import show, suggest

LONGEST_SECONDS = 10**9
OnCrash = Literal["requeue", "fail"]
Seconds = Annotated[float, Field(strict=True, gt=0, le=LONGEST_SECONDS)]
Count = Annotated[int, Field(strict=True, ge=1)]


def pool_name(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_-]{1,100}", value):
        return value
    raise ValueError(f"should be made of letters, digits, '-' and '_', not {show(value)}")


def configuration_error(where: str, problems: Sequence[str]) -> ConfigurationError:
    return ConfigurationError("\n".join(f"{where}: {problem}" for problem in problems))


def error_lines(
    error: ValidationError, model: type[BaseModel], labels: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Turn pydantic's errors into one line each: the option, the accepted values, the written value."""
    lines = []
    for finding in error.errors(include_url=False):
        field = str(finding["loc"][0]) if finding["loc"] else ""
        label = labels.get(field, field)
        value = finding["input"]
        if finding["type"] == "extra_forbidden":
            lines.append(f"unknown option {show(field)}{suggest(field, model.model_fields)}")
        elif finding["type"] == "value_error":
            message = str(finding["ctx"]["error"])
            lines.append(f"{label} {message}" if label else message)
        else:
            message = finding["msg"].partition(" should ")[2] or finding["msg"]
            written = "" if field == "redis_url" else f", not {show(value)}"
            choices = re.findall(r"'(\w+)'", finding.get("ctx", {}).get("expected", ""))
            hint = suggest(value, choices) if isinstance(value, str) else ""
            lines.append(f"{label} should {message}{written}{hint}")
    return lines
