"""A rank that really runs, measured as a simulated one is."""

from __future__ import annotations

import torch

from trireme.parallel import parallel_optimizer, parallelize
from trireme.plan import parse_layout
from trireme.simulate import CollectiveCounter, Ledger, Measurement, World, build_optimizer, measure
from trireme.verify import Source, part_of


def measure_really(*, model: str, layout_text: str, world: int, seqs: int, seq_len: int) -> Measurement:
    """Run two steps on this rank of a group that exists."""
    layout = parse_layout(layout_text, ranks=world).layout
    rank = torch.distributed.get_rank()
    subject = Source(model=model).load()
    example = part_of(subject.make_batch(0, layout.dp, seq_len), layout, rank=rank)
    objective = subject.objective
    spread = parallelize(
        subject.module.train(),
        layout,
        example=example,
        call=objective.call,
        loss_fn=objective.loss_fn,
        notice=lambda text: None,
    )
    optimizer = parallel_optimizer(build_optimizer("adamw", spread), spread, clip_grad_norm=1.0)
    batch = part_of(subject.make_batch(0, seqs, seq_len), layout, rank=rank)
    met = World(ledger=Ledger(), collectives=CollectiveCounter(layout), hollow=None)
    with met:
        return measure(met, spread, optimizer, objective=objective, batch=batch)
