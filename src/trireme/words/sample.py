"""What a user reads about samples: mixing, packing, the order, workers, the data report."""

from __future__ import annotations

from trireme.words.catalogue import Text

TEXTS: dict[str, Text] = {
    # what must hold before step 1
    "no_sources": Text(
        en="data.sources is empty: there is nothing to train on. Name a file, a folder or a corpus that ships, e.g. "
        "data.sources=corpus:songci.",
        zh="data.sources 为空，没有可训练的数据。请写一个文件、目录，或自带语料，例如 data.sources=corpus:songci。",
    ),
    "no_documents": Text(
        en="{source} gives no document: {records} records read, left out: {reasons}.",
        zh="{source} 没有给出任何文档：读到 {records} 条记录，未采用：{reasons}。",
    ),
    "nothing_to_train": Text(
        en="No sample with a token to learn is left of {documents} documents; see data.prompt_field, "
        "data.long_documents and data.eval_fraction.",
        zh="{documents} 篇文档中没有剩下任何含可学习 token 的样本；请检查 prompt_field、data.long_documents 和 "
        "data.eval_fraction。",
    ),
    "empty_targets": Text(
        en="{count} of {documents} documents have no token to learn, more than data.max_empty_target_ratio {limit} "
        "allows. The first: {source}, document {number} ({prompt_tokens} of its {tokens} tokens are prompt): {text}",
        zh="{documents} 篇文档中有 {count} 篇没有可学习的 token，超过 data.max_empty_target_ratio 允许的 {limit}。"
        "首篇：{source} 第 {number} 篇（{tokens} 个 token 中有 {prompt_tokens} 个是提示）：{text}",
    ),
    "nothing_to_hold_out": Text(
        en="Nothing is held out for evaluation though data.eval_fraction is {fraction}: there is only one text. "
        "txt_document: paragraph or line makes several of a file; data.eval_sources names other files.",
        zh="data.eval_fraction 为 {fraction}，但只有一篇文本，无法留出评估数据。可用 txt_document: paragraph 或 line "
        "把一个文件分成多篇，或用 data.eval_sources 指定其他文件。",
    ),
    "nothing_to_evaluate": Text(
        en="{documents} documents are held out, but none gives a sample to evaluate on; see data.long_documents and "
        "prompt_field.",
        zh="留出了 {documents} 篇文档，但没有一篇能给出评估样本；请检查 data.long_documents 和 prompt_field。",
    ),
    "source_without_samples": Text(
        en="{source} gives no training sample ({documents} documents); the data report says what became of them.",
        zh="{source} 没有给出训练样本（共 {documents} 篇文档）；数据报告中写明了它们的去向。",
    ),
    # mixing
    "weights_partly_given": Text(
        en="Some sources have a weight, but source {missing} has none. Give every source a weight, or none "
        "(then each sample is seen equally often).",
        zh="有的数据源给了 weight，第 {missing} 个没有。请给每个数据源都写上 weight，"
        "或一个都不写（不写时每个样本出现次数相同）。",
    ),
    "weighted_source_is_empty": Text(
        en="data.sources.{index} has a weight but no sample to train on. Remove it, or see the data report for what "
        "became of its documents.",
        zh="data.sources.{index} 给了 weight，却没有可训练的样本。请去掉它，或查看数据报告，了解其文档的去向。",
    ),
    "weights_rounded": Text(
        en="The weights have no common period up to {period}; shares are rounded to {period}ths: {shares}.",
        zh="各 weight 的公共周期超过 {period}，份额已取整到 1/{period}：{shares}。",
    ),
    # packing
    "long_document": Text(
        en="{source}: document {number} has {tokens} tokens, more than seq_len {seq_len} can predict "
        "({count} such documents), and data.long_documents is stop. Use split, truncate or drop, or raise "
        "data.seq_len.",
        zh="{source}：第 {number} 篇文档有 {tokens} 个 token，超过 seq_len {seq_len}（共 {count} 篇），而 "
        "data.long_documents 设为 stop。请改用 split、truncate 或 drop，或调大 data.seq_len。",
    ),
    # sample_map
    "map_not_a_dict": Text(
        en="sample_map {function} returned a {kind} for sample {sample}; it must return the sample, a dict of arrays.",
        zh="sample_map {function} 对样本 {sample} 返回了 {kind}；应返回样本本身，即由数组组成的 dict。",
    ),
    "map_raised": Text(
        en="sample_map {function} raised {raised} for sample {sample} (at {place}). `trireme data report RUN.YAML "
        "--example {sample}` shows the sample.",
        zh="sample_map {function} 处理样本 {sample} 时抛出 {raised}（位于 {place}）。"
        "可用 `trireme data report RUN.YAML --example {sample}` 查看该样本。",
    ),
    "map_other_place": Text(
        en="sample_map {function} returned {got} in {name} of sample {sample}; it must be >= 0 and below the "
        "{seq_len} places of a sample (document_ids: -1 for padding).",
        zh="sample_map {function} 在样本 {sample} 的 {name} 中返回了 {got}；应不小于 0 且小于样本长度 {seq_len}"
        "（document_ids 中 -1 表示填充）。",
    ),
    "no_room_for_sample": Text(
        en="data.seq_len = {seq_len} makes samples of {needed}, and this machine has {total} of memory. "
        "Lower data.seq_len; documents that are longer are split.",
        zh="data.seq_len = {seq_len} 时每个样本占 {needed}，而本机内存为 {total}。请调小 data.seq_len；更长的文档会被切分。",
    ),
    "map_other_names": Text(
        en="sample_map {function} returned the fields [{got}] for sample {sample}; a sample has exactly [{expected}].",
        zh="sample_map {function} 对样本 {sample} 返回的字段是 [{got}]；样本的字段必须恰好是 [{expected}]。",
    ),
    "map_other_shape": Text(
        en="sample_map {function} returned {name} of shape {got} for sample {sample}; it must keep shape {expected}.",
        zh="sample_map {function} 对样本 {sample} 返回的 {name} 形状为 {got}；应保持 {expected}。",
    ),
    "map_not_whole": Text(
        en="sample_map {function} returned {name} as {got} for sample {sample}; whole numbers are needed.",
        zh="sample_map {function} 对样本 {sample} 返回的 {name} 类型为 {got}；需要整数。",
    ),
    "map_other_token": Text(
        en="sample_map {function} returned {got} in {name} of sample {sample}; the vocabulary ends at {vocab_size}, "
        "and -100 in labels means not learned.",
        zh="sample_map {function} 在样本 {sample} 的 {name} 中返回了 {got}；词表大小为 {vocab_size}，"
        "labels 中 -100 表示不学习。",
    ),
    # state
    "unknown_state": Text(
        en="The data state in the checkpoint has format {format}; this version reads format {known}.",
        zh="检查点中的数据状态格式为 {format}；本版本只认格式 {known}。",
    ),
    "data_changed": Text(
        en="The data is not what it was at step {step}, so samples would be repeated or missed: {changes}. Restore "
        "it, or start a new run with model.init_from.",
        zh="数据与第 {step} 步时不同，继续训练会重复或漏掉样本：{changes}。"
        "请恢复原数据，或用 model.init_from 另起一次训练。",
    ),
    "changed_value": Text(en="{name} was {before}, is {now}", zh="{name} 原为 {before}，现为 {now}"),
    "changed_tokenizer": Text(
        en="another tokenizer ({before}..., now {now}...)", zh="分词器不同（原 {before}…，现 {now}…）"
    ),
    "changed_texts": Text(
        en="data.sources.{index} has other documents or another order of them",
        zh="data.sources.{index} 的文档或其次序变了",
    ),
    "changed_tokens": Text(
        en="the documents of data.sources.{index} become other tokens (add_bos, add_eos, parse_special, prompt_field)",
        zh="data.sources.{index} 的文档变成了不同的 token（add_bos、add_eos、parse_special、prompt_field）",
    ),
    "changed_rows": Text(
        en="data.sources.{index} is split or packed another way (eval_fraction, eval_sources, seed)",
        zh="data.sources.{index} 的切分或打包方式变了（eval_fraction、eval_sources、seed）",
    ),
    # loader
    "worker_died": Text(
        en="Data worker {worker} (process {pid}) {fate} while it prepared step {step}. Exit by signal 9 often means "
        "that memory ran out; data.workers=0 needs no processes.",
        zh="数据工作进程 {worker}（进程号 {pid}）在准备第 {step} 步时{fate}。被信号 9 杀死多半是内存不足；"
        "data.workers=0 则不用工作进程。",
    ),
    "fate_signal": Text(en="was killed by signal {signal}", zh="被信号 {signal} 终止"),
    "fate_exit": Text(en="ended with exit code {code}", zh="以退出码 {code} 结束"),
    "worker_error": Text(
        en="Data worker {worker} failed while it prepared step {step}: {kind}: {text}",
        zh="数据工作进程 {worker} 在准备第 {step} 步时出错：{kind}：{text}",
    ),
    "no_room_for_slots": Text(
        en="Data workers need {needed} of shared memory and this system gave none ({reason}). Lower data.prefetch or "
        "data.workers; data.workers=0 needs none.",
        zh="数据工作进程需要 {needed} 共享内存，但系统未能提供（{reason}）。请调小 data.prefetch 或 data.workers；"
        "data.workers=0 不需要共享内存。",
    ),
    "workers_need_posix": Text(
        en="data.workers={workers} needs Linux or macOS. Use data.workers=0.",
        zh="data.workers={workers} 需要 Linux 或 macOS。请用 data.workers=0。",
    ),
    "loader_closed": Text(
        en="The loader is closed; make a new one to go on.", zh="加载器已关闭；如需继续，请新建一个。"
    ),
}
