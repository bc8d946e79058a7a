"""What all models of this package have in common."""

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    #: Built when it is used first: no command uses all of them.
    model_config = ConfigDict(frozen=True, defer_build=True)
