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
}
