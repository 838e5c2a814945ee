"""Sentences about settings: files, keys, values, aliases."""

from __future__ import annotations

from trireme.words.catalogue import Text

TEXTS: dict[str, Text] = {
    # where a value came from
    "from_default": Text(en="default", zh="默认值"),
    "from_python": Text(en="Python", zh="Python 调用"),
    "from_command_line": Text(en="command line", zh="命令行"),
    "from_file": Text(en="file", zh="文件"),
    "from_alias": Text(en="{place}, as {alias}", zh="{place}，写作 {alias}"),
    # files
    "problem": Text(en="{place}: {said}", zh="{place}：{said}"),
    "problems": Text(en="{problems}", zh="{problems}"),
    "no_file": Text(en="{path} does not exist.", zh="找不到文件 {path}。"),
    "no_file_guess": Text(
        en="{path} does not exist. Did you mean {guess}?", zh="找不到文件 {path}。是不是想写 {guess}？"
    ),
    "is_folder": Text(
        en="{path} is a folder; give a YAML file, e.g. {example}.",
        zh="{path} 是一个目录；请给出 YAML 文件，例如 {example}。",
    ),
    "unreadable": Text(en="{path} can't be read: {reason}.", zh="无法读取 {path}：{reason}。"),
    "not_utf8": Text(
        en="{place}: byte {byte} is not UTF-8; save the file as UTF-8.",
        zh="{place}：字节 {byte} 不是 UTF-8 编码；请把文件另存为 UTF-8。",
    ),
    "tab": Text(
        en="{place}: a tab indents this line; YAML indents with spaces only.",
        zh="{place}：这一行用制表符缩进；YAML 只能用空格缩进。",
    ),
    "broken_yaml": Text(en="{place}: this is not YAML: {reason}.", zh="{place}：不是合法的 YAML：{reason}。"),
    "broken_value": Text(
        en="{place}: {value} is not a YAML value: {reason}.", zh="{place}：{value} 不是合法的 YAML 值：{reason}。"
    ),
    "endless_anchor": Text(
        en="{place}: an anchor contains itself or expands without end; write the values out.",
        zh="{place}：锚点引用了自身，或展开后没有尽头；请把值直接写出来。",
    ),
    "too_deep": Text(
        en="{place}: values are nested more than {depth} deep; settings never are.",
        zh="{place}：值的嵌套超过 {depth} 层；配置不会这么深。",
    ),
    "tag": Text(
        en="{place}: the tag {tag} has no meaning here; write a plain value.",
        zh="{place}：这里不支持标签 {tag}；请直接写值。",
    ),
    "no_such_value": Text(
        en="{place}: {value} can't be read as {kind}; write a plain value.",
        zh="{place}：{value} 不能读作 {kind}；请直接写值。",
    ),
    "key_not_text": Text(
        en="{place}: the key {key} is not a text; keys are names such as train.",
        zh="{place}：键 {key} 不是文本；键应当是 train 这样的名称。",
    ),
    "duplicate": Text(
        en="{place}: {key} is given twice, first at {first}; keep one.",
        zh="{place}：{key} 写了两次，第一次在 {first}；请只保留一处。",
    ),
    "merge_key": Text(
        en="{place}: << merges mappings only.",
        zh="{place}：<< 只能合并映射（键值表）。",
    ),
    "root_mapping": Text(
        en="a run file is a mapping of sections (run, model, data, train ...), not {value}.",
        zh="配置文件应当由若干小节（run、model、data、train 等）组成，而不是 {value}。",
    ),
    # keys
    "unknown_guess": Text(en="{key} is unknown. Did you mean {guess}?", zh="没有 {key} 这个键。是不是想写 {guess}？"),
    "unknown_in": Text(
        en="{key} is unknown. {section} has: {keys}.", zh="没有 {key} 这个键。{section} 里可用的键：{keys}。"
    ),
    "unknown_section": Text(
        en="{key} is unknown. The sections are: {keys}.", zh="没有 {key} 这个键。可用的小节：{keys}。"
    ),
    "want_index": Text(
        en="{key} is unknown: {list} is a list, and its items are numbered from zero: {list}.0.",
        zh="没有 {key} 这个键：{list} 是列表，各项从零编号：{list}.0。",
    ),
    "missing": Text(en="{key} is missing and has no default.", zh="缺少 {key}，它没有默认值。"),
    "conflict": Text(
        en="{key} is given twice and differently: {one} and {other}; keep one.",
        zh="{key} 被给了两个不同的值：{one} 和 {other}；请只保留一个。",
    ),
    "repeated": Text(
        en="{place}: {key} is given more than once; {value} counts, for it comes last.",
        zh="{place}：{key} 给了不止一次；以最后的 {value} 为准。",
    ),
    "not_override": Text(
        en="command line: {given} is not key=value, e.g. train.max_steps=200.",
        zh="命令行：{given} 不是 键=值 的写法，例如 train.max_steps=200。",
    ),
    "beyond_list": Text(
        en="{key} is beyond the list, which has {length} entries here; the next free index is {length}.",
        zh="{key} 超出了列表：此处列表有 {length} 项，下一个可用序号是 {length}。",
    ),
    # values
    "want_text": Text(en="{key} takes a text, not {value}.", zh="{key} 应当是文本，而不是 {value}。"),
    "says_nothing": Text(
        en="{key} is {value}; it takes a text with something in it (and no NUL).",
        zh="{key} 是 {value}；应当是有内容的文本（且不含 NUL）。",
    ),
    "want_quoted_text": Text(
        en="{key} takes a text; if {value} is meant as one, put it in quotes.",
        zh="{key} 应当是文本；如果 {value} 就是文本，请加上引号。",
    ),
    "want_number": Text(en="{key} takes a number, not {value}.", zh="{key} 应当是数字，而不是 {value}。"),
    "want_whole": Text(en="{key} takes a whole number, not {value}.", zh="{key} 应当是整数，而不是 {value}。"),
    "want_whole_not_fraction": Text(
        en="{key} takes a whole number and nothing is rounded; {value} is not one.",
        zh="{key} 应当是整数，不会自动取整；{value} 不是整数。",
    ),
    "want_boolean": Text(
        en="{key} takes true or false, not {value}.", zh="{key} 应当是 true 或 false，而不是 {value}。"
    ),
    "want_list": Text(en="{key} takes a list of texts, not {value}.", zh="{key} 应当是文本列表，而不是 {value}。"),
    "want_mapping": Text(
        en="{key} takes a mapping of names to values, not {value}.", zh="{key} 应当是 名称: 值 的映射，而不是 {value}。"
    ),
    "want_choice": Text(
        en="{key} takes one of its named choices, not {value}.", zh="{key} 只能取规定的选项，而不是 {value}。"
    ),
    "want_section": Text(
        en="{key} is a section and takes a mapping of keys, not {value}.",
        zh="{key} 是一个小节，里面应当是键值对，而不是 {value}。",
    ),
    "want_sections": Text(
        en="{key} takes a list of mappings, not {value}.", zh="{key} 应当是由映射组成的列表，而不是 {value}。"
    ),
    "want_section_or_text": Text(
        en="{key} takes a mapping of keys, or a text that stands for its {short}, not {value}.",
        zh="{key} 应当是键值对，或者一个代表 {short} 的文本，而不是 {value}。",
    ),
    "range": Text(en="{key} is {value}; it must be {range}.", zh="{key} 是 {value}；应当满足 {range}。"),
    "not_finite": Text(en="{key} is {value}; it must be a finite number.", zh="{key} 是 {value}；应当是有限的数。"),
    "choice": Text(en="{key} is {value}; it must be one of: {choices}.", zh="{key} 是 {value}；可选的值：{choices}。"),
    "choice_guess": Text(
        en="{key} is {value}; it must be one of: {choices}. Did you mean {guess}?",
        zh="{key} 是 {value}；可选的值：{choices}。是不是想写 {guess}？",
    ),
    "other": Text(en="{key} is {value}, which won't do: {reason}.", zh="{key} 的值 {value} 不可用：{reason}。"),
    # aliases
    "read_as": Text(en="{place}: {word} is read as {key}.", zh="{place}：{word} 按 {key} 处理。"),
    "words_read": Text(
        en="{place}: {words} is read as {key} = {value}.", zh="{place}：{words} 按 {key} = {value} 处理。"
    ),
    "implied": Text(
        en="{place}: {word} implies {key} = {value}, for that is what it means where the word comes from.",
        zh="{place}：{word} 在原来的框架里意味着 {key} = {value}，因此照此设置。",
    ),
    "overridden": Text(
        en="{place}: {word} gives way to {key}, set later ({by}).",
        zh="{place}：{word} 让位于之后（{by}）设置的 {key}。",
    ),
    "batch_read": Text(
        en="{place}: {words} is read as train.microbatch_seqs = {micro} and train.global_batch_seqs = {total} "
        "({micro} a device x {accumulation} accumulated x {dp_degree} data-parallel ranks).",
        zh="{place}：{words} 按 train.microbatch_seqs = {micro}、train.global_batch_seqs = {total} 处理"
        "（每设备 {micro} × 累积 {accumulation} × 数据并行 {dp_degree}）。",
    ),
    "accumulation_read": Text(
        en="{place}: gradient_accumulation_steps = {accumulation} is read as train.microbatch_seqs = {micro}.",
        zh="{place}：gradient_accumulation_steps = {accumulation} 按 train.microbatch_seqs = {micro} 处理。",
    ),
    "accumulation_alone": Text(
        en="gradient_accumulation_steps = {value} alone doesn't say how large a batch is; give train.global_batch_seqs "
        "or per_device_train_batch_size as well.",
        zh="只有 gradient_accumulation_steps = {value} 无法确定批大小；请同时给出 train.global_batch_seqs "
        "或 per_device_train_batch_size。",
    ),
    "accumulation_divides": Text(
        en="train.global_batch_seqs = {total} is not divisible by gradient_accumulation_steps = {value} times "
        "{dp_degree} data-parallel ranks; give train.microbatch_seqs instead.",
        zh="train.global_batch_seqs = {total} 不能被 gradient_accumulation_steps = {value} 与数据并行度 {dp_degree} "
        "的乘积整除；请改用 train.microbatch_seqs。",
    ),
    "o2_read": Text(
        en="{place}: {words} is read as {key} = {value}: 16-bit weights, fp32 master weights in the optimizer; norms' "
        "statistics and the loss are computed in fp32.",
        zh="{place}：{words} 按 {key} = {value} 处理：权重为 16 位，优化器保存 fp32 主权重；归一化的统计量和损失以 fp32 计算。",
    ),
    "not_level": Text(
        en="{key} = {value} is not a level; O0 is fp32, O1 mixed precision with fp32 weights, O2 16-bit weights with fp32 "
        "master weights in the optimizer.",
        zh="{key} = {value} 不是有效的级别；O0 为 fp32，O1 为权重 fp32 的混合精度，O2 为 16 位权重、优化器保存 fp32 主权重。",
    ),
    "not_boolean": Text(
        en="{key} takes true or false, not {value}.",
        zh="{key} 应当是 true 或 false，而不是 {value}。",
    ),
    "master_needed": Text(
        en="{word} does not go with {policy} weights here: only bf16 at level O2 trains without fp32 master weights "
        "(precision.policy = bf16_pure).",
        zh="{word} 不能与 {policy} 搭配：只有 O2 级的 bf16 可以不要 fp32 主权重（precision.policy = bf16_pure）。",
    ),
    "not_switch": Text(
        en="{key} takes true, false or {{enabled: true}}, not {value}; here the format is precision.policy.",
        zh="{key} 应当是 true、false 或 {{enabled: true}}，而不是 {value}；这里用 precision.policy 选择数值格式。",
    ),
    "not_schedule": Text(
        en="{key} = {value} has no equal here; train.schedule is constant, linear, cosine or wsd.",
        zh="这里没有与 {key} = {value} 相同的调度；train.schedule 可选 constant、linear、cosine、wsd。",
    ),
    "warmup_ratio_unknown": Text(
        en="{key} = {value} is a share of steps that only the data decide; with train.epochs give train.warmup_steps "
        "or train.warmup_tokens.",
        zh="{key} = {value} 是总步数的比例，而总步数要读完数据才知道；使用 train.epochs 时请给出 "
        "train.warmup_steps 或 train.warmup_tokens。",
    ),
    "min_lr_above": Text(
        en="min_lr = {value} must lie between 0 and train.lr = {peak}.",
        zh="min_lr = {value} 应当介于 0 和 train.lr = {peak} 之间。",
    ),
    # words that mean something else
    "not_eval_batch": Text(
        en="{key} has no effect here: evaluation runs in micro-batches of training; train.eval_seqs says how many "
        "sequences it takes.",
        zh="这里不需要 {key}：评估沿用训练的微批大小；评估多少条序列由 train.eval_seqs 决定。",
    ),
    "not_per_gpu_batch": Text(
        en="{key} is outdated where it comes from; give per_device_train_batch_size or train.global_batch_seqs.",
        zh="{key} 在原框架中已弃用；请改用 per_device_train_batch_size 或 train.global_batch_seqs。",
    ),
    "not_bare_batch": Text(
        en="{key} doesn't say whose batch; give train.global_batch_seqs (a step, all ranks) or train.microbatch_seqs.",
        zh="{key} 没有说明是哪一级的批大小；请给出 train.global_batch_seqs（一步、所有卡）或 train.microbatch_seqs。",
    ),
    "not_scheduler_kwargs": Text(
        en="{key} is not read; give train.min_lr_ratio and train.decay_ratio instead.",
        zh="不读取 {key}；请改用 train.min_lr_ratio 和 train.decay_ratio。",
    ),
    "not_decay_iters": Text(
        en="{key} is not read: the rate decays to the end of the run; for wsd give train.decay_ratio.",
        zh="不读取 {key}：学习率一直衰减到训练结束；wsd 请用 train.decay_ratio。",
    ),
    "not_optim": Text(
        en="{key} is not read: the optimizer is AdamW; give train.lr, train.beta1, train.beta2, train.eps, "
        "train.weight_decay.",
        zh="不读取 {key}：优化器是 AdamW；请用 train.lr、train.beta1、train.beta2、train.eps、"
        "train.weight_decay 设置。",
    ),
    "not_scheduler_block": Text(
        en="{key} is not read; give train.schedule and train.warmup_steps instead.",
        zh="不读取 {key}；请改用 train.schedule 和 train.warmup_steps。",
    ),
    "not_eval_iters": Text(
        en="{key} counts something else; train.eval_seqs says how many held-out sequences an evaluation takes.",
        zh="{key} 的计数单位不同；一次评估用多少条序列由 train.eval_seqs 决定。",
    ),
    "not_train_samples": Text(
        en="{key} is not read; give train.max_steps, train.max_tokens or train.epochs.",
        zh="不读取 {key}；请给出 train.max_steps、train.max_tokens 或 train.epochs。",
    ),
    "not_strategy": Text(
        en="{key} is not needed: train.eval_every_steps, checkpoint.every_steps and observe.every_steps say how often.",
        zh="不需要 {key}：频率由 train.eval_every_steps、checkpoint.every_steps、observe.every_steps 决定。",
    ),
    "not_best": Text(
        en="{key} is not read: checkpoint.keep_best keeps the best checkpoint beside the last.",
        zh="不读取 {key}：checkpoint.keep_best 会在最后一个检查点之外保留最好的一个。",
    ),
    "not_resume": Text(
        en="{key} is not a setting here; type trireme train ... --resume.",
        zh="这里 {key} 不是设置项；请用 trireme train ... --resume。",
    ),
    "not_overwrite": Text(
        en="{key} is not a setting here; type trireme train ... --overwrite.",
        zh="这里 {key} 不是设置项；请用 trireme train ... --overwrite。",
    ),
    "not_verbs": Text(
        en="{key} is not needed: the command says what is done (trireme train ...); leave it out.",
        zh="不需要 {key}：做什么由命令决定（trireme train ...）；请去掉。",
    ),
    "not_report_to": Text(
        en="{key} is not read: every step goes to log.jsonl in the run folder and nowhere else; leave it out.",
        zh="不读取 {key}：每一步都写入运行目录的 log.jsonl，不发往别处；请去掉。",
    ),
    "not_device": Text(
        en="{key} is not read: the device is the accelerator that is there, else the CPU; hide one with "
        "CUDA_VISIBLE_DEVICES=.",
        zh="不读取 {key}：有加速器就用加速器，否则用 CPU；要隐藏加速器请设置 CUDA_VISIBLE_DEVICES=。",
    ),
    "not_localsgd": Text(
        en="{key} is not read; communication.local_steps = N says after how many steps the replicas' weights meet, and "
        "communication.outer = average takes their mean.",
        zh="不读取 {key}；副本每隔多少步汇合权重由 communication.local_steps = N 决定，communication.outer = average 表示取平均。",
    ),
    "not_preprocessed": Text(
        en="{key} names tokenised files of another tool, which are not read; give the texts as data.sources.",
        zh="{key} 指向其他工具分词后的文件，这里不读取；请用 data.sources 给出原始文本。",
    ),
    "not_hub_dataset": Text(
        en="{key} names a dataset on a hub; nothing is downloaded here, give files as data.sources.",
        zh="{key} 指的是线上数据集；这里不下载任何东西，请用 data.sources 给出文件。",
    ),
    "not_text_field": Text(
        en="{key} belongs to a source here: data.sources.0.field.",
        zh="这里它属于某个数据源：data.sources.0.field（原写法 {key}）。",
    ),
    "not_hidden_dropout": Text(
        en="{key} drops embeddings as well; here model.dropout acts on residual branches alone.",
        zh="{key} 还会作用于嵌入层；这里的 model.dropout 只作用于残差分支。",
    ),
    "not_attention_dropout": Text(
        en="{key} has no equal in the reference decoder; model.dropout acts on residual branches.",
        zh="参考解码器没有 {key}；model.dropout 作用于残差分支。",
    ),
    # sections together
    "no_sources": Text(
        en="data.sources is empty; name at least one, e.g. data.sources=corpus:songci.",
        zh="data.sources 为空；至少给出一个，例如 data.sources=corpus:songci。",
    ),
    "no_length": Text(
        en="nothing says how long to train; give one of train.max_steps, train.max_tokens, train.epochs.",
        zh="没有说明训练多久；请在 train.max_steps、train.max_tokens、train.epochs 中给出一个。",
    ),
    "two_lengths": Text(
        en="{keys}: exactly one may say how long to train; clear the other, e.g. with {clear}",
        zh="{keys}：训练长度只能由其中一个决定；请清除另一个，例如 {clear}",
    ),
    "microbatch_above": Text(
        en="train.microbatch_seqs = {micro} is more than train.global_batch_seqs = {total}; at most {total} fit.",
        zh="train.microbatch_seqs = {micro} 大于 train.global_batch_seqs = {total}；最多为 {total}。",
    ),
    "microbatch_rest": Text(
        en="train.global_batch_seqs = {total} is not a multiple of train.microbatch_seqs = {micro}; "
        "the last micro-batch of a step has {rest}.",
        zh="train.global_batch_seqs = {total} 不是 train.microbatch_seqs = {micro} 的倍数；"
        "每步最后一个微批有 {rest} 条。",
    ),
    "two_warmups": Text(
        en="train.warmup_steps = {steps} and train.warmup_tokens = {tokens} both say how long warm-up is; keep one.",
        zh="train.warmup_steps = {steps} 和 train.warmup_tokens = {tokens} 都规定了预热长度；请只保留一个。",
    ),
    "warmup_above": Text(
        en="{key} = {warmup} is longer than the run, which is {limit}.",
        zh="{key} = {warmup} 超过了训练总长 {limit}。",
    ),
    "recompute_twice": Text(
        en="recompute.mode = {mode} and layout.recompute = {layout} contradict; keep one.",
        zh="recompute.mode = {mode} 与 layout.recompute = {layout} 矛盾，请只保留一个。",
    ),
    "no_effect": Text(en="{key} has no effect with {because}.", zh="在 {because} 时，{key} 不起作用。"),
    "no_model": Text(
        en="nothing says which model; give one of model.name (e.g. llama-19m), model.factory, model.path.",
        zh="没有说明训练哪个模型；请在 model.name（例如 llama-19m）、model.factory、model.path 中给出一个。",
    ),
    "two_models": Text(
        en="{keys}: exactly one may say which model; clear the other, e.g. with {clear}",
        zh="{keys}：模型只能由其中一个决定；请清除另一个，例如 {clear}",
    ),
    "shape_without_name": Text(
        en="{key} only changes a named size (model.name); {given} has its own shape.",
        zh="{key} 只能修改 model.name 指定的规格；{given} 自带形状。",
    ),
    "not_reference": Text(
        en="{key} = {value} is neither package.module:function nor path/to/file.py:function.",
        zh="{key} = {value} 既不是 package.module:function，也不是 path/to/file.py:function 的写法。",
    ),
    "args_without_factory": Text(
        en="model.factory_args needs model.factory, the function they are for.",
        zh="model.factory_args 需要同时给出 model.factory，即接收这些参数的函数。",
    ),
    "heads_divide": Text(
        en="model.num_heads = {heads} must be a multiple of model.num_kv_heads = {kv_heads}.",
        zh="model.num_heads = {heads} 应当是 model.num_kv_heads = {kv_heads} 的整数倍。",
    ),
    "width_divides": Text(
        en="model.d_model = {width} must be a multiple of model.num_heads = {heads}.",
        zh="model.d_model = {width} 应当是 model.num_heads = {heads} 的整数倍。",
    ),
    "head_width_even": Text(
        en="model.d_model = {width} over {heads} heads gives heads of {head_width}; "
        "rotary positions need an even width.",
        zh="model.d_model = {width} 分给 {heads} 个头，每头宽 {head_width}；旋转位置编码要求宽度为偶数。",
    ),
    "seq_len_above": Text(
        en="data.seq_len = {seq_len} is longer than model.max_seq_len = {max_seq_len}; lower one or raise the other.",
        zh="data.seq_len = {seq_len} 超过了 model.max_seq_len = {max_seq_len}；请调小前者或调大后者。",
    ),
    "not_zero": Text(
        en="{key} is a block of other settings here; say layout.zero = 1, 2 or 3.",
        zh="{key} 在这里不是一个配置块；请写 layout.zero = 1、2 或 3。",
    ),
    "layout_twice": Text(
        en="layout = {text} says the whole layout, and {keys} say parts of it; give one or the other.",
        zh="layout = {text} 已经给出整个布局，又另外给了 {keys}；二者只能选其一。",
    ),
    "batch_beside_layout": Text(
        en="{word} depends on the data-parallel degree, which layout.text only tells later; "
        "give train.global_batch_seqs, or the layout key by key.",
        zh="{word} 取决于数据并行度，而 layout.text 要到之后才解析；请给出 train.global_batch_seqs，或逐项写出 layout 的各个键。",
    ),
}
