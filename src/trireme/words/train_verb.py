"""Sentences of ``trireme train``."""

from trireme.words.catalogue import Text

TEXTS = {
    "help": Text(
        en="Train a model as RUN.YAML says. A run folder stands for the settings it was made with.",
        zh="按 RUN.YAML 训练模型。给出训练目录时，使用其中保存的设置。",
    ),
    "resume": Text(en="Go on with the run from its newest good checkpoint.", zh="从最新的可用检查点继续训练。"),
    "overwrite": Text(en="Delete the run in the run folder and start anew.", zh="删除训练目录中已有的训练并重新开始。"),
    "extend": Text(
        en="If the run's length changed: stretch redraws the learning rate over the new length, hold stays at the "
        "last rate.",
        zh="训练长度改变时：stretch 按新长度重新计算学习率曲线，hold 保持在最后的学习率。",
    ),
    "accept": Text(
        en="Take the new value of KEY although the run was made with another. May be repeated.",
        zh="接受 KEY 的新值，尽管这次训练原来用的是另一个值。可重复使用。",
    ),
    "allow_missing": Text(
        en="Go on without the random state if it is damaged; the run is then marked as not exact.",
        zh="随机数状态损坏时也继续训练；该训练会被标记为不精确。",
    ),
    "nproc_per_node": Text(
        en="Start this many ranks on this machine; the layout says how they share the work.",
        zh="在本机启动这么多个 rank；它们如何分工由 layout 决定。",
    ),
}
