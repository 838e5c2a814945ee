"""What is said about running a module on shards."""

from trireme.words.catalogue import Text

TEXTS: dict[str, Text] = {
    "whole": Text(
        en="{what} can't keep its input cut this way",
        zh="{what} 无法在这种切分下保持输入的切分",
    ),
    "output": Text(
        en="the outputs would be cut; a loss function given to the planner lets them stay so",
        zh="输出会被切分；若把损失函数一并交给规划，则可以保持切分",
    ),
    "too_few": Text(
        en="{length} elements in whole groups of {grain} don't give each of {degree} ranks one",
        zh="{length} 个元素按每组 {grain} 个划分，不够让 {degree} 个 rank 各得一组",
    ),
    "never_cut": Text(
        en="nothing it is multiplied with is cut, or it is a small table",
        zh="与它相乘的张量都没有被切分，或它只是一张小表",
    ),
    "by_column": Text(en="cut along its outputs", zh="沿输出维切分"),
    "by_partner": Text(en="cut as what it is multiplied or added with", zh="与它相乘或相加的张量怎样切，它就怎样切"),
    "gathered": Text(
        en="{what} had to gather what {names} cut; the result is right, the communication could be spared",
        zh="{what} 只能先聚合由 {names} 切分的张量；结果正确，但这次通信本可省去",
    ),
    "in_place": Text(
        en="{what} writes into a tensor that {names} cut, which can't be gathered; write it without in-place assignment",
        zh="{what} 就地写入由 {names} 切分的张量，无法聚合；请改成不就地赋值的写法",
    ),
    "in_place_sum": Text(
        en="the module writes in place into a view of what ranks still have to add up; write it without in-place operations",
        zh="模块就地写入了尚待各 rank 求和的张量的视图；请改成不就地修改的写法",
    ),
    "reentrant": Text(
        en="reentrant recomputation runs a module's code outside the interpreter; use checkpoint(..., use_reentrant=False)",
        zh="可重入的重计算会在解释器之外运行模块代码；请使用 checkpoint(..., use_reentrant=False)",
    ),
    "no_way": Text(
        en="no way was found to run {module} on shards: {what}, at {line}; it runs whole with tp=1",
        zh="没有找到在切分张量上运行 {module} 的方式：{what}，位于 {line}；设 tp=1 即可完整运行",
    ),
    "unknown_value": Text(
        en="{what} asks for the contents of a tensor, which a plan doesn't have",
        zh="{what} 需要张量的具体内容，而规划时没有内容",
    ),
    "failed": Text(
        en="run on tensors without contents it raised {error}",
        zh="在没有内容的张量上运行时抛出 {error}",
    ),
    "too_many_passes": Text(
        en="each of {passes} passes through the module changed the plan for tp; it runs whole with tp=1",
        zh="遍历该模块 {passes} 遍，tp 的规划仍未稳定；设 tp=1 即可完整运行",
    ),
    "other_module": Text(
        en="parameter {name} of shape {shape} isn't what the plan was made for; plan this module anew",
        zh="参数 {name} 的形状 {shape} 与计划不符；请为该模块重新规划",
    ),
    "other_degree": Text(
        en="the plan is for {planned} ranks, the group has {degree}; plan for {degree}",
        zh="计划面向 {planned} 个 rank，而该组有 {degree} 个；请按 {degree} 重新规划",
    ),
    "ulysses_heads": Text(
        en="cp_kind=ulysses gives each of {degree} ranks whole heads, and {heads} don't divide; "
        "cp_kind=ring or allgather takes any number",
        zh="cp_kind=ulysses 要给 {degree} 个 rank 各分整数个注意力头，而 {heads} 个头无法整除；"
        "cp_kind=ring 或 allgather 对头数没有要求",
    ),
    "short_sequence": Text(
        en="a sequence of {length} positions gives none to some of {degree} ranks; use cp={length} or less, or longer ones",
        zh="长度为 {length} 的序列不够 {degree} 个 rank 各分一个位置；请用 cp={length} 或更小，或更长的序列",
    ),
    "no_sequence_sp": Text(
        en="sp shares out positions of a sequence between tensor-parallel ranks, and none of {names} has one (integers "
        "[B, T] or vectors [B, T, D]); leave sp out, tp alone works",
        zh="sp 在张量并行的 rank 之间分配序列的位置，而 {names} 中没有序列（整数 [B, T] 或向量 [B, T, D]）；请去掉 sp，仅用 tp 即可",
    ),
    "no_sequence": Text(
        en="cp={degree} cuts sequences, and none of {names} has one (integers [B, T] or vectors [B, T, D]); "
        "name its dim in sequence_dims, or use cp=1",
        zh="cp={degree} 沿序列切分，而 {names} 中没有序列（整数 [B, T] 或向量 [B, T, D]）；"
        "请在 sequence_dims 中写明序列所在的维，或用 cp=1",
    ),
    "gathered_operand": Text(
        en="{what} met two cut sequences and gathered one; the result is right, and cp_kind={kind} is for "
        "F.scaled_dot_product_attention, which this isn't",
        zh="{what} 遇到两个被切分的序列，只能聚合其中一个；结果正确，但 cp_kind={kind} 只用于 "
        "F.scaled_dot_product_attention，此处并非该调用",
    ),
    "random_unplaced": Text(
        en="random numbers in {path} are drawn for tensors whose rows can't be placed in the global batch; they differ between layouts",
        zh="{path} 中的随机数用于无法对应到全局 batch 行的张量；不同布局下结果会不同",
    ),
    "random_one_row": Text(
        en="{path} draws one number, of shape [1], for a micro-batch of one row: it is taken for that row's own; where one number is meant for all rows, draw it with shape [], as torch.rand(())",
        zh="{path} 在只有一行的 micro-batch 上以形状 [1] 抽取一个随机数：它被视为该行自己的；若要所有行共用一个数，请用形状 []，即 torch.rand(())",
    ),
    "random_attention": Text(
        en="attention dropout in {path} leaves the fused kernel, which can't drop the elements that one device would drop",
        zh="{path} 中的注意力 dropout 不使用融合算子，因为融合算子无法丢弃与单卡相同的元素",
    ),
}
