"""Words of tables of measured runs."""

from trireme.words.catalogue import Text

TEXTS = {
    "empty": Text(
        en="{path} holds no runs; a table needs a line of column names and at least one run",
        zh="{path} 里没有任何运行记录；表格需要一行列名和至少一条记录",
    ),
    "no_csv": Text(
        en="{path} is no CSV: line {line}: {reason}",
        zh="{path} 不是合法的 CSV：第 {line} 行：{reason}",
    ),
    "no_columns": Text(
        en="{path} lacks the columns {missing}; benchmarks/data/published_runs.csv shows all of them",
        zh="{path} 缺少列：{missing}；全部列名可参见 benchmarks/data/published_runs.csv",
    ),
    "ragged": Text(
        en="{path}: line {line} has {cells} cells, the header has {columns}",
        zh="{path}：第 {line} 行有 {cells} 个单元格，而表头有 {columns} 列",
    ),
    "unreadable": Text(en="{path} can't be read: {reason}", zh="无法读取 {path}：{reason}"),
    "unwritable": Text(en="{path} can't be written: {reason}", zh="无法写入 {path}：{reason}"),
    "no_text": Text(
        en="{path} is no UTF-8 text; a table of runs is a CSV file",
        zh="{path} 不是 UTF-8 文本；运行记录表应为 CSV 文件",
    ),
    "help": Text(
        en="Predict every run of a table and hold it against what was measured.",
        zh="预测表中的每次运行，并与实测值对照。",
    ),
    "help_runs": Text(
        en="a CSV with the columns of benchmarks/data/published_runs.csv",
        zh="列与 benchmarks/data/published_runs.csv 相同的 CSV 文件",
    ),
    "help_json": Text(
        en="write every row's prediction and the summary there",
        zh="把每行的预测和汇总写入该文件",
    ),
    "rows": Text(
        en="{rows} runs: {predicted} predicted, {skipped} skipped, {doubtful} flagged as doubtful and not scored",
        zh="共 {rows} 次运行：预测 {predicted} 次，跳过 {skipped} 次，{doubtful} 次被标为存疑、不计分",
    ),
    "time": Text(
        en="step time: {runs} runs, median error {median}, p90 {p90}, bias {bias}; in the 80 % interval: {coverage}",
        zh="单步时间：{runs} 次，误差中位数 {median}，p90 {p90}，偏差 {bias}；落入 80 % 区间的比例：{coverage}",
    ),
    "memory": Text(
        en="peak memory: {runs} runs, median error {median}, p90 {p90}, bias {bias}",
        zh="显存峰值：{runs} 次，误差中位数 {median}，p90 {p90}，偏差 {bias}",
    ),
    "oom_called": Text(
        en="of {runs} runs that ran out of memory, refused: {share}",
        zh="{runs} 次显存不足的运行中，被判为放不下：{share}",
    ),
    "good_refused": Text(
        en="of {runs} runs that did not, refused: {share}",
        zh="{runs} 次成功的运行中，被误判为放不下：{share}",
    ),
    "by_gpu": Text(en="step time by accelerator", zh="按加速器统计单步时间误差"),
    "by_framework": Text(en="step time by framework", zh="按框架统计单步时间误差"),
    "by_layout": Text(en="step time by layout", zh="按并行方式统计单步时间误差"),
    "by_kind": Text(en="peak memory by how it was measured", zh="按测量方式统计显存峰值误差"),
    "row": Text(
        en="  {name} {runs} runs  median {median}  p90 {p90}  bias {bias}",
        zh="  {name} {runs} 次  中位数 {median}  p90 {p90}  偏差 {bias}",
    ),
    "why_skipped": Text(en="skipped, and why", zh="跳过的原因"),
}
