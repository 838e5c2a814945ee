"""Section ``layout``: how a run is spread over ranks; what the keys mean together is read in ``plan``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from trireme.config.schema import Section, Whole


class LayoutSection(Section):
    """How a run is spread over ranks: world = pp * dp_replicate * dp_shard * cp * tp.

    A key that is null was not given; a data-parallel degree that isn't takes the ranks that are left.
    """

    text: str | None = Field(
        None, description="A whole layout in one line (tp=2,pp=2,zero3), a plan.json, or auto; stands alone."
    )
    pp: Whole | None = Field(None, ge=1, description="Pipeline degree.")
    vp: Whole | None = Field(None, ge=1, description="Pipeline stages a rank holds (virtual stages).")
    dp: Whole | None = Field(None, ge=1, description="Data-parallel degree; sharded with zero, else whole copies.")
    dp_replicate: Whole | None = Field(None, ge=1, description="Data-parallel degree with whole copies.")
    dp_shard: Whole | None = Field(None, ge=1, description="Data-parallel degree with sharded state (ZeRO).")
    hsdp: str | None = Field(None, description="COPIESxSHARDS: dp_replicate and dp_shard in one word, with zero 3.")
    cp: Whole | None = Field(None, ge=1, description="Context-parallel degree.")
    tp: Whole | None = Field(None, ge=1, description="Tensor-parallel degree.")
    ep: Whole | None = Field(None, ge=1, description="Expert-parallel degree; adds no ranks.")
    zero: Whole | None = Field(
        None,
        ge=0,
        le=3,
        description="ZeRO stage: data-parallel ranks share out 1 optimizer state, 2 gradients, 3 parameters.",
    )
    sp: bool | None = Field(None, description="Sequence parallel: tensor-parallel ranks share out norms and residuals.")
    schedule: Literal["gpipe", "1f1b", "interleaved", "zb", "zbv"] | None = Field(
        None, description="Order of a pipeline's micro-batches."
    )
    micro: Whole | None = Field(
        None, ge=1, description="Micro-batches a step; default: the least that fills the pipeline."
    )
    recompute: Literal["none", "selective", "full", "auto"] | None = Field(
        None, description="What a layer's backward computes again instead of keeping it; see recompute.mode."
    )
    cp_kind: Literal["allgather", "ring", "ulysses"] | None = Field(
        None, description="How context-parallel ranks see each other's keys and values."
    )

    @property
    def given(self) -> dict[str, Any]:
        """The keys that were given, but for ``text``."""
        return {name: getattr(self, name) for name in type(self).model_fields if name != "text" and self.is_given(name)}

    def is_given(self, name: str) -> bool:
        """Whether a key was given."""
        return getattr(self, name) is not None
