"""The proof: any layout of any module against one device, in loss, every gradient and every parameter."""

from trireme.verify.batch import part_of
from trireme.verify.compare import Comparison, Tolerance, Worst, compare
from trireme.verify.fault import FAULTS, Fault, find_fault
from trireme.verify.report import Report
from trireme.verify.run import Memory, Request, verify
from trireme.verify.subject import DTYPES, Source, Subject
from trireme.verify.table import table_page
from trireme.verify.trace import StepTrace, Trace
from trireme.verify.zoo import COLUMNS, Cell, Column, run_cell, run_cells

__all__ = [
    "COLUMNS",
    "DTYPES",
    "FAULTS",
    "Cell",
    "Column",
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
    "part_of",
    "run_cell",
    "run_cells",
    "table_page",
    "verify",
]
