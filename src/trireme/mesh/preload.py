"""What the fork server imports once, so that no rank has to.

A rank that touches DTensor or FSDP for the first time otherwise imports ``torch._dynamo`` and some
three hundred modules by itself.
"""

import torch
import torch._dynamo
import torch.distributed._functional_collectives
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor._ops

torch.set_num_threads(1)
