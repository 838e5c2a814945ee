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
        "--overwrite deletes it and starts anew, run.dir=... starts elsewhere",
        zh="{path} 中的训练已完成（{step}/{max_steps} 步）：可以运行 `trireme generate {path}`；"
        "加 --overwrite 删除并重新开始，或用 run.dir=... 换一个目录",
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
}
