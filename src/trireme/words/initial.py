"""What is said about the first values of a module that was built without storage."""

from trireme.words.catalogue import Text

TEXTS: dict[str, Text] = {
    "nobody": Text(
        en="{name} is on the meta device and no reset_parameters, init_weights or _init_weights fills it; "
        "build the module inside `with trireme.recorded():`, or fill it in one of these methods",
        zh="{name} 位于 meta 设备，而 reset_parameters、init_weights、_init_weights 都没有给它赋初值；"
        "请在 `with trireme.recorded():` 内构建模型，或在上述方法之一中赋值",
    ),
    "nobody_seen": Text(
        en="{name} is on the meta device and nothing filled it while the module was built; fill all of it, for example "
        "with torch.nn.init",
        zh="{name} 位于 meta 设备，构建模型时没有任何代码给它赋初值；请完整赋值，例如用 torch.nn.init",
    ),
    "unseen": Text(
        en="{module} was built on meta before anyone could watch: its values come from its modules' own reset_parameters "
        "and init_weights; if its constructor does more, build it inside `with trireme.recorded():`",
        zh="{module} 在 meta 设备上构建时没有被记录：初值来自各模块自己的 reset_parameters 和 init_weights；"
        "如果构造函数还做了别的初始化，请在 `with trireme.recorded():` 内构建",
    ),
}
