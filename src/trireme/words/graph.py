"""What the model graph says."""

from trireme.words.catalogue import Text

TEXTS: dict[str, Text] = {
    "model_by_code": Text(
        en="model.factory names code, and a plan is made without running any; name the model by model.name or model.path",
        zh="model.factory 指向代码，而规划不运行任何代码；请用 model.name 或 model.path 指定模型",
    ),
    "missing_key": Text(
        en="{model}: a config.json of family {family} needs {key}, and this one has none",
        zh="{model}：{family} 类模型的 config.json 必须有 {key}，这一份没有",
    ),
    "bad_count": Text(
        en="{model}: {key} is {value!r}; it must be a whole number of at least {least}",
        zh="{model}：{key} 的值是 {value!r}，应为不小于 {least} 的整数",
    ),
    "too_many_layers": Text(
        en="{model}: {key} is {value}; more than {most} layers is taken for a mistake",
        zh="{model}：{key} 的值是 {value}，超过 {most} 层视为写错",
    ),
    "bad_names": Text(
        en="{model}: {key} is {value!r}; it must be a list of class names",
        zh="{model}：{key} 的值是 {value!r}，应为类名列表",
    ),
    "bad_indices": Text(
        en="{model}: {key} is {value!r}; it must be a list of layer numbers",
        zh="{model}：{key} 的值是 {value!r}，应为层号列表",
    ),
    "unknown_activation": Text(
        en="{model}: {key}={value} isn't known, so what it keeps for backward isn't either; known are {known}",
        zh="{model}：不认识 {key}={value}，无法得知反向传播要保留什么；已知的有 {known}",
    ),
    "unknown_kind": Text(
        en="{model}: {key} holds {value!r}; known are {known}",
        zh="{model}：{key} 中有 {value!r}，已知的只有 {known}",
    ),
    "bad_ratio": Text(
        en="{model}: {key} is {value!r}; it must be a number from 0 to 1",
        zh="{model}：{key} 的值是 {value!r}，应为 0 到 1 之间的数",
    ),
    "bad_flag": Text(
        en="{model}: {key} is {value!r}; it must be true or false",
        zh="{model}：{key} 的值是 {value!r}，只能是 true 或 false",
    ),
    "bad_list": Text(
        en="{model}: {key} needs one entry per layer, {length} of them; found {found}",
        zh="{model}：{key} 应为每层一项、共 {length} 项，实际为 {found}",
    ),
    "not_divisible": Text(
        en="{model}: {whole_key}={whole} can't be split evenly by {part_key}={part}",
        zh="{model}：{whole_key}={whole} 不能被 {part_key}={part} 整除",
    ),
    "bad_top_k": Text(
        en="top_k={top_k} of {num_experts} experts can't be chosen; it must be from 1 to the number of experts",
        zh="无法从 {num_experts} 个专家中选出 top_k={top_k} 个，top_k 应在 1 与专家数之间",
    ),
    "no_family": Text(
        en="{model}: there is no model_type, so its family is unknown; config.json of a Hugging Face model has one",
        zh="{model}：缺少 model_type，无法判断模型家族；Hugging Face 模型的 config.json 都带有这一项",
    ),
    "unknown_family": Text(
        en="{model}: family {family} isn't in the tables (nearest: {near}); "
        "build the module itself and its graph is captured from that",
        zh="{model}：内置表中没有 {family} 这一家族（相近的有 {near}）；请构建模型本身，由捕获得到计算图",
    ),
    "unknown_head": Text(
        en="{model}: architecture {architecture} of family {family} has a head that isn't in the tables; "
        "name the language model or the bare model in architectures, or build the module and capture it",
        zh="{model}：{family} 家族的 {architecture} 带有内置表中没有的输出头；"
        "请在 architectures 中改用语言模型或不带输出头的模型，或构建模型后捕获",
    ),
    "unknown_name_near": Text(
        en="no model is called {name!r}; did you mean {near}? A config.json can be given as well",
        zh="没有名为 {name!r} 的模型，是否指 {near}？也可以直接给出 config.json",
    ),
    "unknown_name": Text(
        en="no model is called {name!r}; `trireme models` lists the names, and a config.json can be given as well",
        zh="没有名为 {name!r} 的模型；`trireme models` 会列出所有名称，也可以直接给出 config.json",
    ),
    "unreadable": Text(
        en="{path} can't be read ({reason}); give a config.json, its folder or the name of a model",
        zh="无法读取 {path}（{reason}）；请给出 config.json、其所在目录或模型名称",
    ),
    "not_json": Text(
        en="{path} isn't the config.json of a model: {reason}",
        zh="{path} 不是模型的 config.json：{reason}",
    ),
}
