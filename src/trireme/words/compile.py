"""What is said about compiled blocks."""

from __future__ import annotations

from trireme.words.catalogue import Text

TEXTS: dict[str, Text] = {
    "eager": Text(
        en="block {path} runs as written, not compiled: {reason}",
        zh="块 {path} 按原样运行，不编译：{reason}",
    ),
    "argument": Text(
        en="its argument {name} is a {kind}, which no program can take; tensors, numbers and containers of them can be",
        zh="参数 {name} 是 {kind}，编译后的程序无法接收；张量、数值以及由它们组成的容器可以",
    ),
    "returns": Text(
        en="it returns a {kind}, which no program can make; tensors, numbers and containers of them can be returned",
        zh="它返回 {kind}，编译后的程序无法产生；可以返回张量、数值以及由它们组成的容器",
    ),
    "values": Text(
        en="its code decides by the values of a tensor ({what}); decide outside of the block, or leave it uncompiled",
        zh="它的代码取决于张量的数值（{what}）；请把判断移到块外，或保持不编译",
    ),
    "draws": Text(
        en="it draws random numbers (dropout); they are counted so that any layout draws the same, which a program "
        "can't; dropout of 0 compiles",
        zh="它要取随机数（dropout）；为使任何布局取到相同的数，随机数按序计数，编译后的程序做不到；dropout 设为 0 即可编译",
    ),
    "foreign": Text(
        en="it reads a tensor that is neither argument, parameter nor buffer ({what}); register it as a buffer",
        zh="它读取了既非参数、缓冲区也非传入参数的张量（{what}）；请把它注册为 buffer",
    ),
    "hooks": Text(
        en="module {module} inside it has hooks, which a program would not call; hooks on the block itself work",
        zh="其中的模块 {module} 挂有 hook，编译后的程序不会调用；挂在块本身上的 hook 可以",
    ),
    "recurrent": Text(
        en="{module} inside it is a recurrent layer, whose flat weights a program can't stand for",
        zh="其中的 {module} 是循环层，编译后的程序无法替代它的平铺权重",
    ),
    "passes": Text(
        en="its attention passes keys round the ranks (cp_kind=ring), which a program can't; cp_kind=allgather compiles",
        zh="它的注意力在各 rank 间轮转键值（cp_kind=ring），编译后的程序做不到；cp_kind=allgather 可以编译",
    ),
    "experts": Text(
        en="its experts are dealt over {ep} ranks, and how many tokens travel is known only as they do; blocks without "
        "experts compile, and with ep=1 so do experts computed at once",
        zh="它的专家分布在 {ep} 个 rank 上，要传多少 token 运行时才知道；没有专家的块可以编译，ep=1 时一次算完的专家也可以",
    ),
    "changes": Text(
        en="it changes its own {name} as it runs, which a program would not; keep what changes in a buffer",
        zh="它运行时会改动自己的 {name}，编译后的程序不会这样做；请把会变的量放进 buffer",
    ),
    "too_many": Text(
        en="it was compiled {count} times and something differs again ({what}); pad batches to a few lengths",
        zh="它已编译 {count} 次，又遇到不同的输入（{what}）；请把批补齐到少数几种长度",
    ),
    "watched": Text(
        en="every operator in it is looked at (recompute=selective keeps some by kind), which kernels of a program are "
        "not; recompute=full or none compiles",
        zh="它的每个算子都要逐一查看（recompute=selective 按种类保留其中一部分），编译后的内核做不到；recompute=full 或 "
        "none 可以编译",
    ),
    "inside": Text(
        en="a later stage of the pipeline needs a value from inside it, which a program would not give; other cuts may "
        "not",
        zh="流水线的后续阶段需要它内部的值，编译后的程序不会给出；换一种切分也许不需要",
    ),
    "elsewhere": Text(
        en="another rank of its tensor- or context-parallel group can't compile it, and its collectives have to match",
        zh="同一张量并行或上下文并行组中有 rank 无法编译它，而各 rank 的集合通信必须一致",
    ),
    "failed": Text(
        en="the compiler failed ({cause}); it needs a C++ compiler (g++ or clang++)",
        zh="编译器失败（{cause}）；需要 C++ 编译器（g++ 或 clang++）",
    ),
    "again": Text(
        en="block {path} was compiled again: {why}",
        zh="块 {path} 又编译了一次：{why}",
    ),
    "so_far": Text(en="{count} programs so far, {seconds} s", zh="至今 {count} 个程序，{seconds} 秒"),
    "differs": Text(en="{name} is {now}, it was {before}", zh="{name} 现在是 {now}，原来是 {before}"),
}
