"""Words about layouts, schedules and plans."""

from trireme.words.catalogue import Text

TEXTS = {
    "not_whole": Text(
        en="{key} = {value!r} is no whole number of at least 1.",
        zh="{key} = {value!r} 不是至少为 1 的整数。",
    ),
    "not_choice": Text(
        en="{key} = {value!r} is none of {choices}.",
        zh="{key} = {value!r} 不在可选值 {choices} 之中。",
    ),
    "not_choice_near": Text(
        en="{key} = {value!r} is none of {choices}; did you mean {near}?",
        zh="{key} = {value!r} 不在可选值 {choices} 之中；是否想写 {near}？",
    ),
    "not_pair": Text(
        en="hsdp = {value!r} is not of the form COPIESxSHARDS, such as hsdp=2x4.",
        zh="hsdp = {value!r} 的写法不对，应为“副本数x分片数”，例如 hsdp=2x4。",
    ),
    "no_value": Text(
        en="{key} needs a value, as in {key}=2.",
        zh="{key} 需要一个值，例如 {key}=2。",
    ),
    "unknown_key": Text(
        en="A layout has no {key}; it has {keys}.",
        zh="布局中没有 {key} 这一项；可用的有 {keys}。",
    ),
    "unknown_key_near": Text(
        en="A layout has no {key}; did you mean {near}?",
        zh="布局中没有 {key} 这一项；是否想写 {near}？",
    ),
    "said_twice": Text(
        en="{key} is given twice, as {first} and as {second}; give it once.",
        zh="{key} 给了两次，分别是 {first} 和 {second}；只能给一次。",
    ),
    "dp_beside": Text(
        en="dp = {dp} stands beside {others}, which make it up; give dp alone, or dp_replicate and dp_shard.",
        zh="dp = {dp} 与它的组成部分 {others} 同时出现；请只写 dp，或只写 dp_replicate 和 dp_shard。",
    ),
    "wrong_world": Text(
        en="{said} makes {product}, which does not come out even with {ranks} ranks; nearest: {near}.",
        zh="{said} 的乘积是 {product}，与 {ranks} 个 rank 对不上；最接近的可行改法：{near}。",
    ),
    "that_many_ranks": Text(en="{counts} ranks", zh="改用 {counts} 个 rank"),
    "read_as": Text(en="{word} is read as {meaning}.", zh="{word} 按 {meaning} 处理。"),
    "read_off": Text(en="{word} switches nothing on.", zh="{word} 没有打开任何选项。"),
    "is_interleaved": Text(
        en="schedule = 1f1b with vp = {vp} is the interleaved schedule.",
        zh="schedule = 1f1b 且 vp = {vp} 就是交错（interleaved）调度。",
    ),
    "filled_dp": Text(
        en="{axis} = {degree} takes the rest of {ranks} ranks.",
        zh="{ranks} 个 rank 中剩余的部分用于 {axis} = {degree}。",
    ),
    "no_such_rank": Text(
        en="Rank {rank} is not among the {world} ranks of this layout (0 to {world} - 1).",
        zh="rank {rank} 不在该布局的 {world} 个 rank 之中（编号 0 到 {world} - 1）。",
    ),
    "schedule_twice": Text(
        en="Schedule {schedule} has {action} twice on rank {rank}; every action runs once.",
        zh="调度 {schedule} 在 rank {rank} 上重复了 {action}；每个动作只能执行一次。",
    ),
    "schedule_foreign": Text(
        en="Schedule {schedule} has {action} on rank {rank}, which does not hold that stage or micro-batch.",
        zh="调度 {schedule} 把 {action} 放在 rank {rank} 上，而该 rank 并没有这个 stage 或 micro-batch。",
    ),
    "schedule_missing": Text(
        en="Schedule {schedule} lacks {action} on rank {rank}; every stage sees every micro-batch.",
        zh="调度 {schedule} 在 rank {rank} 上缺少 {action}；每个 stage 都要处理每个 micro-batch。",
    ),
    "schedule_stuck": Text(
        en="Schedule {schedule} stops: rank {rank} waits for ever before {action}.",
        zh="调度 {schedule} 会卡死：rank {rank} 在 {action} 之前永远等不到所需的数据。",
    ),
    "stage_costs": Text(
        en="{given} stage costs given for a schedule of {stages} stages; give one for each stage.",
        zh="调度有 {stages} 个 stage，却给了 {given} 个 stage 开销；每个 stage 应各给一个。",
    ),
    "cut_times": Text(
        en="{given} transfer times given for {cuts} cuts between stages; give one for each, or one for all.",
        zh="stage 之间有 {cuts} 个切点，却给了 {given} 个传输时间；每个切点给一个，或只给一个通用值。",
    ),
}
