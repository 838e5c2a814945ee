"""What ``trireme data`` says about itself."""

from __future__ import annotations

from trireme.words.catalogue import Text

TEXTS: dict[str, Text] = {
    "report": Text(
        en="Account for every document and token, and show a sample.",
        zh="逐项说明每篇文档和每个 token 的去向，并展示一个样本。",
    ),
    "example_option": Text(
        en="Show sample N whole: its text, and for each token whether it is learned.",
        zh="完整展示第 N 个样本：文本，以及每个 token 是否参与学习。",
    ),
    "json_option": Text(
        en="Print JSON.",
        zh="以 JSON 输出。",
    ),
    "build": Text(
        en="Tokenise ahead of the run.",
        zh="在训练之前先完成分词。",
    ),
    "built": Text(
        en="{source}: {documents} documents, {tokens} tokens in {folder}",
        zh="{source}：{documents} 篇文档，{tokens} token，存于 {folder}",
    ),
    "ids": Text(
        en="Print the samples of each step and rank: lines `step rank: id id ...`.",
        zh="打印每一步、每个 rank 的样本：每行为 `步 rank: id id ...`。",
    ),
    "steps_option": Text(
        en="From step A up to, not including, B; from zero.",
        zh="从第 A 步到第 B 步（不含 B），从 0 数起。",
    ),
    "dp_degree_option": Text(
        en="Data-parallel ranks.",
        zh="数据并行的 rank 数。",
    ),
    "steps_too_far": Text(
        en="{text} goes beyond 2^63 samples, more than any run draws.", zh="{text} 超出 2^63 个样本，任何训练都用不到。"
    ),
    "bad_steps": Text(
        en="{text} is no range of steps; write A:B with A below B, e.g. 0:50.",
        zh="{text} 不是步的范围；请写成 A:B（A 小于 B），例如 0:50。",
    ),
    "tokenizer": Text(
        en="Train a byte-level BPE tokenizer on the sources and measure it.",
        zh="在数据源上训练字节级 BPE 分词器并评测。",
    ),
    "source_option": Text(
        en="Source to train on instead of a run file; may be repeated.",
        zh="用来训练的数据源，代替配置文件；可重复给出。",
    ),
    "vocab_size_option": Text(
        en="Vocabulary. Default: data.tokenizer_vocab_size.",
        zh="词表大小。默认取 data.tokenizer_vocab_size。",
    ),
    "output_option": Text(
        en="Folder for tokenizer.json and tokenizer_config.json.",
        zh="存放 tokenizer.json 和 tokenizer_config.json 的目录。",
    ),
    "words_option": Text(
        en="Dictionary whose words become single tokens, a word a line.",
        zh="词典文件，每行一词，其中的词各成一个 token。",
    ),
    "output_exists": Text(
        en="{path} is there already; a run may depend on it. Name another folder with --output, or remove it.",
        zh="{path} 已存在，可能有训练依赖它。请用 --output 另指目录，或先删除它。",
    ),
    "file_or_source": Text(
        en="Nothing to train on: name a run file, or sources with --source PATH.",
        zh="没有可训练的数据：请给出配置文件，或用 --source PATH 指定数据源。",
    ),
    "file_and_source": Text(
        en="{run_file} and --source are both given; the sources come from one of them.",
        zh="同时给了 {run_file} 和 --source；数据源只能来自其中之一。",
    ),
    "no_such_sample": Text(
        en="There is no sample {number}; samples are 0 to {last}.",
        zh="没有第 {number} 个样本；样本编号为 0 到 {last}。",
    ),
    "tokenizer_saved": Text(
        en="{path}: vocabulary {vocab_size}",
        zh="{path}：词表 {vocab_size}",
    ),
    "vocabulary_smaller": Text(
        en="The text has no more pieces to learn: the vocabulary is {learned}, not {asked}.",
        zh="文本中已没有可学的片段：词表为 {learned}，未达到 {asked}。",
    ),
    "tokenizer_fit": Text(
        en="{characters} characters and {bytes} bytes a token over {documents} documents",
        zh="{documents} 篇文档上，每个 token 平均 {characters} 个字符、{bytes} 字节",
    ),
    "round_trip_exact": Text(
        en="Round trip: every document comes back exactly.",
        zh="往返：每篇文档都能原样还原。",
    ),
    "round_trip_differs": Text(
        en="Round trip: not exact; the first document that differs is {where}.",
        zh="往返：不能原样还原；第一篇不同的文档是 {where}。",
    ),
}
