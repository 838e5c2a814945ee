"""What is said about running a module on many ranks."""

from __future__ import annotations

from trireme.words.catalogue import Text

TEXTS: dict[str, Text] = {
    # Gradients and state over data-parallel ranks
    "zero_sparse": Text(
        en="parameter {name} has a sparse gradient, which can't be summed over ranks; build its embedding with "
        "sparse=False",
        zh="参数 {name} 的梯度是稀疏的，无法跨 rank 求和；请用 sparse=False 构建对应的 embedding",
    ),
    "zero_late": Text(
        en="parameter {name} got another gradient after its sum was under way: it is used in more places than in the "
        "first step; use it everywhere in every step, or finish the step before going on",
        zh="参数 {name} 的梯度求和已经开始，却又得到新的梯度：它在第一步之后被用到了更多地方；请在每一步都以相同方式使用它，"
        "或先结束这一步再继续",
    ),
    # Optimizers
    "optimizer_lbfgs": Text(
        en="{name} evaluates the loss many times a step and takes products over all parameters, which no layout of "
        "several ranks can run; AdamW works on any",
        zh="{name} 每步要多次计算损失，并对全部参数求内积，任何多 rank 布局都无法运行；AdamW 可用于任何布局",
    ),
    "optimizer_sparse": Text(
        en="{name} works on sparse gradients, which can't be summed over ranks; take Adam with dense embeddings",
        zh="{name} 处理的是稀疏梯度，无法跨 rank 求和；请改用 Adam 与稠密 embedding",
    ),
    "optimizer_joint": Text(
        en="{name} mixes several tensors in one update (a trial on small ones showed it), so it can't step on parts "
        "of a model; it works where every rank holds the whole one (dp=N alone), AdamW works on any layout",
        zh="{name} 的一次更新会混合多个张量（已用小张量试出），因此不能只在模型的一部分上更新；"
        "它适用于每个 rank 都持有完整模型的布局（只用 dp=N），AdamW 可用于任何布局",
    ),
    "optimizer_closure": Text(
        en="{name}.step was given a closure, which would run forward and backward outside the layout; call "
        "model.train_step first, then step() without one",
        zh="{name}.step 收到了闭包，它会在布局之外执行前向与反向；请先调用 model.train_step，再调用不带参数的 step()",
    ),
    "optimizer_group": Text(
        en="{name} can't take another parameter group once it serves a spread model; build it with all groups first",
        zh="{name} 已用于分布后的模型，不能再添加参数组；请在构建时给出全部参数组",
    ),
    "optimizer_foreign": Text(
        en="{name} holds a parameter of shape {shape} that isn't the model's; build it on model.parameters()",
        zh="{name} 持有一个形状为 {shape}、不属于该模型的参数；请用 model.parameters() 构建它",
    ),
    "optimizer_stepped": Text(
        en="{name} has already stepped on the whole model, so its state doesn't fit the spread one; build a new one, "
        "or load the state after spreading",
        zh="{name} 已在完整模型上更新过，其状态与分布后的模型不符；请重新构建，或在分布之后再加载状态",
    ),
    # Experts
    "expert_few": Text(
        en="{path} has {experts} experts, too few for ep = {ep} ranks; ep = {near} works.",
        zh="{path} 只有 {experts} 个专家，不够分给 ep = {ep} 个 rank；可改用 ep = {near}。",
    ),
    "expert_unlike": Text(
        en="its parameters don't all have one place per expert in their first dim",
        zh="它的参数并非都在第 0 维上按专家排列",
    ),
    "expert_trial": Text(
        en="tried out on a small copy, its experts gave something else when they were run apart",
        zh="在小副本上试算时，把专家分开运行得到的结果不同",
    ),
    "expert_unequal": Text(
        en="its members aren't two or more modules of one kind and size",
        zh="其中的模块不是两个以上同类同尺寸的专家",
    ),
    "expert_shared": Text(
        en="its members have no parameters, or share them with others",
        zh="其中的模块没有参数，或与其他模块共用参数",
    ),
    "expert_rows": Text(
        en="its members don't treat each row by itself",
        zh="其中的模块并非对每一行独立计算",
    ),
    "expert_chained": Text(
        en="The experts of {path} feed one another or choose by each other's results, so they can't run apart; use ep = 1.",
        zh="{path} 的专家互为输入，或依据彼此的结果作选择，无法分开运行；请用 ep = 1。",
    ),
    "expert_called": Text(
        en="An expert of {path} was called with {count} arguments or from elsewhere; dealt-out experts take one tensor from {path}'s own forward; use ep = 1.",
        zh="{path} 的某个专家被传入 {count} 个参数，或在别处被调用；分到各 rank 的专家只能由 {path} 自己的 forward 以一个张量调用；请用 ep = 1。",
    ),
    "expert_again": Text(
        en="The experts of {path} were dealt out before.",
        zh="{path} 的专家此前已经分配过。",
    ),
}
