"""The sharded-tensor interpreter: a module's own code on local shards, the same rules for planning and running."""

from trireme.interpret.binding import Binding, bind, interpreting
from trireme.interpret.collective import CollectiveCount
from trireme.interpret.declared import met_whole
from trireme.interpret.interpreter import Interpreter
from trireme.interpret.parameters import shard_parameters
from trireme.interpret.planner import plan_tensor_parallel
from trireme.interpret.split import Shard, Split, split_evenly
from trireme.interpret.tensor_plan import ParameterSplit, TensorPlan
from trireme.interpret.tensor_state import acting_for, global_shape, marks_of, shard_of, with_marks

__all__ = [
    "Binding",
    "CollectiveCount",
    "Interpreter",
    "ParameterSplit",
    "Shard",
    "Split",
    "TensorPlan",
    "acting_for",
    "bind",
    "global_shape",
    "interpreting",
    "marks_of",
    "met_whole",
    "plan_tensor_parallel",
    "shard_of",
    "shard_parameters",
    "split_evenly",
    "with_marks",
]
