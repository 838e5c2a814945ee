"""What is said about how gradients and weights travel between ranks."""

from __future__ import annotations

from trireme.words.catalogue import Text

TEXTS: dict[str, Text] = {
    # What is done
    "codes": Text(
        en="gradients travel as {compress} over {axes}; what a code leaves out is added to the next gradient",
        zh="梯度在 {axes} 上以 {compress} 编码传输；编码丢掉的部分会加到下一次梯度中",
    ),
    "nothing_to_code": Text(
        en="communication.compress = {compress} has no effect: layout {layout} sums no gradients over ranks",
        zh="communication.compress = {compress} 不起作用：布局 {layout} 不跨 rank 求梯度和",
    ),
    "layers": Text(
        en="gradients of {ranks} ranks on {nodes} nodes are summed inside each node first: {saved} fewer bytes cross "
        "nodes than around a flat ring",
        zh="{nodes} 个节点上 {ranks} 个 rank 的梯度先在节点内求和：跨节点的字节数比单层环少 {saved}",
    ),
    "one_device": Text(
        en="the section communication has no effect on one device: nothing is sent",
        zh="单设备上 communication 一节不起作用：没有任何通信",
    ),
    # Compression and layouts
    "compress_zero3": Text(
        en="communication.compress = {compress} can't serve layout {layout}: with zero3 most bytes are gathered "
        "parameters, and what the codes leave out would fill the memory that it frees; take hsdp=RxS (codes between "
        "replicas), zero2 or none",
        zh="communication.compress = {compress} 不能用于布局 {layout}：zero3 的通信以参数聚合为主，而误差反馈会占满它省下的"
        "内存；请改用 hsdp=RxS（在副本之间编码）、zero2 或 none",
    ),
    "compress_matrix": Text(
        en="communication.compress = powersgd needs whole matrices, and layout {layout} cuts gradients by rows before "
        "they are summed; take bf16, fp16, int8 or topk, or hsdp=RxS",
        zh="communication.compress = powersgd 需要完整矩阵，而布局 {layout} 在求和前就按行切分梯度；"
        "请改用 bf16、fp16、int8、topk，或 hsdp=RxS",
    ),
    "compress_tensor": Text(
        en="communication.compress = {compress} codes blocks across parameters in layout {layout}, so tensor-parallel "
        "ranks would get different gradients for what they share; take bf16, or dp without zero, or hsdp=RxS",
        zh="在布局 {layout} 中 communication.compress = {compress} 的编码块会跨越参数，张量并行各 rank 共有的参数会得到不同梯度；"
        "请改用 bf16、不带 zero 的 dp，或 hsdp=RxS",
    ),
    "compress_experts": Text(
        en="communication.compress = {compress} can't serve experts cut by zero in layout {layout}; take zero0 with ep, "
        "or none",
        zh="communication.compress = {compress} 不支持布局 {layout} 中被 zero 切分的专家；请在 ep 下不用 zero，或改为 none",
    ),
    # Layers
    "layers_zero": Text(
        en="communication.layered is for whole copies, and layout {layout} shards; hsdp=RxS with S ranks a node is "
        "layered by itself",
        zh="communication.layered 只用于完整副本，而布局 {layout} 带切分；令 S 等于每节点 rank 数的 hsdp=RxS 本身就是分层的",
    ),
    "layers_experts": Text(
        en="communication.layered can't serve the experts of layout {layout}, whose copies lie across nodes otherwise; "
        "take it without ep",
        zh="communication.layered 不支持布局 {layout} 中的专家：其副本在节点间的分布不同；请不要与 ep 同用",
    ),
    "layers_matrix": Text(
        en="communication.layered sends shares of gradients across nodes, and powersgd needs whole matrices; take bf16, "
        "fp16, int8 or topk with it",
        zh="communication.layered 在节点间传输的是梯度分片，而 powersgd 需要完整矩阵；请与 bf16、fp16、int8 或 topk 同用",
    ),
    "layers_nodes": Text(
        en="communication.layered needs as many ranks of a sum in each of several nodes, more than one; {ranks} ranks "
        "with ranks_per_node = {ranks_per_node} lie as {shown}; set communication.ranks_per_node, or leave it off",
        zh="communication.layered 要求同一求和的 rank 均分在多个节点上且每节点多于一个；{ranks} 个 rank 在 ranks_per_node = "
        "{ranks_per_node} 时分布为 {shown}；请设置 communication.ranks_per_node，或关闭它",
    ),
    # Replicas that train by themselves
    "local_replicas": Text(
        en="communication.local_steps = {steps} needs replicas that can part, and layout {layout} has dp_replicate = 1; "
        "take dp=N, or hsdp=RxS",
        zh="communication.local_steps = {steps} 需要可以各自训练的副本，而布局 {layout} 的 dp_replicate = 1；"
        "请改用 dp=N 或 hsdp=RxS",
    ),
    "local_experts": Text(
        en="communication.local_steps = {steps} can't serve layout {layout}: its experts are shared out across the "
        "replicas; take ep=1",
        zh="communication.local_steps = {steps} 不能用于布局 {layout}：专家分布在各副本之间；请令 ep=1",
    ),
    "local_short": Text(
        en="communication.local_steps = {steps} needs fp32 weights, for replicas differ by less than 16 bits can say; "
        "take precision bf16 or fp16 (mixed), which keeps them",
        zh="communication.local_steps = {steps} 需要 fp32 权重：副本之间的差异小于 16 位能表示的精度；"
        "请改用保留 fp32 权重的混合精度 bf16 或 fp16",
    ),
    "local_compress": Text(
        en="communication.local_steps = {steps} sends no gradients between replicas, so compress = {compress} and "
        "layered have nothing to do; leave them off",
        zh="communication.local_steps = {steps} 时副本之间不传梯度，compress = {compress} 与 layered 无事可做；请关闭它们",
    ),
    "reduce_microbatch": Text(
        en="communication.reduce = microbatch needs shards to keep the sums in, and layout {layout} sums once a step; "
        "take zero2 or zero3 without a pipeline, or reduce = step",
        zh="communication.reduce = microbatch 需要用分片保存求和结果，而布局 {layout} 每步只求和一次；"
        "请改用不带流水线的 zero2 或 zero3，或 reduce = step",
    ),
}
