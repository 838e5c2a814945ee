"""Sentences about models: sizes, factories, folders, generation."""

from __future__ import annotations

from trireme.words.catalogue import Text

TEXTS: dict[str, Text] = {
    "unknown_name_near": Text(
        en="model.name={name}: there is no such model; did you mean {near}? `trireme models` lists them all.",
        zh="model.name={name}：没有这个模型，你要的是 {near} 吗？`trireme models` 可列出全部模型。",
    ),
    "unknown_name": Text(
        en="model.name={name}: there is no such model; there are {names}.",
        zh="model.name={name}：没有这个模型；现有模型：{names}。",
    ),
    "one_source": Text(
        en="Exactly one of model.name, model.factory and model.path says which module is trained; given: {given}.",
        zh="model.name、model.factory、model.path 必须三选一，用来指定要训练的模型；当前给出的是：{given}。",
    ),
    "no_effect": Text(
        en="{keys} would have no effect with {source}; remove it, or name a reference decoder with model.name.",
        zh="使用 {source} 时，{keys} 不起作用；请删去它，或改用 model.name 指定内置模型。",
    ),
    "not_a_shape": Text(
        en="{source} gives a module of its own, so its shape isn't known from the settings; build it to see it.",
        zh="{source} 提供的是自定义模块，无法仅凭配置得知其结构；需要先构建出来。",
    ),
    "heads_divide": Text(
        en="model.d_model={d_model} is not a multiple of model.num_heads={num_heads}; the nearest that divides is "
        "num_heads={near}.",
        zh="model.d_model={d_model} 不能被 model.num_heads={num_heads} 整除；最接近的可用值是 num_heads={near}。",
    ),
    "kv_heads_divide": Text(
        en="model.num_heads={num_heads} is not a multiple of model.num_kv_heads={num_kv_heads}; the nearest that "
        "divides is num_kv_heads={near}.",
        zh="model.num_heads={num_heads} 不能被 model.num_kv_heads={num_kv_heads} 整除；"
        "最接近的可用值是 num_kv_heads={near}。",
    ),
    "head_width_even": Text(
        en="model.d_model={d_model} over model.num_heads={num_heads} gives heads of width {width}; rotary positions "
        "turn pairs, so the width must be even.",
        zh="model.d_model={d_model} 除以 model.num_heads={num_heads} 得到的头宽度是 {width}；"
        "旋转位置编码按成对元素旋转，头宽度必须是偶数。",
    ),
    "seq_too_long": Text(
        en="data.seq_len={seq_len} is longer than model.max_seq_len={max_seq_len}; set data.seq_len<={max_seq_len} or "
        "model.max_seq_len>={seq_len}.",
        zh="data.seq_len={seq_len} 超过了 model.max_seq_len={max_seq_len}；请设 data.seq_len<={max_seq_len}，"
        "或 model.max_seq_len>={seq_len}。",
    ),
    "vocab_too_small": Text(
        en="The model's vocabulary has {vocab_size} entries, the tokenizer's {tokenizer_vocab_size}; model.vocab_size "
        "must be at least {tokenizer_vocab_size}.",
        zh="模型词表大小为 {vocab_size}，分词器词表大小为 {tokenizer_vocab_size}；"
        "model.vocab_size 至少应为 {tokenizer_vocab_size}。",
    ),
    "vocab_rounded": Text(
        en="model.vocab_size={rounded}: the tokenizer's {tokenizer}, rounded up to a multiple of {multiple}.",
        zh="model.vocab_size={rounded}：由分词器的 {tokenizer} 向上取整到 {multiple} 的倍数。",
    ),
    "input_too_long": Text(
        en="{tokens} tokens are more than the model's context of {max_seq_len} (model.max_seq_len).",
        zh="输入有 {tokens} 个 token，超过模型的上下文长度 {max_seq_len}（model.max_seq_len）。",
    ),
    "prompt_too_long": Text(
        en="The prompt has {tokens} tokens and leaves no room in the model's context of {max_seq_len}; shorten it to "
        "{longest} or less.",
        zh="提示词有 {tokens} 个 token，模型的上下文长度是 {max_seq_len}，已没有生成的余地；"
        "请缩短到 {longest} 个以内。",
    ),
    "prompt_empty": Text(
        en="The prompt has no token to begin from; give a text, or the tokenizer's begin token.",
        zh="提示词中没有任何 token，无从开始；请给出文本，或使用分词器的起始符。",
    ),
    "sampling_range": Text(
        en="{key}={value} is out of range; {rule}.",
        zh="{key}={value} 超出范围；{rule}。",
    ),
    "rule_temperature": Text(en="it must be 0 (greedy) or more", zh="应大于或等于 0（0 表示贪心解码）"),
    "rule_top_p": Text(en="it must be above 0 and at most 1", zh="应大于 0 且不超过 1"),
    "rule_top_k": Text(en="it must be 0 (off) or more", zh="应大于或等于 0（0 表示不启用）"),
    "label_range": Text(
        en="Label {label} is not in the model's vocabulary of {vocab_size}; the data were made with another tokenizer "
        "than the model's.",
        zh="标签 {label} 不在模型的词表（大小 {vocab_size}）之内；数据所用的分词器与模型不一致。",
    ),
    "factory_form": Text(
        en="model.factory={factory}: write package.module:function or path/to/file.py:function.",
        zh="model.factory={factory}：应写成 package.module:function 或 path/to/file.py:function。",
    ),
    "factory_no_file": Text(
        en="model.factory={factory}: there is no file {path}.",
        zh="model.factory={factory}：文件 {path} 不存在。",
    ),
    "factory_import": Text(
        en="model.factory={factory}: importing {module} failed: {reason}.",
        zh="model.factory={factory}：导入 {module} 失败：{reason}。",
    ),
    "factory_no_function": Text(
        en="model.factory={factory}: {module} has no function {function}; it has {names}.",
        zh="model.factory={factory}：{module} 中没有函数 {function}；其中有：{names}。",
    ),
    "factory_failed": Text(
        en="model.factory={factory} called with {arguments} raised {reason}.",
        zh="以参数 {arguments} 调用 model.factory={factory} 时抛出异常：{reason}。",
    ),
    "factory_not_module": Text(
        en="model.factory={factory} returned a {kind}, not a torch.nn.Module.",
        zh="model.factory={factory} 返回的是 {kind}，而不是 torch.nn.Module。",
    ),
    "needs_hf": Text(
        en="{path} is a Hugging Face model and needs transformers: pip install 'trireme[hf]'.",
        zh="{path} 是 Hugging Face 模型，需要 transformers：pip install 'trireme[hf]'。",
    ),
    "folder_missing": Text(
        en="{path} is not a folder on this machine; models are read from local folders only.",
        zh="{path} 不是本机上的目录；模型只从本地目录读取。",
    ),
    "folder_no_config": Text(
        en="{path} has no config.json, so it is not a model folder.",
        zh="{path} 中没有 config.json，不是模型目录。",
    ),
    "folder_no_weights": Text(
        en="{path} has no safetensors file, so there are no weights to read.",
        zh="{path} 中没有 safetensors 文件，没有可读取的权重。",
    ),
    "folder_config_bad": Text(
        en="{path}/config.json can't be used: {reason}.",
        zh="{path}/config.json 无法使用：{reason}。",
    ),
    "folder_weights_bad": Text(
        en="The weights in {path} can't be read: {reason}.",
        zh="{path} 中的权重无法读取：{reason}。",
    ),
    "folder_random": Text(
        en="{path} has a config.json and no weights: the model starts from random weights.",
        zh="{path} 只有 config.json，没有权重：模型将随机初始化。",
    ),
    "folder_unlike_decoder": Text(
        en="{path} has {difference}, which the reference decoder lacks; read it with model.path instead.",
        zh="{path} 使用了 {difference}，内置解码器不支持；请改用 model.path 读取。",
    ),
    "folder_exists": Text(
        en="{path} exists and is not empty; choose another folder or ask to overwrite it.",
        zh="{path} 已存在且非空；请换一个目录，或指定覆盖。",
    ),
    "folder_unwritable": Text(
        en="{path} can't be written: {reason}.",
        zh="{path} 无法写入：{reason}。",
    ),
    "not_a_hf_module": Text(
        en="A {kind} has no Hugging Face form; its weights are in the run's checkpoint.",
        zh="{kind} 没有对应的 Hugging Face 格式；它的权重保存在训练检查点中。",
    ),
    "written_wrong": Text(
        en="Nothing was saved: {name} has shape {found} and the model's definition says {expected}.",
        zh="未保存任何内容：{name} 的形状是 {found}，而按模型定义应为 {expected}。",
    ),
    "weights_differ": Text(
        en="The weights don't fit the model: {details}.",
        zh="权重与模型不匹配：{details}。",
    ),
    "weights_missing": Text(en="missing {names}", zh="缺少 {names}"),
    "weights_unexpected": Text(en="unexpected {names}", zh="多出 {names}"),
    "weights_shape": Text(
        en="{name} has shape {found}, the model's is {expected}", zh="{name} 的形状是 {found}，模型中是 {expected}"
    ),
    "names_more": Text(en="{names} and {more} more", zh="{names} 等（另有 {more} 个）"),
    "no_isolation": Text(
        en="{kind} can't keep packed documents apart: beside another document its logits change by {difference}. "
        "{takes}; set data.packing: none.",
        zh="{kind} 无法隔离同一序列中的多个文档：与其他文档放在一起时 logits 相差 {difference}。"
        "{takes}；请设 data.packing: none。",
    ),
    "takes_nothing": Text(
        en="Its forward takes neither document_ids nor position_ids",
        zh="它的 forward 既不接受 document_ids，也不接受 position_ids",
    ),
    "takes_some": Text(
        en="Its forward takes {names} and still mixes them", zh="它的 forward 接受 {names}，但文档之间仍会互相影响"
    ),
    "outputs_unlike_logits": Text(
        en="{kind} returned {found}; a language model returns logits of shape [sequences, tokens, vocabulary], as a "
        "tensor or in .logits.",
        zh="{kind} 返回了 {found}；语言模型应返回形状为 [序列, token, 词表] 的 logits（张量，或放在 .logits 中）。",
    ),
    "help_show": Text(
        en="Show one size: its numbers, parameters by group and FLOPs.", zh="查看一个模型：结构、分组参数量与计算量。"
    ),
    "help_seq_len": Text(
        en="Tokens a sequence, for the attention's part of the FLOPs.", zh="序列长度，用于计算注意力部分的计算量。"
    ),
    "column_name": Text(en="name", zh="名称"),
    "column_params": Text(en="parameters", zh="参数量"),
    "column_flops": Text(en="FLOPs/token", zh="FLOPs/token"),
    "column_layers": Text(en="layers", zh="层数"),
    "column_width": Text(en="width", zh="宽度"),
    "column_heads": Text(en="heads (kv)", zh="头数 (kv)"),
    "column_ffn": Text(en="ffn", zh="ffn"),
    "column_vocab": Text(en="vocabulary", zh="词表"),
    "list_note": Text(
        en="Forward and backward at {seq_len} tokens: {formula}. `trireme models show NAME` for one of them.",
        zh="序列长度 {seq_len} 时的前向与反向：{formula}。查看单个模型：`trireme models show 名称`。",
    ),
    "help_show_name": Text(
        en="A reference size, a published model (--published lists them), or a Hugging Face config.json.",
        zh="参考规格名、已发布模型名（用 --published 列出），或 Hugging Face 的 config.json。",
    ),
    "help_published": Text(
        en="List the published models that `models show` knows.", zh="列出 `models show` 认识的已发布模型。"
    ),
    "show_layers": Text(en="layers", zh="层"),
    "show_active": Text(en="of which work on one token", zh="其中每个 token 激活"),
    "show_cache": Text(en="key/value cache of {seq_len} tokens in 16 bits", zh="{seq_len} 个 token 的 16 位 KV 缓存"),
    "show_omitted": Text(en="not counted: {what}", zh="未计入：{what}"),
    "show_source": Text(en="source", zh="来源"),
    "show_params": Text(en="parameters", zh="参数量"),
    "show_flops": Text(
        en="FLOPs per token at {seq_len} tokens, forward and backward",
        zh="序列长度 {seq_len} 时每 token 的 FLOPs（前向与反向）",
    ),
    "show_formula": Text(en="formula", zh="公式"),
    "show_use": Text(en="In a recipe:", zh="写入配置："),
    "group_embedding": Text(en="embedding", zh="词嵌入"),
    "group_attention": Text(en="attention", zh="注意力"),
    "group_feed_forward": Text(en="feed-forward", zh="前馈"),
    "group_norms": Text(en="norms", zh="归一化"),
    "group_layers": Text(en="layers", zh="各层"),
    "group_final": Text(en="after the layers", zh="层后"),
    "group_head": Text(en="head", zh="输出层"),
    "group_other": Text(en="other", zh="其他"),
    "flops_other": Text(
        en="6 * matrix parameters (lookups not counted, a tied head counted; attention scores not counted)",
        zh="6 × 矩阵参数量（不含查表的词嵌入，含共享的输出层；不含注意力分数）",
    ),
}
