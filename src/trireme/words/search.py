"""Words about the search for a layout."""

from trireme.words.catalogue import Text

TEXTS = {
    "fixed_ranks": Text(
        en="{said} = {product} doesn't divide {ranks} ranks; nearest: {near}",
        zh="{said} = {product}，不能整除 {ranks} 个进程；最接近的可行值：{near}",
    ),
    "fixed_batch": Text(
        en="{ranks} ranks / ({said}) leave a data-parallel degree of {dp}, which doesn't divide the global batch of"
        " {batch}; nearest batches: {near}",
        zh="{ranks} 个进程 / ({said}) 得到数据并行度 {dp}，不能整除全局批大小 {batch}；最接近的批大小：{near}",
    ),
    "state_too_large": Text(
        en="parameters, gradients and optimizer alone need {needs} a rank, {offers} offered",
        zh="仅参数、梯度和优化器状态每个进程就需要 {needs}，而设备只有 {offers}",
    ),
    "least_too_large": Text(
        en="{needs} a rank with everything recomputed that can be, {offers} offered",
        zh="即使全部重计算，每个进程仍需 {needs}，而设备只有 {offers}",
    ),
    "peak_too_large": Text(
        en="{needs} a rank, {offers} offered ({over} too much); {term} are {size} of it",
        zh="每个进程需要 {needs}，而设备只有 {offers}，超出 {over}；其中{term}占 {size}",
    ),
    "slower": Text(en="{step} a step at least, {ratio} over {best}", zh="每步至少 {step}，比 {best} 慢 {ratio}"),
    "nothing_fits": Text(
        en="no layout fits; the nearest is {layout}: {burst}; more ranks are needed (--fit says how many)",
        zh="没有放得下的布局；最接近的是 {layout}：{burst}；需要更多的卡（--fit 会给出数量）",
    ),
    "nothing_legal": Text(
        en="no layout on {ranks} ranks can run: {layout}: {reason}",
        zh="{ranks} 个进程上没有可行的布局：{layout}：{reason}",
    ),
    "nothing_allowed": Text(
        en="what is fixed leaves no layout on {ranks} ranks; fix less",
        zh="固定的设置在 {ranks} 个进程上没有留下任何布局；请减少固定项",
    ),
    "part_products": Text(en="matrix products", zh="矩阵乘"),
    "part_short_products": Text(en="products' start and end", zh="矩阵乘的启动与收尾"),
    "part_attention": Text(en="attention", zh="注意力"),
    "part_elementwise": Text(en="elementwise work", zh="逐元素运算"),
    "part_recompute": Text(en="recomputation", zh="重计算"),
    "part_tensor_parallel": Text(en="tensor parallel", zh="张量并行通信"),
    "part_context_parallel": Text(en="context parallel", zh="上下文并行通信"),
    "part_expert_parallel": Text(en="expert parallel", zh="专家并行通信"),
    "part_offload": Text(en="waiting for host memory", zh="等待主机内存"),
    "part_launches_and_shards": Text(en="launches and shards", zh="启动与分片"),
    "part_bubble": Text(en="bubble", zh="流水线气泡"),
    "part_data_parallel": Text(en="data parallel", zh="数据并行通信"),
    "part_optimizer": Text(en="optimizer", zh="优化器"),
    "part_stragglers": Text(en="stragglers", zh="慢节点等待"),
    "part_host": Text(en="host", zh="主机"),
    "why_best": Text(en="it is the best, or as good", zh="它就是最优，或一样好"),
    "why_slower": Text(
        en="{layout} takes {step} s a step, the best {best} s ({ratio} slower); most of it is {part}: {more} s more",
        zh="{layout} 每步 {step} 秒，最优为 {best} 秒（慢 {ratio}）；主要多在{part}：多 {more} 秒",
    ),
    "never_fits": Text(en="not even {ranks} ranks would do: {reason}", zh="{ranks} 个进程也不够：{reason}"),
    "not_positive": Text(en="{key} is {value}; it must be above 0", zh="{key} 为 {value}；必须大于 0"),
    "fails_too_often": Text(
        en="a failure every {mtbf} s leaves no time for checkpoints of {checkpoint} s; save faster or use fewer nodes",
        zh="平均每 {mtbf} 秒一次故障，来不及做 {checkpoint} 秒的检查点；请加快保存或减少机器",
    ),
}
