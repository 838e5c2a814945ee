"""Train a plain module on many ranks with a few lines: Fleet's calls, on PyTorch.

    import torch, trireme.fleet as fleet

    fleet.init("tp=2,pp=2,zero3")                      # or a DistributedStrategy, or a plan.json
    model = fleet.distributed_model(MyModel())
    optimizer = fleet.distributed_optimizer(torch.optim.AdamW(model.parameters()), clip_grad_norm=1.0)
    for batch in batches:
        loss = model.train_step(batch, loss_fn)        # loss_fn(outputs, batch) -> (loss_sum, count)
        optimizer.step()
        optimizer.zero_grad()

Started with ``torchrun`` or ``trireme launch`` it is one rank of many; with plain ``python`` it is one rank.
"""

from trireme.fleet.model import FleetModel
from trireme.fleet.optimizer import FleetOptimizer
from trireme.fleet.session import (
    distributed_model,
    distributed_optimizer,
    init,
    shutdown,
    worker_index,
    worker_num,
)
from trireme.fleet.strategy import DistributedStrategy

__all__ = [
    "DistributedStrategy",
    "FleetModel",
    "FleetOptimizer",
    "distributed_model",
    "distributed_optimizer",
    "init",
    "shutdown",
    "worker_index",
    "worker_num",
]
