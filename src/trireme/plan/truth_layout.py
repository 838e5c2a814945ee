"""The layout, precision and habits of a published run, and what had to be assumed of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from trireme.errors import LayoutError
from trireme.plan.framework import Framework
from trireme.plan.framework_table import FRAMEWORKS, find_framework
from trireme.plan.layout import Layout
from trireme.plan.schedule import ScheduleName
from trireme.plan.truth_row import Row, Unreadable
from trireme.plan.workload import KernelSet, PrecisionName

_FUSED_SINCE = 2023
"""Until then Megatron and DeepSpeed kept score matrices; from then on fused attention is what everybody runs."""

_MEGATRON_FUSED_SINCE = 2024

_SHARDED_BY_DEFAULT = ("Megatron-Core", "Megatron-Bridge", "NeMo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """Degrees and batch of a row; ``assumed`` names what the row leaves open and what was taken for it."""

    tp: int
    pp: int
    cp: int
    ep: int
    dp: int
    vp: int
    microbatch_seqs: int
    global_batch_seqs: int
    num_microbatches: int
    assumed: tuple[str, ...]


def framework_of(row: Row) -> Framework:
    """Give a row's framework; Megatron-LM of before 2023 had habits of its own."""
    name = row.text("framework")
    found = find_framework(name) or FRAMEWORKS["megatron-lm"]
    if found.name == "Megatron-LM" and _year(row) < _FUSED_SINCE:
        found = FRAMEWORKS["megatron-lm 2021"]
    if re.search(r"vocab-|interlaced", row.text("schedule")):
        found = replace(found, spreads_vocabulary=True)
    if found.name == "Megatron-DeepSpeed" and precision_of(row) == "bf16":
        # Its bfloat16 optimizer adds gradients up in fp32 beside the 16-bit ones.
        found = replace(found, float32_gradients=True, keeps_both_gradients=True)
    if row.text("etp") == "1":
        found = replace(found, cuts_experts=False)
    return found


def _year(row: Row) -> int:
    found = re.match(r"(\d{4})", row.text("source_date"))
    return int(found[1]) if found else _FUSED_SINCE


def kernels_of(row: Row, framework: Framework) -> KernelSet:
    """Say which kernels ran: Megatron kept score matrices unless told otherwise; everybody fused the rest by then."""
    if "flash attention" in row.text("notes").lower():
        return "fused"
    since = _MEGATRON_FUSED_SINCE if framework.name in ("Megatron-LM", "Megatron-DeepSpeed") else _FUSED_SINCE
    if _year(row) < since and framework.name not in ("InternEvo", "llm-foundry", "NeMo"):
        return "unflashed"
    is_eager = framework.name in ("FSDP", "nanotron", "NeMo AutoModel", "MindSpeed", "DeepSpeed", "PaddleNLP")
    return "flash" if is_eager else "fused"


def precision_of(row: Row) -> PrecisionName:
    """Read the precision's name."""
    said = row.text("precision").lower()
    if "fp4" in said:
        return "fp4"
    if "fp8" in said and "bf16" not in said.split("/")[-1]:
        return "fp8"
    if said.startswith("fp16"):
        return "fp16"
    return "fp32" if said.startswith("fp32") else "bf16"


def recompute_of(row: Row) -> str:
    """Read what is recomputed; parts that include whole experts are nearly all."""
    said = row.text("recompute").lower()
    if said.startswith("full"):
        return "full"
    parts = set(re.split(r"[^a-z_]+", said))
    if said.startswith("selective"):
        return "full" if "moe" in parts else "selective"
    return "none"


