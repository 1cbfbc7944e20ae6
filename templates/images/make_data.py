"""Draw the pictures that this project begins with. Once data/images/ is your own, delete this file."""

import random
from pathlib import Path

from PIL import Image, ImageDraw

SIZE, EACH = 32, 60
KINDS = ("circle", "square", "triangle")

generator = random.Random(0)
for kind in KINDS:
    folder = Path(__file__).parent / "data" / "images" / kind
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(EACH):
        back, front = ([generator.randrange(low, low + 100) for _ in range(3)] for low in (0, 155))
        image = Image.new("RGB", (SIZE, SIZE), tuple(back))
        radius = generator.randrange(6, 12)
        x, y = (generator.randrange(radius, SIZE - radius) for _ in range(2))
        box, pen = (x - radius, y - radius, x + radius, y + radius), ImageDraw.Draw(image)
        if kind == "circle":
            pen.ellipse(box, fill=tuple(front))
        elif kind == "square":
            pen.rectangle(box, fill=tuple(front))
        else:
            pen.polygon([(x, y - radius), (x + radius, y + radius), (x - radius, y + radius)], fill=tuple(front))
        image.save(folder / f"{number:03d}.png")
