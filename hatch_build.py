"""The description of the package for the page of an index: README.md with links that work there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
_PICTURE = re.compile(r"!\[([^\]]*)\]\((?!https?:)([^)]+)\)\n*")
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:)([^)]+)\)")


def description(text: str, repository: str, version: str) -> str:
    """Write README.md for another place, to which none of its files comes along.

    Args:
        text: README.md.
        repository: Address of the repository, such as `https://github.com/NAME/lightkit`. Empty where it has none:
            links become plain text, and pictures are left out.
        version: The version, whose tag the links lead to.
    """
    text = _COMMENT.sub("", text)
    if not repository:
        return _LINK.sub(r"\1", _PICTURE.sub("", text))
    text = _PICTURE.sub(rf"![\1]({repository}/raw/v{version}/\2)\n\n", text)
    return _LINK.sub(rf"[\1]({repository}/blob/v{version}/\2)", text)


class IndexPage(MetadataHookInterface):
    """Fills in `readme` and `urls` of the project."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add what pyproject.toml calls dynamic."""
        repository = str(self.config.get("repository", "")).rstrip("/")
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        page = description(text, repository, str(metadata["version"]))
        metadata["readme"] = {"content-type": "text/markdown", "text": page}
        metadata["urls"] = {"Source": repository} if repository else {}
