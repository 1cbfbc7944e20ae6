"""What the patterns of a fine-tuning configuration stand for, in terms of one network.

Patterns (`lightkit.common.patterns`) speak of the names the network has before anything is injected. Where parameters
are chosen, one that fits a module stands for all parameters below it; where modules are chosen, for that module alone.
Labels stand for parts that every network has under other names:

| label | parameters |
| --- | --- |
| `@head` | those of the output layer |
| `@body` | all others |
| `@norm` | those of norm layers |
| `@bias` | those whose own name begins or ends with `bias`: `bias`, `in_proj_bias`, `bias_ih_l0` |
| `@tuned` | those that LoRA, adapters and prefixes put into the network |

| label | modules |
| --- | --- |
| `@linear`, `@conv`, `@embedding` | layers of that kind, but for the head and for those inside of an attention |
| `@attention` | attentions that prefixes and LoRA know |
| `@blocks` | repeated blocks; none that is, or holds, the output layer |

Where parameters are chosen, a label of modules stands for those in them. A block that holds the output layer then
counts as well, without that layer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from torch import nn

from lightkit.common.errors import UserError
from lightkit.common.modules import TransposedLinear, inside, is_bias, is_norm, parameter_aliases, parent_of
from lightkit.common.patterns import Pattern
from lightkit.finetune.peft.blocks import KNOWN, is_attention

PARAMETER_LABELS = ("@head", "@body", "@norm", "@bias", "@tuned")
LAYER_LABELS: dict[str, tuple[type[nn.Module], ...]] = {
    "@linear": (nn.Linear, TransposedLinear),
    "@conv": (nn.Conv1d, nn.Conv2d, nn.Conv3d),
    "@embedding": (nn.Embedding,),
}


class NetworkNames:
    """Names of a network's parameters and modules, as they are when this is made.

    Args:
        model: The network, before anything is injected.
        head: Path of its output layer, or name of a parameter that is one; None where it has none.
        beside: Paths of further layers, and names of further parameters, of the output layer.
        groups: Further labels of modules, such as `@blocks`, with the paths they stand for.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        head: str | None,
        beside: Sequence[str] = (),
        groups: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.head = head
        self._head_parts = () if head is None else (head, *beside)
        self.aliases = parameter_aliases(model)
        """First name of every parameter → all its names."""
        self.injected: list[str] = []
        """Names of the parameters that were put into the network since."""
        self._modules = dict(model.named_modules())
        self._groups = dict(groups or {})
        self.norms = frozenset(path for path, module in self._modules.items() if is_norm(module))

    def get_module(self, path: str) -> nn.Module:
        """Return the module at a path."""
        return self._modules[path]

    def get_group(self, label: str) -> Sequence[str]:
        """Return the paths that one of the further labels stands for."""
        return self._groups.get(label, ())

    def find_parameters(self, patterns: Iterable[str], *, argument: str) -> list[str]:
        """Return the first names of the parameters that patterns stand for, in the order of the network.

        Args:
            patterns: Patterns and labels.
            argument: What the caller calls them, for errors.

        Raises:
            UserError: A pattern matches nothing, labels alone match nothing, or there is no such label.
        """
        patterns = list(patterns)
        chosen = set().union(*(self.match_parameters(pattern, argument=argument) for pattern in patterns))
        if patterns and not chosen and patterns != ["@tuned"]:
            raise UserError(
                "this matches no parameter", argument=argument, received=", ".join(patterns), family="pattern"
            )
        return [name for name in (*self.aliases, *self.injected) if name in chosen]

    def match_parameters(self, pattern: str, *, argument: str) -> set[str]:
        """Return the first names of the parameters that one pattern or label stands for; a label may stand for none.

        Args:
            pattern: The pattern or label.
            argument: What the caller calls it, for errors.

        Raises:
            UserError: A pattern matches nothing, or there is no such label.
        """
        if pattern.startswith("@"):
            return self._labelled_parameters(pattern, argument)
        matched = self._parameters_where(_compile(pattern, argument).covers)
        if not matched:
            raise UserError(
                "the pattern matches no parameter",
                argument=argument,
                received=pattern,
                choices=[*(name for names in self.aliases.values() for name in names), *filter(None, self._modules)],
                fix="a glob over whole names (`layer4.*`), `re:` and a regular expression, or a label such as @head",
                family="pattern",
            )
        return matched

    def find_modules(
        self,
        patterns: Iterable[str],
        *,
        argument: str,
        kinds: tuple[type[nn.Module], ...] | None = None,
        paths: Iterable[str] = (),
    ) -> list[str]:
        """Return the paths of the modules that patterns stand for, in the order of the network.

        Args:
            patterns: Patterns and labels.
            argument: What the caller calls them, for errors.
            kinds: Classes that can be used; of what a pattern matches the others are left out, and of the parts that
                `@attention` and `@blocks` stand for, what is in them is taken. None takes any module.
            paths: Modules that can be used although they are of another class.

        Raises:
            UserError: A pattern matches nothing, or nothing that can be used.
        """
        patterns, extra = list(patterns), set(paths)
        usable = [
            path
            for path, module in self._modules.items()
            if kinds is None or path in extra or isinstance(module, kinds)
        ]
        chosen: set[str] = set()
        for pattern in patterns:
            matched = self.match_modules(pattern, argument=argument)
            fitting = matched & set(usable)
            if kinds and pattern in self._groups:
                within = {path for path in usable if any(inside(path, part) for part in matched - fitting)}
                fitting |= {path for path in within if not self._is_in_attention(path)}
            if matched and not fitting and not pattern.startswith("@"):
                path = min(matched, key=list(self._modules).index)
                raise UserError(
                    "nothing that the pattern matches can be used",
                    argument=argument,
                    received=f"{pattern} ({path} is a {type(self._modules[path]).__name__})",
                    expected=", ".join(kind.__name__ for kind in kinds or ()) or None,
                    fix=self._fix_for_module(path, usable),
                    family="pattern",
                )
            chosen |= fitting
        if patterns and not chosen:
            what, received = "this matches no module", ", ".join(patterns)
            choices, fix = list(filter(None, usable)), self._fix_for_labels(patterns, argument)
            raise UserError(what, argument=argument, received=received, choices=choices, fix=fix, family="pattern")
        return [path for path in self._modules if path in chosen]

    def match_modules(self, pattern: str, *, argument: str) -> set[str]:
        """Return the paths of the modules that one pattern or label stands for, as `match_parameters` does for names.

        Raises:
            UserError: A pattern matches nothing, or there is no such label.
        """
        if pattern.startswith("@"):
            return self._labelled_modules(pattern, argument)
        compiled = _compile(pattern, argument)
        matched = {path for path in self._modules if path and compiled.fits(path)}
        if not matched:
            choices = list(filter(None, self._modules))
            raise UserError(
                "the pattern matches no module", argument=argument, received=pattern, choices=choices, family="pattern"
            )
        return matched

    def check_ties(self, frozen: Iterable[str], trained: Iterable[str], *, keys: tuple[str, str]) -> None:
        """Refuse a tensor with several names of which one is to be frozen and another to be trained.

        Args:
            frozen: Patterns of what is frozen.
            trained: Patterns of what trains.
            keys: Configuration keys of both.

        Raises:
            UserError: There is one.
        """
        names_frozen, names_trained = self._match_all_names(frozen), self._match_all_names(trained)
        for first, names in self.aliases.items():
            rests, trains = names_frozen & set(names), names_trained & set(names)
            if len(names) > 1 and rests and trains and rests != set(names) and not rests & trains:
                raise UserError(
                    f"{' and '.join(names)} are one tensor, which cannot be frozen and trained at once",
                    key=f"{keys[0]} and {keys[1]}",
                    received=f"{sorted(rests)[0]} frozen, {sorted(trains)[0]} trained",
                    fix=f"name {first} in one of the two only",
                )

    def _match_all_names(self, patterns: Iterable[str]) -> set[str]:
        """Return the names, not only the first ones, that patterns and `@head` stand for."""
        names = [name for names in self.aliases.values() for name in names]
        matched: set[str] = set()
        for pattern in patterns:
            if pattern.startswith("@"):
                matched |= set(filter(self._is_in_head, names)) if pattern == "@head" else set()
            else:
                matched |= set(filter(Pattern(pattern).covers, names))
        return matched

    def _labelled_parameters(self, label: str, argument: str) -> set[str]:
        if label == "@tuned":
            return set(self.injected)
        if label in ("@head", "@body"):
            if self.head is None:
                raise UserError(
                    "the network has no output layer that can be found",
                    argument=argument,
                    received="@head",
                    choices=dict.fromkeys(filter(None, map(parent_of, self.aliases))),
                    fix="name it: finetune.head.name=PATH",
                )
            head = self._parameters_where(self._is_in_head)
            return head if label == "@head" else set(self.aliases) - head
        if label == "@norm":
            return self._parameters_where(lambda name: parent_of(name) in self.norms)
        if label == "@bias":
            return self._parameters_where(is_bias)
        if label in self._groups:
            paths = set(self._groups[label])
            return self._parameters_where(
                lambda name: not self._is_in_head(name) and any(inside(name, path) for path in paths)
            )
        if label in LAYER_LABELS:
            paths = self._labelled_modules(label, argument)
            return self._parameters_where(lambda name: any(inside(name, path) for path in paths))
        choices = [*PARAMETER_LABELS, *LAYER_LABELS, *self._groups]
        raise UserError("there is no such label", argument=argument, received=label, choices=choices, family="pattern")

    def _labelled_modules(self, label: str, argument: str) -> set[str]:
        if label in self._groups:
            return {path for path in self._groups[label] if not any(inside(part, path) for part in self._head_parts)}
        if label == "@head" and self.head is not None:
            bare = next((part for part in self._head_parts if part not in self._modules), None)
            if bare is not None:
                what = f"a part of the output layer is {bare}, a parameter that no layer holds alone"
                raise UserError(
                    what, argument=argument, received=label, expected="labels and patterns of modules", family="pattern"
                )
            return set(self._head_parts)
        if label not in LAYER_LABELS:
            choices = [*LAYER_LABELS, *self._groups, "@head"]
            what = "there is no such label of modules"
            raise UserError(what, argument=argument, received=label, choices=choices, family="pattern")
        return {
            path
            for path, module in self._modules.items()
            if isinstance(module, LAYER_LABELS[label])
            and path not in self._head_parts
            and not self._is_in_attention(path)
        }

    def _parameters_where(self, wanted: Callable[[str], bool]) -> set[str]:
        """Return the first names of the parameters of which any name is wanted."""
        return {first for first, names in self.aliases.items() if any(wanted(name) for name in names)}

    def _is_in_head(self, name: str) -> bool:
        return any(inside(name, part) for part in self._head_parts)

    def _is_in_attention(self, path: str) -> bool:
        """Tell whether a module belongs to one that is adapted as a whole."""
        return isinstance(self._modules.get(parent_of(path)), nn.MultiheadAttention)

    def _fix_for_module(self, path: str, usable: Iterable[str]) -> str | None:
        """Say what to do about a module that cannot be used."""
        if isinstance(self._modules[path], nn.RNNBase):
            return f"a recurrent layer runs as one operation, which takes nothing in: finetune.train=[{path}] trains it"
        return f"name what is in it: {path}.*" if any(inside(name, path) for name in usable) else None

    def _fix_for_labels(self, patterns: Collection[str], argument: str) -> str | None:
        """Say what to do about a label that no module has, where naming one of the choices is not all."""
        other = "is found in this network: name modules of it, or take another way, such as finetune=lora"
        if argument.startswith("lora"):
            return None
        if "@attention" not in patterns:
            return f"no block {other}" if "@blocks" in patterns else None
        unknown = None
        for path, module in self._modules.items():
            layers = [child for child in module.children() if isinstance(child, LAYER_LABELS["@linear"])]
            if len(layers) > 1 and is_attention(path.rpartition(".")[2], module):  # with one layer, a part around one
                unknown = path
                break
        if unknown is None:
            return f"no attention {other}"
        kind = type(self._modules[unknown]).__name__
        if argument.startswith("adapter"):
            return f"@attention does not stand for a {kind}, which can be named: {unknown}"
        return f"another way, such as finetune=lora: {unknown} is a {kind}, and prefixes know {KNOWN}"


def _compile(pattern: str, argument: str) -> Pattern:
    """Return a pattern that can be asked what it fits.

    Raises:
        UserError: Its regular expression does not compile.
    """
    try:
        return Pattern(pattern)
    except UserError as error:
        raise UserError(error.what, argument=argument, received=pattern, family="pattern") from error
