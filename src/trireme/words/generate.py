"""Sentences of the verbs generate and chat."""

from trireme.words.catalogue import Text

TEXTS = {
    # options
    "path": Text(
        en="A run folder, a checkpoint in one, or a Hugging Face folder.",
        zh="训练目录、其中的某个检查点，或 Hugging Face 模型目录。",
    ),
    "prompt": Text(
        en="Text to continue; default: standard input if it is a pipe, else the begin token alone.",
        zh="要续写的文本；默认读取管道输入，否则只从起始符开始。",
    ),
    "max_new_tokens": Text(en="Write at most this many tokens.", zh="最多生成多少个 token。"),
    "temperature": Text(
        en="Above 1 bolder, below 1 safer; 0 always takes the likeliest token.",
        zh="大于 1 更发散，小于 1 更保守；0 表示总取概率最大的 token。",
    ),
    "top_p": Text(
        en="Draw from the likeliest tokens that together have this probability.",
        zh="只在累计概率达到该值的候选 token 中采样。",
    ),
    "top_k": Text(
        en="Draw from this many likeliest tokens; 0: no limit.", zh="只在概率最大的若干个 token 中采样；0 表示不限。"
    ),
    "seed": Text(en="Decides the draws; sample i takes seed + i.", zh="随机种子；第 i 个样本用 seed + i。"),
    "num_samples": Text(en="Write this many continuations.", zh="生成几个续写。"),
    "checkpoint": Text(
        en="best (lowest evaluation loss), last, or step-N.", zh="best（评估 loss 最低）、last 或 step-N。"
    ),
    "device": Text(en="cpu, cuda ...; default: what training would take.", zh="cpu、cuda 等；默认与训练时的选择相同。"),
    "system": Text(
        en="Instructions for the whole talk; needs a chat template.", zh="整个对话的系统提示；需要对话模板。"
    ),
    # notes
    "loaded": Text(en="{path}, on {device}", zh="{path}，运行于 {device}"),
    "context_full": Text(
        en="the model's context of {max_seq_len} tokens is full.", zh="模型的 {max_seq_len} token 上下文已满。"
    ),
    "turns_dropped": Text(
        en="the {count} oldest turns no longer fit the context of {max_seq_len} tokens and were left out.",
        zh="最早的 {count} 轮发言超出 {max_seq_len} token 的上下文，已略去。",
    ),
    "chat_base": Text(
        en="this model has no chat template: it continues your text rather than answering; "
        "turns are joined by newlines.",
        zh="该模型没有对话模板：它会续写您的文本而不是回答问题，各轮之间用换行连接。",
    ),
    "chat_help": Text(
        en="/reset forgets the talk, /exit or Ctrl-D ends it, Ctrl-C stops a reply, /help shows this.",
        zh="/reset 清空对话，/exit 或 Ctrl-D 结束，Ctrl-C 中断回复，/help 显示本说明。",
    ),
    "chat_reset": Text(en="the talk is forgotten.", zh="对话已清空。"),
    "chat_unknown": Text(
        en="there is no command {name}; /help lists them.", zh="没有命令 {name}；输入 /help 查看可用命令。"
    ),
    # mistakes
    "no_such_run": Text(
        en="there is no run, checkpoint or model folder {path}.", zh="找不到训练目录、检查点或模型目录 {path}。"
    ),
    "no_such_run_near": Text(
        en="there is no run, checkpoint or model folder {path}. Did you mean {near}?",
        zh="找不到训练目录、检查点或模型目录 {path}。是不是想用 {near}？",
    ),
    "not_a_model": Text(
        en="{path} holds no run, no checkpoint and no Hugging Face model (config.json).",
        zh="{path} 中没有训练、检查点，也没有 Hugging Face 模型（config.json）。",
    ),
    "not_a_model_near": Text(
        en="{path} holds no run, no checkpoint and no Hugging Face model (config.json). Did you mean {near}?",
        zh="{path} 中没有训练、检查点，也没有 Hugging Face 模型（config.json）。是不是想用 {near}？",
    ),
    "folder_of_runs": Text(
        en="{path} holds several runs; name one of them: {names}.", zh="{path} 中有多次训练；请指定其中一个：{names}。"
    ),
    "no_checkpoint": Text(
        en="the run in {path} has no checkpoint yet; one comes with the first evaluation or checkpoint.every_steps.",
        zh="{path} 中的训练还没有检查点；首次评估或到达 checkpoint.every_steps 时会保存。",
    ),
    "no_good_checkpoint": Text(
        en="none of the checkpoints in {path} can be used; the notes above say why.",
        zh="{path} 中没有可用的检查点，原因见上面的提示。",
    ),
    "no_such_checkpoint": Text(
        en="there is no checkpoint {name} in {path}; there are {names}.",
        zh="{path} 中没有检查点 {name}；现有 {names}。",
    ),
    "no_settings": Text(
        en="{path} is a checkpoint outside a run: its settings and tokenizer are looked for in {run} and "
        "are not there.",
        zh="{path} 是脱离训练目录的检查点：应在 {run} 中的配置和分词器不存在。",
    ),
    "empty_prompt": Text(
        en="the prompt is empty and this tokenizer has no begin token to start from; give --prompt.",
        zh="提示为空，而该分词器没有起始符；请给出 --prompt。",
    ),
    "prompt_too_long": Text(
        en="the prompt has {tokens} tokens, the model reads {max_seq_len} with what it writes; shorten it.",
        zh="提示有 {tokens} 个 token，而模型连同生成内容最多读 {max_seq_len} 个；请缩短提示。",
    ),
    "template_failed": Text(
        en="the chat template of {path} refuses this talk: {reason}", zh="{path} 的对话模板拒绝了这段对话：{reason}"
    ),
    "no_system": Text(
        en="--system needs a chat template, and {path} has none; put the text into your first turn.",
        zh="--system 需要对话模板，而 {path} 没有；请把内容写进第一轮发言。",
    ),
}
