"""What a rank holds: of each parameter and buffer which part, and on how many ranks of the world it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trireme.interpret import ParameterSplit
from trireme.parallel.axes import Axes, AxisName
from trireme.parallel.expert import OwnedRows
from trireme.parallel.gather import RangeGather
from trireme.parallel.norm import grad_norm
from trireme.parallel.part import Kept, ParameterPart, count_copies
from trireme.parallel.piece import Piece, Range, narrow_ranges, whole_piece
from trireme.parallel.rows import held_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One parameter as this rank holds it before ZeRO cuts it further.

    ``holders`` counts the ranks of the world that hold each element, ``kept`` those of it that more ranks hold;
    ``cut_over`` is the axis whose ranks hold the whole together.
    """

    name: str
    global_shape: tuple[int, ...]
    ranges: tuple[tuple[Range, ...], ...]
    holders: int
    kept: Kept | None = None
    cut_over: AxisName | None = None


def holding_of(
    name: str, *, split: ParameterSplit | None, shape: tuple[int, ...], axes: Axes, num_stages: int = 1
) -> Holding:
    """Describe a dense parameter before ZeRO: cut over tp as planned, held by ``num_stages`` pipeline ranks."""
    layout = axes.layout
    ranges: list[tuple[Range, ...]] = [((0, size),) for size in shape]
    holders = layout.dp * layout.cp * num_stages
    if split is None or split.dim is None or split.split is None:
        return Holding(name=name, global_shape=shape, ranges=tuple(ranges), holders=holders * layout.tp)
    rank = axes["tp"].rank
    ranges[split.dim] = tuple(split.split.ranges(rank))
    stretches = tuple(split.split.kept_ranges(rank))
    kept = Kept(dim=split.dim, ranges=stretches, copies=holders * layout.tp) if stretches else None
    return Holding(name=name, global_shape=shape, ranges=tuple(ranges), holders=holders, kept=kept, cut_over="tp")


def expert_holding(name: str, *, rows: OwnedRows | None, shape: tuple[int, ...], axes: Axes) -> Holding:
    """Describe a parameter of experts: some rows of a stack, or a whole one of an expert's own."""
    ranges: list[tuple[Range, ...]] = [((0, size),) for size in shape]
    if rows is not None:
        ranges[0] = ((rows.start, rows.length),)
    return Holding(
        name=name,
        global_shape=shape,
        ranges=tuple(ranges),
        holders=axes["expert_copies"].degree,
        cut_over=None if rows is None else "ep",
    )


class Inventory:
    """All holdings of one rank's module, and how to find the tensors that stand there now."""

    def __init__(self, module: nn.Module, holdings: Mapping[str, Holding], *, axes: Axes, whole_numel: int) -> None:
        self.module = module
        self.holdings = holdings
        self.axes = axes
        self._whole_numel = whole_numel

    def pieces(self) -> dict[str, Piece]:
        """Give the parts of parameters and saved buffers."""
        pieces = {name: self.piece_of(name, parameter) for name, parameter in self.module.named_parameters()}
        saved = self.module.state_dict(keep_vars=True)
        for name, buffer in self.module.named_buffers():
            if name in saved:
                pieces[name] = whole_piece(name, buffer)
        return pieces

    def gradient_pieces(self) -> dict[str, Piece]:
        """Give the parts of the gradients there are."""
        return {
            name: self.piece_of(name, parameter.grad)
            for name, parameter in self.module.named_parameters()
            if parameter.grad is not None
        }

    def piece_of(self, name: str, tensor: Tensor) -> Piece:
        """Describe a tensor that lies as the parameter of that name does: its gradient, its optimizer state."""
        holding = self.holdings.get(name)
        if holding is None:
            return whole_piece(name, tensor.detach())
        if not isinstance(tensor, DTensor):
            return Piece(name=name, tensor=tensor.detach(), global_shape=holding.global_shape, ranges=holding.ranges)
        start, length = held_rows(tensor)
        rows = narrow_ranges(holding.ranges[0], start=start, length=length)
        return Piece(
            name=name,
            tensor=tensor.to_local().detach(),
            global_shape=holding.global_shape,
            ranges=(rows, *holding.ranges[1:]),
        )

    @property
    def sum_dtype(self) -> torch.dtype:
        """Format to add losses up in: no less than fp32."""
        parameter = next(self.module.parameters(), None)
        return torch.promote_types(torch.float32 if parameter is None else parameter.dtype, torch.float32)

    def grad_norm(self) -> Tensor:
        """Return the norm over all gradients of all ranks."""
        return grad_norm(self.parts(), device=self.axes.device)

    def parts(self) -> list[ParameterPart]:
        """Describe each parameter of this rank once, as norm and optimizer need it."""
        return [self._part_of(named) for named in self.module.named_parameters()]

    def _part_of(self, named: tuple[str, nn.Parameter]) -> ParameterPart:
        name, parameter = named
        holding = self.holdings[name]
        kept = holding.kept
        if kept is not None:
            kept = replace(kept, copies=count_copies(parameter, holders=kept.copies))
        copies = count_copies(parameter, holders=holding.holders)
        share = None
        if holding.cut_over is not None:
            group = self.axes[holding.cut_over].group
            share = RangeGather(global_shape=holding.global_shape, ranges=holding.ranges, group=group)
        return ParameterPart(name=name, parameter=parameter, copies=copies, kept=kept, share=share)

    def local_param_ratio(self) -> float:
        """Return the parameters this rank holds over all of the module's."""
        held = sum(_local(parameter).numel() for parameter in self.module.parameters())
        return held / max(1, self._whole_numel)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
