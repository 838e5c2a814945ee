"""What a user reads in the data report."""

from __future__ import annotations

from trireme.words.catalogue import Text

TEXTS: dict[str, Text] = {
    "column_source": Text(en="source", zh="数据源"),
    "column_documents": Text(en="documents", zh="文档"),
    "column_tokens": Text(en="tokens", zh="token"),
    "column_characters_per_token": Text(en="chars/token", zh="字符/token"),
    "column_left_out": Text(en="left out", zh="未采用"),
    "column_held_out": Text(en="held out", zh="留作评估"),
    "column_samples": Text(en="samples", zh="样本"),
    "column_share": Text(en="share", zh="份额"),
    "column_drawn": Text(en="drawn", zh="取用"),
    "column_epochs": Text(en="epochs", zh="轮数"),
    "column_document": Text(en="document", zh="文档"),
    "column_position": Text(en="position", zh="位置"),
    "column_token": Text(en="token", zh="token"),
    "column_text": Text(en="text", zh="文本"),
    "column_learned": Text(en="learned", zh="学习"),
    "yes": Text(en="yes", zh="是"),
    "no": Text(en="no", zh="否"),
    "packing": Text(
        en="{samples} samples of {seq_len} tokens, {filled} filled; {learned} of the tokens are learned.",
        zh="共 {samples} 个样本，每个 {seq_len} token，填充率 {filled}；其中 {learned} 的 token 参与学习。",
    ),
    "tokenizer": Text(
        en="Tokenizer: {origin}, vocabulary {vocab_size}, {characters} characters a token.",
        zh="分词器：{origin}，词表 {vocab_size}，每个 token {characters} 个字符。",
    ),
    "trained_here": Text(en="trained on the sources", zh="在数据源上训练"),
    "held_out": Text(
        en="Held out for evaluation: {documents} documents, {samples} samples, {tokens} learned tokens.",
        zh="留作评估：{documents} 篇文档，{samples} 个样本，{tokens} 个参与计算的 token。",
    ),
    "nothing_held_out": Text(en="Nothing is held out: no evaluation.", zh="没有留出数据：不做评估。"),
    "also_trained": Text(
        en="{count} of the {documents} evaluation documents also stand among the training documents.",
        zh="{documents} 篇评估文档中，有 {count} 篇同时出现在训练文档里。",
    ),
    "before_map": Text(
        en="data.sample_map {function} runs on each sample afterwards; counts and example are from before it.",
        zh="之后每个样本还会经过 data.sample_map {function}；以上计数和示例都是处理之前的。",
    ),
    "not_read": Text(
        en="{source}: {count} records left out: {reason} (first: {first}).",
        zh="{source}：{count} 条记录未采用：{reason}（首条：{first}）。",
    ),
    "nothing_to_learn": Text(
        en="{source}: {count} documents left out: no token to learn (shorter than two tokens, or all prompt; "
        "{tokens} tokens).",
        zh="{source}：{count} 篇文档未采用：没有可学习的 token（不足两个 token，或全是提示；共 {tokens} token）。",
    ),
    "split": Text(
        en="{source}: {count} documents longer than a sample were split; no token is lost.",
        zh="{source}：{count} 篇文档超过样本长度，已切分；没有丢失 token。",
    ),
    "truncated": Text(
        en="{source}: {count} documents longer than a sample were cut off; {tokens} tokens lost.",
        zh="{source}：{count} 篇文档超过样本长度，已截断；丢失 {tokens} 个 token。",
    ),
    "dropped": Text(
        en="{source}: {count} documents longer than a sample were left out; {tokens} tokens lost.",
        zh="{source}：{count} 篇文档超过样本长度，未采用；丢失 {tokens} 个 token。",
    ),
    "prompt_pieces": Text(
        en="{source}: {count} pieces of long documents left out: all prompt ({tokens} tokens).",
        zh="{source}：长文档中有 {count} 段全是提示，未采用（共 {tokens} token）。",
    ),
    "example": Text(
        en="Sample {sample} of {source}; ⟦...⟧ is learned, the rest is only read:",
        zh="样本 {sample}（来自 {source}）；⟦…⟧ 内的部分参与学习，其余只读不学：",
    ),
    "example_color": Text(
        en="Sample {sample} of {source}; green is learned, yellow is only read:",
        zh="样本 {sample}（来自 {source}）；绿色部分参与学习，黄色部分只读不学：",
    ),
    "piece": Text(en="── document {number} ({tokens} tokens)", zh="── 文档 {number}（{tokens} token）"),
    "more_pieces": Text(en="── and {count} more", zh="── 另有 {count} 篇文档"),
    "padding": Text(en="── {count} positions of padding", zh="── 填充 {count} 个位置"),
}
