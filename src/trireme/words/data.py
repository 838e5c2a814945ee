"""What a user reads about sources, records, tokenizers and the cache of tokens."""

from __future__ import annotations

from trireme.words.catalogue import Text

TEXTS: dict[str, Text] = {
    # -- sources ------------------------------------------------------------------------------------------------
    "not_found": Text(
        en="data.sources: {path} doesn't exist. Nearest: {nearest}.",
        zh="data.sources：{path} 不存在。最接近的是：{nearest}。",
    ),
    "no_file": Text(
        en="data.sources: {path} is neither a file nor a folder (a pipe, a device, a broken link). Name a file.",
        zh="data.sources：{path} 既不是文件也不是目录（管道、设备或失效的链接），请给出文件。",
    ),
    "pass_hidden": Text(en="hidden", zh="隐藏"),
    "pass_linked": Text(en="linked folder", zh="链接到的目录"),
    "pass_no_file": Text(en="broken link or no file", zh="失效的链接或非文件"),
    "pass_repeated": Text(en="met before by another path", zh="已从其他路径读到"),
    "nothing_readable": Text(
        en="data.sources: {path} holds no file that can be read; found {found}. Readable: {forms}.",
        zh="data.sources：{path} 中没有可读的文件，只有 {found}。可读格式：{forms}。",
    ),
    "empty_file": Text(
        en="data.sources: {path} is empty (0 bytes). Name a file with text in it.",
        zh="data.sources：{path} 是空的（0 字节），请换成有内容的文件。",
    ),
    "zero_limit": Text(
        en="data.sources: {path} asks for no record at all; `#500` means the first 500.",
        zh="data.sources：{path} 一条记录都不读；`#500` 表示只读前 500 条。",
    ),
    "unknown_corpus": Text(
        en="data.sources: there is no corpus:{name}. Known: {known}.",
        zh="data.sources：没有 corpus:{name}。可用：{known}。",
    ),
    "no_standard_library": Text(
        en="This Python has no .py files in {folder}, so corpus:python-code and corpus:python-prose have no text. "
        "Use corpus:songci or a Python installed with its sources.",
        zh="当前 Python 的 {folder} 中没有 .py 文件，corpus:python-code 与 corpus:python-prose 无文本可用。"
        "请改用 corpus:songci，或换带源码的 Python。",
    ),
    "no_documents": Text(
        en="data.sources: {path} gives no document: {records} records read, {reasons}.",
        zh="data.sources：{path} 没有得到任何文档：读了 {records} 条记录，{reasons}。",
    ),
    "cannot_read": Text(en="{path} can't be read: {reason}.", zh="无法读取 {path}：{reason}。"),
    "cut_packing": Text(
        en="{path} is cut off: its {packing} stream ends before its end mark. Copy or pack the file again.",
        zh="{path} 不完整：{packing} 数据流没有到结尾就断了。请重新拷贝或重新压缩。",
    ),
    "damaged_packing": Text(
        en="{path} is no valid {packing} data, or is damaged. Copy or pack the file again.",
        zh="{path} 不是有效的 {packing} 数据，或已损坏。请重新拷贝或重新压缩。",
    ),
    "bad_parquet": Text(
        en="{path} is no readable parquet file: {reason}", zh="{path} 不是可读的 parquet 文件：{reason}"
    ),
    "bad_json": Text(
        en="{path} is no valid JSON: {reason}. One object a line goes in a .jsonl file.",
        zh="{path} 不是合法的 JSON：{reason}。每行一个对象的数据请用 .jsonl。",
    ),
    "json_not_list": Text(
        en="{path} holds one JSON value; a .json source must be a list of objects. Use .jsonl for one object a line.",
        zh="{path} 只有一个 JSON 值；.json 数据源必须是对象列表。每行一个对象请用 .jsonl。",
    ),
    # -- encodings ----------------------------------------------------------------------------------------------
    "unknown_encoding": Text(
        en="data.sources: Python knows no text encoding {encoding!r}. Usual ones: utf-8, gb18030, big5, utf-16.",
        zh="data.sources：没有名为 {encoding!r} 的文本编码。常用：utf-8、gb18030、big5、utf-16。",
    ),
    "bad_encoding": Text(
        en="{path}: byte {offset} ({byte}) is no {encoding} text; as {nearest} it reads `{sample}`. "
        "If that is right, set encoding: {nearest} for this source.",
        zh="{path}：第 {offset} 字节（{byte}）不是 {encoding} 文本；按 {nearest} 读作「{sample}」。"
        "若无误，请为该数据源设置 encoding: {nearest}。",
    ),
    "bad_byte": Text(
        en="{path}: byte {offset} ({byte}) is no {encoding} text, and no other encoding tried reads it better. "
        "Mend the file, or set data.on_bad_record: skip to leave such records out.",
        zh="{path}：第 {offset} 字节（{byte}）不是 {encoding} 文本，试过的其他编码也不合适。"
        "请修复文件，或设置 data.on_bad_record: skip 跳过这类记录。",
    ),
    "really_utf8": Text(
        en="{path} is said to be {encoding} but reads as utf-8: `{sample}`. Remove the encoding of this source.",
        zh="{path} 声明为 {encoding}，但内容是 utf-8：「{sample}」。请去掉该数据源的 encoding。",
    ),
    "binary_file": Text(
        en="{path} is binary, not text: a NUL at byte {offset}. Leave it out or convert it.",
        zh="{path} 是二进制文件而非文本：第 {offset} 字节为 NUL。请排除或先转换。",
    ),
    # -- records ------------------------------------------------------------------------------------------------
    "bad_line": Text(
        en="{where}: no valid JSON ({reason}): {line} -- mend the line, or set data.on_bad_record: skip.",
        zh="{where}：不是合法的 JSON（{reason}）：{line} -- 请修正该行，或设置 data.on_bad_record: skip。",
    ),
    "not_object": Text(
        en="{where}: a record must be a JSON object, this is a {found}; mend it, or set data.on_bad_record: skip.",
        zh="{where}：记录必须是 JSON 对象，这里是 {found}；请修正，或设置 data.on_bad_record: skip。",
    ),
    "missing_field": Text(
        en="{where}: no field {field!r}; found: {fields}. Set field: of this source, or data.on_bad_record: skip.",
        zh="{where}：没有字段 {field!r}，现有：{fields}。请设置该数据源的 field，或 data.on_bad_record: skip。",
    ),
    "not_text": Text(
        en="{where}: field {field!r} holds {kind}, not text. Name another field, turn it into text with map:, "
        "or set data.on_bad_record: skip.",
        zh="{where}：字段 {field!r} 的类型是 {kind}，不是文本。请换字段、用 map 转成文本，"
        "或设置 data.on_bad_record: skip。",
    ),
    "surrogate": Text(
        en="{where}: field {field!r} holds {character}, half of a character, which no text can hold. "
        "Mend it, or set data.on_bad_record: skip.",
        zh="{where}：字段 {field!r} 含有 {character}（半个字符，无法构成文本）。"
        "请修正，或设置 data.on_bad_record: skip。",
    ),
    "surrogate_text": Text(
        en="The text {text!r} holds {character}, half of a character, which no text can hold.",
        zh="文本 {text!r} 含有 {character}（半个字符，无法构成文本）。",
    ),
    "field_ambiguous": Text(
        en="{where}: which field holds the text? It could be {candidates} (fields: {fields}). "
        "Set field: of this source.",
        zh="{where}：哪个字段是正文？可能是 {candidates}（全部字段：{fields}）。请设置该数据源的 field。",
    ),
    "field_none": Text(
        en="{where}: no field holds text (fields: {fields}). Set field: or map: of this source.",
        zh="{where}：没有文本字段（全部字段：{fields}）。请设置该数据源的 field 或 map。",
    ),
    "field_found": Text(
        en="{path}: the text is in field {field!r} ({how}).", zh="{path}：正文取自字段 {field!r}（{how}）。"
    ),
    "how_custom": Text(en="the usual name", zh="惯用字段名"),
    "how_only": Text(en="the only field of text", zh="唯一的文本字段"),
    "tfrecord_damaged": Text(
        en="{path}: record {record} at byte {offset} is damaged (the checksum of its length doesn't hold), so nothing "
        "after it can be found. Copy the file again.",
        zh="{path}：第 {record} 条记录（第 {offset} 字节）已损坏（长度校验和不符），其后的记录无法定位。请重新拷贝。",
    ),
    "tfrecord_cut": Text(
        en="{path} is cut off: record {record} at byte {offset} has only {found} bytes left. Copy the file again.",
        zh="{path} 不完整：第 {record} 条记录（第 {offset} 字节）只剩 {found} 字节。请重新拷贝。",
    ),
    "tfrecord_checksum": Text(
        en="{where}: the record's checksum (crc32c) doesn't hold. Copy the file again, "
        "or set data.on_bad_record: skip.",
        zh="{where}：记录的校验和（crc32c）不符。请重新拷贝，或设置 data.on_bad_record: skip。",
    ),
    "not_example": Text(
        en="{where}: the record is no tf.train.Example ({reason}).",
        zh="{where}：记录不是 tf.train.Example（{reason}）。",
    ),
    # -- map ----------------------------------------------------------------------------------------------------
    "map_form": Text(
        en="{setting}: {spec!r} must be package.module:function.",
        zh="{setting}: {spec!r} 应写成 包.模块:函数。",
    ),
    "map_no_module": Text(
        en="{setting}: {spec}: there is no module {module!r} (looked in {folder} and the Python path).",
        zh="{setting}: {spec}：找不到模块 {module!r}（已查 {folder} 与 Python 路径）。",
    ),
    "map_import_failed": Text(
        en="{setting}: {spec}: importing it failed: {reason}.",
        zh="{setting}: {spec}：导入失败：{reason}。",
    ),
    "map_no_function": Text(
        en="{setting}: {spec}: module {module!r} has no such function; it has: {names}.",
        zh="{setting}: {spec}：模块 {module!r} 中没有该函数，现有：{names}。",
    ),
    "map_not_callable": Text(
        en="{setting}: {spec} is a {kind}, not a function.",
        zh="{setting}: {spec} 的类型是 {kind}，不是函数。",
    ),
    "map_raised": Text(
        en="{where}: map {spec} raised {reason} (at {place}). Mend the function, or set data.on_bad_record: skip.",
        zh="{where}：map {spec} 抛出 {reason}（位于 {place}）。请修正函数，或设置 data.on_bad_record: skip。",
    ),
    "map_returned": Text(
        en="{where}: map {spec} returned {kind}; it must return a dict, a text, or None to drop the record.",
        zh="{where}：map {spec} 返回了 {kind}；应返回 dict、文本，或用 None 丢弃该记录。",
    ),
    # -- why a record gave no document -----------------------------------------------------------------------------
    "drop_empty": Text(en="empty text", zh="文本为空"),
    "drop_not_json": Text(en="no valid JSON", zh="JSON 不合法"),
    "drop_not_object": Text(en="no JSON object", zh="不是 JSON 对象"),
    "drop_missing_field": Text(en="field missing", zh="缺少字段"),
    "drop_not_text": Text(en="field is no text", zh="字段不是文本"),
    "drop_surrogate": Text(en="half a character", zh="含半个字符"),
    "drop_bad_encoding": Text(en="wrong encoding", zh="编码不符"),
    "drop_binary": Text(en="binary", zh="二进制内容"),
    "drop_bad_checksum": Text(en="bad checksum", zh="校验和不符"),
    "drop_not_example": Text(en="no tf.train.Example", zh="不是 tf.train.Example"),
    "drop_map_none": Text(en="dropped by map", zh="被 map 丢弃"),
    "drop_map_failed": Text(en="map failed", zh="map 出错"),
    # -- tokenizers ---------------------------------------------------------------------------------------------
    "vocab_too_small": Text(
        en="A vocabulary of {vocab_size} has no room for 256 bytes, 3 special tokens and {words} words; "
        "take at least {least}.",
        zh="词表大小 {vocab_size} 容不下 256 个字节、3 个特殊 token 和 {words} 个词；至少需要 {least}。",
    ),
    "no_text_to_train": Text(
        en="There is no text to train a tokenizer on; the sources give no document.",
        zh="没有可用于训练分词器的文本：数据源没有得到任何文档。",
    ),
    "vocab_not_filled": Text(
        en="The text gives a vocabulary of {found} tokens, fewer than the {asked} asked; the model takes {found}.",
        zh="文本只够得到 {found} 个 token 的词表，少于要求的 {asked}；模型将使用 {found}。",
    ),
    "tokenizer_sampled": Text(
        en="The tokenizer is learned from the first {read} of {total}, taken evenly over the files.",
        zh="分词器从 {total} 中的 {read} 学得，均匀取自各文件的开头。",
    ),
    "tokenizer_missing": Text(
        en="data.tokenizer: {path} doesn't exist. Name a tokenizer.json or a folder with one, or leave it out to "
        "train one on the sources.",
        zh="data.tokenizer：{path} 不存在。请给出 tokenizer.json 或其所在目录；不写则在数据源上训练一个。",
    ),
    "tokenizer_other_form": Text(
        en="data.tokenizer: {path} holds {found} but no tokenizer.json. transformers writes one: "
        "AutoTokenizer.from_pretrained(folder).save_pretrained(folder).",
        zh="data.tokenizer：{path} 中有 {found}，但没有 tokenizer.json。可用 transformers 生成："
        "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)。",
    ),
    "tokenizer_damaged": Text(
        en="data.tokenizer: {path} is no valid tokenizer file: {reason}. Copy it again.",
        zh="data.tokenizer：{path} 不是有效的分词器文件：{reason}。请重新拷贝。",
    ),
    "no_token_in_it": Text(en="its vocabulary is empty", zh="词表为空"),
    "tokenizer_unknown": Text(
        en="{tokenizer} can't write every text: what its vocabulary lacks becomes its unknown token. "
        "Byte-level tokenizers lose nothing.",
        zh="{tokenizer} 不能表示所有文本：词表之外的字符会变成 unknown token。字节级分词器不会丢失任何内容。",
    ),
    "tokenizer_vanish": Text(
        en="{tokenizer} can't write every text: characters that its vocabulary lacks vanish without a trace. "
        "Byte-level tokenizers lose nothing.",
        zh="{tokenizer} 不能表示所有文本：词表之外的字符会直接消失。字节级分词器不会丢失任何内容。",
    ),
    "vocab_too_large": Text(
        en="A vocabulary of {vocab_size} is beyond any use; take at most {most}.",
        zh="词表大小 {vocab_size} 过大；最多 {most}。",
    ),
    "word_is_special": Text(
        en="The dictionary holds {word}, which is a special token already; remove it.",
        zh="词典中的 {word} 已是特殊 token，请从词典中去掉。",
    ),
    "no_special_token": Text(
        en="data.{setting} is true, but the tokenizer {tokenizer} has no {kind} token (looked in {origin}). "
        "Leave the key out or set it to false.",
        zh="data.{setting} 为 true，但分词器 {tokenizer} 没有 {kind} token（已查 {origin}）。请去掉该项或设为 false。",
    ),
    "bad_word_line": Text(
        en="{where}: {line!r} is no dictionary line. Forms: `word`, `word frequency`, `word tag`, `word frequency tag` "
        "or `word tag frequency`, apart by a tab or a blank.",
        zh="{where}：{line!r} 不是词典行。可用格式：「词」「词 词频」「词 词性」「词 词频 词性」「词 词性 词频」，"
        "以制表符或空格分隔。",
    ),
    "words_empty": Text(en="{path} holds no word.", zh="{path} 中没有词。"),
    "words_loaded": Text(
        en="{path}: {words} words, {repeated} repeated, {blank} blank lines.",
        zh="{path}：{words} 个词，重复 {repeated} 个，空行 {blank} 行。",
    ),
    "training_tokenizer": Text(en="training the tokenizer", zh="训练分词器"),
    # -- building the cache of tokens ------------------------------------------------------------------------------
    "tokenising": Text(en="tokenising {path}", zh="分词 {path}"),
    "store_damaged": Text(
        en="{folder}: {reason} is damaged or missing; it is made again.", zh="{folder}：{reason} 损坏或缺失，正在重做。"
    ),
    "store_still_damaged": Text(
        en="{folder}: {reason} was made again and still doesn't read back as written; the disk may be failing.",
        zh="{folder}：{reason} 重做后读回仍不一致，磁盘可能有故障。",
    ),
    "resumed": Text(
        en="{path}: {blocks} finished parts of an earlier build are kept.",
        zh="{path}：沿用之前已完成的 {blocks} 个部分。",
    ),
    "records_dropped": Text(
        en="{path}: {dropped} of {records} records left out: {reasons}.",
        zh="{path}：{records} 条记录中有 {dropped} 条未用：{reasons}。",
    ),
    "files_ignored": Text(
        en="{path}: files not read, by extension: {files}.", zh="{path}：未读取的文件（按扩展名）：{files}。"
    ),
    "files_empty": Text(
        en="{path}: {count} empty files, the first is {first}.", zh="{path}：{count} 个空文件，首个是 {first}。"
    ),
    "worker_died": Text(
        en="A process that tokenises ended with code {code}; -9 is mostly the system short of memory. Set "
        "data.build_workers lower; finished parts are kept.",
        zh="分词进程异常退出（代码 {code}）；-9 多为系统内存不足。请调小 data.build_workers；已完成的部分会保留。",
    ),
    "worker_memory": Text(
        en="A process that tokenises ran out of memory. Set data.build_workers lower; finished parts are kept.",
        zh="分词进程内存不足。请调小 data.build_workers；已完成的部分会保留。",
    ),
    "no_locks": Text(
        en="{folder} is on a file system without file locks. Set data.cache_dir (or TRIREME_CACHE) to a local disk.",
        zh="{folder} 所在文件系统不支持文件锁。请把 data.cache_dir（或 TRIREME_CACHE）设到本地磁盘。",
    ),
    "corpus_songci": Text(en="21,053 lyrics of the Song dynasty, simplified Chinese", zh="宋词 21,053 首（简体）"),
    "corpus_python_code": Text(en="the source code of this Python's standard library", zh="当前 Python 标准库的源代码"),
    "corpus_python_prose": Text(
        en="English prose: the topics and docstrings that come with this Python",
        zh="英文散文：当前 Python 自带的主题文档与 docstring",
    ),
    # -- the disk -----------------------------------------------------------------------------------------------
    "disk_full": Text(
        en="The disk of {folder} is full: the next part needs {needed}, {free} free. Free some room or set "
        "data.cache_dir to another disk; finished parts are kept and not done again.",
        zh="{folder} 所在磁盘已满：下一部分需 {needed}，仅剩 {free}。请腾出空间，或把 data.cache_dir 指到别的磁盘；"
        "已完成的部分会保留，不会重做。",
    ),
    "cannot_write": Text(
        en="{folder} can't be written ({reason}). Set data.cache_dir (or TRIREME_CACHE) to a folder you may write.",
        zh="无法写入 {folder}（{reason}）。请把 data.cache_dir（或 TRIREME_CACHE）设为可写的目录。",
    ),
}
