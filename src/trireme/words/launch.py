"""Sentences of ``trireme launch`` and of the supervision of ranks."""

from trireme.words.catalogue import Text

TEXTS = {
    "help": Text(
        en="Start ranks, watch them, and start them again from the newest good checkpoint when one fails. PROGRAM is a RUN.YAML "
        "with KEY=VALUE after it, or a script.py with its arguments.",
        zh="启动各 rank 并加以看护；有 rank 失败时，从最新的可用检查点重新启动。PROGRAM 是 RUN.YAML（其后可跟 KEY=VALUE），"
        "或 script.py 及其参数。",
    ),
    "program": Text(en="A run file, or a Python script.", zh="配置文件，或 Python 脚本。"),
    "rest": Text(en="Overrides of the run file, or the script's arguments.", zh="配置文件的覆盖项，或脚本的参数。"),
    "nproc": Text(en="Ranks on this machine; auto: one a device.", zh="本机的 rank 数；auto：每个设备一个。"),
    "auto_resume_or_overwrite": Text(
        en="--auto-resume goes on with a run that is there and --overwrite deletes it: give one of them",
        zh="--auto-resume 会接着已有的训练继续，--overwrite 会删除它：只能给其中一个",
    ),
    "max_restarts": Text(
        en="Restarts allowed: so many (3), or so many in a window (3/10min, 20/1h).",
        zh="允许的重启次数：总次数（3），或一段时间内的次数（3/10min、20/1h）。",
    ),
    "same_rank": Text(
        en="Stop, or leave the node out, when the same rank failed this often in the window.",
        zh="同一 rank 在时间窗内失败达到此次数时停止，或把该节点排除在外。",
    ),
    "hang_after": Text(
        en="A rank that stands still this long in a step hangs; slow steps make it longer by themselves.",
        zh="rank 在一步之内停滞达到此时长即视为卡死；步子本来就慢时会自动放宽。",
    ),
    "long_after": Text(
        en="The same for phases that may be long: data, the first step, evaluation, saving.",
        zh="同上，用于本就可能较长的阶段：数据、第一步、评估、保存。",
    ),
    "init_timeout": Text(
        en="All ranks must have found each other within this time.", zh="所有 rank 必须在此时长内找到彼此。"
    ),
    "grace": Text(
        en="How long ranks may take to save and leave after SIGTERM, Ctrl-C or Slurm's USR1.",
        zh="收到 SIGTERM、Ctrl-C 或 Slurm 的 USR1 后，各 rank 保存并退出可用的时长。",
    ),
    "auto_resume": Text(
        en="Go on if the run folder holds this run, else begin.", zh="训练目录中已有这次训练时接着训练，否则从头开始。"
    ),
    "cold": Text(
        en="Give each rank an interpreter of its own instead of forking it from a warm one.",
        zh="为每个 rank 单独启动解释器，而不是从预热好的进程派生。",
    ),
    "log_dir": Text(
        en="Where reports of failures go. Default: failures in the run folder, or runs/<script>/failures.",
        zh="失败报告的存放处。默认：训练目录下的 failures，脚本则为 runs/<脚本名>/failures。",
    ),
    "unknown_fault": Text(
        en="There is no fault {name}; there are {known}.", zh="没有名为 {name} 的故障；可用的有 {known}。"
    ),
    "bad_fault": Text(
        en="The fault {text} is not NAME@key=number,...; the keys are {keys}.",
        zh="故障 {text} 不是 NAME@键=数字,... 的形式；键有 {keys}。",
    ),
    "said": Text(en="launch: {text}", zh="启动器：{text}"),
    "bad_nproc": Text(
        en="--nproc-per-node {text} is neither a number of ranks nor auto.",
        zh="--nproc-per-node {text} 既不是 rank 数，也不是 auto。",
    ),
    "slurm": Text(
        en="Write an sbatch file for this launch and submit it; the job saves before its time is over, is queued again and "
        "goes on.",
        zh="为本次启动写出 sbatch 文件并提交；作业在时限之前保存、重新排队并继续。",
    ),
    "dry_run": Text(en="With --slurm: write the file, submit nothing.", zh="与 --slurm 连用：只写文件，不提交。"),
    "slurm_nodes": Text(en="With --slurm: nodes.", zh="与 --slurm 连用：节点数。"),
    "slurm_gpus": Text(
        en="With --slurm: GPUs of a node; also its ranks.", zh="与 --slurm 连用：每个节点的 GPU 数，也是其 rank 数。"
    ),
    "slurm_time": Text(en="With --slurm: time limit, as Slurm writes it.", zh="与 --slurm 连用：时限，写法同 Slurm。"),
    "slurm_partition": Text(en="With --slurm: partition.", zh="与 --slurm 连用：分区。"),
    "slurm_warn": Text(
        en="With --slurm: how long before its end the job is told.", zh="与 --slurm 连用：在结束前多久通知作业。"
    ),
    "slurm_only": Text(en="{options} needs --slurm.", zh="{options} 需要 --slurm。"),
    "slurm_written": Text(en="Wrote {path}", zh="已写出 {path}"),
    "no_sbatch": Text(
        en="There is no sbatch on this machine; {path} is written: submit it where Slurm is.",
        zh="本机没有 sbatch；已写出 {path}，请在有 Slurm 的机器上提交。",
    ),
    "sbatch_refused": Text(en="sbatch refuses: {reason}", zh="sbatch 拒绝提交：{reason}"),
    "bad_budget": Text(
        en="--max-restarts {text} is not a number (3) or a number in a window (3/10min, 20/1h).",
        zh="--max-restarts {text} 既不是次数（3），也不是一段时间内的次数（3/10min、20/1h）。",
    ),
    "no_program": Text(
        en="{path} is neither a run file, a run folder nor a Python script.",
        zh="{path} 既不是配置文件、训练目录，也不是 Python 脚本。",
    ),
    "run_options": Text(
        en="{options} is for run files; a script gets its own arguments after its name.",
        zh="{options} 用于配置文件；脚本的参数写在脚本名之后。",
    ),
    "bad_nnodes": Text(
        en="--nnodes {text} is not a number (2) or a range (2:4).",
        zh="--nnodes {text} 既不是数字（2），也不是范围（2:4）。",
    ),
    "host_gone": Text(
        en="The node at {endpoint}, where the nodes meet, can't be reached any more; this node ends.",
        zh="各节点会合之处 {endpoint} 已无法连接；本节点结束。",
    ),
    "needs_endpoint": Text(
        en="--nnodes {nnodes} needs --rdzv-endpoint HOST:PORT, where the nodes meet.",
        zh="--nnodes {nnodes} 需要 --rdzv-endpoint HOST:PORT，即各节点会合的地址。",
    ),
    "nnodes": Text(
        en="Nodes, or the least and the most of them (2:4): the run goes on while at least the least are there.",
        zh="节点数，或最少与最多（2:4）：只要不少于最少的节点数，训练就继续。",
    ),
    "rdzv_endpoint": Text(
        en="Where nodes meet: the host and port of the first node.", zh="各节点会合的地址：第一个节点的主机与端口。"
    ),
    "rdzv_id": Text(
        en="Name of this launch, the same on all nodes and never used before: a node that comes late learns by it that the "
        "job is complete.",
        zh="本次启动的名称，各节点相同且从未用过：迟到的节点据此得知任务已经完成。",
    ),
    "rdzv_timeout": Text(
        en="How long a node waits for the others to come, or for news of them.",
        zh="一个节点等待其他节点到来或其消息的时长。",
    ),
    "too_few_nodes": Text(
        en="After {limit_s:g} s there are fewer nodes than the {least} that the run needs; this node ends.",
        zh="等待 {limit_s:g} 秒后，节点数仍少于训练所需的 {least} 个；本节点结束。",
    ),
    "killed_9": Text(
        en="was ended by {name} (signal {number}): maybe the system was short of memory",
        zh="被 {name}（信号 {number}）终止：可能是系统内存不足",
    ),
    "killed": Text(en="was ended by {name} (signal {number})", zh="被 {name}（信号 {number}）终止"),
    "exited": Text(en="ended with exit code {code} and gave no reason", zh="以退出码 {code} 结束，没有说明原因"),
    "stopped_rank": Text(
        en="was stopped by a signal (SIGSTOP or a debugger) at step {step} and does not go on",
        zh="在第 {step} 步被信号（SIGSTOP 或调试器）暂停，不再前进",
    ),
    "hangs": Text(
        en="hangs: it has stood still for {stood_s:.1f} s in phase {phase} after step {step}; its stack is kept",
        zh="卡死：第 {step} 步之后在 {phase} 阶段已停滞 {stood_s:.1f} 秒；其调用栈已保存",
    ),
    "init_late": Text(
        en="did not find the others within {limit_s:g} s: {there} of {world} ranks are there, missing {ranks}",
        zh="未能在 {limit_s:g} 秒内找到其他 rank：{world} 个中到了 {there} 个，缺少 {ranks}",
    ),
    "server_gone": Text(
        en="the process that ranks are forked from was ended, and they with it",
        zh="派生各 rank 的进程被终止，各 rank 随之结束",
    ),
    "failed": Text(
        en="attempt {attempt} failed after {lasted_s:.1f} s: rank {rank} on {host} failed first, at step {step}: it {message}",
        zh="第 {attempt} 次尝试在 {lasted_s:.1f} 秒后失败：{host} 上的 rank {rank} 最先失败，位于第 {step} 步：{message}",
    ),
    "followed": Text(en="ranks that only followed (exit code): {ranks}", zh="随之结束的 rank（退出码）：{ranks}"),
    "kept": Text(en="kept in {path}", zh="保存在 {path}"),
    "not_kept": Text(en="Nothing could be kept in {path}: {reason}", zh="无法写入 {path}：{reason}"),
    "restart": Text(
        en="starting again in {wait_s:g} s; {left} restarts are left of {budget}",
        zh="{wait_s:g} 秒后重新启动；限额 {budget} 中还剩 {left} 次",
    ),
    "exclude": Text(
        en="{place} failed {count} times in the window: it is left out, the other nodes go on",
        zh="{place} 在时间窗内失败了 {count} 次：将其排除，其余节点继续",
    ),
    "stop_same": Text(
        en="not started again: {place} failed {count} times in the window, so the fault is with it or with the run; see the "
        "reports, or raise --same-rank-limit",
        zh="不再重新启动：{place} 在时间窗内失败了 {count} 次，问题出在它自身或训练本身；请查看报告，或调高 --same-rank-limit",
    ),
    "stop_budget": Text(
        en="not started again: the budget of restarts ({budget}) is used up; --resume goes on from the last checkpoint",
        zh="不再重新启动：重启限额（{budget}）已用完；可用 --resume 从最近的检查点继续",
    ),
    "stop_user": Text(
        en="not started again: starting again would meet the same mistake",
        zh="不再重新启动：再次启动仍会遇到同样的错误",
    ),
    "stop_memory": Text(
        en="not started again: it would run out of memory again. Fewer train.microbatch_seqs, recompute=full, more zero or tp "
        "need less; trireme plan shows how much",
        zh="不再重新启动：再次启动仍会内存不足。减小 train.microbatch_seqs、recompute=full、更高的 zero 或 tp 可以降低占用；"
        "trireme plan 会给出数值",
    ),
    "stop_disk": Text(
        en="not started again: the disk is full; make room, then --resume",
        zh="不再重新启动：磁盘已满；腾出空间后用 --resume 继续",
    ),
    "stop_diverged": Text(
        en="not started again: the numbers went wrong, not the machine; see train.on_nonfinite and train.on_spike",
        zh="不再重新启动：出问题的是数值而不是机器；参见 train.on_nonfinite 与 train.on_spike",
    ),
    "complete_already": Text(en="The job is complete already; nothing to do.", zh="任务已经完成，无事可做。"),
    "stopped_elsewhere": Text(en="Another node ended the job.", zh="另一个节点结束了任务。"),
    "nodes_changed": Text(
        en="nodes came or went: starting again with those that are there", zh="节点有增减：与现有的节点重新启动"
    ),
    "grace_short": Text(
        en="a save took {save_s:.1f} s, longer than the {grace_s:g} s that ranks get after SIGTERM: raise --grace",
        zh="一次保存用了 {save_s:.1f} 秒，超过收到 SIGTERM 后给予各 rank 的 {grace_s:g} 秒：请调大 --grace",
    ),
}
