"""Sentences of ``trireme chaos``."""

from trireme.words.catalogue import Text

TEXTS = {
    "help": Text(
        en="Break a run in a known way, have it go on, and compare it with one that nobody disturbed.",
        zh="以已知的方式破坏一次训练，让它继续，并与未受干扰的训练比较。",
    ),
    "fault": Text(
        en="NAME[@step=S,rank=R]; what is not said is drawn by --seed. May be repeated.",
        zh="NAME[@step=S,rank=R]；未写明的由 --seed 抽取。可重复使用。",
    ),
    "seed": Text(en="Draws steps, ranks and places of damage.", zh="用于抽取步数、rank 和损坏位置。"),
    "matrix": Text(en="Carry out every fault on a tiny run.", zh="在一次极小的训练上逐一制造所有故障。"),
    "table": Text(en="Write the table of what became of them here.", zh="把结果表写到此处。"),
    "only": Text(en="Of the matrix, only the faults of this name.", zh="只运行矩阵中该名称的故障。"),
    "nproc": Text(en="Ranks on this machine.", zh="本机的 rank 数。"),
    "unknown_fault": Text(
        en="There is no fault {name}; there are {known}.", zh="没有名为 {name} 的故障；可用的有 {known}。"
    ),
    "outside": Text(
        en="{text} lies outside the run: steps are 0 to {max_steps} (not included), ranks 0 to {ranks} (not included).",
        zh="{text} 超出这次训练的范围：步数为 0 到 {max_steps}（不含），rank 为 0 到 {ranks}（不含）。",
    ),
    "one_way": Text(
        en="Give a run file and --fault, or --matrix alone.", zh="请给出配置文件和 --fault，或只给 --matrix。"
    ),
    "needs_steps": Text(
        en="A drill needs train.max_steps, to know where it ends.", zh="演练需要 train.max_steps，以便知道何时结束。"
    ),
    "unbroken_failed": Text(
        en="The run fails even without a fault (exit code {code}):\n{said}",
        zh="没有故障时这次训练也会失败（退出码 {code}）：\n{said}",
    ),
    "doing": Text(en="{drill} {overrides}", zh="{drill} {overrides}"),
    "found": Text(
        en="  noticed by {found_by} {detail}\n  {again} steps done again; {ended}",
        zh="  由 {found_by} 发现 {detail}\n  重做 {again} 步；{ended}",
    ),
    "title": Text(en="Reliability: every fault, and what became of it", zh="可靠性：每种故障及其结果"),
    "intro": Text(
        en="Made by `{command}`: a tiny run on {ranks} ranks, {max_steps} steps, a checkpoint every ten, broken once in each "
        "row and started again by `trireme launch`. *Found by* is the kind of failure in the supervisor's report or the event "
        "in the run's log; *found after* runs from the fault to the report. *Equal* means that all tensors of the last "
        "checkpoint, weights and optimizer state, are those of an undisturbed run in every bit (for `nan` and `spike`: of one "
        "that left the step out).",
        zh="由 `{command}` 生成：一次极小的训练，{ranks} 个 rank，{max_steps} 步，每十步一个检查点；每行破坏一次，由 `trireme launch` "
        "重新启动。“发现者”是看护报告中的失败类别或训练日志中的事件；“发现用时”从故障发生算到报告。“一致”指最后一个检查点的所有张量"
        "（权重与优化器状态）与未受干扰的训练逐位相同（`nan` 与 `spike` 则与跳过该步的训练相同）。",
    ),
    "sum": Text(en="{good} of {count} as they should be.", zh="{count} 项中有 {good} 项符合预期。"),
    "head_fault": Text(en="fault", zh="故障"),
    "head_settings": Text(en="settings", zh="设置"),
    "head_found_by": Text(en="found by", zh="发现者"),
    "head_found_s": Text(en="found after (s)", zh="发现用时（秒）"),
    "head_again": Text(en="steps done again", zh="重做步数"),
    "head_ended": Text(en="end", zh="结果"),
    "ended_equal": Text(en="equal", zh="一致"),
    "ended_differs": Text(en="differs", zh="不一致"),
    "ended_stopped": Text(en="stopped", zh="停止"),
    "ended_hung": Text(en="hung", zh="卡死"),
}
