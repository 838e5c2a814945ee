"""Words about what fits and what doesn't."""

from trireme.words.catalogue import Text

TEXTS = {
    "does_not_fit": Text(
        en="{layout} needs {needs} a rank {where}, {offers} offered ({over} too much); {term} are {size} of it; {fits} fits",
        zh="{layout} 每个进程需要 {needs}（{where}），而设备只有 {offers}，超出 {over}；其中{term}占 {size}；改为 {fits} 就放得下",
    ),
    "nothing_fits": Text(
        en="{layout} needs {needs} a rank {where}, {offers} offered ({over} too much); {term} are {size} of it;"
        " no recompute, micro-batch or ZeRO stage of this layout fits: more ranks are needed (--fit says how many)",
        zh="{layout} 每个进程需要 {needs}（{where}），而设备只有 {offers}，超出 {over}；其中{term}占 {size}；"
        "在此布局下无论怎样调整重计算、微批或 ZeRO 级别都放不下，需要更多的卡（--fit 会给出数量）",
    ),
    "at_forward": Text(
        en="on pipeline rank {rank}, in the forward of stage {stage}, micro-batch {microbatch}",
        zh="流水线第 {rank} 级，阶段 {stage} 微批 {microbatch} 的前向",
    ),
    "at_backward": Text(
        en="on pipeline rank {rank}, in the backward of stage {stage}, micro-batch {microbatch}",
        zh="流水线第 {rank} 级，阶段 {stage} 微批 {microbatch} 的反向",
    ),
    "at_loss": Text(
        en="on pipeline rank {rank}, while the loss of micro-batch {microbatch} is differentiated",
        zh="流水线第 {rank} 级，对微批 {microbatch} 的损失求导时",
    ),
    "at_update": Text(en="on pipeline rank {rank}, at the optimizer's update", zh="流水线第 {rank} 级，优化器更新时"),
}
