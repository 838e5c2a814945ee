"""Section ``layout``: over how many ranks each axis goes."""

from __future__ import annotations

from pydantic import Field

from trireme.config.schema import Section, Whole


class LayoutSection(Section):
    """Over how many ranks each axis goes; world = pp * dp_replicate * dp_shard * cp * tp."""

    pp: Whole = Field(1, ge=1, description="Pipeline degree.")
    dp_replicate: Whole = Field(1, ge=1, description="Data-parallel degree with whole copies.")
    dp_shard: Whole = Field(1, ge=1, description="Data-parallel degree with sharded state (ZeRO).")
    cp: Whole = Field(1, ge=1, description="Context-parallel degree.")
    tp: Whole = Field(1, ge=1, description="Tensor-parallel degree.")
    ep: Whole = Field(1, ge=1, description="Expert-parallel degree; adds no ranks.")

    @property
    def world_size(self) -> int:
        """Ranks this layout needs."""
        return self.pp * self.dp_replicate * self.dp_shard * self.cp * self.tp
