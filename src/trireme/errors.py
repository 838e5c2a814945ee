"""Everything Trireme raises at a user.

TriremeError                    one clear message, exit code 2
├── ConfigError                 a key, a value, an override, a file of settings
├── DataError                   a source, a record, a tokenizer, a cache of tokens
├── ModelError                  a model name, factory, folder, shape
├── LayoutError                 degrees, ranks, what can't be combined
│   └── Infeasible              it does not fit; names the term that burst
├── CheckpointError             a save or load that would not be exact
├── DeviceError                 a device or a number format it lacks
├── TrainError                  a step that must not go on (nothing to learn, not finite)
│   └── Rollback                the run is to go back to its last good checkpoint
└── VerifyError                 a comparison with one device that can't be made
    └── RankFailed              a rank died or hung, so nothing was shown; exit code 1

A message says what was asked, the rule it breaks, and the nearest thing that works.
"""

from __future__ import annotations

from trireme.words import say


class TriremeError(Exception):
    """A mistake a user can mend. ``key`` names its sentence in the catalogue, ``values`` fill it."""

    exit_code = 2
    said_elsewhere = False
    """Whether another rank shows this to the user."""

    def __init__(self, key: str, /, **values: object) -> None:
        self.key = key
        self.values = values
        super().__init__(say(key, **values))

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.key, self.values)


def _rebuild(kind: type[TriremeError], key: str, values: dict[str, object]) -> TriremeError:
    """Unpickle an error that a worker process raised."""
    return kind(key, **values)


class ConfigError(TriremeError):
    """A setting is unknown, of the wrong type, out of range or contradicts another."""


class DataError(TriremeError):
    """Data can't be read, or reading it would lose or garble something."""


class ModelError(TriremeError):
    """A model can't be built, loaded, saved or used as asked."""


class LayoutError(TriremeError):
    """The degrees don't fit the ranks, the model or each other."""


class Infeasible(LayoutError):
    """Nothing fits; the message names the term that burst and by how much."""


class CheckpointError(TriremeError):
    """A checkpoint is incomplete, damaged or doesn't match, so using it would not be exact."""


class DeviceError(TriremeError):
    """The device is missing or lacks what was asked of it."""


class TrainError(TriremeError):
    """Training must not go on."""


class Rollback(TrainError):
    """The run is to go back to its last good checkpoint and leave a step's samples out; whoever runs it does that."""


class VerifyError(TriremeError):
    """A comparison with one device can't be made as asked."""


class RankFailed(VerifyError):
    """A rank failed, died or hung while it was compared: the layout is not shown to be equal."""

    exit_code = 1
