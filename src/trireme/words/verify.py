"""What ``trireme verify`` says."""

from __future__ import annotations

from trireme.words.catalogue import Text

TEXTS: dict[str, Text] = {
    # the command
    "help": Text(
        en="Show that a layout trains a model as one device does.\n\nStarts the ranks on this machine, trains a few "
        "steps, and compares loss, every gradient, their norm and every parameter with one device. Exit status 0: "
        "equal; 1: not equal, or a rank failed; 2: asked in a way that can't be done.",
        zh="证明某种并行布局训练出的模型与单设备一致。\n\n在本机启动各 rank，训练几步，把损失、每个梯度、梯度范数和"
        "每个参数与单设备逐一比较。退出码 0：一致；1：不一致，或有 rank 出错；2：要求本身无法执行。",
    ),
    "option_model": Text(
        en="file.py:build or package.module:build (a function that returns a plain module), a Hugging Face folder or "
        "config.json.",
        zh="file.py:build 或 package.module:build（返回普通模块的函数），或 Hugging Face 目录、config.json。",
    ),
    "option_layout": Text(
        en="Layout, e.g. tp=2,pp=2,zero3; a missing dp is ranks over the rest.",
        zh="并行布局，例如 tp=2,pp=2,zero3；未写 dp 时取 rank 数除以其余各维。",
    ),
    "option_ranks": Text(en="Number of ranks, each a process here.", zh="rank 数，每个 rank 是本机的一个进程。"),
    "option_dtype": Text(
        en="Number format of weights and computation; fp64 tells rounding from mistakes.",
        zh="权重与计算的数值格式；fp64 能分清舍入误差与真正的错误。",
    ),
    "option_steps": Text(en="Optimizer steps; shapes alternate.", zh="优化器步数；两种形状交替。"),
    "option_shrink": Text(
        en="Take a small twin of a Hugging Face model: the same graph, small sizes, random weights.",
        zh="改用 Hugging Face 模型的小型孪生：计算图相同，尺寸很小，权重随机。",
    ),
    "option_inject": Text(
        en="Make a mistake on purpose, to see it found; an unknown name lists them.",
        zh="故意引入一个错误，看能否被发现；名称有误时会列出全部可用名称。",
    ),
    "option_json": Text(en="Print JSON.", zh="以 JSON 输出。"),
    "option_seqs": Text(
        en="Sequences of the first step's global batch; default: what fills the layout.",
        zh="第一步全局批的序列数；默认取刚好填满布局的数量。",
    ),
    "option_seq_len": Text(en="Tokens a sequence; default: 16.", zh="每条序列的 token 数；默认 16。"),
    "option_seed": Text(en="Seed of weights and batches.", zh="权重与批数据的随机种子。"),
    "option_timeout": Text(en="Seconds after which ranks are ended.", zh="超过这么多秒就终止各 rank。"),
    "option_zoo": Text(
        en="Run every model of this folder under every layout of the table instead, in ranks of their own.",
        zh="改为让该目录中的每个模型逐一跑遍表中的所有布局，每格用各自的 rank。",
    ),
    "option_table": Text(
        en="The Markdown page of --zoo; its cells are kept beside it (.jsonl), so a run that was cut short goes on.",
        zh="--zoo 生成的 Markdown 页面；各格结果存于同名 .jsonl，中断后可继续。",
    ),
    "option_reuse": Text(
        en="With --zoo, take cells that other code made as well.", zh="与 --zoo 同用：也采用其他版本代码得出的结果。"
    ),
    "needs_model": Text(
        en="--model or --zoo must say what to verify; see trireme verify --help.",
        zh="请用 --model 或 --zoo 指明要验证什么；见 trireme verify --help。",
    ),
    "empty_zoo": Text(
        en="--zoo {path}: no .py files there; the repository's are in recipes/zoo.",
        zh="--zoo {path}：该目录没有 .py 文件；仓库自带的在 recipes/zoo。",
    ),
    "cell": Text(
        en="{model:<18} {column:<24} {verdict:<9} {error:.1e} {text}",
        zh="{model:<18} {column:<24} {verdict:<9} {error:.1e} {text}",
    ),
    # the report
    "head": Text(
        en="{model}: {layout} on {ranks} ranks against one device, {dtype}, {steps} steps",
        zh="{model}：{layout}，{ranks} 个 rank，与单设备比较，{dtype}，{steps} 步",
    ),
    "head_fault": Text(en="with a fault on purpose: {fault}", zh="故意引入的错误：{fault}"),
    "head_path": Text(
        en="path: {path}; a rank holds at most {ratio} of the parameters",
        zh="执行方式：{path}；每个 rank 最多持有 {ratio} 的参数",
    ),
    "columns": Text(en="              largest error    limit", zh="              最大误差         上限"),
    "row": Text(en="{label:<14}{error}       {limit}  {mark}", zh="{label:<14}{error}       {limit}  {mark}"),
    "row_loss": Text(en="loss", zh="loss 损失"),
    "row_norm": Text(en="gradient norm", zh="梯度范数"),
    "row_gradients": Text(en="gradients", zh="梯度"),
    "row_parameters": Text(en="parameters", zh="参数"),
    "fine": Text(en="fine", zh="正常"),
    "too_far": Text(en="TOO FAR", zh="超限"),
    "worst": Text(en="furthest from one device:", zh="与单设备相差最大的："),
    "worst_row": Text(en="{error}  {name} ({kind}, step {step})", zh="{error}  {name}（{kind}，第 {step} 步）"),
    "kind_gradient": Text(en="gradient", zh="梯度"),
    "kind_parameter": Text(en="parameter", zh="参数"),
    "missing": Text(
        en="on one device only: {names}",
        zh="只在单设备上有：{names}",
    ),
    "extra": Text(en="on the ranks only: {names}", zh="只在各 rank 上有：{names}"),
    "notice": Text(en="note: {text}", zh="提示：{text}"),
    "single_inside": Text(
        en="note: the model computes a part in fp32 whatever its weights are, so the limits are those of fp32",
        zh="提示：该模型有一部分始终用 fp32 计算，因此采用 fp32 的误差上限",
    ),
    "equal": Text(en="equal to one device", zh="与单设备一致"),
    "not_equal": Text(en="NOT equal to one device; look at: {names}", zh="与单设备不一致；请查看：{names}"),
    "batched_experts": Text(
        en="experts run as batched matrix products, for grouped ones don't exist in fp64",
        zh="专家改用批量矩阵乘法计算，因为分组矩阵乘法不支持 fp64",
    ),
    # mistakes
    "no_config": Text(
        en="{path} has no config.json; name a folder with one, the file itself, or file.py:build.",
        zh="{path} 中没有 config.json；请给出含该文件的目录、该文件本身，或 file.py:build。",
    ),
    "needs_hf": Text(
        en="models of transformers need it installed: pip install 'trireme[hf]'.",
        zh="使用 transformers 的模型需要先安装它：pip install 'trireme[hf]'。",
    ),
    "config_bad": Text(
        en="transformers can't build a model from {path}: {reason}",
        zh="transformers 无法用 {path} 构建模型：{reason}",
    ),
    "shrink_needs_config": Text(
        en="--shrink makes a twin of a Hugging Face config, and {model} is a function; let it build small sizes itself.",
        zh="--shrink 只能缩小 Hugging Face 配置，而 {model} 是函数；请让它自己构建小尺寸模型。",
    ),
    "cant_shrink": Text(
        en="{path} ({kind}) names no layers, heads or width that --shrink knows; write a small config.json and verify that.",
        zh="{path}（{kind}）没有 --shrink 认识的层数、头数或宽度；请写一份小的 config.json 再验证。",
    ),
    "no_parameters": Text(
        en="{model} builds a {kind} without a parameter that trains, so there is nothing to compare.",
        zh="{model} 构建的 {kind} 没有可训练的参数，无可比较。",
    ),
    "not_callable": Text(
        en="{name} beside the model must be a function, not {kind}.",
        zh="模型旁边定义的 {name} 应是函数，而不是 {kind}。",
    ),
    "loss_form": Text(
        en="loss(outputs, batch) returned {returned}; it returns (summed loss, count), or the file says "
        "loss_reduction = 'batch'.",
        zh="loss(outputs, batch) 返回了 {returned}；应返回（损失之和, 计数），或在文件中写 loss_reduction = 'batch'。",
    ),
    "batch_failed": Text(
        en="batch(seed, seqs, seq_len) failed: {reason}", zh="batch(seed, seqs, seq_len) 出错：{reason}"
    ),
    "batch_form": Text(
        en="batch(seed, seqs, seq_len) returned {returned}; it returns a dict of tensors with sequences in dim 0.",
        zh="batch(seed, seqs, seq_len) 返回了 {returned}；应返回张量字典，序列在第 0 维。",
    ),
    "needs_batch": Text(
        en="{kind} can't be called with token ids alone ({reason}); define batch(seed, seqs, seq_len) beside the "
        "function that builds it.",
        zh="{kind} 不能只用 token id 调用（{reason}）；请在构建函数旁边定义 batch(seed, seqs, seq_len)。",
    ),
    "no_logits": Text(
        en="the model returned {returned}, in which no logits are found; define loss(outputs, batch) beside the function "
        "that builds it.",
        zh="模型返回了 {returned}，其中找不到 logits；请在构建函数旁边定义 loss(outputs, batch)。",
    ),
    "logits_shape": Text(
        en="logits {logits} don't fit labels {labels}; define loss(outputs, batch) beside the function that builds the model.",
        zh="logits 形状 {logits} 与标签形状 {labels} 不符；请在构建函数旁边定义 loss(outputs, batch)。",
    ),
    "one_device_fails": Text(
        en="{model} fails on one device already: {reason}", zh="{model} 在单设备上就已出错：{reason}"
    ),
    "not_finite": Text(
        en="{model} gives no finite numbers on one device (step {step}: loss {loss}, gradient norm {norm}), so nothing "
        "can be compared; try --dtype fp64 or smaller weights.",
        zh="{model} 在单设备上就得不到有限数值（第 {step} 步：损失 {loss}，梯度范数 {norm}），无法比较；"
        "请尝试 --dtype fp64 或更小的权重。",
    ),
    "no_gradient": Text(
        en="{model} gets no gradient on one device (step {step}), so nothing can be compared; look at its loss.",
        zh="{model} 在单设备上没有梯度（第 {step} 步），无法比较；请检查其损失函数。",
    ),
    "few_seqs": Text(
        en="{seqs} sequences can't fill {micro} micro-batches on each of {dp} data-parallel ranks; --seqs {near} does.",
        zh="{seqs} 条序列不足以填满 {dp} 个数据并行 rank 各 {micro} 个微批；--seqs {near} 即可。",
    ),
    "rank_failed": Text(
        en="rank {rank} of {ranks} failed under {layout}: {what} ({place}); all tracebacks: {log}",
        zh="布局 {layout} 下 rank {rank}（共 {ranks} 个）出错：{what}（{place}）；全部回溯见 {log}",
    ),
    "ranks_ended": Text(
        en="under {layout} on {ranks} ranks: {what} Limit {limit_s:g} s (--timeout); more: {log}",
        zh="布局 {layout}，{ranks} 个 rank：{what} 时限 {limit_s:g} 秒（--timeout）；详见 {log}",
    ),
    "whole_batch": Text(
        en="a loss over the whole batch needs all rows in one place, and {layout} deals them out to {dp} data-parallel "
        "ranks and {micro} micro-batches; dp=1 with micro=1 (and any tp or pp) works.",
        zh="整批损失需要所有样本在一处计算，而 {layout} 把它们分给 {dp} 个数据并行 rank、{micro} 个微批；"
        "dp=1 且 micro=1（tp、pp 不限）即可。",
    ),
    # faults
    "unknown_fault": Text(
        en="there is no fault {name}; there are: {known}.", zh="没有名为 {name} 的错误；可用的有：{known}。"
    ),
    "fault_cant_bite": Text(
        en="{name} ({about}) changes nothing under {layout}; a layout with it: {example}.",
        zh="{name}（{about}）在布局 {layout} 下不起作用；可用的布局例如 {example}。",
    ),
    "fault_not_met": Text(
        en="{name} found nothing to break in {model} under {layout}; take a model that has it.",
        zh="{name} 在 {layout} 下的 {model} 中没有可破坏之处；请换一个有此结构的模型。",
    ),
    "fault_dp_bucket": Text(
        en="the first bucket of gradients is not summed over data-parallel ranks",
        zh="第一个梯度桶没有在数据并行 rank 间求和",
    ),
    "fault_clip_per_stage": Text(
        en="each rank clips by the norm of the gradients it holds", zh="每个 rank 按自己持有的梯度范数裁剪"
    ),
    "fault_replicated_gradient": Text(
        en="weights that all tensor-parallel ranks hold keep each rank's part of their gradient",
        zh="各张量并行 rank 都持有的权重只得到本 rank 的那部分梯度",
    ),
    "fault_norm_gradient": Text(
        en="a norm's weight that sees a part of the heads or positions on each rank keeps each rank's gradient",
        zh="各 rank 只见到部分头或部分位置的归一化权重，其梯度没有跨 rank 求和",
    ),
    "fault_tied_allreduce": Text(
        en="pipeline stages that share a weight don't sum its gradient", zh="共享权重的各流水线级没有把梯度相加"
    ),
    "fault_cp_offset": Text(
        en="causal attention takes every rank's queries for the first positions of the sequence",
        zh="因果注意力把每个 rank 的查询都当成序列开头的位置",
    ),
    "fault_expert_token": Text(
        en="the first token sent to or from each rank's experts is lost", zh="每个 rank 收发给专家的第一个 token 丢失"
    ),
    "fault_recompute_rng": Text(
        en="what is recomputed in backward draws other random numbers than its forward did",
        zh="反向中重算的部分抽取的随机数与其前向不同",
    ),
    "fault_qkv_rows": Text(
        en="a fused matrix is cut into neighbouring rows, not by part and head",
        zh="融合矩阵按相邻行切开，而不是按各部分、各注意力头切",
    ),
    "fault_bias_per_rank": Text(
        en="every tensor-parallel rank adds the bias before results are summed",
        zh="每个张量并行 rank 都在求和之前加了一遍偏置",
    ),
    "fault_token_scale": Text(
        en="every rank and micro-batch divides its loss by its own token count",
        zh="每个 rank、每个微批用自己的 token 数去除损失",
    ),
    "fault_dp_average": Text(
        en="gradients of data-parallel ranks are averaged, not summed", zh="数据并行各 rank 的梯度取了平均而不是求和"
    ),
    "fault_dp_rows": Text(en="every data-parallel rank reads the same rows", zh="数据并行各 rank 读到相同的样本"),
    "fault_accumulation": Text(
        en="each micro-batch's gradient replaces the one before", zh="每个微批的梯度覆盖了前一个"
    ),
    "fault_microbatch_scale": Text(
        en="the schedule divides gradients by the number of micro-batches once more",
        zh="流水线调度又用微批数去除了一遍梯度",
    ),
    "fault_stage_mask": Text(en="stages after the first see no padding mask", zh="第一级之后的流水线级看不到填充掩码"),
    "fault_shard_step": Text(en="the optimizer of one rank's shard never steps", zh="某个 rank 分片上的优化器从不更新"),
}
