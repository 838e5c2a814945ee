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
    "illegal": Text(
        en="{reasons} Nearest that can run: {near}.",
        zh="{reasons} 最接近的可行布局：{near}。",
    ),
    "illegal_alone": Text(
        en="{reasons} No layout near it can run.",
        zh="{reasons} 附近没有可行的布局。",
    ),
    "rule_world": Text(
        en="{layout} needs {world} ranks; there are {ranks}.",
        zh="{layout} 需要 {world} 个 rank，实际有 {ranks} 个。",
    ),
    "rule_stages_per_rank": Text(
        en="schedule = {schedule} works with vp = {allowed}, not {vp}.",
        zh="schedule = {schedule} 要求 vp = {allowed}，不能是 {vp}。",
    ),
    "rule_stages": Text(
        en="pp * vp = {pp} * {vp} asks for {stages} stages of at least a layer each; there are {layers} layers.",
        zh="pp * vp = {pp} * {vp} 要切成 {stages} 个 stage，每个至少一层，而模型只有 {layers} 层。",
    ),
    "rule_interleaved_few": Text(
        en="The interleaved schedule sends pp = {pp} micro-batches through a stage before it turns to the next; "
        "{micro} do not fill it.",
        zh="交错调度每轮要有 pp = {pp} 个 micro-batch 依次通过，{micro} 个填不满流水线。",
    ),
    "rule_zero_bubble_reshard": Text(
        en="schedule = {schedule} takes the gradients of inputs and of weights at two times, and zero3 gives the "
        "weights away in between, which makes gradients wrong.",
        zh="schedule = {schedule} 把输入梯度与权重梯度分两次计算，而 zero3 会在其间释放权重，梯度会出错。",
    ),
    "rule_zero_bubble_recompute": Text(
        en="schedule = {schedule} with recompute = {recompute} would run the forward again for each half of the "
        "backward.",
        zh="schedule = {schedule} 与 recompute = {recompute} 同用时，反向的两半都会各自重做前向。",
    ),
    "rule_heads": Text(
        en="{said} does not divide {heads} attention heads.",
        zh="{said} 不能整除 {heads} 个注意力头。",
    ),
    "rule_kv_heads": Text(
        en="{said} neither divides {heads} key-value heads nor is a multiple of them, so heads of one group would "
        "lie on ranks that lack their keys.",
        zh="{said} 既不整除 {heads} 个 KV 头，也不是其倍数，同组的头会落到没有对应 KV 的 rank 上。",
    ),
    "rule_narrow": Text(
        en="tp = {tp} is more than {name} = {size}, so some ranks would hold nothing.",
        zh="tp = {tp} 大于 {name} = {size}，有的 rank 会分不到任何内容。",
    ),
    "rule_sequence_cp": Text(
        en="cp = {cp} does not divide the sequence length {seq_len}; {near} would do.",
        zh="cp = {cp} 不能整除序列长度 {seq_len}；可改为 {near}。",
    ),
    "rule_sequence_tp": Text(
        en="sp cuts sequences into cp * tp = {parts} parts, which does not divide the length {seq_len}; "
        "{near} would do.",
        zh="sp 把序列切成 cp * tp = {parts} 份，不能整除长度 {seq_len}；可改为 {near}。",
    ),
    "rule_cp_recurrent": Text(
        en="cp = {cp} cuts sequences, and this model carries a state along them.",
        zh="cp = {cp} 要切分序列，而该模型沿序列递推状态，无法切分。",
    ),
    "rule_ring_biased": Text(
        en="cp_kind = ring never sees all keys at once, and the attention of this model adds a bias by distance; "
        "allgather and ulysses can.",
        zh="cp_kind = ring 不会同时拿到全部 key，而该模型的注意力带有按距离的偏置；可用 allgather 或 ulysses。",
    ),
    "rule_experts": Text(
        en="ep = {ep} does not divide {experts} experts.",
        zh="ep = {ep} 不能整除 {experts} 个专家。",
    ),
    "rule_expert_ranks": Text(
        en="ep = {ep} must divide dp_shard * cp * tp = {ranks}, the ranks that experts are dealt out to.",
        zh="ep = {ep} 必须整除 dp_shard * cp * tp = {ranks}，即分摊专家的 rank 数。",
    ),
    "rule_batch_dp": Text(
        en="Data degree {dp} does not divide the global batch of {batch} sequences; {near} would do.",
        zh="数据并行度 {dp} 不能整除全局批量 {batch} 条序列；可改为 {near}。",
    ),
    "rule_batch_micro": Text(
        en="{batch} sequences over {dp} data-parallel ranks do not fill {micro} micro-batches with one each.",
        zh="{batch} 条序列分给 {dp} 个数据并行 rank 后，不足以让 {micro} 个 micro-batch 各有一条。",
    ),
    "cost_kv_replicated": Text(
        en="{said} is more than {heads} key-value heads: ranks hold copies of them, {extra} more.",
        zh="{said} 多于 {heads} 个 KV 头：各 rank 会持有其副本，多出 {extra}。",
    ),
    "cost_uneven_vocab": Text(
        en="A vocabulary of {size} is cut into {parts} uneven parts; the largest is {extra} above the mean.",
        zh="大小为 {size} 的词表切成 {parts} 份不均匀，最大的一份比平均多 {extra}。",
    ),
    "cost_uneven_ffn": Text(
        en="A feed-forward width of {size} is cut into {parts} uneven parts; the largest is {extra} above the mean.",
        zh="宽度为 {size} 的前馈层切成 {parts} 份不均匀，最大的一份比平均多 {extra}。",
    ),
    "cost_uneven_layers": Text(
        en="{size} layers in {parts} stages come out uneven; the longest stage is {extra} above the mean.",
        zh="{size} 层分成 {parts} 个 stage 不均匀，最长的 stage 比平均多 {extra}。",
    ),
    "cost_uneven_micro": Text(
        en="{size} sequences a rank in {parts} micro-batches come out uneven; the largest is {extra} above the mean.",
        zh="每个 rank 的 {size} 条序列分成 {parts} 个 micro-batch 不均匀，最大的比平均多 {extra}。",
    ),
    "cost_not_full": Text(
        en="{micro} micro-batches do not fill pp = {pp}: stages work {utilisation} of the time, a step takes {extra} "
        "longer.",
        zh="{micro} 个 micro-batch 填不满 pp = {pp}：各 stage 只有 {utilisation} 的时间在工作，一步多花 {extra}。",
    ),
    "cost_gathers": Text(
        en="zero3 gathers the weights {gathers} times a step, twice a micro-batch, {extra} more than for one; zero2 "
        "keeps them.",
        zh="zero3 每步要聚合权重 {gathers} 次（每个 micro-batch 两次），比只有一个时多 {extra}；zero2 则一直保留权重。",
    ),
    "cost_tp_across_nodes": Text(
        en="tp = {tp} reaches across nodes of {ranks_per_node} ranks, over their slow links ({extra} more bytes).",
        zh="tp = {tp} 跨越了每节点 {ranks_per_node} 个 rank 的边界，要走较慢的节点间链路（字节数多 {extra}）。",
    ),
    "cost_cp_unbalanced": Text(
        en="cp = {cp} balances causal attention with two pieces a rank, and {seq_len} is not 2 * cp pieces; the last "
        "rank does {extra} more than the mean.",
        zh="cp = {cp} 靠每个 rank 两段来平衡因果注意力，而长度 {seq_len} 切不成 2 * cp 段；末尾 rank 多做 {extra}。",
    ),
    "cost_no_effect": Text(en="Without effect here: {words} ({extra}).", zh="在此不起作用：{words}（{extra}）。"),
    "too_few_layers": Text(
        en="{layers} layers can't be cut into {stages} stages of at least one each; give 1 to {layers} stages.",
        zh="{layers} 层无法切成 {stages} 个各至少一层的 stage；stage 数应为 1 到 {layers}。",
    ),
    "plan_cuts": Text(
        en="{cuts} cuts given for {stages} stages; each stage after the first begins at one.",
        zh="{stages} 个 stage 却给了 {cuts} 个切点；除第一个外，每个 stage 都要有一个起点。",
    ),
    "plan_twice": Text(
        en="The plan names {name} twice under {key}; once is right.",
        zh="计划的 {key} 中 {name} 出现了两次，只能出现一次。",
    ),
    "plan_version": Text(
        en="The plan was made by Trireme {made}, this is {running}; make it again with `trireme plan`.",
        zh="该计划由 Trireme {made} 生成，当前版本是 {running}；请用 `trireme plan` 重新生成。",
    ),
    "plan_model": Text(
        en="The plan was made for {model} with hash {made}, the model given has {given}; make it again with "
        "`trireme plan`.",
        zh="该计划是为 {model}（哈希 {made}）生成的，而所给模型的哈希是 {given}；请用 `trireme plan` 重新生成。",
    ),
    "plan_cluster": Text(
        en="The plan was made for another cluster ({made}, here {here}): it runs, its predictions may not hold.",
        zh="该计划是为另一个集群生成的（{made}，当前为 {here}）：可以运行，但其中的预测未必成立。",
    ),
    "plan_no_json": Text(en="The plan is no JSON: {problem}.", zh="计划文件不是合法的 JSON：{problem}。"),
    "plan_format": Text(
        en="The plan has format {found}; this version reads {known}.",
        zh="计划文件的格式版本是 {found}，当前版本只能读取 {known}。",
    ),
    "plan_unknown": Text(
        en="{place} has an unknown key {key}; did you mean {near}?",
        zh="{place} 中有未知的键 {key}；是否想写 {near}？",
    ),
    "plan_missing": Text(en="{place} lacks the key {key}.", zh="{place} 缺少键 {key}。"),
    "plan_wrong": Text(
        en="{place} = {value} in the plan is not of the form {wanted}.",
        zh="计划中的 {place} = {value} 格式不对，应为 {wanted}。",
    ),
}
