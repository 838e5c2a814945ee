"""Commands and argv. A verb's module loads when the verb is called, so help answers at once."""

from trireme.cli.program import main
from trireme.cli.terminal import print_line, print_notes
from trireme.cli.verb import Verb, VerbGroup

__all__ = ["Verb", "VerbGroup", "main", "print_line", "print_notes"]
