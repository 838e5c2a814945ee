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
}
