"""Words about Fleet's calls."""

from trireme.words.catalogue import Text

TEXTS = {
    "no_setting": Text(
        en="DistributedStrategy has no {name}; it has {near}.",
        zh="DistributedStrategy 没有 {name}；可用的有 {near}。",
    ),
    "not_mapping": Text(
        en="{name} = {value!r} is no mapping of settings, such as {{'dp_degree': 2}}.",
        zh="{name} = {value!r} 不是配置的映射，例如 {{'dp_degree': 2}}。",
    ),
    "collective_only": Text(
        en="There is no parameter server here: leave is_collective at True and role_maker out; "
        "the launcher tells ranks their places.",
        zh="这里没有参数服务器：请保持 is_collective=True 并去掉 role_maker；各 rank 的编号由启动器给出。",
    ),
    "other_ranks": Text(
        en="The strategy {layout} needs {needs} ranks and {ranks} run; start {needs} with torchrun, or change it.",
        zh="策略 {layout} 需要 {needs} 个 rank，当前有 {ranks} 个；请用 torchrun 启动 {needs} 个，或修改策略。",
    ),
    "no_plan": Text(
        en="{path} can't be read as a plan: {reason}.",
        zh="无法读取计划文件 {path}：{reason}。",
    ),
    "no_model": Text(
        en="There is no model for this optimizer: call distributed_model first, or give model=.",
        zh="找不到该优化器对应的模型：请先调用 distributed_model，或给出 model=。",
    ),
    "not_spread": Text(
        en="The model isn't spread yet: run a train_step, or give example_batch to distributed_model.",
        zh="模型尚未切分：请先执行一次 train_step，或在 distributed_model 中给出 example_batch。",
    ),
    "bare_call": Text(
        en="A spread model isn't called by itself: use train_step(batch, loss_fn), eval_step, or outputs(batch).",
        zh="切分后的模型不能直接调用：请使用 train_step(batch, loss_fn)、eval_step 或 outputs(batch)。",
    ),
    "no_gradients": Text(
        en="optimizer.step() came before the first train_step; there are no gradients.",
        zh="optimizer.step() 先于第一次 train_step 调用；还没有梯度。",
    ),
    "no_level": Text(
        en="amp_configs.level = {level} is not a level; O1 computes in 16 bits, O2 keeps the weights in 16 bits too.",
        zh="amp_configs.level = {level} 不是有效的级别；O1 以 16 位计算，O2 连权重也用 16 位。",
    ),
    "master_needed": Text(
        en="amp_configs with {dtype} weights need fp32 master weights; leave out use_master_weight, or take bfloat16.",
        zh="amp_configs 使用 {dtype} 权重时必须保存 fp32 主权重；请去掉 use_master_weight，或改用 bfloat16。",
    ),
    "local_steps": Text(
        en="communication.local_steps = {steps} can't be had through fleet, whose losses are those of all replicas; take "
        "trireme train or trireme.Stepper",
        zh="fleet 不支持 communication.local_steps = {steps}：它的损失属于所有副本；请改用 trireme train 或 trireme.Stepper",
    ),
}
