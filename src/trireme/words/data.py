"""What a user reads about sources, records, tokenizers and the cache of tokens."""

from __future__ import annotations

from trireme.words.catalogue import Text

TEXTS: dict[str, Text] = {
    "disk_full": Text(
        en="The disk of {folder} is full: {needed} more needed, {free} free. Free some room or set data.cache_dir "
        "to another disk; finished parts are kept and not done again.",
        zh="{folder} 所在磁盘已满：还需 {needed}，仅剩 {free}。请腾出空间，或把 data.cache_dir 指到别的磁盘；"
        "已完成的部分会保留，不会重做。",
    ),
    "cannot_write": Text(
        en="{folder} can't be written ({reason}). Set data.cache_dir (or TRIREME_CACHE) to a folder you may write.",
        zh="无法写入 {folder}（{reason}）。请把 data.cache_dir（或 TRIREME_CACHE）设为可写的目录。",
    ),
}
