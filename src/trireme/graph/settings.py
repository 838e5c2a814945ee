"""Typed reading of a Hugging Face config.json: every key asked for by name, a wrong one refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trireme.errors import ModelError

MOST_LAYERS = 10_000
"""More is a slip of the keyboard."""

ACTIVATIONS = ("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu", "swish")
"""Activations whose kept tensors :class:`~trireme.graph.tape.Tape` knows."""


class Settings:
    """The mapping of a config.json, with its ``model_type`` for messages."""

    def __init__(self, values: Mapping[str, Any], *, name: str) -> None:
        self.values = values
        self.name = name
        self.family = str(values.get("model_type", ""))

    def raw(self, key: str, default: Any = None) -> Any:
        """The value as it stands; a null counts as absent."""
        value = self.values.get(key)
        return default if value is None else value

    def count(self, key: str, default: int | None = None, *, also: str = "", least: int = 1) -> int:
        """A whole number of at least ``least``; ``also`` is an older name of the key.

        Raises:
            ModelError: The key is absent without a default, or isn't such a number.
        """
        value = self.raw(key, self.raw(also) if also else None)
        if value is None and default is not None:
            return default
        if value is None:
            raise ModelError("graph.missing_key", model=self.name, key=key, family=self.family)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ModelError("graph.bad_count", model=self.name, key=key, value=value, least=least)
        return value

    def layers(self, key: str, default: int | None = None, *, also: str = "") -> int:
        """A number of layers; a mistyped one is refused before a list of that length is made.

        Raises:
            ModelError: It isn't a whole number from 1 to ``MOST_LAYERS``.
        """
        value = self.count(key, default, also=also)
        if value > MOST_LAYERS:
            raise ModelError("graph.too_many_layers", model=self.name, key=key, value=value, most=MOST_LAYERS)
        return value

    def architecture(self, default: str) -> str:
        """The first of ``architectures``.

        Raises:
            ModelError: It isn't a list of names.
        """
        listed = self.raw("architectures") or [default]
        if not isinstance(listed, list | tuple) or not isinstance(listed[0], str):
            raise ModelError("graph.bad_names", model=self.name, key="architectures", value=listed)
        return listed[0]

    def num_labels(self) -> int:
        """Classes of a classifier, two unless said."""
        labels = self.raw("id2label") or self.raw("label2id")
        return len(labels) if isinstance(labels, Mapping) else self.count("num_labels", 2)

    def indices(self, key: str) -> frozenset[int] | None:
        """Numbers of layers, or None where the key is absent.

        Raises:
            ModelError: It isn't a list of whole numbers.
        """
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(type(item) is int for item in value):
            raise ModelError("graph.bad_indices", model=self.name, key=key, value=value)
        return frozenset(value)

    def function(self, key: str, default: str) -> str:
        """The name of an activation.

        Raises:
            ModelError: What it keeps for backward isn't known.
        """
        name = self.raw(key, default)
        if name not in ACTIVATIONS:
            raise ModelError(
                "graph.unknown_activation", model=self.name, key=key, value=name, known=", ".join(ACTIVATIONS)
            )
        return str(name)

    def maybe_count(self, key: str, absent: int | None = None) -> int | None:
        """A whole number, None where the key is null or zero, ``absent`` where there is no such key."""
        if key not in self.values:
            return absent
        return self.count(key, least=0) or None if self.values[key] is not None else None

    def ratio(self, key: str, default: float) -> float:
        """A number from 0 to 1.

        Raises:
            ModelError: It isn't one.
        """
        value = self.raw(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ModelError("graph.bad_ratio", model=self.name, key=key, value=value)
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false.

        Raises:
            ModelError: It is neither.
        """
        value = self.raw(key, default)
        if not isinstance(value, bool):
            raise ModelError("graph.bad_flag", model=self.name, key=key, value=value)
        return value

    def text(self, key: str, default: str = "") -> str:
        """A word."""
        return str(self.raw(key, default))

    def choices(
        self, key: str, *, length: int, of: tuple[str, ...], may_be_longer: bool = False
    ) -> tuple[str, ...] | None:
        """One word per layer, or None where the key is absent.

        Raises:
            ModelError: It isn't a list of that length, or a word isn't one of ``of``.
        """
        value = self.raw(key)
        if value is None:
            return None
        if may_be_longer and isinstance(value, list | tuple):
            value = value[:length]
        if not isinstance(value, list | tuple) or len(value) != length:
            found = len(value) if isinstance(value, list | tuple) else value
            raise ModelError("graph.bad_list", model=self.name, key=key, found=found, length=length)
        words = tuple(str(item) for item in value)
        strange = sorted(set(words) - set(of))
        if strange:
            raise ModelError("graph.unknown_kind", model=self.name, key=key, value=strange[0], known=", ".join(of))
        return words

    def rotary_ratio(self, default: float, *, also: str = "") -> float:
        """The part of a head that is rotated, which older files keep at the top level.

        Raises:
            ModelError: It isn't a number from 0 to 1.
        """
        key = "partial_rotary_factor"
        table = self.raw("rope_parameters", self.raw("rope_scaling", {}))
        if isinstance(table, Mapping) and table.get(key) is not None:
            return Settings(table, name=self.name).ratio(key, default)
        return self.ratio(key, self.ratio(also, default) if also else default)

    def divides(self, part: int, whole: int, *, part_key: str, whole_key: str) -> int:
        """``whole / part`` when that is a whole number.

        Raises:
            ModelError: It isn't.
        """
        if whole % part:
            raise ModelError(
                "graph.not_divisible", model=self.name, part_key=part_key, part=part, whole_key=whole_key, whole=whole
            )
        return whole // part

    def nested(self, key: str) -> Settings:
        """The settings below ``key`` (``text_config``).

        Raises:
            ModelError: There is no such mapping.
        """
        value = self.raw(key)
        if not isinstance(value, Mapping):
            raise ModelError("graph.missing_key", model=self.name, key=key, family=self.family)
        return Settings(value, name=self.name)
