"""The proof: any layout of any module against one device, in loss, every gradient and every parameter."""

from trireme.verify.compare import Comparison, Tolerance, Worst, compare
from trireme.verify.fault import FAULTS, Fault, find_fault
from trireme.verify.report import Report
from trireme.verify.run import Memory, Request, verify
from trireme.verify.subject import DTYPES, Source, Subject
from trireme.verify.trace import StepTrace, Trace

__all__ = [
    "DTYPES",
    "FAULTS",
    "Comparison",
    "Fault",
    "Memory",
    "Report",
    "Request",
    "Source",
    "StepTrace",
    "Subject",
    "Tolerance",
    "Trace",
    "Worst",
    "compare",
    "find_fault",
    "verify",
]