def degrees_of(row: Row, *, schedule: ScheduleName, num_layers: int) -> Degrees:
    """Give degrees and batch.

    Raises:
        Unreadable: The layout or the batch isn't given, or the degrees don't come out even.
    """
    assumed: list[str] = []
    ranks = row.needed("gpu_count")
    cp, ep = row.count("cp") or 1, row.count("ep") or 1
    tp, pp = _model_degrees(row, ranks=ranks // cp, assumed=assumed)
    if ranks % (tp * pp * cp):
        raise Unreadable(f"tp {tp} x pp {pp} x cp {cp} does not divide gpu_count {ranks}")
    dp = ranks // (tp * pp * cp)
    if row.count("dp") not in (None, dp):
        assumed.append(f"dp {dp}, not {row.text('dp')}: gpu_count is {ranks}")
    batch, each = _batch(row, dp=dp, assumed=assumed)
    count = max(1, -(-batch // (dp * each)))
    vp = _virtual(row, schedule=schedule, pp=pp, num_layers=num_layers, assumed=assumed)
    return Degrees(
        tp=tp,
        pp=pp,
        cp=cp,
        ep=ep,
        dp=dp,
        vp=vp,
        microbatch_seqs=each,
        global_batch_seqs=batch,
        num_microbatches=count,
        assumed=tuple(assumed),
    )


def _model_degrees(row: Row, *, ranks: int, assumed: list[str]) -> tuple[int, int]:
    """Degrees of tensor and pipeline parallelism; one that is missing follows from the others, both from FSDP alone."""
    tp, pp, dp = row.count("tp"), row.count("pp"), row.count("dp")
    known = (tp or 1) * (pp or 1) * (dp or ranks)
    is_sharded_only = re.search(r"fsdp|zero-3|^3$", row.text("zero").lower()) and "tp" not in row.text("zero").lower()
    if (tp is None or pp is None) and (is_sharded_only or dp is not None) and known == ranks:
        assumed.append("tp 1, pp 1" if tp is None and pp is None else "tp 1" if tp is None else "pp 1")
        return tp or 1, pp or 1
    return row.needed("tp"), row.needed("pp")


def _batch(row: Row, *, dp: int, assumed: list[str]) -> tuple[int, int]:
    seqs, each, rounds = row.count("gbs"), row.count("mbs"), row.count("grad_accum")
    tokens = row.count("gbs_tokens")
    if seqs is None and tokens is not None:
        seqs = max(1, round(tokens / row.needed("seq_len")))
    if seqs is None:
        if each is None or rounds is None:
            raise Unreadable("gbs is not given, nor mbs and grad_accum")
        seqs = each * rounds * dp
    if each is None and rounds is not None:
        each = max(1, seqs // (dp * rounds))
    if each is None:
        each = 1
        assumed.append("mbs 1")
    return seqs, min(each, max(1, -(-seqs // dp)))


def _virtual(row: Row, *, schedule: ScheduleName, pp: int, num_layers: int, assumed: list[str]) -> int:
    if schedule != "interleaved":
        return 1
    asked = row.count("vp")
    most = max(1, num_layers // pp)
    if asked is None:
        asked = next((vp for vp in (4, 3, 2) if vp <= most and num_layers % (pp * vp) == 0), min(2, most))
        assumed.append(f"vp {asked}")
    if asked > most:
        assumed.append(f"vp {most}, for {num_layers} layers don't fill {asked} x {pp} stages")
    return min(asked, most)


def schedule_of(row: Row) -> ScheduleName:
    """Read the schedule's name; ``vp`` above 1 is interleaved whatever the name says."""
    said = row.text("schedule").lower()
    if "zb-2p" in said or "zbv" in said or "dualpipe" in said:
        return "zbv"
    if "zb" in said:
        return "zb"
    is_interleaved = "interleaved" in said or (row.count("vp") or 1) > 1
    if is_interleaved and (row.count("pp") or 1) > 1:
        return "interleaved"
    return "gpipe" if "gpipe" in said else "1f1b"


def layout_of(row: Row, degrees: Degrees, *, schedule: ScheduleName, framework: Framework) -> Layout:
    """Give the layout.

    Raises:
        Unreadable: It is none that a layout can say.
    """
    zero, shards = _sharding(row, framework, dp=degrees.dp)
    said_sp = row.text("sp")
    is_sp = said_sp == "1" or (said_sp == "" and degrees.tp > 1 and framework.name in _SHARDED_BY_DEFAULT)
    vp = 2 if schedule == "zbv" else degrees.vp
    try:
        return Layout(
            pp=degrees.pp,
            vp=vp,
            dp_replicate=degrees.dp // shards,
            dp_shard=shards,
            cp=degrees.cp,
            tp=degrees.tp,
            ep=degrees.ep,
            zero=zero,
            sp=is_sp,
            schedule=schedule if vp > 1 or schedule != "interleaved" else "1f1b",
            microbatches_per_step=degrees.num_microbatches,
            recompute=recompute_of(row),  # type: ignore[arg-type]
        )
    except LayoutError as error:
        raise Unreadable(str(error)) from None


def _sharding(row: Row, framework: Framework, *, dp: int) -> tuple[int, int]:
    """ZeRO's stage and over how many ranks it shards."""
    said = row.text("zero").lower()
    if not said:
        is_new_megatron = framework.name in ("Megatron-LM", "MegaScale") and _year(row) >= _MEGATRON_FUSED_SINCE
        is_sharded = framework.name in _SHARDED_BY_DEFAULT or is_new_megatron
        zero = 1 if is_sharded else 3 if "FSDP" in framework.name else 0
    elif "distributed optimizer" in said:
        zero = 1
    elif re.search(r"fsdp|full_shard|zero-3|\b3\b", said):
        zero = 3
    else:
        found = re.search(r"([0-3])", said.replace("stage", ""))
        zero = int(found[1]) if found else 0
    within = re.search(r"within (\d+)|fsdp (\d+) \+|group (\d+)", said)
    shards = int(next(filter(None, within.groups()))) if within else 8 if "in node" in said else dp
    return zero, shards if shards <= dp and dp % shards == 0 else dp
