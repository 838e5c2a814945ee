"""Faults on purpose: a run is broken in a known way, and what became of it is compared with the unbroken one."""

from trireme.chaos.launched import Launched, start_launch
from trireme.chaos.tiny_run import TINY_SETTINGS, lay_out_tiny
from trireme.chaos.weights import same_weights

__all__ = ["TINY_SETTINGS", "Launched", "lay_out_tiny", "same_weights", "start_launch"]
