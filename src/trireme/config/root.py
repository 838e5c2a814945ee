"""The whole tree of one run. Only ``cli``, ``fleet`` and ``job`` see it; a room sees its own section."""

from __future__ import annotations

from pydantic import Field

from trireme.config.checkpoint import CheckpointSection
from trireme.config.communication import CommunicationSection
from trireme.config.data import DataSection
from trireme.config.layout import LayoutSection
from trireme.config.model import ModelSection
from trireme.config.observe import ObserveSection
from trireme.config.offload import OffloadSection
from trireme.config.recompute import RecomputeSection
from trireme.config.run import RunSection
from trireme.config.schema import Section
from trireme.config.train import PrecisionSection, TrainSection


class RunConfig(Section):
    """One run, whole."""

    run: RunSection = Field(RunSection(), description="Where the run lives and what makes it repeatable.")
    model: ModelSection = Field(ModelSection(), description="Which module is trained.")
    data: DataSection = Field(DataSection(), description="What is read and how it becomes samples.")
    train: TrainSection = Field(TrainSection(), description="How many steps, how large, how fast.")
    precision: PrecisionSection = Field(PrecisionSection(), description="Number formats.")
    layout: LayoutSection = Field(LayoutSection(), description="Over how many ranks each axis goes.")
    recompute: RecomputeSection = Field(RecomputeSection(), description="What backward computes again.")
    communication: CommunicationSection = Field(
        CommunicationSection(), description="How gradients and weights travel between ranks."
    )
    offload: OffloadSection = Field(OffloadSection(), description="What waits elsewhere than on the device.")
    checkpoint: CheckpointSection = Field(CheckpointSection(), description="When state is saved.")
    observe: ObserveSection = Field(ObserveSection(), description="What is shown and written.")
