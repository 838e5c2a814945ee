"""A user's function on each sample, random in a way that no worker, rank or restart changes.

The generator it receives is seeded by (seed, epoch, sample). So are Python's, numpy's and, if it is loaded,
torch's global generators while the function runs; afterwards they are as they were. A function that draws
from any of them gives the same sample wherever and whenever it runs.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from trireme.data.batch import NOT_LEARNED, PADDING_DOCUMENT
from trireme.data.gather import FIELDS
from trireme.data.mapping import error_place, load_map
from trireme.data.permute import derive_key
from trireme.errors import DataError

_MAP_KEY = 0x6D6170
_MASK_32 = (1 << 32) - 1
_TOKENS = ("input_ids", "labels")
_ALSO_TAKEN = {"labels": NOT_LEARNED, "document_ids": PADDING_DOCUMENT}
"""The one number below zero that a field may hold."""

Sample = dict[str, np.ndarray]


class SampleMap:
    """Applies ``package.module:function`` to samples and checks what comes back.

    Args:
        name: package.module:function, called with (sample, rng).
        seed: The run's seed.
        vocab_size: Token ids must be below it.

    Raises:
        DataError: There is no such function.
    """

    def __init__(self, name: str, *, seed: int, vocab_size: int) -> None:
        found = load_map(name, setting="data.sample_map")
        self.name = name
        self.fingerprint = found.fingerprint
        self._seed = seed
        self._vocab_size = vocab_size
        self._function: Callable[..., Any] = found.function

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by name, so that a worker imports the function itself."""
        return partial(SampleMap, seed=self._seed, vocab_size=self._vocab_size), (self.name,)

    def apply(self, block: np.ndarray, *, ids: np.ndarray, epochs: np.ndarray) -> None:
        """Replace each row of a block by what the function makes of it. Shapes: block [4, B, T], ids [B]."""
        for row, (sample_id, epoch) in enumerate(zip(ids.tolist(), epochs.tolist(), strict=True)):
            key = derive_key(self._seed, _MAP_KEY, epoch, sample_id)
            returned = self._call_seeded(block[:, row], key=key, sample_id=sample_id)
            for field, name in enumerate(FIELDS):
                block[field, row] = self._checked(returned, name, shape=block[field, row].shape, sample_id=sample_id)

    def _call_seeded(self, arrays: np.ndarray, *, key: int, sample_id: int) -> Mapping[str, Any]:
        has_torch = "torch" in sys.modules
        with seeded(key):
            returned = self._call(_sample_of(arrays), key=key, sample_id=sample_id)
        if has_torch or "torch" not in sys.modules:
            return returned
        with seeded(key):  # this very call loaded torch, whose generator could not be seeded before it
            return self._call(_sample_of(arrays), key=key, sample_id=sample_id)

    def _call(self, sample: Sample, *, key: int, sample_id: int) -> Mapping[str, Any]:
        try:
            returned = self._function(sample, np.random.Generator(np.random.PCG64(key)))
        except (Exception, SystemExit) as error:
            code = getattr(self._function, "__code__", None)
            place = error_place(error, function_file=code.co_filename if code else None)
            raised = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise self._refused(sample_id, "map_raised", raised=raised, place=place or self.name) from error
        if not isinstance(returned, Mapping):
            raise self._refused(sample_id, "map_not_a_dict", kind=type(returned).__name__)
        if set(returned) != set(FIELDS):
            got = ", ".join(map(str, returned))
            raise self._refused(sample_id, "map_other_names", got=got, expected=", ".join(FIELDS))
        return returned

    def _checked(self, returned: Mapping[str, Any], name: str, *, shape: tuple[int, ...], sample_id: int) -> np.ndarray:
        values = np.asarray(returned[name])
        if values.shape != shape:
            raise self._refused(sample_id, "map_other_shape", name=name, got=values.shape, expected=shape)
        if values.dtype.kind not in "iu":
            raise self._refused(sample_id, "map_not_whole", name=name, got=values.dtype)
        outside = (values < 0) | (values >= (self._vocab_size if name in _TOKENS else shape[0]))
        bad = outside & (values != _ALSO_TAKEN.get(name, 0))
        if bad.any():
            facts = {"name": name, "got": int(values[bad][0])}
            if name in _TOKENS:
                raise self._refused(sample_id, "map_other_token", vocab_size=self._vocab_size, **facts)
            raise self._refused(sample_id, "map_other_place", seq_len=shape[0], **facts)
        return values

    def _refused(self, sample_id: int, reason: str, **values: object) -> DataError:
        return DataError(f"sample.{reason}", function=self.name, sample=sample_id, **values)


def _sample_of(arrays: np.ndarray) -> Sample:
    return {name: arrays[field].copy() for field, name in enumerate(FIELDS)}


@contextlib.contextmanager
def seeded(key: int) -> Iterator[None]:
    """Seed the global generators for the time of a call."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    torch = sys.modules.get("torch")  # never imported for this: a function that draws from it has loaded it
    generator = getattr(torch, "default_generator", None)
    torch_state = generator.get_state() if generator is not None else None
    random.seed(key)
    np.random.seed(key & _MASK_32)
    if generator is not None:
        generator.manual_seed(key & (_MASK_32 >> 1))
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        if generator is not None:
            generator.set_state(torch_state)
