"""Words about what is run where and how."""

from trireme.words.catalogue import Text

TEXTS = {
    "bad_cuts": Text(
        en="cuts {cuts} don't make {stages} stages of {layers} layers; one fewer than the stages, rising, each a layer",
        zh="切分点 {cuts} 不能把 {layers} 层分成 {stages} 段；切分点应比段数少一个，依次递增，且每段至少一层",
    ),
    "per_layer": Text(
        en="{key} has {given} entries for {layers} layers; give one for each layer, or none",
        zh="{key} 有 {given} 项，而模型有 {layers} 层；请每层给一项，或都不给",
    ),
}
