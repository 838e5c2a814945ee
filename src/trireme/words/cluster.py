"""Words about clusters, nodes and links."""

from trireme.words.catalogue import Text

TEXTS = {
    "wrong_form": Text(
        en="{text!r} names no cluster; write accelerator:ranks_per_nodexnodes, such as {form}, or a .yaml file.",
        zh="{text!r} 不是集群的写法；请写“加速卡:每节点卡数x节点数”，例如 {form}，或给出一个 .yaml 文件。",
    ),
    "unknown_accelerator": Text(
        en="No accelerator {name!r} is known; near it: {near}. Another one can be described in a .yaml file.",
        zh="没有名为 {name!r} 的加速卡；相近的有：{near}。其他型号可以在 .yaml 文件中描述。",
    ),
    "which_accelerator": Text(
        en="{name!r} was sold in several kinds; say which: {names}.",
        zh="{name!r} 有多种型号，请写明是哪一种：{names}。",
    ),
    "no_ranks": Text(
        en="{place}: a cluster of {nodes} nodes with {ranks} ranks each has nothing to compute on; both must be at least 1.",
        zh="{place}：{nodes} 个节点、每节点 {ranks} 张卡，没有可用的算力；两者都至少为 1。",
    ),
    "too_many_ranks": Text(
        en="{place}: {ranks} ranks are more than the {limit} that a cluster may have; check the numbers.",
        zh="{place}：{ranks} 张卡超过了集群上限 {limit}，请检查数字。",
    ),
    "option_form": Text(
        en="{text!r}: {option!r} is not of the form key=value, such as oversub=2.",
        zh="{text!r}：{option!r} 的写法不对，应为“键=值”，例如 oversub=2。",
    ),
    "option_twice": Text(
        en="{text!r} gives {key} twice; keep one.",
        zh="{text!r} 中 {key} 出现了两次，只保留一个。",
    ),
    "unknown_option": Text(
        en="{text!r}: a cluster has no {key!r}; did you mean {near}? It has {keys}.",
        zh="{text!r}：集群没有 {key!r} 这一项，是否想写 {near}？可用的有 {keys}。",
    ),
    "option_number": Text(
        en="{text!r}: {key} = {value!r} is no number of at least {least}.",
        zh="{text!r}：{key} = {value!r} 不是不小于 {least} 的数。",
    ),
    "option_above": Text(
        en="{text!r}: {key} = {value!r} is no number above {least}.",
        zh="{text!r}：{key} = {value!r} 不是大于 {least} 的数。",
    ),
    "unknown_link": Text(
        en="{place}: no such link as {name!r} is known; near it: {near}.",
        zh="{place}：没有名为 {name!r} 的互联；相近的有：{near}。",
    ),
    "no_short_form": Text(
        en="{name} has figures of its own, which the short form can't hold; write it to a .yaml file.",
        zh="{name} 含有自定义的数值，简写形式无法表达；请写入 .yaml 文件。",
    ),
    "unreadable": Text(
        en="The cluster file {path} can't be read: {reason}.",
        zh="无法读取集群文件 {path}：{reason}。",
    ),
    "broken_yaml": Text(
        en="{place}: this is not YAML: {reason}.",
        zh="{place}：不是合法的 YAML：{reason}。",
    ),
    "key_twice": Text(
        en="{place}: {key} is given twice, first at {first}; keep one.",
        zh="{place}：{key} 重复出现，第一次在 {first}；只保留一个。",
    ),
    "unknown_key": Text(
        en="{place}: there is no key {key!r} here; did you mean {near}? The keys are {keys}.",
        zh="{place}：这里没有 {key!r} 这个键，是否想写 {near}？可用的键有 {keys}。",
    ),
    "missing_key": Text(
        en="{place}: {key} is missing.",
        zh="{place}：缺少 {key}。",
    ),
    "not_text": Text(
        en="{place}: {key} must be a text.",
        zh="{place}：{key} 必须是文本。",
    ),
    "not_mapping": Text(
        en="{place}: key: value lines are expected here, with the keys {keys}.",
        zh="{place}：这里应为“键: 值”形式的若干行，可用的键有 {keys}。",
    ),
    "not_number": Text(
        en="{place}: {key} = {value} is no number of at least {least}.",
        zh="{place}：{key} = {value} 不是不小于 {least} 的数。",
    ),
    "not_above": Text(
        en="{place}: {key} = {value} is no number above {least}.",
        zh="{place}：{key} = {value} 不是大于 {least} 的数。",
    ),
    "not_whole": Text(
        en="{place}: {key} = {value} is no whole number of at least 1.",
        zh="{place}：{key} = {value} 不是至少为 1 的整数。",
    ),
    "ratio_above_one": Text(
        en="{place}: ratio = {value} is more than all of the link; give a share between 0 and 1.",
        zh="{place}：ratio = {value} 超过了链路的全部带宽；请给出 0 到 1 之间的比例。",
    ),
    "no_such_rank": Text(
        en="Rank {rank} is not in this cluster, whose ranks are 0 to {ranks} (exclusive).",
        zh="rank {rank} 不在该集群中；其 rank 为 0 到 {ranks}（不含）。",
    ),
    "no_group": Text(
        en="A group without ranks talks to nobody; name at least one of the cluster's {ranks}.",
        zh="没有 rank 的通信组没有意义；请至少给出集群 {ranks} 个 rank 中的一个。",
    ),
    "rank_twice": Text(
        en="Rank {rank} stands twice in one group; name each once.",
        zh="同一个通信组里 rank {rank} 出现了两次；每个只写一次。",
    ),
    "axis_outside": Text(
        en="An axis of {degree} ranks with stride {stride} does not divide the cluster's {ranks} ranks.",
        zh="长度 {degree}、步长 {stride} 的轴不能整除集群的 {ranks} 个 rank。",
    ),
    "no_algorithm": Text(
        en="None of the algorithms {asked} can be had over {span}; ring works everywhere.",
        zh="算法 {asked} 都无法用于 {span} 的通信组；ring 在任何情况下都可用。",
    ),
    "size": Text(
        en="{name}: {ranks} ranks, {nodes} x {per_node}",
        zh="{name}：共 {ranks} 个 rank，{nodes} 节点 x {per_node} 卡",
    ),
    "accelerator": Text(
        en="{name}: {peak} TFLOP/s peak in {dtype}, {memory} of memory at {rate} GB/s",
        zh="{name}：{dtype} 峰值 {peak} TFLOP/s，显存 {memory}，带宽 {rate} GB/s",
    ),
    "tier_socket": Text(
        en="below one socket, {ranks} ranks: {link}, {nominal} GB/s each way a rank, about {reached} reached, {latency} us a step",
        zh="同一 CPU 插槽内 {ranks} 卡：{link}，每卡单向 {nominal} GB/s，可达约 {reached}，每步 {latency} us",
    ),
    "tier_node": Text(
        en="inside a node, {ranks} ranks: {link}, {nominal} GB/s each way a rank, about {reached} reached, {latency} us a step",
        zh="节点内 {ranks} 卡：{link}，每卡单向 {nominal} GB/s，可达约 {reached}，每步 {latency} us",
    ),
    "tier_rack": Text(
        en="inside a rack, {ranks} ranks: {link}, {nominal} GB/s each way a rank, about {reached} reached, {latency} us a step",
        zh="机柜内 {ranks} 卡：{link}，每卡单向 {nominal} GB/s，可达约 {reached}，每步 {latency} us",
    ),
    "tier_pod": Text(
        en="inside a pod, {ranks} ranks: {link}, {nominal} GB/s each way a rank, about {reached} reached, {latency} us a step",
        zh="同一网络分区内 {ranks} 卡：{link}，每卡单向 {nominal} GB/s，可达约 {reached}，每步 {latency} us",
    ),
    "tier_cluster": Text(
        en="across, {ranks} ranks: {link}, {nominal} GB/s each way a rank, about {reached} reached, {latency} us a step",
        zh="跨节点 {ranks} 卡：{link}，每卡单向 {nominal} GB/s，可达约 {reached}，每步 {latency} us",
    ),
    "oversubscribed": Text(
        en="beyond {nodes} nodes the network has {factor} times less bandwidth",
        zh="超出 {nodes} 个节点后，网络带宽降为 1/{factor}",
    ),
    "host_memory": Text(en="{size} of memory a host", zh="每台主机内存 {size}"),
    "price": Text(en="price: {each} a rank and hour, {total} in all", zh="价格：每卡每小时 {each}，合计每小时 {total}"),
    "power": Text(en="power: {each} W a rank, {total} kW in all", zh="功率：每卡 {each} W，合计 {total} kW"),
    "source": Text(en="{what}: {where}, {date}", zh="{what}：{where}，{date}"),
    "assumed_network": Text(
        en="assumed, as no sheet fixes it: {cards} network cards of {link} a node; say inter= and cards= if yours differ",
        zh="网络为假定（没有规格书规定）：每节点 {cards} 块 {link} 网卡；如有不同请用 inter= 和 cards= 指定",
    ),
    "doubtful": Text(
        en="No good source gives the figures of {names}; measure them before you rely on the times.",
        zh="{names} 的数值没有可靠来源；在依赖预测时间之前请先实测。",
    ),
}
