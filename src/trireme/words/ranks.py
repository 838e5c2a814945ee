"""Words about spreading a module over ranks."""

from trireme.words.catalogue import Text

TEXTS = {
    "other_world": Text(
        en="The layout {layout} needs {needs} ranks and {world} were started; start {needs}, or change the layout.",
        zh="布局 {layout} 需要 {needs} 个 rank，实际启动了 {world} 个；请启动 {needs} 个，或修改布局。",
    ),
    "made_equal": Text(
        en="{count} parameters or buffers differed between ranks and are now those of rank 0: {names}.",
        zh="有 {count} 个参数或缓冲区在各 rank 上不一致，已统一为 rank 0 的值：{names}。",
    ),
    "other_module": Text(
        en="Rank {rank} built another module than rank 0: {names}. All ranks must build the same one.",
        zh="rank {rank} 构建的模型与 rank 0 不同：{names}。所有 rank 必须构建同一个模型。",
    ),
    "inputs": Text(
        en="{kind}.forward takes {takes}; the batch has {batch}. Missing: {missing}; name the batch's entries as forward "
        "does, or say how to call the module.",
        zh="{kind}.forward 接受 {takes}；批次中有 {batch}。缺少：{missing}；请让批次各项与 forward 的参数同名，或指明如何调用模型。",
    ),
    "no_rows": Text(
        en="The batch has no tensor with samples in dim 0: {batch}.",
        zh="批次中没有以第 0 维为样本的张量：{batch}。",
    ),
    "uneven_rows": Text(
        en="The tensors of the batch disagree on the number of samples: {rows}.",
        zh="批次中各张量的样本数不一致：{rows}。",
    ),
    "not_covered": Text(
        en="The ranks' parts of {name} leave {missing} elements out.",
        zh="各 rank 持有的 {name} 拼起来还缺 {missing} 个元素。",
    ),
    "bare_loss": Text(
        en="loss_fn returned {returned}; it returns (loss_sum, count): a sum over tokens or samples, and how many.",
        zh="loss_fn 返回了 {returned}；应返回 (loss_sum, count)：对 token 或样本求和的损失，以及其个数。",
    ),
    "loss_shape": Text(
        en="loss_fn returned a loss of shape {shape}; the sum is a scalar.",
        zh="loss_fn 返回的损失形状为 {shape}；求和后应为标量。",
    ),
    "nothing_to_learn": Text(
        en="The global batch has nothing to learn from: the count of its loss is 0.",
        zh="整个批次没有可学习的内容：损失的计数为 0。",
    ),
    "accumulate_twice": Text(
        en="accumulate() is open already; one step has one denominator.",
        zh="accumulate() 已经打开；一步只有一个分母。",
    ),
    "no_experts": Text(
        en="ep = {ep} shares out experts, and {kind} has none that are recognised; leave ep at 1.",
        zh="ep = {ep} 用于分配专家，但 {kind} 中没有可识别的专家；请将 ep 保持为 1。",
    ),
    "experts_whole": Text(
        en="The experts of {path} stay whole on every rank: {reason}.",
        zh="{path} 的专家在每个 rank 上保持完整：{reason}。",
    ),
    "no_block": Text(
        en="{path} is no block of this model that could recompute; its blocks are {blocks}.",
        zh="{path} 不是该模型中可以重算的块；它的块有 {blocks}。",
    ),
    "batch_norm": Text(
        en="{path} ({kind}) takes statistics over the batch, and this layout cuts it into {parts} parts; use a norm over "
        "features (LayerNorm, GroupNorm), or a layout that keeps the batch whole.",
        zh="{path}（{kind}）要对整个批次做统计，而该布局把批次切成 {parts} 份；请改用按特征归一化的层（LayerNorm、GroupNorm），"
        "或使用不切分批次的布局。",
    ),
    "carried_activations": Text(
        en="Attribute {name} carries activations from one forward into the next, and this layout makes of a step's one "
        "forward {parts} over parts of the batch in {stages} stages; use tp alone, or hand them in with the batch.",
        zh="属性 {name} 把激活从一次前向带到下一次，而该布局把一步的一次前向变成对批次 {parts} 个部分、分 {stages} 个阶段的"
        "多次前向；请只用 tp，或把它们随批次传入。",
    ),
    "route_by_rows": Text(
        en="{line} asks for values of activations between blocks: each of the {parts} parts of the batch answers by its "
        "own rows, so the result is that of one device only if the answer doesn't depend on which rows are together",
        zh="{line} 在块之间读取激活的值：批次的 {parts} 个部分各按自己的行作答，因此只有当答案与哪些行在一起无关时，"
        "结果才与单设备相同",
    ),
    "route_differs": Text(
        en="{line} asks for values of activations, and two parts of the batch answered differently: one goes to block "
        "{one}, the other to {other}, while one device takes one way with all rows; use dp=1 with micro=1 (and any tp), "
        "or decide by something that all parts know.",
        zh="{line} 读取激活的值，而批次的两个部分给出了不同的答案：一个走到块 {one}，另一个走到 {other}；单设备上所有行走同一条路。"
        "请用 dp=1、micro=1（tp 任意），或依据各部分都知道的信息来决定。",
    ),
    "kept_activations": Text(
        en="The forward writes something of its activations into buffer {name} and this layout cuts the batch into {parts} "
        "parts, each of which would keep something else; use a layout that keeps the batch whole, or update it outside.",
        zh="前向计算把激活的信息写入缓冲区 {name}，而该布局把批次切成 {parts} 份，每份写入的内容都不同；"
        "请使用不切分批次的布局，或在前向之外更新它。",
    ),
}
