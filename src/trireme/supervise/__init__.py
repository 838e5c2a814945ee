"""Supervision: heartbeats, why ranks failed, what to do about it, and starting them again. Imports no torch."""

from trireme.supervise.attempt import Program
from trireme.supervise.elastic import Elastic
from trireme.supervise.failure import Failure, is_lost_connection, kind_of, record_failure
from trireme.supervise.fault import MOMENT_OF, Fault, parse_faults, strike
from trireme.supervise.place import Meeting, Place
from trireme.supervise.policy import TABLE, Budget, Decision, History, decide, parse_budget
from trireme.supervise.pulse import Beat, beat, is_supervised, read_pulse
from trireme.supervise.session import kill_sessions
from trireme.supervise.slurm import SlurmJob, format_batch
from trireme.supervise.supervisor import Terms, supervise
from trireme.supervise.watch import Patience

__all__ = [
    "MOMENT_OF",
    "TABLE",
    "Beat",
    "Budget",
    "Decision",
    "Elastic",
    "Failure",
    "Fault",
    "History",
    "Meeting",
    "Patience",
    "Place",
    "Program",
    "SlurmJob",
    "Terms",
    "beat",
    "decide",
    "format_batch",
    "is_lost_connection",
    "is_supervised",
    "kill_sessions",
    "kind_of",
    "parse_budget",
    "parse_faults",
    "read_pulse",
    "record_failure",
    "strike",
    "supervise",
]
