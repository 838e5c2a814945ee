"""What a run will need, known before it starts (no torch)."""

from trireme.plan.activation import ActivationBytes, activation_bytes
from trireme.plan.duration import ASSUMED_MFU, estimate_step_s
from trireme.plan.fewest import Fewest, fewest_gpus
from trireme.plan.framework import TRIREME, Framework
from trireme.plan.framework_table import FRAMEWORKS, find_framework
from trireme.plan.goodput import Goodput, estimate_goodput
from trireme.plan.infeasible import fitting_changes, largest_term, require_fit, say_event
from trireme.plan.knapsack import Choice, Group, Option, choose
from trireme.plan.layer_choice import fit_recompute
from trireme.plan.layout import Layout, format_layout, layout_mapping
from trireme.plan.layout_parse import ParsedLayout, Wish, parse_layout, parse_wish
from trireme.plan.legality import RULES, ModelFacts, Violation, check_layout, head_ranks
from trireme.plan.legality_cost import COST_RULES, LayoutCost, layout_costs
from trireme.plan.legality_facts import facts_of_graph
from trireme.plan.legality_nearest import nearest_legal, require_legal
from trireme.plan.made_plan import layer_paths, make_plan
from trireme.plan.memory import STATE_BYTES, MemoryEstimate, StateBytes, estimate_memory, estimate_state_memory
from trireme.plan.peak import MemoryEvent, MemoryTimeline, RankMemory, estimate_peak
from trireme.plan.placement import (
    AXES,
    Axis,
    Coordinate,
    coordinate,
    expert_copies,
    expert_groups,
    groups_of,
    rank_at,
    ranks_of,
)
from trireme.plan.plan import (
    LayerChoice,
    LayerRecompute,
    Plan,
    Prediction,
    check_plan_matches,
    fingerprint,
    hash_cluster,
    hash_model,
)
from trireme.plan.plan_cut import balance_cuts
from trireme.plan.plan_json import format_plan, parse_plan
from trireme.plan.problem import Problem
from trireme.plan.rank_param import RankParam, rank_params, section_share, stage_params, stage_sections
from trireme.plan.saved import SavedBytes, section_saved
from trireme.plan.schedule import (
    SCHEDULE_NAMES,
    Action,
    Kind,
    Message,
    Schedule,
    ScheduleName,
    build_schedule,
    messages,
    stages_of_rank,
)
from trireme.plan.schedule_check import InFlight, check_schedule, count_in_flight, in_flight_bound
from trireme.plan.search import Counted, Found, Rejection, SearchResult, search
from trireme.plan.share import BlockShare, share_block
from trireme.plan.simulate import Event, RankTimeline, StageCost, Timeline, one_f_one_b_utilisation, simulate
from trireme.plan.state import StateParts, state_bytes, state_parts
from trireme.plan.time_pipeline import PipelineTime, pipeline_time
from trireme.plan.time_rates import Rates
from trireme.plan.time_step import StepTime, estimate_step
from trireme.plan.time_timeline import step_timeline
from trireme.plan.truth_check import RunCheck, check_runs, row_json
from trireme.plan.truth_score import ErrorScore, Score, score_checks, score_json
from trireme.plan.why import Why, why_not
from trireme.plan.workload import (
    KERNEL_SETS,
    OPTIMIZERS,
    PRECISIONS,
    KernelSet,
    OptimizerName,
    PrecisionName,
    Workload,
    even_cuts,
)

__all__ = [
    "ASSUMED_MFU",
    "AXES",
    "COST_RULES",
    "FRAMEWORKS",
    "KERNEL_SETS",
    "OPTIMIZERS",
    "PRECISIONS",
    "RULES",
    "SCHEDULE_NAMES",
    "STATE_BYTES",
    "TRIREME",
    "Action",
    "ActivationBytes",
    "Axis",
    "BlockShare",
    "Choice",
    "Coordinate",
    "Counted",
    "ErrorScore",
    "Event",
    "Fewest",
    "Found",
    "Framework",
    "Goodput",
    "Group",
    "InFlight",
    "KernelSet",
    "Kind",
    "LayerChoice",
    "LayerRecompute",
    "Layout",
    "LayoutCost",
    "MemoryEstimate",
    "MemoryEvent",
    "MemoryTimeline",
    "Message",
    "ModelFacts",
    "OptimizerName",
    "Option",
    "ParsedLayout",
    "PipelineTime",
    "Plan",
    "PrecisionName",
    "Prediction",
    "Problem",
    "RankMemory",
    "RankParam",
    "RankTimeline",
    "Rates",
    "Rejection",
    "RunCheck",
    "SavedBytes",
    "Schedule",
    "ScheduleName",
    "Score",
    "SearchResult",
    "StageCost",
    "StateBytes",
    "StateParts",
    "StepTime",
    "Timeline",
    "Violation",
    "Why",
    "Wish",
    "Workload",
    "activation_bytes",
    "balance_cuts",
    "build_schedule",
    "check_layout",
    "check_plan_matches",
    "check_runs",
    "check_schedule",
    "choose",
    "coordinate",
    "count_in_flight",
    "estimate_goodput",
    "estimate_memory",
    "estimate_peak",
    "estimate_state_memory",
    "estimate_step",
    "estimate_step_s",
    "even_cuts",
    "expert_copies",
    "expert_groups",
    "facts_of_graph",
    "fewest_gpus",
    "find_framework",
    "fingerprint",
    "fit_recompute",
    "fitting_changes",
    "format_layout",
    "format_plan",
    "groups_of",
    "hash_cluster",
    "hash_model",
    "head_ranks",
    "in_flight_bound",
    "largest_term",
    "layer_paths",
    "layout_costs",
    "layout_mapping",
    "make_plan",
    "messages",
    "nearest_legal",
    "one_f_one_b_utilisation",
    "parse_layout",
    "parse_plan",
    "parse_wish",
    "pipeline_time",
    "rank_at",
    "rank_params",
    "ranks_of",
    "require_fit",
    "require_legal",
    "row_json",
    "say_event",
    "score_checks",
    "score_json",
    "search",
    "section_saved",
    "section_share",
    "share_block",
    "simulate",
    "stage_params",
    "stage_sections",
    "stages_of_rank",
    "state_bytes",
    "state_parts",
    "step_timeline",
    "why_not",
]
