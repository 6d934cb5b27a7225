"""What the parts of a RunSpec have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

NotNegative = Annotated[int, Field(ge=0)]


class SpecPart(BaseModel):
    """Plain data: frozen, without unknown keys and numbers that are not finite. The text below a field describes it."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)
