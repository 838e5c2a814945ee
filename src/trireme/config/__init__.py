"""Settings: one pure-data schema per room, and how a file becomes them."""

from trireme.config.check import Purpose
from trireme.config.checkpoint import CheckpointSection
from trireme.config.communication import CommunicationSection
from trireme.config.data import DataSection, SourceSection
from trireme.config.layout import LayoutSection
from trireme.config.load import Loaded, load_config, parse_config
from trireme.config.model import ModelSection
from trireme.config.observe import ObserveSection
from trireme.config.offload import OffloadSection
from trireme.config.origin import Origin
from trireme.config.publish import build_json_schema
from trireme.config.recompute import RecomputeSection
from trireme.config.root import RunConfig
from trireme.config.run import RunSection
from trireme.config.train import LENGTH_KEYS, PrecisionSection, TrainSection

__all__ = [
    "LENGTH_KEYS",
    "CheckpointSection",
    "CommunicationSection",
    "DataSection",
    "LayoutSection",
    "Loaded",
    "ModelSection",
    "ObserveSection",
    "OffloadSection",
    "Origin",
    "PrecisionSection",
    "Purpose",
    "RecomputeSection",
    "RunConfig",
    "RunSection",
    "SourceSection",
    "TrainSection",
    "build_json_schema",
    "load_config",
    "parse_config",
]
