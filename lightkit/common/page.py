"""Pages of HTML, each in one file that needs nothing else: they look alike, and nothing in them is fetched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def render(template: Path, **values: Any) -> str:
    """Return a page; text in it is escaped, unless the template says otherwise.

    Args:
        template: A template of jinja2 that extends `shell.html`, which lies beside this module.
        **values: What stands in it, among it `title`.
    """
    from jinja2 import Environment, FileSystemLoader  # takes its time, and few commands make a page

    places = FileSystemLoader([template.parent, Path(__file__).parent])
    text: str = Environment(loader=places, autoescape=True).get_template(template.name).render(values)
    return text


def embedded(content: Any) -> str:
    """Return plain values as JSON that may stand in an element of HTML, and cannot end it."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text
