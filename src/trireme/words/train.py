"""Sentences about steps, number formats, schedules, resuming."""

from __future__ import annotations

from trireme.words.catalogue import Text

TEXTS: dict[str, Text] = {
    # How long, how fast
    "which_length": Text(
        en="Exactly one of train.max_steps, train.max_tokens and train.epochs says how long to train; given: {given}.",
        zh="train.max_steps、train.max_tokens、train.epochs 三者须且只能设一个来决定训练多久；现在给出的是：{given}。",
    ),
    "warmup_twice": Text(
        en="train.warmup_steps={steps} and train.warmup_tokens={tokens} both set the warm-up; keep one.",
        zh="train.warmup_steps={steps} 与 train.warmup_tokens={tokens} 都在设定预热长度，请只保留一个。",
    ),
    "unknown_schedule": Text(
        en="train.schedule={kind} is not one of constant, linear, cosine, wsd.",
        zh="train.schedule={kind} 不在 constant、linear、cosine、wsd 之中。",
    ),
    "length_changed": Text(
        en="The run was planned for {old_steps} steps and is now asked for {new_steps}: say what the learning rate "
        "does. --extend=stretch redraws the schedule over the new length (step {step}: {old_lr} -> {new_lr}); "
        "--extend=hold keeps the old one and, after its end, its last rate (step {step}: {old_lr}).",
        zh="这次训练原计划 {old_steps} 步，现在要求 {new_steps} 步，请说明学习率怎么办：--extend=stretch 按新长度重画"
        "曲线（第 {step} 步 {old_lr} -> {new_lr}）；--extend=hold 沿用原曲线，走完后保持最后的学习率（第 {step} "
        "步 {old_lr}）。",
    ),
    "lr_changed": Text(
        en="The settings differ from those of the run to resume ({changes}): at step {step} the learning rate "
        "would be "
        "{new_lr} instead of {old_lr}. Add {accept} to change it, or put the old value back.",
        zh="设置与要续训的那次不同（{changes}）：第 {step} 步的学习率会是 {new_lr}，而不是 {old_lr}。"
        "确要更改请加 {accept}，否则请改回原值。",
    ),
    "long_warmup": Text(
        en="Warm-up takes {warmup_steps} of {max_steps} steps: the learning rate never reaches train.lr={lr}.",
        zh="预热要 {warmup_steps} 步，而总共只有 {max_steps} 步：学习率到不了 train.lr={lr}。",
    ),
    # Weights and number formats
    "nothing_trainable": Text(
        en="No parameter of the model requires a gradient, so there is nothing to train; unfreeze some.",
        zh="模型没有任何参数需要梯度，无可训练；请解冻一部分参数。",
    ),
    "unknown_precision": Text(
        en="Precision {policy} is unknown here; known: {known}.",
        zh="不认识的精度策略 {policy}；可用的有：{known}。",
    ),
    "no_dtype": Text(
        en="precision.policy={policy} needs a number format that {device} can't compute in; take fp32, or "
        "precision.fallback=fp32 to fall back to it where needed.",
        zh="precision.policy={policy} 所需的数值格式 {device} 算不了；请改用 fp32，"
        "或设 precision.fallback=fp32 让它在必要时退回 fp32。",
    ),
    "dtype_fallback": Text(
        en="{device} can't compute in {policy}; training in fp32 as precision.fallback says.",
        zh="{device} 算不了 {policy}；按 precision.fallback 的设定改用 fp32 训练。",
    ),
    "bf16_pure": Text(
        en="bf16_pure keeps no fp32 copy of the weights: updates smaller than bf16's spacing are lost (the share is "
        "reported as it goes; norms near 1.0 hardly move). precision.policy=bf16_master or "
        "precision.stochastic_rounding=true avoids it.",
        zh="bf16_pure 不保留 fp32 主权重：小于 bf16 间距的更新会丢失（训练中会报告所占比例；接近 1.0 "
        "的归一化权重几乎不动）。用 precision.policy=bf16_master 或 precision.stochastic_rounding=true 可避免。",
    ),
    "no_tf32": Text(
        en="precision.tf32=true has no effect: {device} has no TF32; fp32 products stay whole.",
        zh="precision.tf32=true 不起作用：{device} 没有 TF32，fp32 乘法保持完整精度。",
    ),
    "no_torchao": Text(
        en="precision.policy=fp8 needs torchao, which is not installed: pip install 'trireme[fp8]', or take bf16.",
        zh="precision.policy=fp8 需要 torchao，目前未安装：请执行 pip install 'trireme[fp8]'，或改用 bf16。",
    ),
    "frozen": Text(
        en="Updates lost to bf16 rounding, by group: {shares} of the elements.",
        zh="因 bf16 舍入而丢失更新的元素占比（按参数组）：{shares}。",
    ),
    "compile_failed": Text(
        en="train.compile=on, but torch.compile fails on this model and machine ({cause}); it needs a C++ compiler "
        "(g++ or clang++). train.compile=off trains without it.",
        zh="设了 train.compile=on，但 torch.compile 在这个模型和这台机器上失败（{cause}）；它需要 C++ 编译器"
        "（g++ 或 clang++）。设 train.compile=off 可不用它训练。",
    ),
    "out_of_memory": Text(
        en="{device} ran out of memory at {rows} sequences a micro-batch; the result is the same with "
        "train.microbatch_seqs={half}.",
        zh="{device} 显存（内存）不足：当前每个微批 {rows} 条序列；改成 train.microbatch_seqs={half}，训练结果不变。",
    ),
    # Loss
    "count_unknown": Text(
        en="The batch ({names}) has no integer labels to count; pass count_fn=..., which returns what loss_fn sums "
        "over, from the batch alone.",
        zh="批数据（{names}）里没有可计数的整数 labels；请传入 count_fn=...，仅凭批数据返回 loss_fn 求和的个数。",
    ),
    "count_differs": Text(
        en="The batch counts {counted}, but loss_fn returned a count of {returned}: one of them would scale the "
        "gradient wrongly. Pass count_fn=... that agrees with loss_fn.",
        zh="按批数据计得 {counted}，而 loss_fn 返回的计数是 {returned}：必有一个会让梯度缩放出错。"
        "请传入与 loss_fn 一致的 count_fn=...。",
    ),
    "bare_loss": Text(
        en="loss_fn returned {returned} where (loss_sum, count) is needed; for a function that returns a mean, say "
        'loss_reduction="mean".',
        zh='loss_fn 返回的是 {returned}，需要的是 (loss_sum, count)；若它返回平均值，请写明 loss_reduction="mean"。',
    ),
    "loss_shape": Text(
        en="A loss is one number; loss_fn returned {shape}.",
        zh="损失应是一个数；loss_fn 返回的是 {shape}。",
    ),
    "auxiliary_unclaimed": Text(
        en="The model returns an auxiliary loss (aux_loss) that nothing takes up; pass auxiliary=lambda "
        "outputs, batch: "
        "weight * outputs.aux_loss, or have the model not return it.",
        zh="模型返回了辅助损失（aux_loss），但没有谁使用它；请传入 auxiliary=lambda outputs, batch: 权重 * "
        "outputs.aux_loss，"
        "或让模型不要返回它。",
    ),
    "whole_batch": Text(
        en='loss_reduction="batch" needs all {seqs} samples at once, so microbatch_seqs={microbatch_seqs} and '
        "several ranks can't be used with it.",
        zh='loss_reduction="batch" 需要一次看到全部 {seqs} 条样本，'
        "不能与 microbatch_seqs={microbatch_seqs} 或多个进程同用。",
    ),
    "nothing_taken": Text(
        en="{kind}.forward takes {takes}; the batch has {names}. Name them alike, or pass call=lambda module, "
        "batch: ...",
        zh="{kind}.forward 接受 {takes}，批数据里是 {names}。请让名字一致，或传入 call=lambda module, batch: ...",
    ),
    "no_tensors": Text(
        en="The batch ({names}) has no tensor with samples in dim 0.",
        zh="批数据（{names}）里没有以第 0 维为样本的张量。",
    ),
    "uneven_rows": Text(
        en="Tensors of a batch hold samples in dim 0 and must agree on their number; here {lengths}.",
        zh="批数据各张量的第 0 维是样本，数目须一致；现在是 {lengths}。",
    ),
    "nothing_to_learn": Text(
        en="No token of the first batch is learned (every label is -100; samples {ids}); see `trireme data` for what "
        "the samples look like.",
        zh="第一个批次没有一个 token 参与学习（所有标签都是 -100；样本 {ids}）；请用 `trireme data` 看看样本的样子。",
    ),
    "zero_loss": Text(
        en="The loss of the first step is exactly 0 (samples {ids}): the model sees its answers, or the labels are "
        "wrong.",
        zh="第一步的损失恰好为 0（样本 {ids}）：模型看到了答案，或标签有误。",
    ),
    "nonfinite_stop": Text(
        en="Step {step}: loss {loss}, gradient norm {grad_norm} (samples {ids}); stopped as "
        "train.on_nonfinite=stop says. "
        "The weights are those before the step.",
        zh="第 {step} 步：损失 {loss}，梯度范数 {grad_norm}（样本 {ids}）；按 train.on_nonfinite=stop 停止。"
        "权重仍是这一步之前的。",
    ),
    "spike_stop": Text(
        en="Step {step}: loss {loss}, gradient norm {grad_norm} stand far above those of late (samples {ids}); stopped "
        "as train.on_spike=stop says. The weights are those before the step.",
        zh="第 {step} 步：损失 {loss}、梯度范数 {grad_norm} 远高于近期水平（样本 {ids}）；按 train.on_spike=stop 停止。"
        "权重仍是这一步之前的。",
    ),
    "rollback": Text(
        en="Step {step}: loss {loss}, gradient norm {grad_norm} (samples {ids}); the run is to go back to its last good "
        "checkpoint.",
        zh="第 {step} 步：损失 {loss}，梯度范数 {grad_norm}（样本 {ids}）；应回到最近的可用检查点。",
    ),
    "left_out": Text(
        en="Step {step} is left out: its samples went wrong before ({ids}).",
        zh="跳过第 {step} 步：其样本此前出过问题（{ids}）。",
    ),
    "replica_differs": Text(
        en="At step {step} the copies of {name} differ between data-parallel ranks; rank {ranks} stands against the "
        "others. Memory or a processor is at fault there: nothing after the last checkpoint can be trusted.",
        zh="第 {step} 步时，{name} 在各数据并行 rank 上的副本不一致；与其余不同的是 rank {ranks}。"
        "那里的内存或处理器有故障，最近检查点之后的结果都不可信。",
    ),
    "skipped_spike": Text(
        en="Step {step} skipped: loss {loss}, gradient norm {grad_norm} stand far above those of late. Samples: {ids}",
        zh="跳过第 {step} 步：损失 {loss}、梯度范数 {grad_norm} 远高于近期水平。样本：{ids}",
    ),
    "nonfinite_row": Text(
        en="{count} steps in a row were not finite (step {step}: loss {loss}, gradient norm {grad_norm}, "
        "samples {ids}); "
        "stopped as train.max_nonfinite says. A lower lr or longer warm-up helps; no checkpoint has any of it.",
        zh="连续 {count} 步出现 NaN/Inf（第 {step} 步：损失 {loss}，梯度范数 {grad_norm}，样本 {ids}）；按 "
        "train.max_nonfinite 停止。"
        "可调低 lr 或加长预热；检查点中没有 NaN/Inf。",
    ),
    "skipped_nonfinite": Text(
        en="Step {step} skipped: loss {loss}, gradient norm {grad_norm}; {in_row} in a row, stops at {limit}. "
        "Samples: {ids}",
        zh="跳过第 {step} 步：损失 {loss}，梯度范数 {grad_norm}；已连续 {in_row} 次，到 {limit} 次即停。样本：{ids}",
    ),
    "skipped_overflow": Text(
        en="Step {step} skipped: fp16 overflow; the loss scale is now {scale:g}.",
        zh="跳过第 {step} 步：fp16 溢出；损失缩放降为 {scale:g}。",
    ),
    "skipped_empty": Text(
        en="Step {step} skipped: no token of its samples is learned. Samples: {ids}",
        zh="跳过第 {step} 步：其样本没有一个 token 参与学习。样本：{ids}",
    ),
    # Evaluation, loop
    "nothing_to_evaluate": Text(
        en="The {seqs} held-out sequences have no token to predict; raise data.eval_fraction or name "
        "data.eval_sources.",
        zh="留出的 {seqs} 条序列没有可预测的 token；请调大 data.eval_fraction，或用 data.eval_sources 指定。",
    ),
    "data_ended": Text(
        en="The data ended after step {step} of {max_steps}.",
        zh="数据在第 {step} 步（共 {max_steps} 步）之后就没有了。",
    ),
    "wrong_batch": Text(
        en="The loader gave the batch of step {found} where step {wanted} was due (from zero).",
        zh="加载器给出的是第 {found} 步的批次，应为第 {wanted} 步（从零数）。",
    ),
    "interrupting": Text(
        en="Finishing this step, then saving. Ctrl-C again ends at once, without saving.",
        zh="完成当前这一步后保存。再按一次 Ctrl-C 则立即结束，不保存。",
    ),
    "interrupted": Text(
        en="Interrupted after step {step}, all saved.",
        zh="在第 {step} 步之后中断，已全部保存。",
    ),
    "stopped": Text(
        en="A callback stopped the run after step {step}, all saved.",
        zh="回调函数在第 {step} 步之后停止了训练，已全部保存。",
    ),
    "control_closed": Text(
        en="A callback set control.{name} = {value!r}; it may set {known}, each to True or False.",
        zh="回调函数设置了 control.{name} = {value!r}；只能设置 {known}，取值 True 或 False。",
    ),
    # Resume
    "resumed": Text(
        en="Resumed after step {step}: {names} restored.",
        zh="从第 {step} 步之后继续：已恢复 {names}。",
    ),
    "resumed_inexact": Text(
        en="Resumed after step {step}, but not exactly: {missing} could not be restored (allowed); {names} restored.",
        zh="从第 {step} 步之后继续，但并不精确：{missing} 未能恢复（已获允许）；已恢复 {names}。",
    ),
    "resumed_from": Text(
        en="From {path}: {num_seqs} samples seen, next learning rate {lr}.",
        zh="来自 {path}：已用样本 {num_seqs} 条，接下来的学习率 {lr}。",
    ),
    "same_layout": Text(
        en="Saved by the same layout ({saved}): it goes on bit for bit.",
        zh="由相同布局（{saved}）保存：逐位一致地继续。",
    ),
    "other_layout": Text(
        en="Saved by {saved}, now {here}: the same samples in the same order, sums rounded in another order.",
        zh="由布局 {saved} 保存，现为 {here}：样本及其顺序不变，只是求和的舍入次序不同。",
    ),
    "short_step": Text(
        en="Step {step} ended a run in epochs and left out {left} samples of its batch; going on from it would never "
        "use them. Go on from an earlier checkpoint, or start a new run with model.init_from.",
        zh="第 {step} 步是按 epochs 训练的最后一步，其批次里有 {left} 条样本没有用到；从这里继续就永远用不到它们。"
        "请从更早的检查点继续，或用 model.init_from 开始新的训练。",
    ),
    "state_unclaimed": Text(
        en="The checkpoint has entries that nothing in this run claims: {names}. Resuming would drop them; the "
        "model or "
        "the settings differ from those it was saved with.",
        zh="检查点里有本次训练无人认领的条目：{names}。继续会丢掉它们；模型或设置与保存时不同。",
    ),
    "state_missing": Text(
        en="The checkpoint has nothing for {names}, which this run needs; the model or the settings differ from "
        "those "
        "it was saved with.",
        zh="检查点里没有本次训练需要的 {names}；模型或设置与保存时不同。",
    ),
    "state_format": Text(
        en="The checkpoint's training state has format {found}; this version reads {known}.",
        zh="检查点的训练状态格式是 {found}；本版本可读 {known}。",
    ),
    "state_damaged": Text(
        en="The checkpoint's training state is damaged ({cause}); take an older checkpoint.",
        zh="检查点的训练状态已损坏（{cause}）；请换更早的检查点。",
    ),
    "state_not_tensor": Text(
        en="The model's state {name} is a {kind}, not a tensor, so it can't be saved exactly.",
        zh="模型状态 {name} 是 {kind} 而非张量，无法精确保存。",
    ),
    "missing_tensor": Text(en="{name} is missing", zh="缺少 {name}"),
    "unclaimed_tensor": Text(en="{name} belongs to nothing here", zh="{name} 在这里没有对应的张量"),
    "other_tensor": Text(en="{name} is {saved} there and {here} here", zh="{name} 在检查点中是 {saved}，这里是 {here}"),
    "state_not_finite_elsewhere": Text(
        en="Another rank's state holds NaN or Inf and is not saved; its message names the tensors.",
        zh="另一个 rank 的状态含有 NaN 或 Inf，不会保存；具体张量见该 rank 的消息。",
    ),
    "state_not_finite": Text(
        en="Not saved: NaN or Inf in {names}. The last checkpoint is good.",
        zh="未保存：{names} 中有 NaN 或 Inf。最后一个检查点是好的。",
    ),
    "precision_changed": Text(
        en="The checkpoint was trained with precision.policy={old}; resuming with {new} would not be the same "
        "run. Keep "
        "{old}, or start a new run with model.init_from.",
        zh="检查点是以 precision.policy={old} 训练的；用 {new} 续训就不再是同一次训练。请保持 {old}，"
        "或用 model.init_from 开始新的训练。",
    ),
    "optimizer_changed": Text(
        en="The checkpoint holds the state of {old}, this run uses {new}; keep {old}, or start a new run with "
        "model.init_from.",
        zh="检查点里是 {old} 的状态，本次训练用的是 {new}；请保持 {old}，或用 model.init_from 开始新的训练。",
    ),
    "rng_damaged": Text(
        en="The random state `{name}` of rank {rank} can't be restored ({cause}), so the run would not go on as "
        "it was. --allow-missing rng goes on without it, no longer bit for bit.",
        zh="rank {rank} 的随机状态 `{name}` 无法恢复（{cause}），续训将与原来不一致。加 --allow-missing rng 可不恢复它而继续，但不再逐位一致。",
    ),
    "wire_left": Text(
        en="what layout {saved} kept of gradients (compression) or of its replicas (local steps) doesn't fit layout "
        "{here} or its settings: it is left, and the weights are those of the first replica",
        zh="布局 {saved} 保留的梯度残差（压缩）或各副本状态（本地步）与布局 {here} 或其设置不符：不再使用，权重取自第一个副本",
    ),
}
