"""What is said about devices, ranks and the launcher's environment."""

from trireme.words.catalogue import Text

TEXTS: dict[str, Text] = {
    "bad_variable": Text(
        en="environment variable {variable}={value!r}: a whole number of at least {least} is wanted; "
        "start through a launcher, or unset it for a single process",
        zh="环境变量 {variable}={value!r}：应为不小于 {least} 的整数；请通过启动器启动，单进程运行则取消该变量",
    ),
    "rank_outside": Text(
        en="{place}={rank} with {size}={num_ranks}: ranks count from 0 to {size}-1; check the launcher's settings",
        zh="{place}={rank}，而 {size}={num_ranks}：rank 从 0 计到 {size}-1；请检查启动器的设置",
    ),
    "no_such_device": Text(
        en="device type {kind!r} was asked for, this machine offers {found!r}",
        zh="要求的设备类型是 {kind!r}，本机可用的是 {found!r}",
    ),
    "too_few_devices": Text(
        en="local rank {local_rank} has no device: this node has {count} of type {kind}; "
        "start at most {count} processes a node",
        zh="本地 rank {local_rank} 没有对应的设备：本节点只有 {count} 个 {kind} 设备；每个节点最多启动 {count} 个进程",
    ),
    "format_missing": Text(
        en="{device} can't compute in {dtype}; it can in {known}",
        zh="{device} 不支持 {dtype} 计算；可用的数值格式有 {known}",
    ),
    "rng_devices": Text(
        en="random state of {found} can't be put back on {wanted}: other device types draw other numbers",
        zh="{found} 的随机数状态无法恢复到 {wanted}：不同类型的设备产生的随机数不同",
    ),
    "rank_failed": Text(en="rank {rank} of {num_ranks} failed:", zh="rank {rank}（共 {num_ranks} 个）失败："),
    "rank_died": Text(
        en="died without a word, exit code {exit_code}",
        zh="未留下任何信息就退出了，退出码 {exit_code}",
    ),
    "rank_hung": Text(
        en="rank {rank} of {num_ranks} was still running after {limit_s:g} s; its stack:",
        zh="rank {rank}（共 {num_ranks} 个）运行超过 {limit_s:g} 秒仍未结束，其调用栈：",
    ),
    "no_group": Text(
        en="Rank {rank} of {world} did not find the others: {reason}. Check MASTER_ADDR and MASTER_PORT, and that all "
        "ranks were started.",
        zh="{world} 个 rank 中的 rank {rank} 没有找到其他 rank：{reason}。请检查 MASTER_ADDR 和 MASTER_PORT，并确认所有 rank 都已启动。",
    ),
}
