"""Experts that are modules of their own, called one after another by the forward of the module around them.

That forward is walked through twice. The first time an expert only notes what it was given; then all rows travel at
once, are computed by their owners, and come back; the second time an expert gives its results. Experts that feed one
another would be given something else the second time, which is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from trireme.errors import LayoutError
from trireme.interpret import DATA_DEPENDENT, any_tokens, has_numbers, rehearsal, run_experts, tracing
from trireme.mesh import rng_states, set_rng_states
from trireme.parallel.expert_route import Incoming, Router, joined
from trireme.parallel.expert_stacked import swap_class

_STATE = "_trireme_experts"
_PLACE = "_trireme_expert_place"


class ModulesDispatch:
    """One layer's experts: who they are, what they were given, what they gave."""

    def __init__(self, path: str, members: Sequence[nn.Module], router: Router, *, by_token: bool) -> None:
        self.path, self.members, self.router, self.by_token = path, tuple(members), router, by_token
        self.shapes = {name: (tuple(each.shape), each.dtype) for name, each in members[0].named_parameters()}
        self.given: list[tuple[int, Tensor]] | None = None
        self.results: list[Tensor] | None = None
        self._kinds: dict[object, tuple[int, torch.dtype]] = {}
        self._compared = False

    def __deepcopy__(self, memo: Any) -> ModulesDispatch:
        return self

    def run(self, runner: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run the forward of the module around the experts."""
        try:
            with rehearsal(), _undone(runner, self.members):
                self.given = []
                runner.forward(*args, **kwargs)
                given, self.given = self.given, []
            rows = self._rows(given, args, kwargs)
            self.results = self._parts(rows, given)
            out = runner.forward(*args, **kwargs)
            self._check(given)
        except DATA_DEPENDENT:
            # Only tensors without numbers raise this, while a model is traced: a layer of experts gives what it takes.
            return _first_tensor(args, kwargs).clone()
        finally:
            self.given = self.results = None
        return _tied(out, rows)

    def called(self, place: int, rows: Tensor) -> Tensor:
        """Take what the forward gives to an expert, and give what it wants back."""
        assert self.given is not None
        number = len(self.given)
        self.given.append((place, rows))
        if self.results is None:
            width, dtype = self._kind(rows)
            return rows.new_zeros((*rows.shape[:-1], width), dtype=dtype)
        if number >= len(self.results) or self.results[number].shape[:-1] != rows.shape[:-1]:
            raise LayoutError("parallel.expert_chained", path=self.path)
        return self.results[number]

    def _rows(self, given: list[tuple[int, Tensor]], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
        """Give the results of all rows that experts were given."""
        parts = [rows.reshape(-1, rows.shape[-1]) for _, rows in given]
        # A rank that calls no expert takes part all the same, with rows as wide as what the layer takes.
        flat = torch.cat(parts) if parts else _first_tensor(args, kwargs).flatten(0, -2)[:0]
        places = torch.tensor([place for place, _ in given], device=flat.device, dtype=torch.int64)
        lengths = torch.tensor([part.shape[0] for part in parts], device=flat.device, dtype=torch.int64)
        index = places.repeat_interleave(lengths, output_size=flat.shape[0])
        # Experts called for no rows are asked all the same, or their gradient would be missing where one device has it.
        asked = torch.zeros(len(self.members), dtype=torch.bool, device=flat.device).index_fill(0, places, True)
        return run_experts(_Rows(self, asked, self._kind(flat)), flat, index[:, None])

    def _parts(self, results: Tensor, given: list[tuple[int, Tensor]]) -> list[Tensor]:
        parts = torch.split(results, [rows.shape[:-1].numel() for _, rows in given])
        return [part.reshape(*rows.shape[:-1], part.shape[-1]) for part, (_, rows) in zip(parts, given, strict=True)]

    def _check(self, given: list[tuple[int, Tensor]]) -> None:
        """Refuse experts that were given something else once they had results; the first time by its numbers."""
        again = self.given or []
        same = [place for place, _ in given] == [place for place, _ in again]
        if same and not self._compared and all(has_numbers(rows) for _, rows in given):
            same = all(torch.equal(a, b) for (_, a), (_, b) in zip(given, again, strict=True))
            self._compared = True
        if not same:
            raise LayoutError("parallel.expert_chained", path=self.path)

    def compute(self, incoming: Incoming) -> Tensor:
        """Run this rank's experts, those that any rank called."""
        owned = self.router.share.owned
        order = torch.argsort(incoming.experts, stable=True)
        lengths = torch.bincount(incoming.experts, minlength=len(owned)).tolist()
        assert incoming.asked is not None
        asked = incoming.asked.tolist()
        rows = torch.split(incoming.rows[order], lengths)
        results = [
            _own_call(self.members[place], part)
            for place, part, wanted in zip(owned, rows, asked, strict=True)
            if wanted
        ]
        if not results:
            width, dtype = self._kind(incoming.rows)
            return incoming.rows.new_zeros((0, width), dtype=dtype)
        joined = torch.cat(results)
        return torch.zeros_like(joined).index_copy(0, order, joined)

    def _kind(self, rows: Tensor) -> tuple[int, torch.dtype]:
        """Give width and number format of an expert's results for such rows."""
        key = (rows.shape[-1], rows.dtype, torch.is_autocast_enabled(rows.device.type))
        if key not in self._kinds:
            self._kinds[key] = self._seen(*key[:2], rows.device)
        return self._kinds[key]

    def _seen(self, width: int, dtype: torch.dtype, device: torch.device) -> tuple[int, torch.dtype]:
        with tracing():
            fakes = {name: torch.empty(shape, dtype=kind, device=device) for name, (shape, kind) in self.shapes.items()}
            one = torch.empty(1, width, dtype=dtype, device=device)
            member = self.members[self.router.share.start]
            result = torch.func.functional_call(_Bare(member), {f"member.{n}": f for n, f in fakes.items()}, (one,))
        return result.shape[-1], result.dtype


class _Bare(nn.Module):
    """An expert's own code, without what calling it does."""

    def __init__(self, member: nn.Module) -> None:
        super().__init__()
        self.member = member

    def forward(self, rows: Tensor) -> Any:
        return self.member.forward(rows)


class _Rows:
    """Sends the rows of all experts of one forward."""

    def __init__(self, dispatch: ModulesDispatch, asked: Tensor, kind: tuple[int, torch.dtype]) -> None:
        self.dispatch, self.asked, self.kind = dispatch, asked, kind

    def traced(self, hidden: Tensor) -> Tensor:
        width, dtype = self.kind
        return (
            hidden.to(dtype) if width == hidden.shape[-1] else hidden.sum(-1, keepdim=True).expand(-1, width).to(dtype)
        )

    def __call__(self, hidden: Tensor, *choice: Tensor, tokens_cut: bool) -> Tensor:
        compute = self.dispatch.compute
        return self.dispatch.router.run(
            hidden, choice[0], None, compute=compute, tokens_cut=tokens_cut, called=self.asked
        )


class ModulesDealt:
    """Comes before the class of the module around the experts."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own forward with the experts of all ranks."""
        dispatch: ModulesDispatch = self.__dict__[_STATE]
        if dispatch.given is not None:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        if not (dispatch.by_token and len(args) == 1 and not kwargs):
            return dispatch.run(self, args, kwargs)  # type: ignore[arg-type]
        tokens, remembered = any_tokens(args[0])
        return remembered(dispatch.run(self, (tokens,), {}))  # type: ignore[arg-type]


class MemberDealt:
    """Comes before an expert's class: calls are met before any hook of the expert runs."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Note the rows or give their results; the layer itself calls the experts that this rank owns."""
        dispatch, place = self.__dict__[_PLACE]
        if dispatch.given is None or kwargs or len(args) != 1:
            raise LayoutError("parallel.expert_called", path=dispatch.path, count=len(args) + len(kwargs))
        return dispatch.called(place, args[0])


def _first_tensor(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    return next(each for each in (*args, *kwargs.values()) if isinstance(each, Tensor))


def _tied(out: Any, results: Tensor) -> Any:
    """Tie what a layer returns to its experts' results, so that backward reaches them on every rank."""
    if isinstance(out, Tensor):
        return joined(out, results)
    if type(out) is tuple and out and isinstance(out[0], Tensor):
        return (joined(out[0], results), *out[1:])
    return out


def _own_call(member: nn.Module, rows: Tensor) -> Tensor:
    result: Tensor = super(MemberDealt, member).__call__(rows)  # type: ignore[misc]
    return result


def deal_modules(path: str, runner: nn.Module, members: Sequence[nn.Module], router: Router, *, by_token: bool) -> None:
    """Keep this rank's experts, take the parameters of the others away, and let ``runner`` run with all of them."""
    dispatch = ModulesDispatch(path, members, router, by_token=by_token)
    for place, member in enumerate(members):
        if place not in router.share.owned:
            _empty(member)
        member.__dict__[_PLACE] = (dispatch, place)
        swap_class(member, MemberDealt)
    runner.__dict__[_STATE] = dispatch
    swap_class(runner, ModulesDealt)


def _empty(member: nn.Module) -> None:
    for each in member.modules():
        each._parameters.update(dict.fromkeys(each._parameters))


@contextmanager
def _undone(runner: nn.Module, members: Sequence[nn.Module]) -> Iterator[None]:
    """Take back what a forward leaves behind: attributes, lists, buffers, random numbers drawn."""
    inside = {id(each) for member in members for each in member.modules()}
    owners = [each for each in runner.modules() if id(each) not in inside]
    before = [_Attributes(each.__dict__) for each in owners]
    buffers = [(buffer, buffer._version, buffer.clone()) for each in owners for buffer in each.buffers(recurse=False)]
    device = next((each.device for member in members for each in member.parameters()), torch.empty(0).device)
    states = rng_states(device)
    try:
        yield
    finally:
        set_rng_states(device, states)
        for each in before:
            each.restore()
        for buffer, version, numbers in buffers:
            if buffer._version != version:
                buffer.copy_(numbers)


class _Attributes:
    """A module's attributes as they are now, and what its plain lists, dicts and sets hold."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        self.attributes, self.values = attributes, dict(attributes)
        self.held = [(value, value.copy()) for value in attributes.values() if type(value) in (list, dict, set)]

    def restore(self) -> None:
        """Put all back."""
        for value, copy in self.held:
            value.clear()
            (value.extend if isinstance(value, list) else value.update)(copy)
        self.attributes.clear()
        self.attributes.update(self.values)
