"""Section ``checkpoint``: when state is saved and what is kept."""

from __future__ import annotations

from pydantic import Field

from trireme.config.schema import Number, Section, Whole


class CheckpointSection(Section):
    """When state is saved and what is kept; the last step is always saved."""

    every_steps: Whole | None = Field(None, ge=1, description="Save this often. Default: with each evaluation.")
    mtbf_hours: Number | None = Field(
        None,
        gt=0,
        description="Mean time between failures: save as often as costs least by it and by measured times.",
    )
    keep_last: Whole = Field(2, ge=1, description="Newest checkpoints to keep.")
    keep_best: bool = Field(True, description="Keep the one with the lowest evaluation loss as well.")
    keep_every: Whole | None = Field(None, ge=1, description="Keep those of every so many steps for good.")
    copy_to: str | None = Field(None, description="Folder or fsspec URL that each checkpoint is copied to.")
    background: bool = Field(True, description="Go on with the training while a checkpoint is written.")
