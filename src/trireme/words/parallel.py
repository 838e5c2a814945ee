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
    "zero_halves": Text(
        en="a backward in two halves (zero-bubble schedules) needs a block's parameters twice, but zero3 frees them in "
        "between; take zero2, or schedule=1f1b or interleaved",
        zh="把反向拆成两半的调度（zero-bubble）会两次用到一个块的参数，而 zero3 会在其间释放它们；请改用 zero2，"
        "或 schedule=1f1b、interleaved",
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
    "recompute_kind": Text(
        en="recompute(module, {kind!r}): the kinds are none, selective and full",
        zh="recompute(module, {kind!r})：可选的方式为 none、selective、full",
    ),
    "recompute_auto": Text(
        en="recompute=auto chooses layers for a run whose model is known by its numbers; here every layer is recomputed in "
        "full; give recompute by layer to keep more",
        zh="recompute=auto 只能为已知结构参数的模型挑选各层；此处所有层都完全重计算；可逐层指定 recompute 以保留更多激活",
    ),
    "recompute_writes": Text(
        en="{path} can't be recomputed: its forward changes {what}, which would change again in backward; take recompute=none "
        "for it, or move that out of the forward",
        zh="{path} 无法重计算：其前向会改变 {what}，反向时会再改变一次；请对它设 recompute=none，或把这一操作移出前向",
    ),
    "recompute_prints": Text(
        en="{path} can't be recomputed: its forward prints ({line!r}), and would again in backward; take recompute=none for "
        "it, or print elsewhere",
        zh="{path} 无法重计算：其前向会打印（{line!r}），反向时会再打印一次；请对它设 recompute=none，或在别处打印",
    ),
    "recompute_draws": Text(
        en="{path} can't be recomputed: its forward draws from Python's or numpy's random numbers, which would differ in "
        "backward; draw with torch, or take recompute=none for it",
        zh="{path} 无法重计算：其前向使用了 Python 或 numpy 的随机数，反向时会不同；请改用 torch 的随机数，或对它设 recompute=none",
    ),
    "host_full": Text(
        en="offload.optimizer = host needs {needs} of host memory, {free} are free; take disk, or more ranks with zero1",
        zh="offload.optimizer = host 需要 {needs} 主机内存，目前可用 {free}；请改用 disk，或以 zero1 分到更多 rank",
    ),
    "disk_full": Text(
        en="offload.optimizer = disk needs {needs} in {path}, {free} are free; free some, or name another disk with "
        "offload.path",
        zh="offload.optimizer = disk 需要在 {path} 中占用 {needs}，目前可用 {free}；请腾出空间，或用 offload.path 指定另一块磁盘",
    ),
    "disk_unusable": Text(
        en="offload.path = {path} can't be used: {reason}; name a folder that can be written to",
        zh="offload.path = {path} 无法使用：{reason}；请指定一个可写的目录",
    ),
    "parameters_need_zero3": Text(
        en="offload.parameters = host moves ZeRO-3's shards, and the layout is {layout}; add zero3, or offload the optimizer",
        zh="offload.parameters = host 移动的是 ZeRO-3 的分片，而布局为 {layout}；请加上 zero3，或改为卸载优化器",
    ),
    "chunked_whole": Text(
        en="{name} mixes the elements of a tensor, so it can't step on fp32 copies or offloaded state stretch by stretch; "
        "take AdamW or another elementwise optimizer, or precision.policy=bf16 and offload.optimizer=none",
        zh="{name} 会混合张量内的元素，无法分段作用于 fp32 主权重或已卸载的状态；请改用 AdamW 等逐元素的优化器，"
        "或设 precision.policy=bf16、offload.optimizer=none",
    ),
    "chunked_stepped": Text(
        en="{name} has state already; give it its fp32 copies or another place for its state before its first step",
        zh="{name} 已有状态；请在第一步之前为它设置 fp32 主权重或状态的存放位置",
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
        en="{name} already has state of the whole model, which can't be cut as the model was; build it after the model "
        "is spread, or load its state then",
        zh="{name} 已带有完整模型的状态，无法按模型的切分方式切分；请在模型分布之后再构建它，或届时再加载状态",
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
    # Stages of a module and what passes between them
    "stage_few_cuts": Text(
        en="{stages} stages were asked for, but this model can be cut into at most {most} ({blocks}); a stage begins where a block is first entered, so layers that share one module, or call it again, count once. Use pp * vp <= {most}.",
        zh="要求 {stages} 个流水线阶段，但该模型最多只能切成 {most} 段（{blocks}）；阶段只能从某个块第一次被调用处开始，共用同一模块或重复调用它的层只算一个。请使 pp * vp <= {most}。",
    ),
    "stage_asks_values": Text(
        en="{line} asks for the values of activations (an `if`, `.item()` or `nonzero` on them) outside of any block, where the model is walked through without numbers to see how it can be spread. Put that code into a block, or compute it from the inputs alone.",
        zh="{line} 处的代码在任何块之外读取激活的值（对其做 `if`、`.item()` 或 `nonzero`），而模型在这里是不带数值走一遍以确定如何切分的。请把这段代码移入某个块内，或只用输入来计算。",
    ),
    "stage_not_entered": Text(
        en="The forward came neither to block {block}, with which a pipeline stage begins, nor to any behind it: all were left out this time. Use fewer stages, or don't leave layers out.",
        zh="前向计算既没有执行到流水线阶段的起点块 {block}，也没有执行到它之后的任何块：这一次它们全被跳过了。请减少阶段数，或不要随机跳过层。",
    ),
    "stage_recomputed": Text(
        en="The model's own code recomputes block {block} inside a function that torch.utils.checkpoint was given, and the stage begins in it. Give checkpoint the block itself, or leave recomputation to the layout (recompute=full).",
        zh="模型代码把块 {block} 放在传给 torch.utils.checkpoint 的函数中重计算，而阶段正好从该块开始。请直接把块本身传给 checkpoint，或改由布局负责重计算（recompute=full）。",
    ),
    "stage_side_values": Text(
        en="{line} asks for values inside a block whose tensors leave it by another way than its result (a hook, an attribute), so the other stages can't foresee them. For experts take a batched or grouped implementation; or return the tensors; or use pp=1.",
        zh="{line} 处的代码在块内读取张量的值，而该块的张量又通过返回值以外的途径（钩子、属性）传出，其他阶段无法预知。专家层请使用 batched 或 grouped 实现；或把这些张量作为返回值；或使用 pp=1。",
    ),
    "stage_state": Text(
        en="Buffer {name} is written before block {block} and read behind it, but every pipeline stage has a copy of its own. Cut elsewhere, or hand the value on as a tensor.",
        zh="缓冲区 {name} 在块 {block} 之前写入、在其之后读取，但每个流水线阶段各有一份副本。请在别处切分，或以张量形式传递该值。",
    ),
    "stage_no_block": Text(
        en="A stage can't begin with {block}: it is no block of this model. It can begin with {blocks}.",
        zh="阶段不能从 {block} 开始：它不是该模型的块。可作为起点的有 {blocks}。",
    ),
    "stage_bad_cuts": Text(
        en="{stages} stages need {stages} - 1 different cuts in the order in which the blocks run, not {cuts}.",
        zh="{stages} 个阶段需要 {stages} - 1 个互不相同、且按执行顺序排列的切分点，而给出的是 {cuts}。",
    ),
    "stage_outside": Text(
        en="This module is cut into pipeline stages and lacks the parameters of the others, so it can't be called by itself. Use the model's train_step, eval_step or the schedule that runs the stages.",
        zh="该模块已切分为流水线阶段，缺少其他阶段的参数，不能单独调用。请使用模型的 train_step、eval_step，或运行各阶段的调度。",
    ),
    "stage_absent_result": Text(
        en="{block} computed with a tensor that belongs to another pipeline stage and was not handed on, for it came by a way that can't be followed (a global, a C++ extension). Pass it as an argument, or use pp=1.",
        zh="{block} 的计算用到了属于其他流水线阶段、且未被传递过来的张量，因为它经由无法跟踪的途径（全局变量、C++ 扩展）传入。请改为作为参数传入，或使用 pp=1。",
    ),
    "stage_not_as_assumed": Text(
        en="The code of {block} asks for values, so it was supposed to give a tensor like the one it gets, and it gives something else. Use code without data-dependent branches there (for experts, a batched or grouped implementation), or pp=1.",
        zh="{block} 的代码会读取张量的值，因此假定其输出与输入张量形状相同，但实际并非如此。请在该处使用不依赖数据分支的代码（专家层可用 batched 或 grouped 实现），或使用 pp=1。",
    ),
    "stage_other_value": Text(
        en="The result of {name} came from the stage before as {found}, and is {expected} here: the stages don't run the same forward. Give every rank the same batch and the same code.",
        zh="{name} 的结果从上一阶段收到时为 {found}，而本阶段应为 {expected}：各阶段执行的前向不一致。请确保每个 rank 使用相同的批次和代码。",
    ),
    "stage_host_draws": Text(
        en="Block {block} draws from Python's or numpy's random generator inside its forward, which stages that don't run it can't follow. Draw between the blocks or with torch (torch.rand(())), or use pp=1.",
        zh="块 {block} 在其前向内部从 Python 或 numpy 的随机数生成器抽数，不运行它的阶段无法跟上。请在块之间抽取，或改用 torch（torch.rand(())），或使用 pp=1。",
    ),
    "stage_unsteady": Text(
        en="Stage {stage} takes another way through the model each time it runs the same micro-batch, so the stages can't agree on what crosses their borders. Make the branch depend on the inputs alone, or use pp=1.",
        zh="阶段 {stage} 每次处理同一个微批次时走的路径都不同，各阶段无法就边界上传递的内容达成一致。请让分支只依赖输入，或使用 pp=1。",
    ),
    "transport_changed": Text(
        en="What stage {source} hands to stage {target} changed its shapes although the batch did not: shapes must follow from the batch's own. Pad what varies, or use pp=1.",
        zh="阶段 {source} 传给阶段 {target} 的张量形状发生了变化，而批次的形状没有变：这些形状必须由批次的形状决定。请对可变部分做填充，或使用 pp=1。",
    ),
    "transport_lost": Text(
        en="{what} of micro-batch {microbatch} from stage {source} to stage {target} did not get through: {why}. Another rank failed or is stuck; its own message says why.",
        zh="微批次 {microbatch} 的 {what}（从阶段 {source} 到阶段 {target}）未能送达：{why}。另一个 rank 出错或卡住，原因见其自身的消息。",
    ),
    "pipeline_other_stages": Text(
        en="Schedule {schedule} gives this rank stages {wanted}, but it holds {found}. Cut the module for the same schedule.",
        zh="调度 {schedule} 分给该 rank 的阶段为 {wanted}，而它持有的是 {found}。请按同一调度切分模块。",
    ),
    "pipeline_absent_loss": Text(
        en="The loss uses a tensor that another pipeline stage computed and the module did not return. Let the module return it, or use pp=1.",
        zh="损失函数用到了由其他流水线阶段计算、而模块没有返回的张量。请让模块返回它，或使用 pp=1。",
    ),
}
