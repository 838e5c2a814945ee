"""Settings: one pure-data schema per room, and how a file becomes them."""

from trireme.config.checkpoint import CheckpointSection
from trireme.config.data import DataSection, SourceSection
from trireme.config.layout import LayoutSection
from trireme.config.model import ModelSection
from trireme.config.observe import ObserveSection
from trireme.config.root import RunConfig
from trireme.config.run import RunSection
from trireme.config.train import PrecisionSection, TrainSection

__all__ = [
    "CheckpointSection",
    "DataSection",
    "LayoutSection",
    "ModelSection",
    "ObserveSection",
    "PrecisionSection",
    "RunConfig",
    "RunSection",
    "SourceSection",
    "TrainSection",
]
