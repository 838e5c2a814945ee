"""What a run will need, known before it starts (no torch)."""

from trireme.plan.activation import ActivationBytes, activation_bytes
from trireme.plan.duration import ASSUMED_MFU, estimate_step_s
from trireme.plan.memory import STATE_BYTES, MemoryEstimate, StateBytes, estimate_memory, estimate_state_memory
from trireme.plan.schedule import (
    SCHEDULE_NAMES,
    Action,
    Kind,
    Message,
    Schedule,
    ScheduleName,
    build_schedule,
    messages,
)
from trireme.plan.schedule_check import InFlight, check_schedule, count_in_flight, in_flight_bound
from trireme.plan.simulate import Event, RankTimeline, StageCost, Timeline, one_f_one_b_utilisation, simulate

__all__ = [
    "ASSUMED_MFU",
    "SCHEDULE_NAMES",
    "STATE_BYTES",
    "Action",
    "ActivationBytes",
    "Event",
    "InFlight",
    "Kind",
    "MemoryEstimate",
    "Message",
    "RankTimeline",
    "Schedule",
    "ScheduleName",
    "StageCost",
    "StateBytes",
    "Timeline",
    "activation_bytes",
    "build_schedule",
    "check_schedule",
    "count_in_flight",
    "estimate_memory",
    "estimate_state_memory",
    "estimate_step_s",
    "in_flight_bound",
    "messages",
    "one_f_one_b_utilisation",
    "simulate",
]
