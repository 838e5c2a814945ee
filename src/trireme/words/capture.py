"""What is said where a model is known by its code alone."""

from trireme.words.catalogue import Text

TEXTS = {
    "of_code": Text(
        en="{model} is code: its graph comes from running its forward on tensors without contents",
        zh="{model} 是代码：模型图由前向在无内容张量上运行一遍得到",
    ),
    "of_config": Text(
        en="{reason}; its graph comes from running the code of the transformers library on tensors without contents",
        zh="{reason}；改为让 transformers 库的代码在无内容张量上运行一遍，由此得到模型图",
    ),
    "neither": Text(
        en="{reason}, and it can't be captured from the code of the transformers library either: {other}",
        zh="{reason}；也无法用 transformers 库的代码捕获：{other}",
    ),
    "built": Text(
        en="{factory} asks for values while it builds, so it was built with its contents to look at it",
        zh="{factory} 在构建时要用到张量的值，因此连同内容一起构建后再分析",
    ),
    "asks_values": Text(
        en="{model}: {line} asks for the values of tensors, which are unknown before it runs; a plan needs a forward "
        "that asks for shapes alone (experts by a grouped product, say)",
        zh="{model}：{line} 要用到张量的值，而规划时没有值；前向只能依赖形状（例如专家用分组乘法实现）才能规划",
    ),
    "failed": Text(
        en="{model}: its forward fails on tensors without contents at {line}: {reason}; a language model is called "
        "with input_ids, other inputs are made by a function batch(seed, seqs, seq_len) beside the factory",
        zh="{model}：前向在无内容张量上于 {line} 出错：{reason}；语言模型以 input_ids 调用，其他输入由工厂函数旁的 "
        "batch(seed, seqs, seq_len) 给出",
    ),
    "other_calls": Text(
        en="{model}: its forward makes {calls} calls for one batch and {others} for one of another size; a plan needs "
        "the same calls for all",
        zh="{model}：前向对一种批大小执行 {calls} 次调用，换一种大小则为 {others} 次；规划要求两者相同",
    ),
    "no_blocks": Text(
        en="{model}: no layers were met in its forward, so there is nothing that a layout could be planned for",
        zh="{model}：前向中没有遇到任何层，无法规划布局",
    ),
    "other_input": Text(
        en="{path}: {kind} takes {input}; models of tokens (input_ids) and images (pixel_values) can be planned",
        zh="{path}：{kind} 的输入是 {input}；可规划的是以词元（input_ids）或图像（pixel_values）为输入的模型",
    ),
}
