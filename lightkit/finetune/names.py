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
| `@tuned` | those that LoRA, adapters and prefixes brought in |

| label | modules |
| --- | --- |
| `@linear`, `@conv`, `@embedding` | layers of that kind, but for the head and for those inside of an attention |
| `@attention` | attentions that prefixes and LoRA know |
| `@blocks` | repeated blocks; none that is, or holds, the output layer |

Where parameters are chosen, a label of modules stands for those in them. A block that holds the output layer then
counts as well, without that layer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from torch import nn

from lightkit.common.errors import UserError
from lightkit.common.modules import TransposedLinear, inside, is_bias, is_norm, parameter_aliases, parent_of
from lightkit.common.patterns import Pattern
from lightkit.finetune.peft.attention import KNOWN
from lightkit.finetune.peft.blocks import is_attention

PARAMETER_LABELS = ("@head", "@body", "@norm", "@bias", "@tuned")
KINDS: dict[str, tuple[type[nn.Module], ...]] = {
    "@linear": (nn.Linear, TransposedLinear),
    "@conv": (nn.Conv1d, nn.Conv2d, nn.Conv3d),
    "@embedding": (nn.Embedding,),
}


class Names:
    """Names of a network's parameters and modules, as they are when this is made.

    Args:
        model: The network, before anything is injected.
        head: Path of its output layer, or name of a parameter that is one; None where it has none.
        beside: Names of further parameters of the output layer.
        groups: Further labels of modules, such as `@blocks`, with the paths they stand for.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        head: str | None,
        beside: Collection[str] = (),
        groups: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.head, self._beside = head, frozenset(beside)
        self.aliases = parameter_aliases(model)
        self.tuned: list[str] = []
        self._modules = dict(model.named_modules())
        self._groups = dict(groups or {})
        self.norms = frozenset(path for path, module in self._modules.items() if is_norm(module))

    def module(self, path: str) -> nn.Module:
        """The module at a path."""
        return self._modules[path]

    def group(self, label: str) -> Sequence[str]:
        """The paths that one of the further labels stands for."""
        return self._groups.get(label, ())

    def parameters(self, patterns: Iterable[str], *, key: str) -> list[str]:
        """First names of the parameters that patterns stand for, in the order of the network.

        Args:
            patterns: Patterns and labels.
            key: Configuration key that holds them, for errors.

        Raises:
            UserError: A pattern matches nothing, labels alone match nothing, or there is no such label.
        """
        patterns = list(patterns)
        found = set().union(*(self.covered(pattern, key=key) for pattern in patterns))
        if patterns and not found and patterns != ["@tuned"]:
            raise UserError("this matches no parameter", key=key, received=", ".join(patterns))
        return [name for name in (*self.aliases, *self.tuned) if name in found]

    def covered(self, pattern: str, *, key: str) -> set[str]:
        """First names of the parameters that one pattern or label stands for; a label may stand for none here.

        Raises:
            UserError: A pattern matches nothing, or there is no such label.
        """
        return self._labelled(pattern, key) if pattern.startswith("@") else self._matched(pattern, key)

    def paths(self, pattern: str, *, key: str) -> set[str]:
        """Paths of the modules that one pattern or label stands for; a label may stand for none here.

        Raises:
            UserError: A pattern matches nothing, or there is no such label.
        """
        return self._module_label(pattern, key) if pattern.startswith("@") else self._module_hits(pattern, key)

    def modules(
        self,
        patterns: Iterable[str],
        *,
        key: str,
        kinds: tuple[type[nn.Module], ...] | None = None,
        paths: Iterable[str] = (),
    ) -> list[str]:
        """Paths of the modules that patterns stand for, in the order of the network.

        Args:
            patterns: Patterns and labels.
            key: Configuration key that holds them, for errors.
            kinds: Classes that can be used; of what a pattern matches the others are left out, and of the parts that
                `@attention` and `@blocks` stand for, what is in them is taken. None takes any module.
            paths: Modules that can be used although they are of another class.

        Raises:
            UserError: A pattern matches nothing, or nothing that can be used.
        """
        found: set[str] = set()
        patterns, special = list(patterns), set(paths)

        def usable(path: str) -> bool:
            return kinds is None or path in special or isinstance(self._modules[path], kinds)

        for pattern in patterns:
            hits = self.paths(pattern, key=key)
            fitting = {path for path in hits if usable(path)}
            if kinds and pattern in self._groups:
                within = {path for path in self._usable(usable) for hit in hits - fitting if inside(path, hit)}
                fitting |= {path for path in within if not self._in_attention(path)}
            if hits and not fitting and not pattern.startswith("@"):
                raise self._unusable(pattern, hits, key, kinds or (), self._usable(usable))
            found |= fitting
        if patterns and not found:
            raise UserError(
                "this matches no module",
                key=key,
                received=", ".join(patterns),
                choices=self._usable(usable),
                fix=self._instead(patterns, key),
            )
        return [path for path in self._modules if path in found]

    def split_ties(self, apart: Iterable[str], together: Iterable[str], *, keys: tuple[str, str]) -> None:
        """Refuse a tensor with several names of which one is to be frozen and another to be trained.

        Args:
            apart: Patterns of what is frozen.
            together: Patterns of what trains.
            keys: Configuration keys of both.

        Raises:
            UserError: There is one.
        """
        frozen, trained = self._aliases_hit(apart), self._aliases_hit(together)
        for first, names in self.aliases.items():
            hit, wanted = frozen & set(names), trained & set(names)
            if len(names) > 1 and hit and wanted and hit != set(names) and not hit & wanted:
                raise UserError(
                    f"{' and '.join(names)} are one tensor, which cannot be frozen and trained at once",
                    key=f"{keys[0]} and {keys[1]}",
                    received=f"{sorted(hit)[0]} frozen, {sorted(wanted)[0]} trained",
                    fix=f"name {first} in one of the two only",
                )

    def _aliases_hit(self, patterns: Iterable[str]) -> set[str]:
        pool = [name for names in self.aliases.values() for name in names]
        found: set[str] = set()
        for pattern in patterns:
            if pattern.startswith("@"):
                found |= set(filter(self._of_head, pool)) if pattern == "@head" else set()
            else:
                found |= set(filter(Pattern(pattern).covers, pool))
        return found

    def _labelled(self, label: str, key: str) -> set[str]:
        if label == "@tuned":
            return set(self.tuned)
        if label in ("@head", "@body"):
            head = self._head_parameters(key)
            return head if label == "@head" else set(self.aliases) - head
        if label == "@norm":
            return self._where(lambda name: parent_of(name) in self.norms)
        if label == "@bias":
            return self._where(is_bias)
        if label in self._groups:
            paths = set(self._groups[label])
            return self._where(lambda name: not self._of_head(name) and any(inside(name, path) for path in paths))
        if label in KINDS:
            paths = self._module_label(label, key)
            return self._where(lambda name: any(inside(name, path) for path in paths))
        choices = [*PARAMETER_LABELS, *KINDS, *self._groups]
        raise UserError("there is no such label", key=key, received=label, choices=choices)

    def _head_parameters(self, key: str) -> set[str]:
        if self.head is None:
            raise UserError(
                "the network has no output layer that can be found",
                key=key,
                received="@head",
                choices=dict.fromkeys(filter(None, map(parent_of, self.aliases))),
                fix="name it: finetune.head.name=PATH",
            )
        return self._where(self._of_head)

    def _of_head(self, name: str) -> bool:
        return self.head is not None and (inside(name, self.head) or name in self._beside)

    def _where(self, wanted) -> set[str]:  # type: ignore[no-untyped-def]
        return {first for first, names in self.aliases.items() if any(wanted(name) for name in names)}

    def _matched(self, pattern: str, key: str) -> set[str]:
        found = self._where(Pattern(pattern, key=key).covers)
        if not found:
            raise UserError(
                "the pattern matches no parameter",
                key=key,
                received=pattern,
                choices=[*(name for names in self.aliases.values() for name in names), *filter(None, self._modules)],
                fix="a glob over whole names (`layer4.*`), `re:` and a regular expression, or a label such as @head",
            )
        return found

    def _module_label(self, label: str, key: str) -> set[str]:
        if label in self._groups:
            return {path for path in self._groups[label] if self.head is None or not inside(self.head, path)}
        if label == "@head" and self.head is not None:
            if self.head not in self._modules:
                what = f"the output layer is {self.head}, a parameter that no layer holds alone"
                raise UserError(what, key=key, received=label, expected="labels and patterns of modules")
            return {self.head}
        if label not in KINDS:
            choices = [*KINDS, *self._groups, "@head"]
            raise UserError("there is no such label of modules", key=key, received=label, choices=choices)
        return {
            path
            for path, module in self._modules.items()
            if isinstance(module, KINDS[label]) and path != self.head and not self._in_attention(path)
        }

    def _in_attention(self, path: str) -> bool:
        """Whether a module belongs to one that is adapted as a whole."""
        return isinstance(self._modules.get(parent_of(path)), nn.MultiheadAttention)

    def _module_hits(self, pattern: str, key: str) -> set[str]:
        wanted = Pattern(pattern, key=key)
        found = {path for path in self._modules if path and wanted.fits(path)}
        if not found:
            choices = list(filter(None, self._modules))
            raise UserError("the pattern matches no module", key=key, received=pattern, choices=choices)
        return found

    def _unusable(
        self, pattern: str, hits: set[str], key: str, kinds: tuple[type[nn.Module], ...], usable: Iterable[str]
    ) -> UserError:
        path = min(hits, key=list(self._modules).index)
        holds = any(inside(name, path) for name in usable)
        return UserError(
            "nothing that the pattern matches can be used",
            key=key,
            received=f"{pattern} ({path} is a {type(self._modules[path]).__name__})",
            expected=", ".join(kind.__name__ for kind in kinds) or None,
            fix=f"name what is in it: {path}.*" if holds else None,
        )

    def _instead(self, patterns: Collection[str], key: str) -> str | None:
        """What to do about a label that no module has, where naming one of the choices is not all."""
        other = "is found in this network: name modules of it, or take another way, such as finetune=lora"
        if key.startswith("finetune.lora"):
            return None
        if "@attention" not in patterns:
            return f"no block {other}" if "@blocks" in patterns else None
        unknown = next(filter(self._attends, self._modules), None)
        if unknown is None:
            return f"no attention {other}"
        kind = type(self._modules[unknown]).__name__
        if key.startswith("finetune.adapter"):
            return f"@attention does not stand for a {kind}, which can be named: {unknown}"
        return f"another way, such as finetune=lora: {unknown} is a {kind}, and prefixes know {KNOWN}"

    def _attends(self, path: str) -> bool:
        """Whether a module is an attention of any kind, and no part around one."""
        module = self._modules[path]
        layers = [child for child in module.children() if isinstance(child, KINDS["@linear"])]
        return len(layers) > 1 and is_attention(path.rpartition(".")[2], module)

    def _usable(self, usable) -> list[str]:  # type: ignore[no-untyped-def]
        return [path for path in self._modules if path and usable(path)]
