"""DistributedStrategy: everything Fleet's users say about how a model is trained on many ranks."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args

from trireme.errors import LayoutError
from trireme.parallel import Communication, Compress
from trireme.plan import ParsedLayout, parse_layout

_ON = ("amp", "recompute", "sharding", "pipeline", "gradient_merge")
"""Switches of Paddle's; each has settings of its own under ``<name>_configs``."""

_WIRE = ("communication", "fp16_allreduce", "dgc", "fuse_grad_size_in_MB")
"""What says how gradients travel: Trireme's own mapping, and Paddle's words."""

_LAYOUT_OF = {
    "sharding_configs": {"stage": "sharding_stage", "sharding_degree": "sharding_degree"},
    "pipeline_configs": {"accumulate_steps": "accumulate_steps", "schedule_mode": "schedule_mode"},
    "gradient_merge_configs": {"k_steps": "accumulate_steps"},
}
"""By group of settings, the words that mean something for a layout, and what they are called in one."""

_AMP = (
    "dtype",
    "init_loss_scaling",
    "incr_every_n_steps",
    "use_pure_fp16",
    "use_pure_bf16",
    "level",
    "use_master_weight",
    "master_weight",
)


class DistributedStrategy:
    """A layout in Fleet's words or ours, with precision and recomputation.

    Settings are given at once or one after the other, as ``strategy.hybrid_configs = {"dp_degree": 2}``. What is not
    known is refused, never ignored.

    Args:
        hybrid_configs: Degrees: ``dp_degree``, ``mp_degree``, ``pp_degree``, ``sharding_degree``, ``sep_degree``,
            ``sharding_stage`` ..., or any key of a layout.
        settings: The other settings by name: ``amp``, ``amp_configs``, ``recompute``, ``sharding_configs`` ...

    Raises:
        LayoutError: There is no such setting.
    """

    def __init__(self, hybrid_configs: Mapping[str, Any] | None = None, **settings: Any) -> None:
        object.__setattr__(self, "_said", {})
        if hybrid_configs is not None:
            self.hybrid_configs = hybrid_configs
        for name, value in settings.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _SETTINGS:
            raise LayoutError("fleet.no_setting", name=name, near=_nearest(name, _SETTINGS))
        if name.endswith("_configs") and not isinstance(value, Mapping):
            raise LayoutError("fleet.not_mapping", name=name, value=value)
        self._said[name] = value

    def __getattr__(self, name: str) -> Any:
        if name in _SETTINGS:
            return self._said.get(name, {} if name.endswith("_configs") else False)
        raise AttributeError(name)

    def parse(self, *, ranks: int) -> ParsedLayout:
        """Return the layout on this many ranks.

        Raises:
            LayoutError: It is none.
        """
        words = dict(self.hybrid_configs)
        for group, names in _LAYOUT_OF.items():
            switch = group.removesuffix("_configs")
            if group in self._said and self._said.get(switch, True):
                words |= _translated(group, self._said[group], names)
        if self._said.get("sharding") and not any("shard" in word or "zero" in word for word in words):
            words["sharding_stage"] = 1
        if self._said.get("recompute"):
            words["recompute"] = True
        return parse_layout(words, ranks=ranks)

    @property
    def communication(self) -> Communication:
        """How gradients travel.

        Raises:
            LayoutError: There is no such setting, or replicas are to train by themselves.
        """
        words: dict[str, Any] = dict(self._said.get("communication") or {})
        if self._said.get("fp16_allreduce"):
            words.setdefault("compress", "fp16")
        if self._said.get("dgc"):
            words = {"compress": "topk", "topk_ratio": 0.001} | words
        if "fuse_grad_size_in_MB" in self._said:
            words.setdefault("bucket_bytes", int(self._said["fuse_grad_size_in_MB"] * 2**20))
        known = tuple(each.name for each in fields(Communication))
        if unknown := [name for name in words if name not in known]:
            near = _nearest(unknown[0], known)
            raise LayoutError("fleet.no_setting", name=f"communication.{unknown[0]}", near=near)
        asked = Communication(**words)
        codes = get_args(Compress)
        if asked.compress not in codes:
            raise LayoutError("fleet.no_setting", name=f"compress = {asked.compress}", near=", ".join(codes))
        if asked.is_local:
            raise LayoutError("fleet.local_steps", steps=asked.local_steps)
        return asked

    @property
    def precision(self) -> str:
        """The policy that ``amp`` means: fp32 without it, else what its settings say."""
        if not self._said.get("amp"):
            return "fp32"
        configs = self.amp_configs
        if unknown := [name for name in configs if name not in _AMP]:
            raise LayoutError("fleet.no_setting", name=f"amp_configs.{unknown[0]}", near=", ".join(_AMP))
        dtype = {"float16": "fp16", "bfloat16": "bf16"}.get(str(configs.get("dtype", "bfloat16")), "bf16")
        level = str(configs.get("level", "O1")).upper()
        if level not in ("O0", "O1", "O2"):
            raise LayoutError("fleet.no_level", level=level)
        is_pure = level == "O2" or configs.get("use_pure_bf16") or configs.get("use_pure_fp16")
        if level == "O0" or not is_pure:
            return "fp32" if level == "O0" else dtype
        if configs.get("use_pure_fp16"):
            dtype = "fp16"
        return self._with_masters("bf16" if configs.get("use_pure_bf16") else dtype)

    def _with_masters(self, dtype: str) -> str:
        """Weights of 16 bits have fp32 copies unless it is said that they have none."""
        configs = self.amp_configs
        if configs.get("use_master_weight", configs.get("master_weight", True)):
            return f"{dtype}_master"
        if dtype != "bf16":
            raise LayoutError("fleet.master_needed", dtype=dtype)
        return "bf16_pure"

    @property
    def init_loss_scale(self) -> float:
        """First loss scale of fp16."""
        return float(self.amp_configs.get("init_loss_scaling", 65536.0))

    @property
    def loss_scale_growth_steps(self) -> int:
        """Good steps before fp16 doubles its scale."""
        return int(self.amp_configs.get("incr_every_n_steps", 2000))


_SETTINGS = ("hybrid_configs", *_ON, *_WIRE, *(f"{name}_configs" for name in _ON if name != "recompute"))


def _translated(group: str, configs: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    for name in configs:
        if name not in names:
            raise LayoutError("fleet.no_setting", name=f"{group}.{name}", near=", ".join(names))
    return {names[name]: value for name, value in configs.items()}


def _nearest(name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, n=2)
    return ", ".join(near or known)
