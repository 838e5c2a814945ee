"""``trireme ...``: run one command, and turn what goes wrong into a line and an exit status.

0 done · 1 a fault in Trireme · 2 a mistake the user can mend · 130 interrupted · 141 reader went away.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence

import click

from trireme.cli.terminal import print_error, print_line, tolerate_narrow_encodings
from trireme.cli.verb import Program
from trireme.errors import TriremeError
from trireme.words import say

_LANGUAGES = ("zh", "en")
_MACHINE_SAYS_NO = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EMFILE})
_FAULT, _MISTAKE, _INTERRUPTED, _PIPE_CLOSED = 1, 2, 130, 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that ``arguments`` (default: those of the process) name; return the exit status."""
    tolerate_narrow_encodings()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = _run(words)
        if sys.stdout is not None:  # a caller may have closed it
            sys.stdout.flush()
    except TriremeError as error:
        _record(error, error.exit_code)
        if not error.said_elsewhere:
            print_error(_of_rank(str(error)))
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        print_line(error.format_message())
        return 0
    except click.ClickException as error:
        print_error(_explain(error))
        return _MISTAKE
    except (KeyboardInterrupt, click.Abort):
        click.echo("\n" + say("cli.interrupted"), err=True)
        return _INTERRUPTED
    except BrokenPipeError:
        return _leave_quietly()
    except Exception as error:
        return _report(error)
    return status


def _of_rank(text: str) -> str:
    """Say which rank speaks, where it is not the one that usually does."""
    rank = os.environ.get("RANK", "0")
    return text if rank in ("", "0") else f"[rank {rank}] {text}"


def _run(words: list[str]) -> int:
    _set_language(words)
    try:
        with _build_program().make_context("trireme", words) as context:
            result = context.command.invoke(context)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    return result if isinstance(result, int) else 0


def _report(error: Exception) -> int:
    """Say in a line what the machine refused (a full disk, a locked folder); show the rest as a fault of ours."""
    _record(error, _FAULT)
    if isinstance(error, MemoryError):
        print_error(say("cli.no_memory"))
        return _MISTAKE
    if isinstance(error, OSError) and error.errno in _MACHINE_SAYS_NO:
        print_error(say("cli.machine_says_no", path=error.filename or "-", reason=error.strerror))
        return _MISTAKE
    if _has_lost_ranks(error):
        print_error(_of_rank(say("cli.ranks_lost", reason=str(error).splitlines()[0])))
        return _FAULT
    traceback.print_exception(error)
    print_error(say("cli.crashed"))
    return _FAULT


def _has_lost_ranks(error: Exception) -> bool:
    """Whether another rank's end broke off a collective: that is news of the other, no fault here."""
    if os.environ.get("WORLD_SIZE", "1") in ("", "1"):
        return False
    from trireme.supervise import is_lost_connection

    return is_lost_connection(error)


def _record(error: Exception, exit_code: int) -> None:
    """Write down why this rank fails, where a supervisor wants to know."""
    if "TRIREME_FAILURE_RECORD" in os.environ:
        from trireme.supervise import record_failure

        record_failure(error, exit_code=exit_code)


def _set_language(words: list[str]) -> None:
    """Obey ``--lang`` before any sentence is looked up; it stands in front of the command."""
    for index, word in enumerate(words):
        if not word.startswith("-"):
            return
        if word == "--lang" or word.startswith("--lang="):
            value = word.partition("=")[2] or (words[index + 1] if index + 1 < len(words) else "")
            if value not in _LANGUAGES:
                raise click.UsageError(say("cli.unknown_language", value=value or "''"))
            os.environ["TRIREME_LANG"] = value  # worker processes speak it as well
            return


def _build_program() -> Program:
    return Program(
        name="trireme",
        help=say("cli.about"),
        epilog=say("cli.epilog"),
        params=[
            click.Option(["--lang"], type=click.Choice(_LANGUAGES), expose_value=False, help=say("cli.lang_option")),
            click.Option(
                ["--version"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_show_version,
                help=say("cli.version_option"),
            ),
        ],
    )


def _show_version(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from trireme import __version__

        print_line(f"trireme {__version__}")
        ctx.exit()


def _explain(error: click.ClickException) -> str:
    """Say click's complaints in the user's language; what it alone knows is passed on."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    command = context.command_path if context else "trireme"
    if isinstance(error, click.NoSuchOption):
        if error.possibilities:
            return say("cli.unknown_option_guess", name=error.option_name, guess=error.possibilities[0])
        return say("cli.unknown_option", name=error.option_name, command=command)
    if isinstance(error, click.MissingParameter):
        return say("cli.missing_argument", name=_parameter_name(error), command=command)
    if isinstance(error, click.BadParameter):
        reason = _what_it_takes(error.param) or error.message
        return say("cli.bad_argument", name=_parameter_name(error), reason=reason, command=command)
    if isinstance(error, click.BadOptionUsage):
        return say(f"cli.{_value_name(error)}", name=error.option_name, command=command)
    if type(error) is click.UsageError:
        return error.message
    return say("cli.bad_usage", reason=error.format_message(), command=command)


def _what_it_takes(parameter: click.Parameter | None) -> str | None:
    """Say which values a parameter takes; None where its own message says it already."""
    kind = parameter.type if parameter else None
    if isinstance(kind, click.IntRange):
        return say("cli.takes_whole_in", range=_bounds(kind))
    if isinstance(kind, click.types.IntParamType):
        return say("cli.takes_whole")
    if isinstance(kind, click.FloatRange):
        return say("cli.takes_number_in", range=_bounds(kind))
    if isinstance(kind, click.types.FloatParamType):
        return say("cli.takes_number")
    if isinstance(kind, click.Choice):
        return say("cli.takes_one_of", choices=", ".join(map(str, kind.choices)))
    return None


def _bounds(kind: click.IntRange | click.FloatRange) -> str:
    """Return a range as one writes it."""
    low, high = (">" if kind.min_open else ">=", kind.min), ("<" if kind.max_open else "<=", kind.max)
    return ", ".join(f"{sign} {end:g}" for sign, end in (low, high) if end is not None)


def _value_name(error: click.BadOptionUsage) -> str:
    """A flag was given a value, or another option none."""
    parameters = error.ctx.command.params if error.ctx else []
    is_flag = any(error.option_name in p.opts and getattr(p, "is_flag", False) for p in parameters)
    return "no_value" if is_flag else "needs_value"


def _parameter_name(error: click.BadParameter) -> str:
    if error.param is None:
        return str(error.param_hint or "")
    if isinstance(error.param, click.Argument):
        return error.param.make_metavar(error.ctx or click.Context(click.Command("trireme"))).strip("[].")
    return error.param.opts[0]


def _leave_quietly() -> int:
    """The reader (``| head``) has gone; keep Python from complaining when it closes the stream."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _PIPE_CLOSED
