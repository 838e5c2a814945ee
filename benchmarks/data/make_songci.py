"""Make ``src/trireme/data/corpus/songci.jsonl.zst`` from the unpacked npm package ``chinese-poetry``.

    npm pack chinese-poetry@2.0.1 && tar xf chinese-poetry-2.0.1.tgz
    python benchmarks/data/make_songci.py package/dist/songci

Every item of the ``ci.song.*.json`` files is kept, in the order of the source. ``宋词三百首.json`` holds an
annotated selection of the same lyrics and is left out: its near-copies would stand on both sides of a split
into training and held-out part.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import zstandard

CORPUS = Path(__file__).parents[2] / "src" / "trireme" / "data" / "corpus"


def number_of(path: Path) -> tuple[int, str]:
    """Order ``ci.song.2000`` before ``ci.song.10000``; the later addition ``2019y`` comes last."""
    part = path.name.split(".")[2]
    return (int(part), "") if part.isdigit() else (sys.maxsize, part)


def lyrics(folder: Path) -> list[dict[str, str]]:
    """Return all lyrics as title, author and text; the text is the title and one sentence a line."""
    items = []
    for path in sorted(folder.glob("ci.song.*.json"), key=number_of):
        for item in json.loads(path.read_text(encoding="utf-8")):
            title, author = item["rhythmic"].strip(), item["author"].strip()
            lines = [line.strip() for line in item["paragraphs"] if line.strip()]
            items.append({"title": title, "author": author, "text": "\n".join([title, *lines])})
    return items


def main() -> None:
    """Write the corpus; zstd because every install reads it, xz would save two per cent."""
    items = lyrics(Path(sys.argv[1]))
    content = "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items).encode()
    packed = zstandard.ZstdCompressor(level=22).compress(content)
    (CORPUS / "songci.jsonl.zst").write_bytes(packed)
    print(f"{len(items):,} lyrics, {len(content):,} bytes, packed {len(packed):,}")


if __name__ == "__main__":
    main()
