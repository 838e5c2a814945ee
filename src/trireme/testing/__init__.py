"""Helpers that ship for tests: ranks of one machine, runs that get killed. No room imports them."""
