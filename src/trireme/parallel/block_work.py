"""What is done to single blocks: which of them run as one compiled program, and which compute again in backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import nn

from trireme.errors import LayoutError
from trireme.parallel.axes import Axes
from trireme.parallel.capture import ModelTrace
from trireme.parallel.compile import BlockCompiler, Compile
from trireme.parallel.expert import DealtExperts
from trireme.parallel.recompute_block import Recompute, RecomputeRule, apply_marks, marked_modules, recompute_block
from trireme.parallel.stage import StageSet
from trireme.parallel.surroundings import Surroundings
from trireme.plan import ModelFacts, require_legal
from trireme.words import say


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWork:
    """The blocks of a module, in one layout."""

    module: nn.Module
    trace: ModelTrace
    axes: Axes
    notice: Callable[[str], None]

    def blocks(self) -> dict[str, nn.Module]:
        """Give the blocks by path."""
        return {path: self.module.get_submodule(path) for path in self.trace.blocks}

    def held(self) -> dict[str, nn.Module]:
        """Give those of which this rank has parameters."""
        return {path: block for path, block in self.blocks().items() if next(block.parameters(), None) is not None}

    def compile(
        self,
        compiled: Compile,
        *,
        surroundings: Surroundings,
        stages: StageSet | None,
        dealt: DealtExperts | None,
    ) -> BlockCompiler | None:
        """Have this rank's blocks compiled at their first call."""
        if compiled == "none":
            return None
        compiler = BlockCompiler(
            compiled,
            surroundings=surroundings,
            device=self.axes.device,
            groups=[self.axes[axis].group for axis in ("tp", "cp") if self.axes[axis].degree > 1],
            needs_inside=lambda: stages is not None and stages.is_open,
            notice=self.notice,
        )
        experts = () if dealt is None else [path for paths in dealt.units for path in paths]
        held = self.held()
        for path in self.trace.blocks:
            if any(each == path or each.startswith(f"{path}.") for each in experts):
                compiler.refuse(path, say("compile.experts", ep=self.axes.layout.ep))
            elif path in held:
                compiler.wrap(path, held[path])
        return compiler

    def recompute(self, asked: Mapping[str, Recompute] | RecomputeRule) -> list[nn.Module]:
        """Have this rank's blocks recompute, and what is marked inside of others; returns the blocks."""
        kinds = self.choose_recompute(asked)
        held = self.held()
        for path, block in held.items():
            if kinds[path] != "none":
                recompute_block(block, path=path, kind=kinds[path])
        apply_marks(self.module, blocks=kinds)
        return list(held.values())

    def choose_recompute(self, asked: Mapping[str, Recompute] | RecomputeRule) -> dict[str, Recompute]:
        """Say what each block recomputes: as marked, else as asked for it, else as the layout says for all."""
        layout, paths = self.axes.layout, self.trace.blocks
        if isinstance(asked, RecomputeRule):
            asked = asked.kinds(paths)
        if unknown := [path for path in asked if path not in paths]:
            raise LayoutError("ranks.no_block", path=unknown[0], blocks=", ".join(paths))
        if layout.recompute == "auto" and not asked:
            self.notice(say("parallel.recompute_auto"))
        for_all: Recompute = "full" if layout.recompute == "auto" else layout.recompute
        marked = marked_modules(self.module)
        kinds = {path: marked.get(path, asked.get(path, for_all)) for path in paths}
        if found := [kind for kind in (*kinds.values(), *marked.values()) if kind != "none"]:
            # What the layout says was judged before; what is said of single blocks meets the same rules.
            facts = ModelFacts(num_layers=max(1, len(paths)), ranks=layout.world_size)
            require_legal(replace(layout, recompute=found[0]), facts)
        return kinds
