"""``trireme checkpoint ls | show | verify | diff | convert | prune | repair``."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trireme.cli.column import align
from trireme.cli.terminal import print_line, print_notes
from trireme.cli.verb import Verb, VerbGroup
from trireme.errors import CheckpointError
from trireme.units import format_bytes, format_count
from trireme.words import say

if TYPE_CHECKING:
    from trireme.checkpoint import Checkpoint, CheckpointInfo, Difference

_DIFFERENT = 2
_SHOWN = 20

_json_option = click.option("--json", "as_json", is_flag=True, help=say("checkpoint_cli.json_option"))
_run = click.argument("run", metavar="RUN", type=click.Path(path_type=Path), help=say("checkpoint_cli.run"))
_checkpoint = click.argument(
    "path", metavar="CHECKPOINT", type=click.Path(path_type=Path), help=say("checkpoint_cli.checkpoint")
)


@click.group("checkpoint", cls=VerbGroup, help=say("cli.verb_checkpoint"))
def command() -> None:
    """Hold the commands below."""


@command.command("ls", cls=Verb, help=say("checkpoint_cli.ls"))
@_run
@click.option("--verify", is_flag=True, help=say("checkpoint_cli.verify_option"))
@_json_option
def ls(*, run: Path, verify: bool, as_json: bool) -> None:
    from trireme.checkpoint import list_checkpoints

    infos = list_checkpoints(_root_of(run), verify=verify, notice=print_notes_line)
    if as_json:
        print_line(json.dumps([_info_json(info) for info in infos]))
        return
    columns = ("step", "saved", "size", "layout", "eval_loss", "state")
    rows = [[say(f"checkpoint_cli.column_{column}") for column in columns]]
    rows += [_row(info) for info in infos]
    for line in align(rows):
        print_line(line)


@command.command("show", cls=Verb, help=say("checkpoint_cli.show"))
@_checkpoint
@click.option("--tensors", is_flag=True, help=say("checkpoint_cli.tensors_option"))
@_json_option
def show(*, path: Path, tensors: bool, as_json: bool) -> None:
    checkpoint = _open(path, verify=False)
    if as_json:
        print_line(json.dumps(_manifest_json(checkpoint, tensors=tensors)))
        return
    for line in _manifest_lines(checkpoint):
        print_line(line)
    if tensors:
        records = checkpoint.manifest.tensors.values()
        rows = [
            [each.name, each.dtype, str(list(each.shape)), str(len(each.slices)), each.same_as or ""]
            for each in records
        ]
        for line in align([[say(f"checkpoint_cli.tensor_{name}") for name in _TENSOR_COLUMNS], *rows]):
            print_line(line)


@command.command("verify", cls=Verb, help=say("checkpoint_cli.verify"))
@_checkpoint
@_json_option
def verify(*, path: Path, as_json: bool) -> int:
    from trireme.checkpoint import list_checkpoints, open_checkpoint

    said: list[str] = []
    if _is_checkpoint(path):
        try:
            open_checkpoint(path, notice=said.append)
            problems: dict[str, str | None] = {str(path): None}
        except CheckpointError as error:
            problems = {str(path): str(error)}
    else:
        infos = list_checkpoints(_root_of(path), verify=True, notice=said.append)
        problems = {str(info.path): info.problem for info in infos}
    if as_json:
        print_line(json.dumps({"checkpoints": problems, "notices": said}))
    else:
        for name, problem in problems.items():
            print_line(problem if problem is not None else say("checkpoint_cli.good", path=name))
        print_notes(said)
    return _DIFFERENT if any(problems.values()) else 0


@command.command("diff", cls=Verb, help=say("checkpoint_cli.diff"))
@click.argument("one", metavar="ONE", type=click.Path(path_type=Path), help=say("checkpoint_cli.checkpoint"))
@click.argument("other", metavar="OTHER", type=click.Path(path_type=Path), help=say("checkpoint_cli.checkpoint"))
@_json_option
def diff(*, one: Path, other: Path, as_json: bool) -> int:
    from trireme.checkpoint import compare_checkpoints

    found = compare_checkpoints(_open(one, verify=False), _open(other, verify=False))
    if as_json:
        print_line(json.dumps(found.to_json()))
    else:
        for line in _difference_lines(found):
            print_line(line)
    return _DIFFERENT if found else 0


@command.command("convert", cls=Verb, help=say("checkpoint_cli.convert"))
@click.argument("source", metavar="FROM", type=click.Path(path_type=Path), help=say("checkpoint_cli.convert_from"))
@click.argument("target", metavar="TO", type=click.Path(path_type=Path), help=say("checkpoint_cli.convert_to"))
@click.option("--overwrite", is_flag=True, help=say("checkpoint_cli.overwrite_option"))
def convert(*, source: Path, target: Path, overwrite: bool) -> None:
    from trireme.job import convert_checkpoint

    print_line(convert_checkpoint(source, target, overwrite=overwrite, notice=print_notes_line))


@command.command("prune", cls=Verb, help=say("checkpoint_cli.prune"))
@_run
@click.option("--keep-last", type=click.IntRange(min=1), required=True, metavar="N", help=say("checkpoint_cli.last"))
@click.option("--keep-every", type=click.IntRange(min=1), metavar="N", help=say("checkpoint_cli.every"))
@click.option("--keep-best/--no-keep-best", default=True, help=say("checkpoint_cli.best"))
@click.option("--dry-run", is_flag=True, help=say("checkpoint_cli.dry_run"))
@_json_option
def prune(*, run: Path, keep_last: int, keep_every: int | None, keep_best: bool, dry_run: bool, as_json: bool) -> None:
    from trireme.checkpoint import prune_checkpoints

    root = _root_of(run)
    gone = prune_checkpoints(
        root,
        keep_last=keep_last,
        keep_every=keep_every,
        keep_best=keep_best,
        run_id=_run_id_of(root),
        dry_run=dry_run,
        notice=print_notes_line,
    )
    if as_json:
        print_line(json.dumps({"deleted": [str(path) for path in gone], "dry_run": dry_run}))
        return
    key = "checkpoint_cli.would_delete" if dry_run else "checkpoint_cli.deleted"
    for path in gone:
        print_line(say(key, path=path))
    if not gone:
        print_line(say("checkpoint_cli.nothing_deleted"))


@command.command("repair", cls=Verb, help=say("checkpoint_cli.repair"))
@_checkpoint
@_json_option
def repair(*, path: Path, as_json: bool) -> None:
    from trireme.checkpoint import repair_manifests

    mended = {str(each): repair_manifests(each) for each in _checkpoints_of(path)}
    if as_json:
        print_line(json.dumps({"repaired": mended}))
        return
    for name, file in mended.items():
        whole, repaired = "checkpoint_cli.whole", "checkpoint_cli.repaired"
        print_line(say(whole, path=name) if file is None else say(repaired, path=Path(name) / file))


_TENSOR_COLUMNS = ("name", "dtype", "shape", "slices", "same_as")


def print_notes_line(text: str) -> None:
    """Show a remark beside the answer."""
    print_notes([text])


def _root_of(run: Path) -> Path:
    """Return the folder that holds a run's checkpoints.

    Raises:
        CheckpointError: There is none.
    """
    from trireme.checkpoint import is_checkpoint_root

    for root in (run / "checkpoints", run):
        if is_checkpoint_root(root):
            return root
    raise CheckpointError("checkpoint_cli.no_checkpoints", path=run)


def _checkpoints_of(path: Path) -> list[Path]:
    """Return a checkpoint, or all of a run."""
    if _is_checkpoint(path):
        return [path]
    return sorted(each for each in _root_of(path).glob("step-*") if each.name.removeprefix("step-").isdigit())


def _is_checkpoint(path: Path) -> bool:
    return (path / "manifest.json").exists() or path.name.startswith("step-")


def _open(path: Path, *, verify: bool) -> Checkpoint:
    """Return a checkpoint, or the newest good one of a run."""
    from trireme.checkpoint import newest_checkpoint, open_checkpoint

    if _is_checkpoint(path):
        return open_checkpoint(path, verify=verify, notice=print_notes_line)
    found = newest_checkpoint(_root_of(path), verify=verify, notice=print_notes_line)
    if found is None:
        raise CheckpointError("checkpoint_cli.no_checkpoints", path=path)
    return found


def _run_id_of(root: Path) -> str:
    """Return the run that saved last; others in the same folder stay."""
    from trireme.checkpoint import list_checkpoints

    manifests = [info.manifest for info in list_checkpoints(root, notice=lambda text: None) if info.manifest]
    return manifests[-1].run_id if manifests else ""


def _row(info: CheckpointInfo) -> list[str]:
    manifest = info.manifest
    loss = manifest.metrics.get("eval_loss") if manifest else None
    return [
        str(info.step),
        _time(manifest.created_at_s) if manifest else "-",
        format_bytes(info.size_bytes),
        manifest.layout if manifest else "-",
        "-" if loss is None else f"{loss:.4f}",
        say("checkpoint_cli.state_good") if info.is_good else str(info.problem),
    ]


def _info_json(info: CheckpointInfo) -> dict[str, Any]:
    manifest = info.manifest
    return {
        "path": str(info.path),
        "step": info.step,
        "bytes": info.size_bytes,
        "good": info.is_good,
        "problem": info.problem,
        "layout": manifest.layout if manifest else None,
        "created_at_s": manifest.created_at_s if manifest else None,
        "metrics": dict(manifest.metrics) if manifest else {},
    }


def _manifest_lines(checkpoint: Checkpoint) -> list[str]:
    manifest = checkpoint.manifest
    kinds = Counter(name.partition("/")[0] for name in checkpoint.names)
    facts = {
        "path": checkpoint.path,
        "step": manifest.step,
        "saved": _time(manifest.created_at_s),
        "layout": manifest.layout,
        "size": format_bytes(sum(shard.size_bytes for shard in manifest.shards.values())),
        "shards": len(manifest.shards),
        "tensors": ", ".join(f"{count} {kind}" for kind, count in kinds.items()),
        "numbers": format_count(_numel(checkpoint)),
        "retries": manifest.save_retries,
        "metrics": ", ".join(f"{name} {value:.6g}" for name, value in manifest.metrics.items()) or "-",
        "holds": ", ".join(manifest.state),
        "versions": ", ".join(f"{name} {version}" for name, version in manifest.versions.items()),
    }
    return align([[say(f"checkpoint_cli.fact_{name}"), str(value)] for name, value in facts.items()])


def _manifest_json(checkpoint: Checkpoint, *, tensors: bool) -> dict[str, Any]:
    manifest = checkpoint.manifest
    found: dict[str, Any] = {
        "path": str(checkpoint.path),
        "step": manifest.step,
        "created_at_s": manifest.created_at_s,
        "layout": manifest.layout,
        "bytes": sum(shard.size_bytes for shard in manifest.shards.values()),
        "shards": list(manifest.shards),
        "save_id": manifest.save_id,
        "run_id": manifest.run_id,
        "save_retries": manifest.save_retries,
        "metrics": dict(manifest.metrics),
        "versions": dict(manifest.versions),
        "state": list(manifest.state),
    }
    if tensors:
        found["tensors"] = {
            each.name: {
                "dtype": each.dtype,
                "shape": list(each.shape),
                "slices": len(each.slices),
                "same_as": each.same_as,
            }
            for each in manifest.tensors.values()
        }
    return found


def _difference_lines(found: Difference) -> list[str]:
    if not found:
        return [say("checkpoint_cli.equal")]
    lines = []
    for key, names in (("only_one", found.only_one), ("only_other", found.only_other), ("state", found.state)):
        if names:
            lines.append(say(f"checkpoint_cli.diff_{key}", names=", ".join(names[:_SHOWN]), count=len(names)))
    lines += [say("checkpoint_cli.diff_form", name=name, forms=forms) for name, forms in found.forms.items()]
    values = sorted(found.values.items(), key=lambda each: -each[1])
    lines += [say("checkpoint_cli.diff_value", name=name, largest=f"{value:.3g}") for name, value in values[:_SHOWN]]
    if len(values) > _SHOWN:
        lines.append(say("checkpoint_cli.diff_more", count=len(values) - _SHOWN))
    return lines


def _numel(checkpoint: Checkpoint) -> int:
    from math import prod

    return sum(prod(each.shape) for each in checkpoint.manifest.tensors.values() if each.same_as is None)


def _time(created_at_s: float) -> str:
    return datetime.fromtimestamp(created_at_s, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
