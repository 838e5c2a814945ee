"""Sentences of the command line: help, usage, what went wrong with a command."""

from __future__ import annotations

from trireme.words.catalogue import Text

TEXTS: dict[str, Text] = {
    # the frame
    "about": Text(
        en="Train language models: one file of settings, plain PyTorch, nothing lost on the way.",
        zh="训练语言模型：一个配置文件，纯 PyTorch，过程中什么都不会悄悄丢掉。",
    ),
    "epilog": Text(
        en="Begin with: trireme train recipes/lyrics.yaml",
        zh="从这里开始：trireme train recipes/lyrics.yaml",
    ),
    "usage": Text(en="Usage: ", zh="用法："),
    "options": Text(en="Options", zh="选项"),
    "arguments": Text(en="Arguments", zh="参数"),
    "required": Text(en="[required]", zh="[必需]"),
    "commands": Text(en="Commands", zh="命令"),
    "options_metavar": Text(en="[OPTIONS]", zh="[选项]"),
    "command_metavar": Text(en="COMMAND [ARGUMENTS]...", zh="命令 [参数]..."),
    "help_option": Text(en="Show this help.", zh="显示本帮助。"),
    "lang_option": Text(
        en="Language of all messages; default: TRIREME_LANG, else the locale.",
        zh="提示语言；默认取 TRIREME_LANG，否则按系统区域设置。",
    ),
    "version_option": Text(en="Show the version.", zh="显示版本号。"),
    # verbs, in one line each
    "verb_train": Text(en="Train a model as a file of settings says.", zh="按配置文件训练模型。"),
    "verb_launch": Text(
        en="Start ranks, watch them, and start them again when one fails.", zh="启动并看护各 rank，失败时重新启动。"
    ),
    "verb_generate": Text(en="Continue a prompt with a trained model.", zh="用训练好的模型续写文本。"),
    "verb_chat": Text(en="Talk with a trained model, line by line.", zh="与训练好的模型逐行对话。"),
    "verb_data": Text(
        en="Look at data before training: report, tokenizer, order of samples.",
        zh="训练前查看数据：报告、分词器、样本顺序。",
    ),
    "verb_checkpoint": Text(
        en="List, show, verify, compare, convert, prune and repair checkpoints.",
        zh="列出、查看、校验、比较、转换、清理和修复检查点。",
    ),
    "verb_config": Text(
        en="Show, check and describe settings.",
        zh="显示、检查和说明配置。",
    ),
    "verb_cluster": Text(en="Measure this machine for the planner.", zh="为规划器实测本机。"),
    "verb_models": Text(en="List the reference models by size.", zh="按规模列出参考模型。"),
    "verb_verify": Text(
        en="Show that a layout trains a model as one device does.", zh="证明某种并行布局训练出的模型与单设备一致。"
    ),
    "verb_plan": Text(
        en="Find the layout: does it fit, how fast, why not another; `plan check` holds that against real runs.",
        zh="寻找布局：放得下吗、多快、为何不选别的；`plan check` 用真实运行检验预测。",
    ),
    "verb_simulate": Text(
        en="Run one rank of any layout without devices: its exact memory and messages.",
        zh="不用设备模拟任意布局中的一个 rank：得到精确的内存和通信量。",
    ),
    "verb_compile_report": Text(
        en="Measure what compiling a run's model gives: programs, kernels, memory, time.",
        zh="实测编译一次训练的模型有何收益：程序、内核、内存、时间。",
    ),
    "verb_chaos": Text(en="Break a run on purpose and see what is lost.", zh="故意破坏一次训练，看会损失什么。"),
    "verb_env": Text(
        en="Say what this machine and installation have; attach it to a report.",
        zh="显示本机与安装环境；反馈问题时请附上。",
    ),
    "verb_version": Text(en="Show the version.", zh="显示版本号。"),
    # mistakes
    "error": Text(en="error: {message}", zh="错误：{message}"),
    "note": Text(en="note: {message}", zh="提示：{message}"),
    "unknown_verb": Text(
        en="there is no command {name}; the commands are: {verbs}.", zh="没有命令 {name}；可用的命令：{verbs}。"
    ),
    "unknown_verb_guess": Text(
        en="there is no command {name}. Did you mean {guess}?", zh="没有命令 {name}。是不是想输入 {guess}？"
    ),
    "file_for_verb": Text(
        en="{name} is a file, not a command. Did you mean trireme train {name}?",
        zh="{name} 是文件，不是命令。是不是想输入 trireme train {name}？",
    ),
    "unknown_option": Text(
        en="there is no option {name}; see {command} --help.", zh="没有选项 {name}；请看 {command} --help。"
    ),
    "unknown_option_guess": Text(
        en="there is no option {name}. Did you mean {guess}?", zh="没有选项 {name}。是不是想输入 {guess}？"
    ),
    "missing_argument": Text(en="{name} is missing; see {command} --help.", zh="缺少 {name}；请看 {command} --help。"),
    "bad_argument": Text(
        en="{name} won't do: {reason} See {command} --help.", zh="{name} 不可用：{reason} 请看 {command} --help。"
    ),
    "takes_whole": Text(en="it takes a whole number.", zh="应当是整数。"),
    "takes_whole_in": Text(en="it takes a whole number {range}.", zh="应当是 {range} 的整数。"),
    "takes_number": Text(en="it takes a number.", zh="应当是数字。"),
    "takes_number_in": Text(en="it takes a finite number {range}.", zh="应当是 {range} 的有限数字。"),
    "takes_one_of": Text(en="it takes one of: {choices}.", zh="可选：{choices}。"),
    "needs_value": Text(
        en="{name} needs a value; see {command} --help.", zh="{name} 需要一个值；请看 {command} --help。"
    ),
    "no_value": Text(en="{name} takes no value; see {command} --help.", zh="{name} 不带值；请看 {command} --help。"),
    "too_much": Text(
        en="{given} is more than {command} takes; see {command} --help.",
        zh="{command} 用不到 {given}；请看 {command} --help。",
    ),
    "no_memory": Text(
        en="the machine has not enough memory for this. Smaller: data.seq_len, train.global_batch_seqs, the model.",
        zh="本机内存不足。请调小 data.seq_len、train.global_batch_seqs 或模型。",
    ),
    "bad_usage": Text(en="{reason} See {command} --help.", zh="{reason} 请看 {command} --help。"),
    "unknown_language": Text(en="--lang takes zh or en, not {value}.", zh="--lang 只能是 zh 或 en，而不是 {value}。"),
    "interrupted": Text(en="interrupted.", zh="已中断。"),
    "machine_says_no": Text(
        en="{path}: the system refuses: {reason}. Free space or rights there, or name another folder.",
        zh="{path}：系统拒绝操作：{reason}。请腾出空间、修改权限，或换一个目录。",
    ),
    "crashed": Text(
        en="this is a fault in Trireme, not in what you typed; please report it with the lines above and the output of "
        "trireme env.",
        zh="这是 Trireme 自身的错误，不是您的输入有问题；请附上以上内容和 trireme env 的输出反馈给我们。",
    ),
    # config
    "config_show": Text(
        en="Show every value as it will be used, and where it came from.", zh="显示实际生效的每个值及其来源。"
    ),
    "config_check": Text(en="Check a file of settings without running it.", zh="只检查配置文件，不运行。"),
    "config_schema": Text(
        en="Print the JSON Schema of run files, for editors.", zh="输出配置文件的 JSON Schema，供编辑器使用。"
    ),
    "config_plain": Text(en="Leave out where values came from.", zh="不显示值的来源。"),
    "config_fine": Text(en="{path} is fine.", zh="{path} 没有问题。"),
    "run_file": Text(en="YAML file of settings.", zh="YAML 配置文件。"),
    "overrides": Text(
        en="Settings that replace those of the file: key=value, e.g. train.max_steps=200.",
        zh="替换文件中的设置：键=值，例如 train.max_steps=200。",
    ),
    # env
    "env_json": Text(en="Print JSON.", zh="以 JSON 输出。"),
    "env_cores": Text(en="{cores} cores", zh="{cores} 核"),
    "env_none": Text(en="not installed", zh="未安装"),
    "env_no_accelerator": Text(en="none, training runs on the CPU", zh="无，在 CPU 上训练"),
    "ranks_lost": Text(
        en="Another rank ended in the middle of a step, and so does this one ({reason}); its own message says why.",
        zh="另一个 rank 在一步之中退出，本 rank 随之结束（{reason}）；原因见其自身的消息。",
    ),
}
