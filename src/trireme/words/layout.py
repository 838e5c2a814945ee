"""Words about layouts, schedules and plans."""

from trireme.words.catalogue import Text

TEXTS = {
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
