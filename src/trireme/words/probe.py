"""Words about measuring a machine."""

from trireme.words.catalogue import Text

TEXTS = {
    "help": Text(
        en="Measure this machine: matrix products, memory, exchanges between ranks; write it as a file for --cluster.",
        zh="实测本机的矩阵乘法、内存带宽和进程间通信，并写成 --cluster 可读的文件。",
    ),
    "help_out": Text(en="write the figures there", zh="把结果写入该文件"),
    "help_ranks": Text(en="ranks of this machine", zh="本机的进程数"),
    "help_s": Text(en="time for each measurement, in seconds", zh="每项测量的时间（秒）"),
    "written": Text(
        en="written to {path}; use it as --cluster {path}", zh="已写入 {path}；可作为 --cluster {path} 使用"
    ),
    "source": Text(en="measured by trireme cluster probe", zh="由 trireme cluster probe 实测"),
    "device": Text(en="{name}, {memory} for each rank", zh="{name}，每个进程 {memory}"),
    "products": Text(
        en="matrix products in {dtype}: as a device with a peak of {rate}/s",
        zh="{dtype} 矩阵乘法：相当于峰值 {rate}/s 的设备",
    ),
    "memory": Text(en="memory: {rate}/s", zh="内存带宽：{rate}/s"),
    "link": Text(
        en="between ranks ({name}): {rate}/s in one direction, {latency} us a step",
        zh="进程之间（{name}）：单向 {rate}/s，每步 {latency} 微秒",
    ),
}
