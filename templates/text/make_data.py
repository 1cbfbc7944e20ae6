"""Write the text that this project begins with, of Python's help. Once data/text.txt is your own, delete this file."""

from pathlib import Path
from pydoc_data.topics import topics

folder = Path(__file__).parent / "data"
folder.mkdir(exist_ok=True)
text = "\n\n".join(topics[name] for name in sorted(topics))
(folder / "text.txt").write_text(text[:200_000], encoding="utf-8")
