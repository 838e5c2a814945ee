"""What ``trireme compile-report`` says."""

from __future__ import annotations

from trireme.words.catalogue import Text

TEXTS: dict[str, Text] = {
    "help": Text(
        en="Measure what compiling gives a run on this machine.\n\nForward and backward of one micro-batch of RUN.YAML "
        "run as written and compiled, in turns, on one device; printed are programs, kernels, time, memory, and what "
        "could not be compiled or was compiled again. Nothing is trained.",
        zh="在本机上实测编译对一次训练有何收益。\n\n在单个设备上，对 RUN.YAML 的一个微批交替运行未编译与编译后的前向和反向；输出"
        "程序数、内核数、时间、内存，以及哪些代码无法编译、哪些又编译了一次。不做训练。",
    ),
    "option_json": Text(en="Print JSON.", zh="以 JSON 输出。"),
    "title": Text(
        en="forward and backward of {seqs} sequences of {seq_len} tokens in {policy}",
        zh="{seqs} 条序列、每条 {seq_len} token 的前向与反向，精度 {policy}",
    ),
    "programs": Text(
        en="programs: {programs} for {blocks} blocks, ready after {seconds} s (kernels may come from the cache on disk)",
        zh="程序：{blocks} 个块共 {programs} 个，{seconds} 秒后就绪（内核可能来自磁盘缓存）",
    ),
    "fused": Text(
        en="fusion: {nodes} operations became {kernels} kernels, forward and backward",
        zh="融合：前向与反向共 {nodes} 个操作合成 {kernels} 个内核",
    ),
    "time": Text(
        en="time: {before} ms as written, {after} ms compiled, {ratio}x (lowest of {repeats} in turns)",
        zh="时间：未编译 {before} 毫秒，编译后 {after} 毫秒，{ratio} 倍（交替运行 {repeats} 次取最短）",
    ),
    "memory": Text(
        en="peak beside weights: {before} as written, {after} compiled (activations and gradients)",
        zh="权重以外的峰值：未编译 {before}，编译后 {after}（激活与梯度）",
    ),
    "breaks": Text(
        en="left half-way, the rest runs as written or as a further program", zh="中途断开，其余另成程序或按原样运行"
    ),
    "recompiles": Text(en="compiled again", zh="又编译了一次"),
    "unable": Text(en="can't be compiled, runs as written", zh="无法编译，按原样运行"),
    "number": Text(en="{title}: {count}", zh="{title}：{count} 处"),
    "reason": Text(en="  {reason}", zh="  {reason}"),
    "layout": Text(
        en="the run's layout is {layout}, and compile-report measures one device as written; the run itself says which "
        "blocks compile under its layout, and here layout=dp=1 works",
        zh="该训练的布局是 {layout}，而 compile-report 只测不切分的单设备；训练本身会说明在其布局下哪些块被编译，此处可用 "
        "layout=dp=1",
    ),
    "failed": Text(
        en="torch.compile fails on this model and machine ({cause}); it needs a C++ compiler (g++ or clang++)",
        zh="torch.compile 在这个模型和这台机器上失败（{cause}）；它需要 C++ 编译器（g++ 或 clang++）",
    ),
}
