"""The sharded-tensor interpreter: a module's own code on local shards, the same rules for planning and running."""

from trireme.interpret.binding import Binding, bind, interpreting
from trireme.interpret.collective import CollectiveCount, Line
from trireme.interpret.context import ContextBinding, ContextKind
from trireme.interpret.counter import dropout_key, fill_normal, keep, signed, stream_key, uniform_bits
from trireme.interpret.declared import met_whole
from trireme.interpret.dispatch import (
    DATA_DEPENDENT,
    any_tokens,
    exchange_counts,
    exchange_rows,
    gather_tokens,
    has_numbers,
    run_experts,
    take_tokens,
    tracing,
)
from trireme.interpret.elsewhere import (
    Draws,
    count_unmade,
    count_unrun,
    drawn_so_far,
    draws_since,
    inside,
    is_counted,
)
from trireme.interpret.head import HeadInput, Scoring, head_input, head_loss
from trireme.interpret.host_random import HostGenerators, host_state
from trireme.interpret.initial import InitialValues, fill_buffers, fill_parameters, has_meta, materialise
from trireme.interpret.initial_record import recorded
from trireme.interpret.interpreter import Interpreter
from trireme.interpret.parameters import shard_parameters
from trireme.interpret.planner import plan_tensor_parallel
from trireme.interpret.randomness import CountedRandomness, drawing_at, is_counting, rehearsal, rows_unknown
from trireme.interpret.split import Shard, Split, split_evenly
from trireme.interpret.tensor_plan import ParameterSplit, TensorPlan
from trireme.interpret.tensor_state import acting_for, global_shape, is_marked, marks_of, shard_of, with_marks
from trireme.interpret.torch_private import (
    HollowMode,
    apply_function,
    entered_again,
    in_backward,
    is_hollow,
    is_unseen,
    modes_entered,
    unseen,
)
from trireme.interpret.unknown import assumed_answer

__all__ = [
    "DATA_DEPENDENT",
    "Binding",
    "CollectiveCount",
    "ContextBinding",
    "ContextKind",
    "CountedRandomness",
    "Draws",
    "HeadInput",
    "HollowMode",
    "HostGenerators",
    "InitialValues",
    "Interpreter",
    "Line",
    "ParameterSplit",
    "Scoring",
    "Shard",
    "Split",
    "TensorPlan",
    "acting_for",
    "any_tokens",
    "apply_function",
    "assumed_answer",
    "bind",
    "count_unmade",
    "count_unrun",
    "drawing_at",
    "drawn_so_far",
    "draws_since",
    "dropout_key",
    "entered_again",
    "exchange_counts",
    "exchange_rows",
    "fill_buffers",
    "fill_normal",
    "fill_parameters",
    "gather_tokens",
    "global_shape",
    "has_meta",
    "has_numbers",
    "head_input",
    "head_loss",
    "host_state",
    "in_backward",
    "inside",
    "interpreting",
    "is_counted",
    "is_counting",
    "is_hollow",
    "is_marked",
    "is_unseen",
    "keep",
    "marks_of",
    "materialise",
    "met_whole",
    "modes_entered",
    "plan_tensor_parallel",
    "recorded",
    "rehearsal",
    "rows_unknown",
    "run_experts",
    "shard_of",
    "shard_parameters",
    "signed",
    "split_evenly",
    "stream_key",
    "take_tokens",
    "tracing",
    "uniform_bits",
    "unseen",
    "with_marks",
]
