"""Sentences of putting a run together, starting it and going on with it."""

from trireme.words.catalogue import Text

TEXTS = {
    "resume_or_overwrite": Text(
        en="--resume keeps the run and --overwrite deletes it: give one of them",
        zh="--resume 保留已有训练，--overwrite 删除已有训练：只能给其中一个",
    ),
    "only_with_resume": Text(
        en="{options}: says how a run goes on, but this one begins; add --resume or leave it out",
        zh="{options} 只在续训时有意义，而这里是新的训练；请加 --resume，或去掉它",
    ),
    # going on with a run
    "changed": Text(
        en="this run was made with other settings: {changes}. Its checkpoint would not fit, so it can't go on like "
        "this: put them back, or start anew in another run.dir (model.init_from takes this run's weights)",
        zh="这次训练原来的设置不同：{changes}。检查点与新设置不相容，无法这样继续：请改回原值，"
        "或换一个 run.dir 重新开始（可用 model.init_from 载入这次训练的权重）",
    ),
    "changed_unasked": Text(
        en="this run was made with other settings: {changes}. From here on it would learn differently: put them back, "
        "or insist with {accept}",
        zh="这次训练原来的设置不同：{changes}。此后的训练将有所不同：请改回原值，若确要如此请加 {accept}",
    ),
    "accept_idle": Text(
        en="--accept {keys}: no such key changed since the run began; leave it out",
        zh="--accept {keys}：这些键与训练开始时相同，请去掉",
    ),
    "change_free": Text(en="changed since the run began: {change}", zh="与训练开始时不同：{change}"),
    "change_rounding": Text(
        en="changed since the run began: {change}; sums are rounded otherwise from here on, so the run is no longer "
        "bit for bit what it would have been",
        zh="与训练开始时不同：{change}；此后求和的舍入不同，结果不再与原来逐位一致",
    ),
    "change_schedule": Text(en="changed since the run began: {change}", zh="与训练开始时不同：{change}"),
    "change_accepted": Text(
        en="accepted although the run was made otherwise: {change}", zh="已按要求接受不同的设置：{change}"
    ),
    "shorter": Text(
        en="the checkpoint is at step {step}, but the settings end at step {max_steps}; set train.max_steps to at "
        "least {step}",
        zh="检查点在第 {step} 步，而设置要求在第 {max_steps} 步结束；请把 train.max_steps 设为至少 {step}",
    ),
    "resume_from_start": Text(
        en="{path} has no checkpoint yet: starting at step 0", zh="{path} 中还没有检查点：从第 0 步开始"
    ),
    "no_good_checkpoint": Text(
        en="no checkpoint in {path} can be used: {problems}. Nothing was changed; restore one of them, or begin anew "
        "with --overwrite",
        zh="{path} 中没有可用的检查点：{problems}。未作任何改动；请恢复其中一个，或用 --overwrite 重新开始",
    ),
    "log_cut": Text(
        en="going on after step {step}; {dropped} later lines of the log were taken out and will be written again",
        zh="从第 {step} 步之后继续；日志中之后的 {dropped} 行已移除，将重新写入",
    ),
    "save_failed": Text(
        en="checkpoint not saved, the run goes on with the one before: {reason}",
        zh="检查点未能保存，训练继续，此前的检查点仍然有效：{reason}",
    ),
    "convert_taken": Text(
        en="{path} is there already; give another folder or --overwrite",
        zh="{path} 已存在；请换一个目录，或加 --overwrite",
    ),
    "converted_from_folder": Text(
        en="{target}: the weights of {source}; a run begins with them by model.init_from={target}",
        zh="{target}：来自 {source} 的权重；可用 model.init_from={target} 开始训练",
    ),
    "converted_to_folder": Text(
        en="{target}: the weights of {source} (step {step}) as a Hugging Face folder",
        zh="{target}：{source}（第 {step} 步）的权重，Hugging Face 格式",
    ),
    "fetched": Text(
        en="no good checkpoint in the run folder; {path} was brought back from {place}",
        zh="运行目录中没有可用的检查点；已从 {place} 取回 {path}",
    ),
    "save_inline": Text(
        en="checkpoints are written before the training goes on, not beside it: {reason}",
        zh="检查点改为同步写入（训练会等待），而非在后台写入：{reason}",
    ),
    "save_lost": Text(
        en="the last checkpoint of this run could not be saved; the one before is whole: {reason}",
        zh="本次运行的最后一个检查点未能保存，之前的检查点仍然完好：{reason}",
    ),
    "save_waited": Text(
        en="the training waited {waited_s:.1f} s for the checkpoint before; save less often (checkpoint.every_steps)",
        zh="训练为等待上一个检查点写完停了 {waited_s:.1f} 秒；请降低保存频率（checkpoint.every_steps）",
    ),
    "saved": Text(
        en="step {step} saved: {size}, the training stood still for {stall_s:.3f} s, durable after {durable_s:.2f} s",
        zh="第 {step} 步已保存：{size}，训练停顿 {stall_s:.3f} 秒，{durable_s:.2f} 秒后落盘",
    ),
    # weights to begin with
    "init_missing": Text(
        en="model.init_from is {path}, which is no folder; name a run, a checkpoint or a Hugging Face folder",
        zh="model.init_from 指向的 {path} 不是目录；请给出训练目录、检查点目录或 Hugging Face 模型目录",
    ),
    "init_overwritten": Text(
        en="model.init_from is {path}, in the run that --overwrite would delete; give the new run another run.dir "
        "than {run_dir}",
        zh="model.init_from 指向的 {path} 就在 --overwrite 要删除的训练中；请为新的训练换一个 run.dir（现为 {run_dir}）",
    ),
    "init_nothing": Text(
        en="model.init_from is {path}, which holds no good checkpoint and no config.json; name a run, a checkpoint or "
        "a Hugging Face folder",
        zh="model.init_from 指向的 {path} 中既没有可用的检查点，也没有 config.json；"
        "请给出训练目录、检查点目录或 Hugging Face 模型目录",
    ),
    "init_folder": Text(
        en="weights taken from {path}; training starts at step 0", zh="已从 {path} 载入权重；训练从第 0 步开始"
    ),
    "init_checkpoint": Text(
        en="weights only taken from {path}, optimizer and step ignored (it is at step {step}; --resume goes on with "
        "a run); training starts at step 0",
        zh="只从 {path} 载入权重，忽略其优化器状态和步数（它在第 {step} 步；要续训请用 --resume）；训练从第 0 步开始",
    ),
    "vocab_too_small": Text(
        en="the tokenizer has {vocab_size} tokens, but the module gives {num_logits} logits; build it with a "
        "vocabulary of at least {vocab_size}",
        zh="分词器有 {vocab_size} 个 token，而模型只输出 {num_logits} 个 logits；请用不小于 {vocab_size} 的词表构建模型",
    ),
    # decisions
    "precision_faster": Text(en="measured {gain}x faster than fp32 here", zh="本机实测比 fp32 快 {gain} 倍"),
    "precision_no_gain": Text(en="bf16 measured no faster here ({gain}x)", zh="本机实测 bf16 没有更快（{gain} 倍）"),
    "precision_unsupported": Text(en="this device has no bf16", zh="该设备不支持 bf16"),
    "precision_nothing_to_learn": Text(
        en="the first batch has nothing to learn, so nothing was measured", zh="第一个批次没有可学习的 token，未作测量"
    ),
    "compile_decided": Text(en="torch.compile is {choice}: {reason}", zh="torch.compile 为 {choice}：{reason}"),
    "compile_faster": Text(en="measured faster over the whole run", zh="实测全程更快"),
    "compile_no_gain": Text(en="measured no gain", zh="实测没有收益"),
    "compile_run_too_short": Text(
        en="the run is too short to earn the compilation back", zh="训练太短，收益抵不上编译时间"
    ),
    "compile_no_compiler": Text(en="this machine has no working compiler", zh="本机没有可用的编译器"),
    "compile_nothing_to_learn": Text(
        en="the first batch has nothing to learn, so nothing was measured", zh="第一个批次没有可学习的 token，未作测量"
    ),
    # reports
    "time_tried": Text(
        en="from a forward and backward tried here; the update is not in it",
        zh="由本机试运行的前向与反向推得，不含参数更新",
    ),
    "memory_least": Text(
        en="the memory above is the least: what {kind} keeps for its backward pass is not estimated",
        zh="以上内存为下限：{kind} 为反向传播保留的激活未作估计",
    ),
    "time_assumed": Text(en="assuming {mfu} of the peak", zh="按峰值的 {mfu} 估算"),
    "peak_measured": Text(en="measured", zh="实测"),
    "group_matrices": Text(en="matrices, decay {decay:g}:", zh="矩阵，衰减 {decay:g}:"),
    "group_vectors": Text(en="vectors, decay {decay:g}:", zh="向量，衰减 {decay:g}:"),
    "other_ranks": Text(
        en="layout = {layout} needs {needs} ranks and {ranks} run; start {needs}, with --nproc-per-node {needs} or "
        "torchrun, or change the layout.",
        zh="layout = {layout} 需要 {needs} 个 rank，当前有 {ranks} 个；请用 --nproc-per-node {needs} 或 torchrun 启动 {needs} 个，"
        "或修改布局。",
    ),
    "no_plan": Text(
        en="layout = {path} names a plan.json that can't be read: {reason}.",
        zh="layout = {path} 指向的 plan.json 无法读取：{reason}。",
    ),
    "compile_auto_layout": Text(
        en="train.compile = auto measures on one device and leaves blocks as written under layout = {layout}; on "
        "compiles them there",
        zh="train.compile = auto 只在单设备上测量，在 layout = {layout} 下块按原样运行；设为 on 即可编译",
    ),
    "logits_chunked": Text(
        en="logits of {size} a micro-batch are computed for some tokens at a time, with the loss "
        "(train.loss = plain has them all)",
        zh="每个微批的 logits 共 {size}，与损失一起按若干 token 分段计算（train.loss = plain 则一次算全）",
    ),
    "logits_plain": Text(
        en="logits of {size} a micro-batch are held whole: {reason}",
        zh="每个微批的 logits 共 {size}，整体保留：{reason}",
    ),
    "logits_refused": Text(
        en="train.loss = chunked can't be: {reason}; plain or auto works",
        zh="train.loss = chunked 无法做到：{reason}；请用 plain 或 auto",
    ),
    "logits_no_matrix": Text(
        en="{kind} has no output layer with a row for each token", zh="{kind} 没有每个 token 一行的输出层"
    ),
    "logits_context": Text(
        en="context parallelism (cp = {cp}) cuts the tokens already, and the loss is summed over ranks by position",
        zh="上下文并行（cp = {cp}）已切分 token，损失按位置跨 rank 求和",
    ),
    "lead_failed": Text(
        en="Rank 0 failed: {reason}.",
        zh="rank 0 失败：{reason}。",
    ),
    "auto_device": Text(
        en="layout = auto: no catalogue knows {device} on nodes like these; describe the machine with trireme cluster "
        "probe, plan with trireme plan RUN.yaml --cluster FILE.yaml --out plan.json, and give layout=plan.json.",
        zh="layout = auto：目录中没有 {device} 或这样的节点；请用 trireme cluster probe 描述本机，用 "
        "trireme plan RUN.yaml --cluster FILE.yaml --out plan.json 规划，再以 layout=plan.json 运行。",
    ),
    "auto_chosen": Text(
        en="layout = auto chose {layout}: {step} a step expected ({low} to {high}), {memory} on the fullest device; "
        "plan.json in the run folder has it",
        zh="layout = auto 选定 {layout}：预计每步 {step}（{low} 至 {high}），占用最多的设备 {memory}；已写入运行目录的 plan.json",
    ),
    "auto_next": Text(
        en="next best layout: {layout}, {step} a step expected",
        zh="次优布局：{layout}，预计每步 {step}",
    ),
    "auto_again": Text(
        en="layout = {layout}, as decided for this run before",
        zh="layout = {layout}，沿用本次运行此前的决定",
    ),
    "plan_other_batch": Text(
        en="The plan was made for {key} = {planned}, the run has {given}; change one, or make the plan again with "
        "trireme plan.",
        zh="该计划按 {key} = {planned} 生成，而本次运行为 {given}；请改其一，或用 trireme plan 重新生成。",
    ),
    "plan_vocab": Text(
        en="the plan counted on a vocabulary of {planned}, the tokenizer makes it {vocab_size}: its predictions are off by "
        "that",
        zh="该计划按词表大小 {planned} 计算，分词器给出的是 {vocab_size}：预测会有相应偏差",
    ),
    "plan_precision": Text(
        en="the plan counted on {planned}, the run computes in {precision}: its predictions are off by that",
        zh="该计划按 {planned} 计算，本次运行使用 {precision}：预测会有相应偏差",
    ),
    "time_planned": Text(en="as planned, {low} to {high}", zh="按计划，{low} 至 {high}"),
    "offload_disk": Text(
        en="offload: {size} of optimizer state in {path}; a step reads and writes {moved}, {seconds} s at the measured {rate}/s",
        zh="offload：{size} 优化器状态存放于 {path}；每步读写 {moved}，按实测 {rate}/s 需 {seconds} 秒",
    ),
    "offload_host": Text(
        en="offload: {size} of optimizer state in host memory; a step moves {moved} of gradients and weights between "
        "device and host",
        zh="offload：{size} 优化器状态存放于主机内存；每步在设备与主机之间传输 {moved} 的梯度与权重",
    ),
    "recompute_twice": Text(
        en="recompute.mode = {mode} and the layout says recompute = {layout}; keep one.",
        zh="recompute.mode = {mode}，而布局指定 recompute = {layout}；请只保留一个。",
    ),
    "recompute_chosen": Text(
        en="recompute = auto: of {layers} layers {full} in full, {selective} in part; {memory} expected of {limit}",
        zh="recompute = auto：{layers} 层中 {full} 层完全重计算，{selective} 层部分重计算；预计占用 {memory}，上限 {limit}",
    ),
    "recompute_too_much": Text(
        en="even with every layer recomputed {memory} are expected, more than {limit}; take a smaller train.microbatch_seqs",
        zh="即使所有层都重计算，预计仍占用 {memory}，超过 {limit}；请减小 train.microbatch_seqs",
    ),
    "plan_offload": Text(
        en="The plan offloads {path}, which training does not do yet; plan without offload.",
        zh="该计划要求卸载（offload）{path}，训练目前还不支持；请不用 offload 重新规划。",
    ),
    "unlike_ranks": Text(
        en="Rank {rank} was started otherwise than rank 0: {first}. Start all ranks with the same settings and version.",
        zh="rank {rank} 的启动方式与 rank 0 不同：{first}。请让所有 rank 使用相同的配置和版本。",
    ),
    "refit": Text(
        en="There are {ranks} ranks and the layout {asked} is for another number: going on with {chosen}.",
        zh="现有 {ranks} 个 rank，与布局 {asked} 所需的数目不同：改用 {chosen} 继续。",
    ),
    "rolling_back": Text(
        en="{reason} Steps {first} to {last} are left out from here on; {left} rollbacks are left.",
        zh="{reason} 从此跳过第 {first} 至 {last} 步；还可回退 {left} 次。",
    ),
    "rollbacks_spent": Text(
        en="{reason} It went back {count} times already, as often as train.max_rollbacks allows; stopped.",
        zh="{reason} 已回退 {count} 次，达到 train.max_rollbacks 的上限；停止。",
    ),
    "no_forecast": Text(
        en="layout = {layout}: memory and time are not forecast here; trireme plan does, for a cluster you describe.",
        zh="layout = {layout}：此处不预测内存和时间；可用 trireme plan 针对你描述的集群进行预测。",
    ),
}
