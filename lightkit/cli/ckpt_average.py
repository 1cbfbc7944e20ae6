"""`lightkit ckpt average`: several fine-tunings as one model (https://arxiv.org/abs/2203.05482)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.cli.ckpt_source import cfg_of, cfg_of_adapter, given, reading, run_of
from lightkit.cli.ckpt_write import KINDS, free, has_low_rank, kind_of, write
from lightkit.cli.terminal import number, say, table
from lightkit.common.errors import UserError

if TYPE_CHECKING:
    from lightkit.checkpoint.soup import Member, Soup, Tasting

# Everything of `lightkit.checkpoint` is imported inside the functions: it brings torch.


def average(args: list[str]) -> int:
    """Write the mean of several models' weights."""
    options = _options(args)
    out = free(options)
    kind = kind_of(options, out)
    from lightkit.checkpoint.soup import average as mean

    sources = [_source(text, options) for text in options.files]
    members, runs = [member for member, _ in sources], [run for _, run in sources]
    if options.greedy:
        members = _greedy(members, runs, trust=options.trust)
    soup = mean(members, _numbers(options.weights))
    write(kind, soup.state, out, _model_of(runs[0], soup.state, trust=options.trust) if kind == "model" else None)
    _tell(soup, out)
    run = next((run for run in runs if run), None)
    if run and kind != "model":
        say(f"measure it with: lightkit eval {run} --checkpoint {out}")
    return 0


def _options(args: list[str]) -> Any:
    parser = reading("average")
    parser.add_argument("files", nargs="+")
    parser.add_argument("out")
    parser.add_argument("--to", choices=KINDS)
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument("--weights")
    parser.add_argument("--greedy", action="store_true")
    options = parser.read(args)
    if len(options.files) < 2:
        expected = "two models or more, and the file to write"
        raise UserError("there is nothing to average", key="lightkit ckpt average", expected=expected)
    if options.greedy and options.weights:
        raise UserError("the models of a greedy average count the same", key="--weights", fix="leave out one of both")
    return options


def _numbers(text: str | None) -> list[float] | None:
    """`0.5,0.5` as numbers."""
    try:
        return None if text is None else [float(part) for part in text.split(",")]
    except ValueError as error:
        raise UserError("not numbers", key="--weights", received=text, expected="one a model, as 0.5,0.5") from error


def _source(text: str, options: Any) -> tuple[Member, Path | None]:
    """One of the models to average, and its run where it is one.

    LoRA is merged before: the mean of its matrices is not the mean of what they do.
    """
    from lightkit.checkpoint.delta import read_delta
    from lightkit.checkpoint.soup import Member
    from lightkit.checkpoint.weights import AdapterFileError, read_weights
    from lightkit.runner.models import plain_model

    path = given(text)
    try:
        weights = read_weights(path, trust=options.trust, key=options.key)
    except AdapterFileError:
        model = plain_model(cfg_of_adapter(path, read_delta(path), trust=options.trust))
        return Member(text, model.state_dict()), None
    run = run_of(weights)
    if not has_low_rank(weights):
        return Member(text, weights.state), run
    if run is None:
        what = "it holds the matrices of LoRA, and the mean of matrices is not the mean of what they do"
        raise UserError(what, key=text, fix="`lightkit ckpt merge` its run, and average the merged weights")
    return Member(text, plain_model(cfg_of(run, trust=options.trust), weights).state_dict()), run


def _model_of(run: Path | None, state: Any, *, trust: bool) -> Any:
    """The plain model of a run with another state."""
    from lightkit.checkpoint.fitting import fit
    from lightkit.checkpoint.weights import read_weights
    from lightkit.runner.models import plain_model

    if run is None:
        raise UserError("a whole model needs a run as the first of the models", key="--to", received="model")
    model = plain_model(cfg_of(run, trust=trust), read_weights(run))
    fit(model, state, source="the average")
    return model


def _greedy(members: Sequence[Member], runs: Sequence[Path | None], *, trust: bool) -> list[Member]:
    """Choose among the members by the validation split of the first run, and say what came of each."""
    strangers = [member.label for member, run in zip(members, runs) if run is None]
    if strangers:
        raise UserError("only runs can be chosen among", key="--greedy", received=strangers[0])
    from lightkit.checkpoint.soup import greedy
    from lightkit.runner.models import measuring

    first: Any = runs[0]
    cfg = cfg_of(first, "auto", trust=trust)
    with measuring(cfg, first) as measure:
        chosen, tastings = greedy(members, measure, mode=cfg.metrics.mode)
    heads = ["model", cfg.metrics.monitor, "average with it", ""]
    say(table(heads, [_row(tasting) for tasting in tastings], right=[1, 2]) + "\n")
    for member, run in zip(members, runs):
        if not _same_data(cfg, cfg_of(run, trust=trust)):  # type: ignore[arg-type]
            say(f"note: {member.label} had other data or another split: it may have learnt from rows of this one\n")
    return chosen


def _row(tasting: Tasting) -> list[str]:
    return [tasting.label, number(tasting.alone), number(tasting.together), "" if tasting.taken else "left out"]


def _same_data(one: Any, other: Any) -> bool:
    return all(one.data[name] == other.data[name] for name in ("dataset", "split"))


def _tell(soup: Soup, out: Path) -> None:
    say(table(["model", "share"], [[label, number(share)] for label, share in soup.shares], right=[1]))
    say(f"\naverage of {len(soup.shares)} models written to {out}")
    if soup.statistics:
        say(
            f"note: {len(soup.statistics)} running means and variances of norm layers were averaged too, and may not "
            "suit the averaged weights; a few training batches in training mode would measure them anew"
        )
