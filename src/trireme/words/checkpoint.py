"""What is said about saving and restoring."""

from trireme.words.catalogue import Text

TEXTS: dict[str, Text] = {
    "and_more": Text(en="{names} and {count} more", zh="{names} 等，另有 {count} 个"),
    "copy_damaged": Text(
        en="{reason}; the other manifest is whole and is used",
        zh="{reason}；另一份清单完好，使用它",
    ),
    "is_root": Text(
        en="{path} holds checkpoints and is none itself; give one of them, such as {path}/{example}",
        zh="{path} 是存放检查点的目录，本身不是检查点；请指定其中一个，例如 {path}/{example}",
    ),
    "leftover": Text(
        en="{path}: a save that was cut off; it was never complete and is not used",
        zh="{path}：一次被中断的保存，从未完成，不予使用",
    ),
    "manifest_damaged": Text(
        en="{path} is damaged: its text doesn't match its own hash",
        zh="{path} 已损坏：内容与自身的哈希不符",
    ),
    "manifest_invalid": Text(
        en="{path} contradicts itself ({reason}); it was not written by Trireme",
        zh="{path} 内容自相矛盾（{reason}），不是 Trireme 写出的文件",
    ),
    "manifest_missing": Text(
        en="{path} can't be read ({reason}); a checkpoint without a manifest was never complete",
        zh="无法读取 {path}（{reason}）；没有清单的检查点是不完整的",
    ),
    "mismatch": Text(
        en="{path} doesn't match what it should be restored into: {problems}",
        zh="{path} 与要恢复的对象不一致：{problems}",
    ),
    "missing": Text(en="missing in the checkpoint: {names}", zh="检查点中缺少：{names}"),
    "no_folder": Text(en="{path}: there is no such checkpoint folder", zh="{path}：检查点目录不存在"),
    "copied": Text(en="{path} copied to {place}", zh="已将 {path} 复制到 {place}"),
    "copy_failed": Text(
        en="{path} could not be copied to {place}, it stays where it is: {reason}",
        zh="无法将 {path} 复制到 {place}，本地检查点不受影响：{reason}",
    ),
    "copy_onto_itself": Text(
        en="checkpoint.copy_to {place} is where the run keeps its checkpoints anyway; name another place",
        zh="checkpoint.copy_to {place} 就是该运行自己存放检查点的目录；请另选位置",
    ),
    "copy_place": Text(
        en="checkpoint.copy_to {place} can't take copies: {reason}; name a folder that can be written, or a URL that "
        "fsspec knows",
        zh="checkpoint.copy_to {place} 无法存放副本：{reason}；请改用可写的目录或 fsspec 支持的 URL",
    ),
    "no_fsspec": Text(
        en="{place} needs a library that isn't installed ({reason}); pip install 'trireme[remote]' and the one of the "
        "service, such as s3fs",
        zh="访问 {place} 需要尚未安装的库（{reason}）；请 pip install 'trireme[remote]' 以及相应服务的库，例如 s3fs",
    ),
    "no_memory": Text(
        en="a snapshot needs {needed} of memory, {free} are free",
        zh="快照需要 {needed} 内存，目前可用 {free}",
    ),
    "rank_failed": Text(en="rank {rank}: {reason}", zh="rank {rank}：{reason}"),
    "rank_late": Text(
        en="rank {rank} did not write its part within {waited_s} s",
        zh="rank {rank} 未能在 {waited_s} 秒内写完它的部分",
    ),
    "writer_died": Text(
        en="the process that writes {path} died; another one writes it again",
        zh="写入 {path} 的进程意外退出；由新的进程重新写入",
    ),
    "writer_hung": Text(
        en="the process that writes {path} no longer answers; another one writes it again",
        zh="写入 {path} 的进程没有响应；由新的进程重新写入",
    ),
    "writers_died": Text(
        en="{count} processes in turn died writing it",
        zh="先后有 {count} 个写入进程意外退出",
    ),
    "no_space": Text(
        en="no room for a checkpoint in {path}: it needs {needed}, {free} are free; "
        "free some space or lower checkpoint.keep_last",
        zh="{path} 空间不足，无法保存检查点：需要 {needed}，剩余 {free}；请清理空间或减小 checkpoint.keep_last",
    ),
    "space_ran_out": Text(
        en="the disk ran full while a checkpoint of about {needed} was written to {path}, {free} are free now; "
        "free some space or lower checkpoint.keep_last",
        zh="向 {path} 写入约 {needed} 的检查点时磁盘写满，现剩余 {free}；请清理空间或减小 checkpoint.keep_last",
    ),
    "no_tensor": Text(en="{path} has no tensor {name!r}", zh="{path} 中没有张量 {name!r}"),
    "not_deleted": Text(
        en="{path} could not be deleted ({reason}); it stays",
        zh="无法删除 {path}（{reason}），予以保留",
    ),
    "not_finite": Text(
        en="{path} was saved with NaN or Inf in it, so no run goes on from it; use the one before",
        zh="{path} 保存时含有 NaN 或 Inf，不能从它继续训练；请使用更早的检查点",
    ),
    "not_held": Text(
        en="tensor {name!r} can't be saved: the ranks hold {found} of its {wanted} elements",
        zh="无法保存张量 {name!r}：各 rank 共持有其 {wanted} 个元素中的 {found} 个",
    ),
    "other_dtype": Text(en="other dtype: {names}", zh="数据类型不同：{names}"),
    "other_run": Text(
        en="{path} belongs to another run ({found}, this is {wanted}) and is not replaced; choose another run.dir",
        zh="{path} 属于另一次运行（{found}，当前为 {wanted}），不会覆盖；请更换 run.dir",
    ),
    "other_save": Text(
        en="{path} belongs to another save ({found}, the manifest says {wanted}): the checkpoint is mixed",
        zh="{path} 属于另一次保存（{found}，清单记录为 {wanted}）：该检查点由不同保存混合而成",
    ),
    "other_shape": Text(en="other shape: {names}", zh="形状不同：{names}"),
    "other_ties": Text(
        en="shared memory on one side only: {names}",
        zh="仅一侧共享内存（权重绑定不一致）：{names}",
    ),
    "save_failed": Text(
        en="{path} could not be saved in {attempts} attempts ({reason}); older checkpoints are untouched",
        zh="{path} 尝试 {attempts} 次仍保存失败（{reason}）；已有的检查点不受影响",
    ),
    "save_retry": Text(
        en="saving {path} failed ({reason}); trying again in {wait_s:g} s, {left} attempts left",
        zh="保存 {path} 失败（{reason}）；{wait_s:g} 秒后重试，还可尝试 {left} 次",
    ),
    "shard_header": Text(en="{path} is damaged in its header", zh="{path} 的文件头已损坏"),
    "shard_missing": Text(en="{path} is missing", zh="缺少文件 {path}"),
    "shard_short": Text(en="{path} ended before its data did", zh="{path} 数据未读完文件就结束了"),
    "shard_size": Text(
        en="{path} has {found} bytes and should have {wanted}: it was cut off or added to",
        zh="{path} 大小为 {found} 字节，应为 {wanted} 字节：文件被截断或被追加",
    ),
    "skipped": Text(en="{path} is not used: {reason}", zh="跳过 {path}：{reason}"),
    "state_key": Text(
        en="{where} has the key {key} of type {kind}; keys of saved state must be text",
        zh="{where} 的键 {key} 类型为 {kind}；保存的状态只能用字符串作键",
    ),
    "state_type": Text(
        en="{where} is a {kind}, which JSON can't give back as it was; save plain numbers, text, lists, tuples, "
        "dicts or bytes, and arrays as tensors",
        zh="{where} 的类型是 {kind}，无法用 JSON 原样还原；请保存普通数字、字符串、列表、元组、字典或字节，"
        "数组请存为张量",
    ),
    "tensor_damaged": Text(
        en="{path} is damaged in tensor {name}: its bytes don't match their hash",
        zh="{path} 中的张量 {name} 已损坏：内容与哈希不符",
    ),
    "tensor_dtype": Text(
        en="tensor {name!r} has dtype {dtype}, which can't be saved; convert it first",
        zh="张量 {name!r} 的类型为 {dtype}，无法保存；请先转换",
    ),
    "tensor_kind": Text(
        en="tensor {name!r} is a {kind}; only plain dense tensors can be saved",
        zh="张量 {name!r} 的类型是 {kind}；只能保存普通的稠密张量",
    ),
    "tensor_meta": Text(
        en="tensor {name!r} is on the meta device and has no values to save",
        zh="张量 {name!r} 在 meta 设备上，没有可保存的数值",
    ),
    "tensor_name": Text(en="{name!r} can't be the name of a tensor", zh="{name!r} 不能用作张量名"),
    "unexpected": Text(en="nobody claims: {names}", zh="无人认领：{names}"),
    "unfinished": Text(
        en="{path} is a save that was cut off; use a folder named step-N",
        zh="{path} 是一次被中断的保存；请使用名为 step-N 的目录",
    ),
    "unlike_pieces": Text(
        en="rank {rank} has tensor {name!r} in another shape or dtype than the ranks before it; it can't be saved",
        zh="rank {rank} 的张量 {name!r} 与前面各 rank 的形状或类型不同，无法保存",
    ),
    "unwritable": Text(
        en="checkpoints can't be written to {path}: {reason}",
        zh="无法在 {path} 写入检查点：{reason}",
    ),
    "using_copy": Text(
        en="{reason}; using its copy {copy}",
        zh="{reason}；改用副本 {copy}",
    ),
    "version": Text(
        en="{path} has format version {found}, this Trireme reads up to {known}; use a newer Trireme",
        zh="{path} 的格式版本为 {found}，当前 Trireme 最高支持 {known}；请使用更新的 Trireme",
    ),
    "weights_only": Text(
        en="{path} holds weights only, so no run can go on from it; a new run begins with them by "
        "model.init_from={path}",
        zh="{path} 只含模型权重，无法续训；新的训练可用 model.init_from={path} 载入这些权重",
    ),
}
