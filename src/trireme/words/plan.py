"""Words of estimates."""

from trireme.words.catalogue import Text

TEXTS = {
    "part_parameters": Text(en="parameters", zh="参数"),
    "part_gradients": Text(en="gradients", zh="梯度"),
    "part_optimizer": Text(en="optimizer", zh="优化器状态"),
    "part_weight_casts": Text(en="16-bit weights", zh="16 位权重副本"),
    "part_activations": Text(en="activations", zh="激活值"),
    "part_logits": Text(en="logits", zh="logits"),
    "part_shared": Text(en="shared tables", zh="共享表"),
    "part_work": Text(en="working space", zh="工作空间"),
    "part_buffers": Text(en="buffers", zh="缓冲区"),
    "part_allocator": Text(en="kept by the allocator", zh="分配器保留"),
    "part_program": Text(en="program", zh="程序本身"),
    "part_snapshot": Text(en="snapshot of a checkpoint", zh="检查点快照"),
    "part_planned": Text(en="first stage, as planned", zh="首个阶段（按计划）"),
}
