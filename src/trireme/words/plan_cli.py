"""Words of ``trireme plan``."""

from trireme.words.catalogue import Text

TEXTS = {
    "model": Text(
        en="A published name, a Hugging Face config.json or folder, a function that builds a module, or a file of settings.",
        zh="公开模型名、Hugging Face 的 config.json 或目录、构建模型的函数，或配置文件。",
    ),
    "cluster": Text(
        en="What it is to run on: accelerator:per node x nodes, or a file.",
        zh="运行环境：加速卡:每机卡数x机器数，或文件。",
    ),
    "batch": Text(en="Sequences of a step over all ranks.", zh="每步所有进程的序列总数。"),
    "seq_len": Text(en="Tokens of a sequence.", zh="每个序列的 token 数。"),
    "fix": Text(
        en="Settings every layout must have (also mbs=2); others stay open.",
        zh="每个布局必须满足的设置（也可写 mbs=2），其余由搜索决定。",
    ),
    "why": Text(en="Say what stands against these settings.", zh="说明这些设置为何没有被选中。"),
    "fit": Text(en="Find the fewest accelerators of this kind that will do.", zh="求最少需要多少张这种卡。"),
    "top": Text(en="How many layouts to show.", zh="显示多少个布局。"),
    "tokens": Text(
        en="Say the days, and with prices the cost, of this many tokens.",
        zh="给出训练这么多 token 的天数；有价格时给出费用。",
    ),
    "precision": Text(en="Number formats of training.", zh="训练的数值格式。"),
    "optimizer": Text(en="Whose state is counted.", zh="按哪种优化器计算状态。"),
    "kernels": Text(
        en="Which code runs: what is kept for backward depends on it.", zh="运行哪种算子实现，决定反向需要保留的内容。"
    ),
    "framework": Text(en="Whose habits to assume.", zh="按哪个框架的习惯计算。"),
    "offload": Text(en="Let activations wait in host memory where that pays.", zh="允许把激活值暂存到主机内存。"),
    "mtbf": Text(
        en="Mean hours between failures of a node: shows the goodput.", zh="单机平均无故障小时数：给出有效训练占比。"
    ),
    "checkpoint": Text(en="Seconds that a checkpoint stops training.", zh="一次检查点使训练停顿的秒数。"),
    "restart": Text(en="Seconds from a failure until training goes on.", zh="从故障到恢复训练的秒数。"),
    "out": Text(en="Write the first layout as plan.json.", zh="把第一个布局写成 plan.json。"),
    "json": Text(en="Print everything as JSON.", zh="以 JSON 输出全部结果。"),
    "timeline": Text(
        en="Draw the first layout's pipeline, every rank and micro-batch on the clock, as SVG.",
        zh="把第一个布局的流水线画成 SVG：每个进程、每个微批何时在做什么。",
    ),
    "timeline_title": Text(
        en="{model}, {layout}: {makespan} without the update, {bubble} of the ranks' time is not work",
        zh="{model}，{layout}：不含参数更新 {makespan}，各进程 {bubble} 的时间没有在计算",
    ),
    "timeline_F": Text(en="forward", zh="前向"),
    "timeline_B": Text(en="backward", zh="反向"),
    "timeline_I": Text(en="gradient of the input", zh="输入的梯度"),
    "timeline_W": Text(en="gradient of the weights", zh="权重的梯度"),
    "timeline_S": Text(en="sending", zh="发送"),
    "timeline_event": Text(
        en="{action}, stage {stage}, micro-batch {microbatch}: {took} from {start}",
        zh="{action}，阶段 {stage}，微批 {microbatch}：自 {start} 起 {took}",
    ),
    "written": Text(en="written to {path}", zh="已写入 {path}"),
    "unwritable": Text(en="{path} can't be written: {reason}", zh="无法写入 {path}：{reason}"),
    "unknown_framework": Text(
        en="{name} is no framework that is known; known: {names}", zh="不认识框架 {name}；已知：{names}"
    ),
    "missing": Text(
        en="{option} is missing; give it, or a file of settings that says it",
        zh="缺少 {option}；请给出它，或给出包含它的配置文件",
    ),
    "two_sizes": Text(en="mbs is said twice: {sizes}", zh="mbs 给了两次：{sizes}"),
    "not_tokens": Text(
        en="{text} is no number of tokens; write 300B or 15T", zh="{text} 不是 token 数；请写成 300B 或 15T"
    ),
    "omitted": Text(en="not counted: {what}", zh="未计入：{what}"),
    "longer": Text(
        en="sequences of {seq_len} are longer than the {max_seq_len} the model was made for",
        zh="序列长度 {seq_len} 超过了模型设计的 {max_seq_len}",
    ),
    "head": Text(
        en="{model} ({params} parameters) on {cluster}: {ranks} ranks, {batch} sequences of {seq_len} tokens a step",
        zh="{model}（{params} 参数）在 {cluster} 上：{ranks} 个进程，每步 {batch} 个长 {seq_len} 的序列",
    ),
    "counted": Text(
        en="{layouts} layouts: {large} too large, {slower} slower, {estimated} estimated in full",
        zh="共 {layouts} 个布局：{large} 个放不下，{slower} 个更慢，{estimated} 个做了完整估计",
    ),
    "not_calibrated": Text(
        en="no measured runs on {accelerator} were compared with: believe the order more than the seconds",
        zh="没有 {accelerator} 上的实测运行可供校准：排序比秒数更可信",
    ),
    "smaller": Text(en="fewest: {ranks} ranks; with fewer: {reason}", zh="最少需要 {ranks} 个进程；更少时：{reason}"),
    "column_rank": Text(en="#", zh="#"),
    "column_layout": Text(en="layout", zh="布局"),
    "column_step": Text(en="step", zh="每步"),
    "column_interval": Text(en="80 % within", zh="80 % 区间"),
    "column_tokens": Text(en="tokens/s", zh="token/秒"),
    "column_mfu": Text(en="MFU", zh="MFU"),
    "column_bubble": Text(en="bubble", zh="气泡"),
    "column_memory": Text(en="device memory", zh="显存"),
    "column_recompute": Text(en="recompute", zh="重计算"),
    "time": Text(en="Time of a step (1); MFU by {formula}", zh="每步时间构成（第 1 个）；MFU 按 {formula}"),
    "memory": Text(
        en="Memory by pipeline rank (1): {legend}, . everything else", zh="各流水线级显存（第 1 个）：{legend}，. 其他"
    ),
    "peak": Text(en="fullest {where}: {allocated} allocated", zh="最满处：{where}，已分配 {allocated}"),
    "reserved": Text(en="fragmentation", zh="碎片"),
    "context": Text(en="driver and communication", zh="驱动与通信"),
    "host": Text(en="  in host memory: {size}", zh="  主机内存：{size}"),
    "placement": Text(
        en="Placement (1): the model is cut into tp {tp} x pp {pp} = {parts} parts, each there {copies} times",
        zh="放置（第 1 个）：模型切成 tp {tp} x pp {pp} = {parts} 份，每份 {copies} 个副本",
    ),
    "bubble": Text(
        en="equal stages would work m/(m+p-1) = {m}/({m}+{p}-1) = {busy} of the time; simulated bubble {simulated}",
        zh="各段等长时利用率为 m/(m+p-1) = {m}/({m}+{p}-1) = {busy}；模拟得到的气泡为 {simulated}",
    ),
    "cost": Text(en="costs: {reason}", zh="代价：{reason}"),
    "goodput": Text(
        en="goodput {ratio}: a failure every {mtbf}, a checkpoint every {interval} pays best",
        zh="有效训练占比 {ratio}：平均每 {mtbf} 一次故障，每 {interval} 存一次检查点最划算",
    ),
    "days": Text(
        en="{tokens} tokens: {days} days ({low} to {high})", zh="{tokens} token：{days} 天（{low} 到 {high}）"
    ),
    "price": Text(en="cost: {cost} ({hours} accelerator hours)", zh="费用：{cost}（{hours} 卡时）"),
    "energy": Text(en="energy: {energy} MWh", zh="能耗：{energy} MWh"),
    "why_not": Text(en="{wish}: {reason}", zh="{wish}：{reason}"),
    "rejected": Text(en="Left out, with an example each:", zh="被排除的布局，各举一例："),
}
