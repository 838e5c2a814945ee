"""Words of other tools that only mean something together: a batch per device, an fp16 level, a warm-up share.

``train.global_batch_seqs`` is the truth here. Elsewhere the global batch is a product,
per device x accumulation x data-parallel ranks; it is worked out once, and said.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from typing import Any

from trireme.config.alias import power_of_two
from trireme.config.merge import Setting, Tree
from trireme.config.origin import format_key
from trireme.config.problem import Problem, show
from trireme.config.root import RunConfig
from trireme.words import say

_PER_DEVICE = ("per_device_train_batch_size", "train_micro_batch_size_per_gpu", "micro_batch_size")
_WARMUP = ("warmup_ratio", "lr_warmup_fraction")
_LEVELS = ("fp16_opt_level", "bf16_opt_level", "amp_level")
_MASTERS = ("use_master_weight", "master_weight", "multi_precision")


class Deriver:
    """Works the joint words of all layers out into our keys, on a tree that holds the rest."""

    def __init__(self, tree: Tree, *, joint: Mapping[str, Setting], ranks: int | None = None) -> None:
        self.tree = tree
        self.ranks = ranks
        self.joint = joint
        self.problems: list[Problem] = []
        self.notices: list[str] = []

    def run(self) -> None:
        """Put every joint word into the tree as our keys; collect what can't be."""
        self._precision()
        self._data_parallel()
        self._batch()
        self._warmup()
        self._min_lr()

    # -- batch ----------------------------------------------------------------------------------

    def _batch(self) -> None:
        words = self._given(*_PER_DEVICE, "gradient_accumulation_steps")
        values = {word: self._whole(setting) for word, setting in words.items()}
        if not words or None in values.values() or not self._agree(_PER_DEVICE, key="train.microbatch_seqs"):
            return
        per_device = next((values[word] for word in _PER_DEVICE if word in values), None)
        accumulation = values.get("gradient_accumulation_steps")
        dp_degree = self._dp_degree(next(iter(words.values())))
        if dp_degree is None:
            return
        micro = self._microbatch(per_device, words=words)
        if micro is None and per_device is None and accumulation is not None:
            micro = self._microbatch_from_global(words["gradient_accumulation_steps"], dp_degree=dp_degree)
        if micro is not None:
            self._global_batch(micro, accumulation=accumulation, dp_degree=dp_degree, words=words)

    def _microbatch(self, per_device: int | None, *, words: Mapping[str, Setting]) -> int | None:
        """The batch per device that the words mean; a later key of ours changes the micro-batch, not their product."""
        if per_device is None:
            own = self.tree.get("train.microbatch_seqs")
            return own if isinstance(own, int) else None
        word = next(words[word] for word in _PER_DEVICE if word in words)
        known = len(self.problems)
        self._put("train.microbatch_seqs", per_device, word=word)
        return per_device if len(self.problems) == known else None

    def _microbatch_from_global(self, word: Setting, *, dp_degree: int) -> int | None:
        """Accumulation alone divides the global batch that is given."""
        total = self.tree.get("train.global_batch_seqs")
        values = {"key": "gradient_accumulation_steps", "value": word.value, "total": total, "dp_degree": dp_degree}
        if not isinstance(total, int):
            self.problems.append(Problem(origin=word.origin, name="accumulation_alone", values=values))
        elif total % (int(word.value) * dp_degree):
            self.problems.append(Problem(origin=word.origin, name="accumulation_divides", values=values))
        else:
            micro: int = total // (int(word.value) * dp_degree)
            self._put("train.microbatch_seqs", micro, word=word)
            self.notices.append(
                say("config.accumulation_read", place=word.origin.place, accumulation=word.value, micro=micro)
            )
        return None

    def _global_batch(
        self, micro: int, *, accumulation: int | None, dp_degree: int, words: Mapping[str, Setting]
    ) -> None:
        word = words.get("gradient_accumulation_steps") or next(iter(words.values()))
        own = self.tree.origin("train.global_batch_seqs")
        if accumulation is None and own is not None:
            self._say_read(word, key="train.microbatch_seqs")
            return
        total = micro * (accumulation or 1) * dp_degree
        if self._put("train.global_batch_seqs", total, word=word):
            self.notices.append(
                say(
                    "config.batch_read",
                    place=word.origin.place,
                    words=", ".join(f"{name} = {setting.value}" for name, setting in words.items()),
                    micro=micro,
                    accumulation=accumulation or 1,
                    dp_degree=dp_degree,
                    total=total,
                )
            )

    # -- layout ---------------------------------------------------------------------------------

    def _data_parallel(self) -> None:
        """Paddle's dp_degree is whole copies beside a sharding_degree, and all of data parallelism without one."""
        for setting in self._given("dp_degree", "data_parallel_degree").values():
            value = self._whole(setting)
            key = "layout.dp_replicate" if self.tree.get("layout.dp_shard") is not None else "layout.dp"
            if value is not None and self._put(key, value, word=setting):
                self._say_read(setting, key=key)

    def _dp_degree(self, word: Setting) -> int | None:
        """Into how many parts a global batch is cut; None, and a problem, where another file says so."""
        if self.tree.get("layout.text") is not None:
            values = {"word": word.origin.alias or format_key(word.key)}
            self.problems.append(Problem(origin=word.origin, name="batch_beside_layout", values=values))
            return None
        pair = re.fullmatch(r"(\d+)x(\d+)", str(self.tree.get("layout.hsdp")))
        if pair:
            return int(pair[1]) * int(pair[2])
        named = [
            key for key in ("layout.dp", "layout.dp_replicate", "layout.dp_shard") if self.tree.get(key) is not None
        ]
        if named or self.ranks is None:
            return math.prod(self._degree(key) for key in named)
        return max(1, self.ranks // math.prod(self._degree(f"layout.{axis}") for axis in ("pp", "cp", "tp")))

    def _degree(self, key: str) -> int:
        value = self.tree.get(key)
        return value if isinstance(value, int) and value >= 1 else 1

    # -- precision ------------------------------------------------------------------------------

    def _precision(self) -> None:
        formats = {word: setting for word, setting in self._given("bf16", "fp16").items() if self._switch(setting)}
        levels, masters = self._given(*_LEVELS), self._given(*_MASTERS)
        if not all(self._level(setting) for setting in levels.values()) or not self._masters(masters):
            return
        on = [word for word, setting in formats.items() if _is_on(setting.value)]
        if len(on) == 2:
            values = {"key": "precision.policy", "one": "bf16 = true", "other": "fp16 = true"}
            self.problems.append(Problem(origin=formats["fp16"].origin, name="conflict", values=values))
            return
        policy, word = _policy(on, formats=formats, levels=levels)
        if word is None:
            self._say_idle(masters)
            return
        chosen = self._with_masters(policy, levels=levels, masters=masters)
        if chosen is not None and self._put_policy(chosen, word=word, is_default=not on and not levels):
            words = {**formats, **levels, **masters}
            said = ", ".join(f"{name} = {show(setting.value)}" for name, setting in words.items())
            name = "o2_read" if chosen.endswith("_master") else "words_read"
            self.notices.append(
                say(f"config.{name}", place=word.origin.place, words=said, key="precision.policy", value=chosen)
            )

    def _masters(self, masters: Mapping[str, Setting]) -> bool:
        """Fp32 copies of 16-bit weights: yes or no, alike in all words."""
        for setting in masters.values():
            if not isinstance(setting.value, bool):
                values = {"key": format_key(setting.key), "value": show(setting.value)}
                self.problems.append(Problem(origin=setting.origin, name="not_boolean", values=values))
                return False
        return self._agree(_MASTERS, key="precision.policy")

    def _say_idle(self, masters: Mapping[str, Setting]) -> None:
        for setting in masters.values():
            because = "amp_level != O2"
            self.notices.append(say("config.no_effect", key=setting.origin.alias, because=because))

    def _with_masters(
        self, policy: str, *, levels: Mapping[str, Setting], masters: Mapping[str, Setting]
    ) -> str | None:
        """O2 casts the weights; whether the optimizer keeps fp32 copies is said apart, and yes by default."""
        is_o2 = any(setting.value == "O2" for setting in levels.values()) and policy != "fp32"
        word = next(iter(masters.values()), None)
        if word is None or word.value:
            return f"{policy}_master" if is_o2 else policy
        if policy == "bf16" and is_o2:
            return "bf16_pure"
        values = {"word": f"{word.origin.alias} = {show(word.value)}", "policy": policy}
        self.problems.append(Problem(origin=word.origin, name="master_needed", values=values))
        return None

    def _put_policy(self, policy: str, *, word: Setting, is_default: bool) -> bool:
        """``bf16: false`` alone says no more than that the format is fp32 unless something else is said."""
        if is_default and self.tree.origin("precision.policy") is not None:
            return False
        return self._put("precision.policy", policy, word=word)

    def _switch(self, setting: Setting) -> bool:
        """``true``, or DeepSpeed's ``{enabled: true, initial_scale_power: 16, loss_scale_window: 1000}``."""
        value = setting.value
        if isinstance(value, bool):
            return True
        known = {"enabled", "initial_scale_power", "loss_scale_window"}
        if not isinstance(value, dict) or not isinstance(value.get("enabled"), bool) or set(value) - known:
            values = {"key": format_key(setting.key), "value": show(value)}
            self.problems.append(Problem(origin=setting.origin, name="not_switch", values=values))
            return False
        if isinstance(power := value.get("initial_scale_power"), int):
            self._put("precision.init_loss_scale", power_of_two(power), word=setting)
        if (window := value.get("loss_scale_window")) is not None:
            self._put("precision.loss_scale_growth_steps", window, word=setting)
        return True

    def _level(self, setting: Setting) -> bool:
        if setting.value in ("O0", "O1", "O2"):
            return True
        values = {"key": format_key(setting.key), "value": show(setting.value)}
        self.problems.append(Problem(origin=setting.origin, name="not_level", values=values))
        return False

    # -- learning rate --------------------------------------------------------------------------

    def _warmup(self) -> None:
        for word, setting in self._given(*_WARMUP).items():
            share = self._number(setting, highest=1.0)
            if share is None:
                continue
            steps = self._steps()
            if steps is None:
                values = {"key": word, "value": show(setting.value)}
                self.problems.append(Problem(origin=setting.origin, name="warmup_ratio_unknown", values=values))
            elif self._put("train.warmup_steps", math.ceil(steps * share), word=setting):
                self._say_value(setting, key="train.warmup_steps", value=math.ceil(steps * share))

    def _steps(self) -> int | None:
        """How many steps the run has, where the settings alone tell."""
        steps, tokens = self.tree.get("train.max_steps"), self.tree.get("train.max_tokens")
        if isinstance(steps, (int, float)):
            return int(steps)
        if not isinstance(tokens, (int, float)):
            return None
        defaults = RunConfig()
        batch = self.tree.get("train.global_batch_seqs") or defaults.train.global_batch_seqs
        seq_len = self.tree.get("data.seq_len") or defaults.data.seq_len
        return math.ceil(tokens / (batch * seq_len)) if isinstance(batch * seq_len, int) else None

    def _min_lr(self) -> None:
        for setting in self._given("min_lr").values():
            lowest, peak = self._number(setting), self.tree.get("train.lr")
            peak = RunConfig().train.lr if peak is None else peak
            if lowest is None or not isinstance(peak, (int, float)):
                continue
            ratio = lowest / peak if peak else 0.0
            if not 0 <= lowest <= peak:
                values = {"key": "min_lr", "value": show(setting.value), "peak": peak}
                self.problems.append(Problem(origin=setting.origin, name="min_lr_above", values=values))
            elif self._put("train.min_lr_ratio", ratio, word=setting):
                self._say_value(setting, key="train.min_lr_ratio", value=ratio)

    # -- shared ---------------------------------------------------------------------------------

    def _given(self, *words: str) -> dict[str, Setting]:
        return {word: self.joint[word] for word in words if word in self.joint}

    def _put(self, key: str, value: Any, *, word: Setting) -> bool:
        """Set our key; a later layer that set it itself wins, the same layer must agree."""
        own = self.tree.origin(key)
        if own is not None and own.rank > word.origin.rank:
            self.notices.append(
                say("config.overridden", place=word.origin.place, word=word.origin.alias, key=key, by=own.place)
            )
            return False
        if own is not None and own.rank == word.origin.rank and self.tree.get(key) != value:
            one = f"{own.alias or key} = {show(self.tree.get(key))}"
            values = {"key": key, "one": one, "other": f"{word.origin.alias} = {show(word.value)}"}
            self.problems.append(Problem(origin=word.origin, name="conflict", values=values))
            return False
        self.tree.apply(Setting(key=tuple(key.split(".")), value=value, origin=word.origin))
        return True

    def _agree(self, words: tuple[str, ...], *, key: str) -> bool:
        given = list(self._given(*words).values())
        for other in given[1:]:
            if other.value != given[0].value:
                one, two = (f"{setting.origin.alias} = {show(setting.value)}" for setting in (given[0], other))
                values = {"key": key, "one": one, "other": two}
                self.problems.append(Problem(origin=other.origin, name="conflict", values=values))
                return False
        return True

    def _whole(self, setting: Setting) -> int | None:
        value = setting.value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        values = {"key": format_key(setting.key), "value": show(value), "range": ">= 1"}
        name = "range" if isinstance(value, int) and not isinstance(value, bool) else "want_whole"
        self.problems.append(Problem(origin=setting.origin, name=name, values=values))
        return None

    def _number(self, setting: Setting, *, highest: float = math.inf) -> float | None:
        value = setting.value
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = float(value)
        bounds = ">= 0" if math.isinf(highest) else f">= 0, <= {highest:g}"
        values = {"key": format_key(setting.key), "value": show(value), "range": bounds}
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            self.problems.append(Problem(origin=setting.origin, name="want_number", values=values))
            return None
        if not 0 <= value <= highest:
            self.problems.append(Problem(origin=setting.origin, name="range", values=values))
            return None
        return float(value)

    def _say_read(self, word: Setting, *, key: str) -> None:
        self.notices.append(say("config.read_as", place=word.origin.place, word=word.origin.alias, key=key))

    def _say_value(self, word: Setting, *, key: str, value: Any) -> None:
        said = f"{word.origin.alias} = {show(word.value)}"
        self.notices.append(say("config.words_read", place=word.origin.place, words=said, key=key, value=show(value)))


def _is_on(value: Any) -> bool:
    return bool(value["enabled"] if isinstance(value, dict) else value)


def _policy(
    on: list[str], *, formats: Mapping[str, Setting], levels: Mapping[str, Setting]
) -> tuple[str, Setting | None]:
    """Return the format all words agree on and the word that decides it (None: nothing is said)."""
    level = next(iter(levels.values()), None)
    if level is not None and level.value == "O0":
        return "fp32", level
    if on:
        return on[0], formats[on[0]]
    if level is not None:
        return ("bf16" if "bf16_opt_level" in levels else "fp16"), level
    return "fp32", next(iter(formats.values()), None)
