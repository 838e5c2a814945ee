"""What ``trireme simulate`` says."""

from __future__ import annotations

from trireme.words.catalogue import Text

TEXTS: dict[str, Text] = {
    # the command
    "help": Text(
        en="Run one rank of a layout without devices and without the other ranks.\n\nThe rank's own code runs two "
        "training steps on tensors without memory; printed are the second step's peak memory and its collectives. "
        "PLAN is a plan.json; without it --layout says how the model is spread.",
        zh="在没有设备、也没有其他 rank 的情况下运行某种布局中的一个 rank。\n\n该 rank 自己的代码在不占内存的张量上跑两个"
        "训练步；输出第二步的显存峰值与集合通信。PLAN 是 plan.json；不给时由 --layout 说明布局。",
    ),
    "option_plan": Text(en="A plan.json.", zh="plan.json 文件。"),
    "option_model": Text(
        en="file.py:build or package.module:build, a Hugging Face folder or config.json; weights are never read.",
        zh="file.py:build 或 package.module:build，或 Hugging Face 目录、config.json；不读取权重。",
    ),
    "option_layout": Text(
        en="Layout, e.g. tp=8,pp=4,zero3,micro=8; a missing dp is ranks over the rest.",
        zh="并行布局，例如 tp=8,pp=4,zero3,micro=8；未写 dp 时取 rank 数除以其余各维。",
    ),
    "option_ranks": Text(
        en="Ranks of the world. Default: those of PLAN, else 1.", zh="rank 总数。默认取 PLAN 的，否则为 1。"
    ),
    "option_rank": Text(en="The rank to run.", zh="要运行的 rank。"),
    "option_seqs": Text(
        en="Sequences of the global batch. Default: PLAN's, else one a micro-batch.",
        zh="全局 batch 的序列数。默认取 PLAN 的，否则每个 micro-batch 一条。",
    ),
    "option_seq_len": Text(
        en="Tokens of a sequence. Default: PLAN's, else 128.", zh="每条序列的 token 数。默认取 PLAN 的，否则 128。"
    ),
    "option_dtype": Text(
        en="Number format of weights, gradients, computation and state.", zh="权重、梯度、计算与优化器状态的数值格式。"
    ),
    "option_optimizer": Text(en="Optimizer, for its state.", zh="优化器，决定其状态大小。"),
    "option_json": Text(en="Print JSON.", zh="以 JSON 输出。"),
    # the report
    "title": Text(
        en="rank {rank} of {ranks} · {layout} · {seqs} sequences of {seq_len} tokens a step",
        zh="rank {rank} / 共 {ranks} · {layout} · 每步 {seqs} 条序列，每条 {seq_len} token",
    ),
    "parameters": Text(en="parameters on this rank: {numel}", zh="本 rank 的参数量：{numel}"),
    "peak": Text(
        en="peak: {size} ({num_bytes} bytes), in {moment}", zh="峰值：{size}（{num_bytes} 字节），出现在{moment}"
    ),
    "part": Text(en="  {name:<14}{size:>12}", zh="  {name:<14}{size:>12}"),
    "resting": Text(en="between steps: {size}", zh="两步之间：{size}"),
    "collectives": Text(en="collectives of one step, by axis:", zh="一步的集合通信，按轴列出："),
    "collective": Text(
        en="  {axis:<14}{kind:<16}{calls:>7} calls {size:>12}", zh="  {axis:<14}{kind:<16}{calls:>7} 次 {size:>12}"
    ),
    "no_collectives": Text(en="  none", zh="  无"),
    "took": Text(en="took {seconds} s ({parts})", zh="用时 {seconds} 秒（{parts}）"),
    "part_parameters": Text(en="parameters", zh="参数"),
    "part_gathered": Text(en="gathered", zh="聚合的参数"),
    "part_gradients": Text(en="gradients", zh="梯度"),
    "part_optimizer": Text(en="optimizer", zh="优化器"),
    "part_activations": Text(en="activations", zh="激活"),
    "part_other": Text(en="other", zh="其他"),
    "moment_forward": Text(en="the forward", zh="前向"),
    "moment_backward": Text(en="the backward", zh="反向"),
    "moment_optimizer": Text(en="the optimizer's step", zh="优化器更新"),
    "clock_borders": Text(en="what stages hand on {seconds}", zh="流水段之间传什么 {seconds}"),
    "clock_build": Text(en="build {seconds}", zh="构建 {seconds}"),
    "clock_spread": Text(en="spread {seconds}", zh="切分 {seconds}"),
    "clock_steps": Text(en="two steps {seconds}", zh="两步 {seconds}"),
    # refusals
    "needs_layout": Text(
        en="neither PLAN nor --layout says how the model is spread; give one, e.g. --layout tp=2",
        zh="没有给出 PLAN，也没有 --layout，不知道如何切分模型；请给出其一，例如 --layout tp=2",
    ),
    "two_layouts": Text(en="PLAN says the layout already; leave out --layout", zh="PLAN 已写明布局；请去掉 --layout"),
    "needs_model": Text(
        en="--model is missing: give file.py:build, a Hugging Face folder or a config.json",
        zh="缺少 --model：请给出 file.py:build、Hugging Face 目录或 config.json",
    ),
    "plan_model": Text(
        en="the plan's model is {name!r}, a name and not a module; say with --model what to build: file.py:build, a "
        "Hugging Face folder or a config.json",
        zh="该计划的模型是 {name!r}，只是名称，不是模块；请用 --model 指明构建什么：file.py:build、Hugging Face 目录或 "
        "config.json",
    ),
    "plan_unreadable": Text(en="{path}: can't be read: {reason}", zh="{path}：无法读取：{reason}"),
    "plan_ranks": Text(
        en="--ranks {ranks}, but the plan's layout needs {needs}; leave out --ranks",
        zh="--ranks {ranks}，但计划的布局需要 {needs}；请去掉 --ranks",
    ),
    "plan_offload": Text(
        en="the plan offloads {path}, which can't be simulated; plan without --offload",
        zh="该计划卸载 {path}，无法模拟；请不带 --offload 重新规划",
    ),
    "no_rank": Text(
        en="there is no rank {rank}: ranks are 0 to {last}", zh="没有 rank {rank}：rank 范围为 0 到 {last}"
    ),
    "no_experts": Text(
        en="ep={ep} can't be simulated: how many tokens an expert gets follows from numbers that nobody computes; "
        "with ep=1 the rest of the layout can",
        zh="无法模拟 ep={ep}：每个专家分到多少 token 取决于没有计算的数值；ep=1 时布局的其余部分可以模拟",
    ),
    "no_loss": Text(
        en="a model file that defines {what} can't be simulated; one whose loss is a sum and a count can",
        zh="定义了 {what} 的模型文件无法模拟；损失为“总和与计数”的可以",
    ),
    "asks_value": Text(
        en="{line} asks for a value ({dtype}) that depends on parameters, which have none in a simulation; run it with "
        "trireme verify on real ranks",
        zh="{line} 需要一个取决于参数的值（{dtype}），而模拟中的参数没有数值；请用 trireme verify 在真实 rank 上运行",
    ),
    "asks_shape": Text(
        en="the shapes of this model's tensors depend on values ({reason}), which a simulation hasn't; run it with "
        "trireme verify on real ranks",
        zh="该模型的张量形状取决于数值（{reason}），而模拟中没有数值；请用 trireme verify 在真实 rank 上运行",
    ),
    "no_answer": Text(
        en="nobody can say what {name} gives on ranks that don't exist; run it with trireme verify on real ranks",
        zh="无法得知 {name} 在不存在的 rank 上给出什么；请用 trireme verify 在真实 rank 上运行",
    ),
}
