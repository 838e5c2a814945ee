"""Sentences of run folders, logs and the console."""

from trireme.words.catalogue import Text

TEXTS = {
    # run folder
    "cannot_write": Text(
        en="cannot write {path}: {reason}; free some space, or choose another folder with run.dir=...",
        zh="无法写入 {path}：{reason}；请清理磁盘空间，或用 run.dir=... 换一个目录",
    ),
    "not_a_folder": Text(
        en="run.dir is {path}, which is a file; name a folder, or one that does not exist yet",
        zh="run.dir 指向的 {path} 是一个文件；请给出目录，或一个尚不存在的路径",
    ),
    "foreign_folder": Text(
        en="{path} is not empty and holds no Trireme run, so nothing in it is touched, not even with --overwrite; "
        "choose another folder with run.dir=...",
        zh="{path} 非空，且其中没有 Trireme 的训练记录，因此即使加 --overwrite 也不会动它；请用 run.dir=... 换一个目录",
    ),
    "run_exists": Text(
        en="{path} already holds a run, at step {step} of {max_steps}: --resume goes on with it, --overwrite deletes "
        "it and starts anew, run.dir=... starts elsewhere",
        zh="{path} 中已有一次训练，停在第 {step} 步（共 {max_steps} 步）：加 --resume 接着训练，"
        "加 --overwrite 删除并重新开始，或用 run.dir=... 换一个目录",
    ),
    "run_finished": Text(
        en="the run in {path} is finished, {step} of {max_steps} steps: try `trireme generate {path}`; "
        "--resume --extend stretch and a greater length train it further, --overwrite deletes it and starts anew, "
        "run.dir=... starts elsewhere",
        zh="{path} 中的训练已完成（{step}/{max_steps} 步）：可以运行 `trireme generate {path}`；"
        "加大训练长度并加 --resume --extend stretch 可延长训练，加 --overwrite 删除并重新开始，或用 run.dir=... 换一个目录",
    ),
    "nothing_to_resume": Text(
        en="there is no run to resume in {path}; leave --resume out to start one",
        zh="{path} 中没有可以续训的训练；去掉 --resume 即可从头开始",
    ),
    "folder_busy": Text(
        en="process {pid} is writing to {path}; wait for it, stop it, or choose another folder with run.dir=...",
        zh="进程 {pid} 正在写入 {path}；请等它结束、停止它，或用 run.dir=... 换一个目录",
    ),
    "decisions_damaged": Text(
        en="{path} is not readable JSON; delete it, and what it held is measured again",
        zh="{path} 不是可读的 JSON；删除它即可，其中的内容会重新测定",
    ),
    # logs
    "log_waits": Text(
        en="cannot write {path} ({reason}); lines wait in memory and are tried again with each step, "
        "training stops when {count} wait",
        zh="无法写入 {path}（{reason}）；日志暂存于内存，每步重试，积压到 {count} 行时停止训练",
    ),
    "log_recovered": Text(
        en="{path} can be written again, no line is lost",
        zh="{path} 已恢复写入，没有丢失任何一行",
    ),
    "log_lost": Text(
        en="{count} lines of {path} could not be written: {reason}; free some space and go on with --resume",
        zh="{path} 有 {count} 行未能写入：{reason}；请清理磁盘空间后用 --resume 继续",
    ),
    "book_not_written": Text(
        en="cannot write {path} ({reason}); the samples are in samples.jsonl all the same",
        zh="无法写入 {path}（{reason}）；样本仍保存在 samples.jsonl 中",
    ),
    "log_damaged": Text(
        en="{path}:{line} is not a log line with a step, so the log can't be cut back to the checkpoint; "
        "mend the line or move the file away",
        zh="{path}:{line} 不是带 step 的日志行，无法把日志截断到检查点；请修复该行或移走该文件",
    ),
    # step line
    "place": Text(en="step {step}/{max_steps} {bar} {percent}", zh="第 {step}/{max_steps} 步 {bar} {percent}"),
    "left": Text(en="{duration} left", zh="剩余 {duration}"),
    "speed": Text(
        en="{total} tok/s ({real} real, {trained} trained)",
        zh="{total} tok/s（非填充 {real}，参与训练 {trained}）",
    ),
    "memory": Text(en="mem {amount}", zh="内存 {amount}"),
    "offload_wait": Text(en="offload wait {seconds} s", zh="等待卸载 {seconds} 秒"),
    "skipped": Text(en="{count} skipped ({total} so far)", zh="跳过 {count} 步（累计 {total}）"),
    "eval": Text(
        en="eval at step {step}: loss {loss}, perplexity {perplexity}, {seqs} sequences in {duration}",
        zh="第 {step} 步评估：loss {loss}，困惑度 {perplexity}，{seqs} 条序列，用时 {duration}",
    ),
    "best": Text(en="(best so far)", zh="（目前最好）"),
    "sample": Text(en="sample at step {step}", zh="第 {step} 步的样本"),
    "warning": Text(en="warning: {text}", zh="警告：{text}"),
    "work_done": Text(en="{label}: {done} in {duration}", zh="{label}：{done}，用时 {duration}"),
    # before step 1
    "opening_title": Text(en="Run {path}", zh="训练 {path}"),
    "row_model": Text(en="model", zh="模型"),
    "row_params": Text(en="parameters", zh="参数量"),
    "row_flops_per_token": Text(en="work per token", zh="每 token 计算量"),
    "row_step": Text(en="one step", zh="每步"),
    "step_tokens": Text(
        en="{tokens} tokens = {seqs} sequences x {seq_len}, in {passes} pass(es) of {microbatch}",
        zh="{tokens} 个 token = {seqs} 条序列 x {seq_len}，分 {passes} 次前向反向，每次 {microbatch} 条",
    ),
    "row_total": Text(en="whole run", zh="全程"),
    "total": Text(
        en="{steps} steps, {tokens} tokens, {flops}",
        zh="{steps} 步，{tokens} 个 token，{flops}",
    ),
    "from_step": Text(en="; goes on after step {step}", zh="；从第 {step} 步之后继续"),
    "row_optimizer": Text(en="optimizer", zh="优化器"),
    "row_device": Text(en="device", zh="设备"),
    "peak": Text(en=", peak {peak} ({source})", zh="，峰值 {peak}（{source}）"),
    "no_peak": Text(en=", peak unknown, so no MFU", zh="，峰值未知，因此不显示 MFU"),
    "row_precision": Text(en="precision", zh="精度"),
    "row_memory": Text(en="memory", zh="内存"),
    "row_time": Text(en="time", zh="时间"),
    "time": Text(en="{total}, {step} a step", zh="{total}，每步 {step}"),
    # after the last step
    "outcome_finished": Text(en="Finished: step {step} of {max_steps}", zh="训练完成：第 {step}/{max_steps} 步"),
    "outcome_already_finished": Text(
        en="Already finished: step {step} of {max_steps}, nothing was trained now",
        zh="此前已训练完成：第 {step}/{max_steps} 步，本次没有训练",
    ),
    "outcome_stopped": Text(en="Stopped at step {step} of {max_steps}", zh="已停止：第 {step}/{max_steps} 步"),
    "outcome_failed": Text(en="Failed at step {step} of {max_steps}", zh="训练失败：第 {step}/{max_steps} 步"),
    "row_took": Text(en="took", zh="用时"),
    "took": Text(en="{duration} for {tokens} tokens", zh="{duration}，{tokens} 个 token"),
    "row_last_loss": Text(en="last loss", zh="最后的 loss"),
    "row_best_eval": Text(en="best eval loss", zh="最好的评估 loss"),
    "at_step": Text(en="{loss} at step {step}", zh="{loss}（第 {step} 步）"),
    "row_skipped": Text(en="skipped steps", zh="跳过的步数"),
    "row_step_time": Text(en="step time", zh="每步时间"),
    "predicted_measured": Text(
        en="{predicted} predicted, {measured} measured (ratio {ratio})",
        zh="预测 {predicted}，实测 {measured}（比值 {ratio}）",
    ),
    "row_checkpoint": Text(en="checkpoint", zh="检查点"),
    "row_plot": Text(en="loss curve", zh="loss 曲线"),
    "next_title": Text(en="Next", zh="接下来可以运行"),
    "next_resume": Text(en="go on", zh="继续训练"),
    "next_generate": Text(en="write a text", zh="生成文本"),
    "next_chat": Text(en="talk to it", zh="对话"),
    "next_extend": Text(en="train further", zh="延长训练"),
    "next_config": Text(en="its settings", zh="查看设置"),
    # plot
    "plot_failed": Text(
        en="could not draw {path} ({reason}); the numbers are in log.jsonl and evals.jsonl",
        zh="无法绘制 {path}（{reason}）；数据仍在 log.jsonl 和 evals.jsonl 中",
    ),
    "sent": Text(en="sent {amount}", zh="发送 {amount}"),
    "sent_timed": Text(
        en="sent {amount}, waited {exposed} ({overlap} overlapped)",
        zh="发送 {amount}，等待 {exposed}（重叠 {overlap}）",
    ),
    "row_sent": Text(en="sent a step", zh="每步发送"),
    "sent_a_step": Text(en="{parts} (this rank, mean)", zh="{parts}（本 rank，平均）"),
    "crossing": Text(en="; {amount} of the gradients left the node", zh="；其中梯度跨节点 {amount}"),
    "row_overlap": Text(en="gradients travelled", zh="梯度传输"),
    "overlap": Text(
        en="{total} a step, {exposed} of it waited for: {ratio} overlapped with backward",
        zh="每步 {total}，其中等待 {exposed}：与反向重叠 {ratio}",
    ),
}
