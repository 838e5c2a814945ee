"""Everything that acts on a module so that many ranks train it as one."""

from trireme.parallel.activation_offload import ActivationOffload
from trireme.parallel.apply import parallelize
from trireme.parallel.axes import Axes
from trireme.parallel.axis_traffic import StepTraffic
from trireme.parallel.border import Borders, expect_borders, watch_borders
from trireme.parallel.bucket import BUCKET_BYTES, Bucket, all_reduce_bucket
from trireme.parallel.call import Call, call_by_name
from trireme.parallel.capture import BlockCost, Crossing, ModelTrace, capture, choose_cuts
from trireme.parallel.chunked import ChunkedOptimizer
from trireme.parallel.codec import Bf16, Codec, Fp16, Int8, TopK
from trireme.parallel.coded import CodedSum
from trireme.parallel.communication import Communication, Compress
from trireme.parallel.compile import MAX_PROGRAMS, BlockCompiler, Compile, CompileReport
from trireme.parallel.disk_home import DiskHome
from trireme.parallel.expert import DealtExperts, OwnedRows, deal_experts
from trireme.parallel.expert_balance import balance_loss, balance_term, update_selection_biases, z_loss
from trireme.parallel.expert_find import ExpertSet, FoundExperts, find_experts
from trireme.parallel.expert_route import ExpertRanks, ExpertTraffic
from trireme.parallel.feedback import Feedback
from trireme.parallel.fsdp_private import local_shard
from trireme.parallel.gather import Gatherer, RangeGather
from trireme.parallel.graph_capture import capture_graph
from trireme.parallel.hierarchy import LayeredSum
from trireme.parallel.host_home import HostHome
from trireme.parallel.link import Link, Pace
from trireme.parallel.microbatch import rows_of
from trireme.parallel.model import ParallelModel
from trireme.parallel.norm import grad_norm
from trireme.parallel.optimize import parallel_optimizer
from trireme.parallel.optimizer import LossScale, ParallelOptimizer, StepOutcome, move_parameters
from trireme.parallel.optimizer_kind import OptimizerKind, judge_optimizer
from trireme.parallel.part import Kept, ParameterPart, count_copies
from trireme.parallel.piece import Piece, assemble, gather_whole, whole_piece
from trireme.parallel.pipeline import Executor
from trireme.parallel.power_sgd import LowRankSum
from trireme.parallel.recompute_block import RecomputeRule, apply_marks, marked_modules, recompute
from trireme.parallel.replicate import Reducer, replicate
from trireme.parallel.rounding import StochasticRounding
from trireme.parallel.rows import held_rows
from trireme.parallel.shard import ShardSync, shard
from trireme.parallel.stage import StageOutput, StageSet
from trireme.parallel.state_home import DeviceHome, StateHome, Transfers
from trireme.parallel.surroundings import Moment
from trireme.parallel.sync import GradientSync, SyncTogether
from trireme.parallel.tie import TiedGradients, tied_holders
from trireme.parallel.traffic import Traffic
from trireme.parallel.transport import Lane
from trireme.parallel.wire import PlainSum, Wire
from trireme.parallel.wires import Wires, layered_ratio

__all__ = [
    "BUCKET_BYTES",
    "MAX_PROGRAMS",
    "ActivationOffload",
    "Axes",
    "Bf16",
    "BlockCompiler",
    "BlockCost",
    "Borders",
    "Bucket",
    "Call",
    "ChunkedOptimizer",
    "Codec",
    "CodedSum",
    "Communication",
    "Compile",
    "CompileReport",
    "Compress",
    "Crossing",
    "DealtExperts",
    "DeviceHome",
    "DiskHome",
    "Executor",
    "ExpertRanks",
    "ExpertSet",
    "ExpertTraffic",
    "Feedback",
    "FoundExperts",
    "Fp16",
    "Gatherer",
    "GradientSync",
    "HostHome",
    "Int8",
    "Kept",
    "Lane",
    "LayeredSum",
    "Link",
    "LossScale",
    "LowRankSum",
    "ModelTrace",
    "Moment",
    "OptimizerKind",
    "OwnedRows",
    "Pace",
    "ParallelModel",
    "ParallelOptimizer",
    "ParameterPart",
    "Piece",
    "PlainSum",
    "RangeGather",
    "RecomputeRule",
    "Reducer",
    "ShardSync",
    "StageOutput",
    "StageSet",
    "StateHome",
    "StepOutcome",
    "StepTraffic",
    "StochasticRounding",
    "SyncTogether",
    "TiedGradients",
    "TopK",
    "Traffic",
    "Transfers",
    "Wire",
    "Wires",
    "all_reduce_bucket",
    "apply_marks",
    "assemble",
    "balance_loss",
    "balance_term",
    "call_by_name",
    "capture",
    "capture_graph",
    "choose_cuts",
    "count_copies",
    "deal_experts",
    "expect_borders",
    "find_experts",
    "gather_whole",
    "grad_norm",
    "held_rows",
    "judge_optimizer",
    "layered_ratio",
    "local_shard",
    "marked_modules",
    "move_parameters",
    "parallel_optimizer",
    "parallelize",
    "recompute",
    "replicate",
    "rows_of",
    "shard",
    "tied_holders",
    "update_selection_biases",
    "watch_borders",
    "whole_piece",
    "z_loss",
]
