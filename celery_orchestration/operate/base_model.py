"""The base class of all models of this package."""

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    #: Validators are built on first use: no command uses all models.
    model_config = ConfigDict(frozen=True, defer_build=True)
